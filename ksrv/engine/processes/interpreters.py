"""The Python interpreters of handler processes: the server's, or one that a model names; their variables.

A model's interpreter has other packages. It needs no ksrv: if it is of the server's Python version, the process imports
ksrv from the server (`child.bootstrap`). Compiled modules fit one version of Python, so for another version ksrv is
built once from the server's sources into a cache folder, together with the packages it needs. That is not necessary if
the interpreter has the server's release of ksrv.

Before a process is started in an interpreter, a test program asks the interpreter for its version and packages.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import copyfile, rmtree, which
from typing import Any, NamedTuple

import ksrv
from ksrv.engine.processes.child import bootstrap
from ksrv.errors import HandlerFailed, quote
from ksrv.installation import SHIPPED, SOURCES, sources_beside, with_ksrv

PROBE_TIMEOUT_S = 60.0
BUILD_TIMEOUT_S = 1800.0

PROGRAM = "ksrv.engine.processes.child.program"
LENT_PACKAGES = {
    "msgspec": "msgspec",
    "orjson": "orjson",
    "typing_extensions": "typing_extensions",
    "numpy": "numpy",
    "yaml": "PyYAML",
}
"""The packages that ksrv needs in a handler process, and their names in an index; the interpreter's are preferred."""
OLDEST_PYTHON = (3, 11)
"""The oldest Python that ksrv runs on."""

_PROBE = """
import json, sys, sysconfig
own = ""
if sys.version_info >= (3, 8):
    import importlib.metadata
    try:
        own = importlib.metadata.version("ksrv")
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": list(sys.version_info[:3]), "abi": sysconfig.get_config_var("SOABI"), "ksrv": own}))
"""


class Interpreter(NamedTuple):
    """An interpreter that handler processes are started in.

    Attributes:
        program: The arguments that start a handler process, before the process's arguments.
        is_servers: Whether it is the server's interpreter.
    """

    program: list[str]
    is_servers: bool


SERVERS = Interpreter([sys.executable, "-P", "-m", PROGRAM], True)


def interpreter_for(python: str, folder: Path) -> Interpreter:
    """Return the interpreter of a model's processes.

    Args:
        python: The setting `python`, relative to `folder`; "" for the server's.

    Raises:
        HandlerFailed: The interpreter cannot be used.
    """
    return _usable(_interpreter_in(folder / python)) if python else SERVERS


# ---- an interpreter that is there -----------------------------------------------------------


def _interpreter_in(path: Path) -> Path:
    """Return the interpreter that a path names: itself, that of its folder, or that of an archive."""
    if path.is_dir():
        path = path / "bin" / "python"
    if not path.exists():
        raise HandlerFailed(
            f"the interpreter {path} of `python` does not exist; correct the path, or make an environment there "
            f"(python -m venv)"
        )
    if path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return _unpacked(path)
    return path


def _usable(path: Path) -> Interpreter:
    """Return the interpreter at a path, once it has told what it is."""
    told = _ask(path)
    if told["abi"] == sysconfig.get_config_var("SOABI"):
        lent = _lent_packages()
    elif told["ksrv"] == ksrv.__version__:
        return Interpreter([str(path), "-P", "-m", PROGRAM], False)
    else:
        lent = _built_packages(path, told)
    return Interpreter([str(path), bootstrap.__file__, *lent, "--"], False)


