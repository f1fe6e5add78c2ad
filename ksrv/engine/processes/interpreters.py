"""Chooses the Python interpreter of a model's handler processes, and makes their environment variables.

By default it is the server's interpreter. A model can name another, which has other packages (`python` in model.yaml).
If that has the server's Python version, ksrv need not be installed there: the process imports ksrv from the server
(`child.bootstrap`). Compiled modules fit one version of Python, so an interpreter of another version needs the server's
release of ksrv.

Before a process is started in an interpreter, a test program asks the interpreter for its version and packages.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import ksrv
from ksrv.engine.processes.child import bootstrap
from ksrv.errors import HandlerFailed, quote
from ksrv.installation import with_ksrv

PROBE_TIMEOUT_S = 60.0

PROGRAM = "ksrv.engine.processes.child.program"
LENT_PACKAGES = ("msgspec", "orjson", "typing_extensions", "numpy", "yaml")
"""The packages that ksrv needs in a handler process. If the interpreter has a package, the server's is not used."""
OLDEST_PYTHON = (3, 11)
"""The oldest Python that ksrv runs on."""

_PROBE = """
import json, sys
from importlib.machinery import EXTENSION_SUFFIXES
own = ""
if sys.version_info >= (3, 8):
    import importlib.metadata
    try:
        own = importlib.metadata.version("ksrv")
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps({"python": list(sys.version_info[:3]), "abi": EXTENSION_SUFFIXES[0], "ksrv": own}))
"""


class Interpreter(NamedTuple):
    """An interpreter that handler processes are started in.

    Attributes:
        program: The arguments that start a handler process, before the process's arguments.
        is_servers: Whether this is the server's interpreter.
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


def _interpreter_in(path: Path) -> Path:
    """Return the interpreter that a path names: the path itself, or the interpreter of an environment or archive
    there.
    """
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
    """Return the interpreter at a path, if its version fits the server's ksrv or it has the server's release."""
    told = _ask(path)
    if told["abi"] == EXTENSION_SUFFIXES[0]:
        return Interpreter([str(path), bootstrap.__file__, *_lent_packages(), "--"], False)
    if told["ksrv"] == ksrv.__version__:
        return Interpreter([str(path), "-P", "-m", PROGRAM], False)
    number, server = ".".join(map(str, told["python"])), sys.version.split()[0]
    found = f"the interpreter {path} is Python {number}, and the server's is {server}"
    if tuple(told["python"]) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        raise HandlerFailed(
            f"{found}; ksrv needs Python {oldest} or later: name a later interpreter"
        )
    raise HandlerFailed(
        f"{found}, whose compiled modules do not fit it; install the server's release there ({path} -m pip install "
        f"ksrv-{ksrv.__version__}-*.whl), or use Python {sys.version_info[0]}.{sys.version_info[1]}"
    )


def _ask(path: Path) -> dict[str, Any]:
    """Run the test program in an interpreter, and return what it prints."""
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
            f"{path} is not a Python interpreter that can be used: it ended with exit status {done.returncode}"
            + (f" and said {quote(said)}" if said else "")
        )
    return told


def _lent_packages() -> list[str]:
    """Return the folders of ksrv and the packages that it needs, as NAME=FOLDER arguments for `bootstrap`."""
    places = [f"ksrv={Path(ksrv.__file__).resolve().parent.parent}"]
    for name in LENT_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            up = 1 if spec.submodule_search_locations is None else 2
            places.append(f"{name}={Path(spec.origin).parents[up - 1]}")
    return places


def _unpacked(archive: Path) -> Path:
    """Return the interpreter in an archive of an environment, as `conda-pack` makes it. It is unpacked once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ksrv/environments"
    try:
        with archive.open("rb") as opened:
            place = cache / hashlib.file_digest(opened, "sha256").hexdigest()[:32]
        whole = place.with_suffix(".whole")
        cache.mkdir(parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("ab") as lock:
            # Keep other processes, and other threads, from unpacking into the same folder.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                rmtree(place, ignore_errors=True)  # a worker may have been killed while it unpacked
                place.mkdir()
                _unpack(archive, place, lock.fileno())
                whole.touch()
    except OSError as error:
        raise HandlerFailed(
            f"no interpreter can be prepared in {cache}: {error.strerror}; set XDG_CACHE_HOME to a folder "
            f"that can be written"
        ) from error
    path = place / "bin/python"
    if not path.exists():
        raise HandlerFailed(
            f"the archive {archive} has no bin/python; pack an environment of conda or venv"
        )
    return path


def _unpack(archive: Path, place: Path, lock: int) -> None:
    done = subprocess.run(
        ["tar", "-xf", str(archive), "-C", str(place), "--no-same-owner"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        pass_fds=(lock,),  # tar keeps the lock if the worker is killed meanwhile
    )
    if done.returncode != 0:
        raise HandlerFailed(
            f"the environment of {archive} cannot be unpacked: tar ended with exit status {done.returncode}: "
            f"{_last_line(done.stdout)}"
        )


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:500] if lines else ""


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
        finds_ksrv: Whether to append the folder of the running ksrv to `PYTHONPATH`, so that the process imports the
            same ksrv from any working directory.
    """
    environment = dict(inherited)
    if threads > 0:
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment |= own
    if finds_ksrv:
        environment["PYTHONPATH"] = with_ksrv(environment.get("PYTHONPATH", ""))
    return environment
