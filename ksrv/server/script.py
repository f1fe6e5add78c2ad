"""`ksrv.serve(Cats)`: a script that serves its own handler.

The process becomes `ksrv serve FILE.py:NAME`: nothing that the script has imported or started stays
in the server's master, and every worker, handler process and reload finds the handler as
`ksrv serve` does, by its file and its name.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ksrv.handlers.declared.tensor_types import TensorType
from ksrv.python_path import with_ksrv
from ksrv.server.launch.memory_file import memory_file, path_of

TENSORS = ("inputs", "outputs")


class CannotServe(TypeError):
    """A handler that a server could not find again, or settings that cannot be passed on."""


def serve(
    *handlers: type | Callable[..., Any] | str | Path,
    name: str | None = None,
    http: str | None = None,
    grpc: str | None = None,
    workers: int | None = None,
    reload: bool | None = None,
    server: Mapping[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Serve handlers of this script until a signal ends the process; nothing runs after this call.

    In a module that is imported this does nothing, so that a handler can be imported from its script.

    Args:
        handlers: Handler classes or functions at the top of a file, or paths that `ksrv serve` takes.
        name: The model's name; by default `Cats` is served as `cats`.
        http: The HTTP address, such as "127.0.0.1:8080".
        grpc: The gRPC address, or "off".
        workers: How many worker processes serve.
        reload: Whether the handler is loaded anew as soon as its files change.
        server: Any other setting of `ksrv serve`, such as `{"token_file": "tokens"}`.
        settings: The keys of model.yaml for the one handler: `batching={"max_batch_size": 8}`,
            `executor="process"`, `inputs={"x": Float32[4]}`, ...; they win over `@settings`.

    Raises:
        CannotServe: A handler has no file or name to be found by, or a setting is no plain value.
    """
    if _being_imported(inspect.currentframe()):
        return
    command = serve_command(
        *handlers,
        server={
            **(server or {}),
            **{
                key: value
                for key, value in {
                    "model_name": name,
                    "http": http,
                    "grpc": grpc,
                    "workers": workers,
                    "reload": reload,
                }.items()
                if value is not None
            },
        },
        settings=settings,
    )
    _become(command)


def serve_command(
    *handlers: type | Callable[..., Any] | str | Path,
    server: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> list[str]:
    """Return the command line that serves handlers.

    Args:
        handlers: Handler classes, functions or paths.
        server: Settings of `ksrv serve`.
        settings: Settings of the one handler.

    Raises:
        CannotServe: See `serve`.
    """
    if not handlers:
        raise CannotServe("serve takes at least one handler class, function or path")
    if settings and len(handlers) > 1:
        raise CannotServe(
            f"serve: {next(iter(settings))} is a setting of one handler, and there are "
            f"{len(handlers)}; write it into @settings above each of them"
        )
    flags = dict(server)
    if (
        settings
    ):  # which may hold a key to another service, and a command line is for everybody to read
        flags["model_settings"] = f"@{path_of(memory_file(_as_json(settings).encode()))}"
    command = [sys.executable, "-P", "-m", "ksrv", "serve", *map(target_of, handlers)]
    for key, value in flags.items():
        command += _flag(key, value)
    return command


def target_of(handler: type | Callable[..., Any] | str | Path) -> str:
    """Return the path by which `ksrv serve` finds a handler: FILE.py:NAME.

    Args:
        handler: A class or function at the top of a file; a path comes back as it is.

    Raises:
        CannotServe: It has no file, or no name there.
    """
    if isinstance(handler, str | Path):
        return str(handler)
    name = getattr(handler, "__qualname__", "")
    module = sys.modules.get(getattr(handler, "__module__", None) or "")
    if not name or module is None:
        raise CannotServe(f"serve takes a handler class, a function or a path, not {handler!r}")
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        raise CannotServe(
            f"{name} is not in a Python file; workers find a handler by its file and its name, so "
            f"write it into one"
        )
    if getattr(module, name, None) is not handler:
        raise CannotServe(
            f"{name} is not at the top of {Path(file).name} under its own name; workers find a "
            f"handler by its file and its name, so define it there"
        )
    return f"{Path(file).absolute()}:{name}"


def _being_imported(frame: FrameType | None) -> bool:
    """Whether this is called while a module other than the script itself is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as model.yaml would hold them: tensor types are written out.

    Args:
        settings: The keys of model.yaml.

    Raises:
        CannotServe: `inputs` or `outputs` hold something else than tensor types.
    """
    return {
        key: _tensors(key, value) if key in TENSORS and isinstance(value, Mapping) else value
        for key, value in settings.items()
    }


def _as_json(settings: Mapping[str, Any]) -> str:
    try:
        return json.dumps(plain_settings(settings), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CannotServe(
            f"serve: a setting holds something else than plain values: {error}"
        ) from None


def _tensors(key: str, named: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, value in named.items():
        if not isinstance(value, TensorType):
            raise CannotServe(
                f"{key}: expected names with tensor types, such as Float32[1000], found "
                f"{name!r}: {value!r}"
            )
        found.append(value.entry(name))
    return found


def _flag(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [part for name, one in value.items() for part in _flag(f"{key}.{name}", one)]
    flag = "--" + key.replace(".", "-").replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, list | tuple):
        return [part for one in value for part in (flag, str(one))]
    return [flag, str(value)]


def _become(command: list[str]) -> NoReturn:
    """Replace this process by a command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ["PYTHONPATH"] = with_ksrv(os.environ.get("PYTHONPATH", ""))
    os.execv(command[0], command)
