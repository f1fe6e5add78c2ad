"""Certificates for tests, made by openssl."""

import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def self_signed(
    folder: Path,
    name: str = "server",
    *,
    days: int = 1,
    expired: bool = False,
    addresses: Iterable[str] = ("127.0.0.1",),
    extensions: Iterable[str] = (),
) -> Any:
    """Make a key and a self-signed certificate; return their paths.

    Args:
        extensions: Further extensions, as openssl's option -addext takes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ",".join(f"IP:{address}" for address in addresses)
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
         "-days", str(days), "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}",
         *(word for extension in extensions for word in ("-addext", extension))],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    if expired:
        subprocess.run(
            ["openssl", "x509", "-in", cert, "-signkey", key, "-days", "-1", "-out", cert],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    return key, cert


def short_lived(folder: Path, *, seconds: int) -> Any:
    """Make a key and a self-signed certificate that expires in so many seconds; return their paths."""
    key, cert = self_signed(folder, "short-lived")
    end = datetime.now(UTC) + timedelta(seconds=seconds)
    rules = folder / "ca.conf"
    (folder / "index.txt").touch()
    rules.write_text(
        f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index.txt\nnew_certs_dir={folder}\n"
        "default_md=sha256\nrand_serial=yes\npolicy=any\nx509_extensions=authority\n"
        "[any]\ncommonName=supplied\n[authority]\nbasicConstraints=CA:true\n"
    )
    request = folder / "request.pem"
    for command in (
        ["openssl", "req", "-new", "-key", key, "-subj", "/CN=short-lived", "-out", request],
        ["openssl", "ca", "-batch", "-notext", "-config", rules, "-in", request, "-selfsign", "-keyfile", key,
         "-enddate", f"{end:%Y%m%d%H%M%SZ}", "-out", cert],
    ):  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return key, cert
