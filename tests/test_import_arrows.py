"""Imports run one way, as CONTRIBUTING.md says: a package may import only what stands below it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "ksrv"

FOUNDATION = {"errors", "limits", "request", "source", "spec", "statistics", "_native"}
ARROWS = {
    "_native": set(),
    "errors": set(),
    "limits": set(),
    "spec": set(),
    "request": {"errors", "_native"},
    "source": {"spec"},
    "statistics": {"_native"},
    "client": set(),
    "protocol": FOUNDATION,
    "loaders": FOUNDATION,
    "images": FOUNDATION,
    "handlers": FOUNDATION | {"loaders"},
    "torchserve": FOUNDATION | {"handlers", "loaders", "images"},
    "repository": FOUNDATION | {"handlers", "loaders", "torchserve"},
    "observe": FOUNDATION,
    "engine": FOUNDATION | {"handlers", "loaders", "repository", "observe", "images"},
    "server": FOUNDATION
    | {"protocol", "engine", "repository", "handlers", "observe", "torchserve", "images"},
    "cli": FOUNDATION
    | {"client", "images", "server", "engine", "repository", "torchserve", "handlers"},
    "testing": FOUNDATION | {"server", "cli", "repository", "handlers", "protocol"},
    "__main__": {"cli"},
    "__init__": {"errors", "handlers"},
}


def imported_packages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("ksrv.")}
    return {name for name in found if not name.startswith("__")}


@pytest.mark.parametrize("package", sorted(ARROWS))
def test_package_imports_only_what_stands_below_it(package):
    single = ROOT / f"{package}.py"
    files = [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))
    for path in files:
        beyond = imported_packages(path) - ARROWS[package] - {package}
        assert not beyond, f"{path.relative_to(ROOT.parent)} imports {sorted(beyond)}"


def test_every_package_has_its_arrows():
    present = {
        path.stem
        for path in ROOT.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert present <= set(ARROWS)


def test_import_is_light():
    code = (
        "import sys; import ksrv;"
        "bad = {'torch', 'grpc', 'cv2'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_client_loads_no_part_of_the_server():
    code = (
        "import sys; import ksrv.client;"
        "ours = {name for name in sys.modules if name.startswith('ksrv.')};"
        "assert all(name.startswith('ksrv.client') for name in ours), ours;"
        "bad = {'grpc', 'google.protobuf', 'msgspec', 'click', 'cv2'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
