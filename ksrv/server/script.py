"""A script that serves its handler: `ksrv.serve(Cats)` outside of a notebook.

The process executes `ksrv serve FILE.py:NAME` in its place. So the server's master keeps no import and no thread of the
script, and workers, handler processes and reloads find the handler by its file and its name, as they always do.
"""

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ksrv.handlers.declared.tensor_types import TensorType
from ksrv.installation import with_ksrv
from ksrv.server.launch.cells import CellError, shell, written
from ksrv.server.launch.memory_file import memory_file, path_of

TENSORS = ("inputs", "outputs")


class CannotServe(TypeError):
    """A handler that workers cannot find by file and name, or settings that cannot be passed to them."""


Handler = type | Callable[..., Any] | str | Path


def serve(
    handlers: Sequence[Handler], server: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Replace this process by the server of the handlers. Do nothing while the calling module is imported.

    Workers import the script's file, and must not start another server.

    Args:
        handlers: Handler classes, functions or paths.
        server: Settings of `ksrv serve`.
        settings: Settings of the only handler.

    Raises:
        CannotServe: A handler has no file or no name in it, or a setting is not a plain value.
    """
    if not _being_imported(inspect.currentframe()):
        _become(serve_command(*handlers, server=server, settings=settings))


def serve_command(
    *handlers: Handler, server: Mapping[str, Any], settings: Mapping[str, Any]
) -> list[str]:
    """Return the command line that serves handlers.

    Args:
        handlers: Handler classes, functions or paths.
        server: Settings of `ksrv serve`.
        settings: Settings of the only handler.

    Raises:
        CannotServe: See `serve`.
    """
    if not handlers:
        raise CannotServe("serve takes at least one handler class, function or path")
    targets = targets_of(handlers, settings)
    flags = dict(server)
    if settings:
        # They may hold a key to another service, and everybody on the machine can read a command line.
        flags["model_settings"] = f"@{path_of(memory_file(settings_json(settings).encode()))}"
    command = [sys.executable, "-P", "-m", "ksrv", "serve", *targets]
    for key, value in flags.items():
        command += _flag(key, value)
    return command


def targets_of(handlers: Sequence[Handler], settings: Mapping[str, Any]) -> list[str]:
    """Return the paths by which `ksrv serve` finds handlers.

    Args:
        handlers: Handler classes, functions or paths.
        settings: Settings of the only handler.

    Raises:
        CannotServe: Settings are given to several handlers, or one cannot be found by a path.
    """
    if settings and len(handlers) > 1:
        raise CannotServe(
            f"serve: {next(iter(settings))} is a setting of one handler, and there are "
            f"{len(handlers)}; write it into @settings above each of them"
        )
    return [target_of(handler) for handler in handlers]


def target_of(handler: Handler) -> str:
    """Return the path by which `ksrv serve` finds a handler: FILE.py:NAME.

    Args:
        handler: A class or function at the top of a file or in a cell of a notebook; a path is returned unchanged.

    Raises:
        CannotServe: It has no file, or no name in it.
    """
    if isinstance(handler, str | Path):
        return str(handler)
    name = getattr(handler, "__qualname__", "")
    module = sys.modules.get(getattr(handler, "__module__", None) or "")
    if not name or module is None:
        raise CannotServe(f"serve takes a handler class, a function or a path, not {handler!r}")
    if handler.__module__ == "__main__" and shell() is not None:
        if getattr(module, name, None) is not handler:
            raise CannotServe(
                f"{name} is not defined in a cell under that name; workers find a handler by its source and its "
                f"name, so define it at the top of a cell"
            )
        try:
            return f"{written(name)}:{name}"
        except CellError as error:
            raise CannotServe(str(error)) from None
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        raise CannotServe(
            f"{name} is not in a Python file; workers find a handler by its file and its name, so "
            f"write it into one"
        )
    if getattr(module, name, None) is not handler:
        raise CannotServe(
            f"{name} is not at the top of {Path(file).name} under that name; workers find a "
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


def settings_json(settings: Mapping[str, Any]) -> str:
    """Return settings of a handler as the JSON of `--model-settings`.

    Args:
        settings: The keys of model.yaml.

    Raises:
        CannotServe: They are not plain values.
    """
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
        return [part for name, item in value.items() for part in _flag(f"{key}.{name}", item)]
    flag = "--" + key.replace(".", "-").replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, list | tuple):
        return [part for item in value for part in (flag, str(item))]
    return [flag, str(value)]


def _become(command: list[str]) -> NoReturn:
    """Replace this process by a command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ["PYTHONPATH"] = with_ksrv(os.environ.get("PYTHONPATH", ""))
    os.execv(command[0], command)
