"""The commit of a checkout."""

import subprocess
from pathlib import Path


def commit(checkout: Path) -> str:
    """Return the commit of a checkout; empty if unknown."""
    if (checkout / ".git").exists():
        asked = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    told = checkout.with_name(f"{checkout.name}.commit")
    return told.read_text().strip() if told.exists() else ""
