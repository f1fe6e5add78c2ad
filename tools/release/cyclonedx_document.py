"""The frame of the CycloneDX documents of a release: the bill of materials in a wheel, and the VEX document."""

import uuid
from datetime import UTC, datetime
from typing import Any


def document(content: str, seconds: int, release: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """Return a document.

    Args:
        content: Makes the serial number: the same content has the same number.
        seconds: The time of the release, since 1970.
        release: The component that the document is about.
        parts: The lists of the document.
    """
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, content).urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
            "component": {"type": "application"} | release,
        },
        **parts,
    }
