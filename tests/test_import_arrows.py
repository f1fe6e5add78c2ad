"""Imports run one way, as CONTRIBUTING.md says: a package may import only packages below it."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "ksrv"

FOUNDATION = {
    "descriptions",
    "errors",
    "installation",
    "limits",
    "machine",
    "model",
    "request",
    "statistics",
    "torch_interop",
    "_native",
}
ARROWS = {
    "_native": {"installation"},
    "descriptions": set(),
    "errors": set(),
    "installation": set(),
    "limits": set(),
    "machine": set(),
    "model": {"_native"},
    "request": {"errors", "_native"},
    "statistics": {"descriptions", "_native"},
    "torch_interop": set(),
    "client": {"protocol", "model", "_native"},
    "protocol": FOUNDATION,
    "loaders": FOUNDATION,
    "images": FOUNDATION,
    "handlers": FOUNDATION | {"loaders", "images"},
    "dialects": FOUNDATION
    | {
        "protocol",
        "engine",
        "repository",
        "handlers",
        "observe",
        "images",
        "loaders",
        "server",
        "shadow",
    },
    "records": FOUNDATION,
    "shadow": FOUNDATION | {"client", "protocol", "records"},
    "repository": FOUNDATION,
    "observe": FOUNDATION | {"protocol"},
    "engine": FOUNDATION
    | {"handlers", "loaders", "records", "repository", "observe", "images", "shadow"},
    "server": FOUNDATION
    | {"protocol", "engine", "repository", "handlers", "observe", "dialects", "images", "client"},
    "bench": FOUNDATION | {"cli", "client", "records", "shadow", "testing"},
    "doctor": FOUNDATION | {"engine", "images", "server"},
    "pull": {"cli", "errors"},
    "ray": {"server"},
    "cli": FOUNDATION
    | {
        "dialects",
        "doctor",
        "ray",
        "testing",
        "images",
        "server",
        "engine",
        "repository",
        "handlers",
    },
    "testing": FOUNDATION
    | {"dialects", "server", "repository", "handlers", "protocol", "engine", "client"},
    "notebook": {"server", "testing", "client"},
    "__main__": {"cli"},
    "__init__": {"errors", "handlers", "notebook", "installation"},
}


@cache  # parsing every file takes seconds
def imported_modules(path: Path) -> set[str]:
    """The modules of ksrv that a file imports anywhere, those for type checkers included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name for name in names if name.startswith("ksrv.")}
    return found


def imported_packages(path: Path) -> set[str]:
    found = {name.split(".")[1] for name in imported_modules(path)}
    return {name for name in found if not name.startswith("__")}


def module_graph() -> dict[str, set[str]]:
    """The modules of ksrv, each with the modules that it imports."""
    files = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for module, path in files.items():
        named = imported_modules(path)
        targets = {name if name in files else name.rpartition(".")[0] for name in named}
        graph[module] = targets & files.keys() - {module}
    return graph


@pytest.mark.parametrize("package", sorted(ARROWS))
def test_package_imports_only_lower_packages(package):
    single = ROOT / f"{package}.py"
    files = [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))
    for path in files:
        beyond = imported_packages(path) - ARROWS[package] - {package}
        assert not beyond, f"{path.relative_to(ROOT.parent)} imports {sorted(beyond)}"


def test_no_modules_import_in_a_circle():
    try:
        list(TopologicalSorter(module_graph()).static_order())
    except CycleError as error:
        pytest.fail(f"modules import in a circle: {' -> '.join(error.args[1])}")


def parts_graph(package: str) -> dict[str, set[str]]:
    """The folders and files at the top of a package, each with the parts that it imports."""
    prefix = f"ksrv.{package}."
    graph: dict[str, set[str]] = {}
    for module, imported in module_graph().items():
        if module.startswith(prefix):
            part = module.removeprefix(prefix).split(".")[0]
            named = {name.removeprefix(prefix) for name in imported if name.startswith(prefix)}
            graph.setdefault(part, set()).update({name.split(".")[0] for name in named} - {part})
    return graph


PACKAGES = [
    path.parent for path in (*ROOT.glob("*/__init__.py"), *ROOT.glob("dialects/*/__init__.py"))
]


@pytest.mark.parametrize(
    "package", sorted(".".join(path.relative_to(ROOT).parts) for path in PACKAGES)
)
def test_no_folders_of_a_package_import_in_a_circle(package):
    try:
        list(TopologicalSorter(parts_graph(package)).static_order())
    except CycleError as error:
        pytest.fail(f"folders of ksrv.{package} import in a circle: {' -> '.join(error.args[1])}")


def test_the_core_imports_no_dialect():
    """The core knows the registry and the interface; everything else is given what the registry lists."""
    known = {
        name
        for module, imported in module_graph().items()
        if not module.startswith("ksrv.dialects")
        for name in imported
        if name.startswith("ksrv.dialects")
    }
    assert known == {"ksrv.dialects.registry", "ksrv.dialects.dialect"}


def test_every_package_has_its_arrows():
    present = {
        path.stem
        for path in ROOT.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert present <= set(ARROWS)


@pytest.mark.parametrize("code", ["import ksrv", "main(['--help'], standalone_mode=False)"])
def test_import_and_help_load_little(code):
    heavy = (
        "torch",
        "grpc",
        "cv2",
        "numpy",
        "ksrv.handlers",
        "ksrv.dialects.dialect",
        "ksrv.engine",
    )
    program = f"""
import sys
if {code.startswith("main")}:
    from ksrv.cli.main import main
{code}
assert "ksrv" in sys.modules
assert not set({heavy}) & set(sys.modules), set({heavy}) & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_options_of_serve_load_no_dialect_and_no_numpy():
    code = (
        "import sys; import ksrv.cli.serve;"
        "bad = {'numpy', 'falcon', 'ksrv.handlers', 'ksrv.dialects.dialect'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_client_loads_no_part_of_the_server():
    code = (
        "import sys; import ksrv.client;"
        "ours = {name for name in sys.modules if name.startswith('ksrv.')};"
        "beside = {name for name in ours if not name.startswith('ksrv.client')};"
        "beside = {name for name in beside if not name.startswith(('ksrv.model', 'ksrv._native', 'ksrv.installation'))};"
        "assert beside <= {'ksrv.protocol', 'ksrv.protocol.protobuf'}, beside;"
        "bad = {'grpc', 'google.protobuf', 'msgspec', 'click', 'cv2'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