def _ask(path: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [str(path), "-I", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
        told = json.loads(done.stdout) if done.returncode == 0 else None
    except subprocess.TimeoutExpired:
        raise HandlerFailed(
            f"the interpreter {path} did not answer within {PROBE_TIMEOUT_S:g} s"
        ) from None
    except OSError as error:
        raise HandlerFailed(
            f"the interpreter {path} cannot be started: {error.strerror}"
        ) from error
    except ValueError:
        told = None
    if not isinstance(told, dict) or told.keys() != {"python", "abi", "ksrv"}:
        said = _last_line(done.stderr or done.stdout)
        raise HandlerFailed(
            f"{path} is no Python interpreter that can be used: it ended with exit status {done.returncode}"
            + (f" and said {quote(said)}" if said else "")
        )
    return told


def _lent_packages() -> list[str]:
    """Return where the server has ksrv and what that needs, as `bootstrap` takes it."""
    places = [f"ksrv={_PACKAGE.parent}"]
    for name in LENT_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            up = 1 if spec.submodule_search_locations is None else 2
            places.append(f"{name}={Path(spec.origin).parents[up - 1]}")
    return places


# ---- ksrv for another version of Python -----------------------------------------------------

_PACKAGE = Path(ksrv.__file__).resolve().parent


def _built_packages(path: Path, told: Mapping[str, Any]) -> list[str]:
    """Return where ksrv and what it needs are for an interpreter of another version, built first if they are not there.

    Raises:
        HandlerFailed: They cannot be built.
    """
    number = ".".join(map(str, told["python"]))
    found = (
        f"the interpreter {path} is Python {number}, and the server's is {sys.version.split()[0]}"
    )
    if tuple(told["python"]) < OLDEST_PYTHON:
        raise HandlerFailed(
            f"{found}; ksrv needs Python {'.'.join(map(str, OLDEST_PYTHON))} or later: name a later interpreter"
        )
    key = hashlib.sha256(f"{told['abi']} {_sources_digest()}".encode()).hexdigest()[:32]

    def build(place: Path, lock: int) -> None:
        copy_sources(place / "source")
        command = [*_installer(path), "--target", str(place), "--no-deps"]
        _run([*command, *LENT_PACKAGES.values(), str(place / "source")], f"ksrv for {path}", lock)
        rmtree(place / "source")

    try:
        place = _built(key, build)
    except HandlerFailed as error:
        raise HandlerFailed(
            f"{found}, whose compiled modules do not fit it: {error.message}. Such a build needs g++, the headers of that "
            f"Python and an index with Cython; or install the server's release there ({path} -m pip install "
            f"ksrv-{ksrv.__version__}-*.whl), or use Python {sys.version_info[0]}.{sys.version_info[1]}"
        ) from error
    return [f"{name}={place}" for name in ("ksrv", *LENT_PACKAGES)]


def _source_files() -> Iterator[tuple[Path, str]]:
    """Return the files that ksrv is built from, each with its path in a source folder."""
    beside = sources_beside(_PACKAGE)
    roots = [(_PACKAGE, _PACKAGE.parent), *((beside / name, beside) for name in SOURCES)]
    for root, home in roots:
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            name = file.relative_to(home)
            built = {"__pycache__", SHIPPED} & set(name.parts) or file.suffix in (".so", ".pyi")
            if file.is_file() and not built:
                yield file, str(name)


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for file, name in _source_files():
        digest.update(f"{name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def copy_sources(to: Path) -> None:
    """Make a source folder of ksrv: a build writes into it."""
    for file, name in _source_files():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        copyfile(file, to / name)


# ---- folders that are built once ------------------------------------------------------------


def _installer(python: Path) -> list[str]:
    """Return the command that installs packages for an interpreter: uv if it is installed, else the server's pip."""
    uv = which("uv")
    if uv is not None:
        return [uv, "pip", "install", "--python", str(python)]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    return [*pip, "--no-input", "--disable-pip-version-check"]


def _unpacked(archive: Path) -> Path:
    """Return the interpreter in an archive of an environment, as `conda-pack` makes one."""
    digest = hashlib.sha256()
    with archive.open("rb") as opened:
        while piece := opened.read(1 << 20):
            digest.update(piece)

    def build(place: Path, lock: int) -> None:
        place.mkdir()
        _run(
            ["tar", "-xf", str(archive), "-C", str(place), "--no-same-owner"],
            f"the environment of {archive}",
            lock,
        )

    path = _built(digest.hexdigest()[:32], build) / "bin/python"
    if not path.exists():
        raise HandlerFailed(
            f"the archive {archive} has no bin/python; pack an environment of conda or venv"
        )
    return path


def _built(key: str, build: Callable[[Path, int], None]) -> Path:
    """Return a folder of the cache, built first unless that was done.

    Args:
        build: Builds the folder; the programs that it runs hold the lock, as `_run` takes it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ksrv/environments"
    place, whole = cache / key, cache / f"{key}.whole"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{key}.lock").open("ab") as lock:
            # Keep other processes, and other threads, from building the same folder.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                rmtree(place, ignore_errors=True)  # of a build that was broken off
                build(place, lock.fileno())
                whole.touch()
    except OSError as error:
        raise HandlerFailed(
            f"no interpreter can be prepared in {cache}: {error.strerror}; set XDG_CACHE_HOME to a folder "
            f"that can be written"
        ) from error
    return place


def _run(command: list[str], made: str, lock: int) -> None:
    """Run a program of a build.

    Args:
        made: The thing that is built, for the error message.
        lock: The descriptor of the locked file. The program has it too, because it outlives a worker that is killed,
            and nobody else may build in its folder meanwhile.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_TIMEOUT_S,
            check=False,
            pass_fds=(lock,),
            env=os.environ
            | {"UV_NO_WRAP": "1"},  # the last line of the output becomes the error message
        )
    except subprocess.TimeoutExpired:
        raise HandlerFailed(f"{made} was not built within {BUILD_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise HandlerFailed(
            f"{made} cannot be built: {Path(command[0]).name} ended with exit status "
            f"{done.returncode}: {_last_line(done.stdout)}"
        )


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


# ---- what a process is started with -----------------------------------------------------------

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
"""Variables that OpenMP (and torch), MKL, OpenBLAS, numexpr, Accelerate and OpenCV read when loaded."""


def handler_environment(
    inherited: Mapping[str, str], own: Mapping[str, str], threads: int, *, finds_ksrv: bool = True
) -> dict[str, str]:
    """Return the environment to start a handler process with.

    Args:
        own: The variables that the model's settings give; they win over all others.
        threads: CPU threads of one instance, or 0 to leave the libraries to themselves.
        finds_ksrv: Whether `PYTHONPATH` has to find the ksrv that this process runs.

    Returns:
        The environment. `PYTHONPATH` finds the ksrv that this process runs from any working
        directory, after what was inherited.
    """
    environment = dict(inherited)
    if threads > 0:
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment |= own
    if finds_ksrv:
        environment["PYTHONPATH"] = with_ksrv(environment.get("PYTHONPATH", ""))
    return environment
