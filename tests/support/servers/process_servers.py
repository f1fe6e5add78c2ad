"""Servers of tests whose models run in handler processes unless they name another executor."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import yaml

from ksrv.testing import Server


@contextlib.contextmanager
def handlers_in_processes() -> Iterator[None]:
    """Run the models of each `ksrv.testing.Server` that starts meanwhile in processes."""
    start = Server.start

    def start_with_processes(self: Server) -> None:
        for target in self.targets:
            _run_in_processes(Path(target))
        start(self)

    Server.start = start_with_processes  # type: ignore[method-assign]
    try:
        yield
    finally:
        Server.start = start  # type: ignore[method-assign]


def _run_in_processes(path: Path) -> None:
    """Add `executor: process` to each model.yaml below a path that names no executor."""
    for file in [path] if path.suffix == ".yaml" else path.rglob("model.yaml"):
        with contextlib.suppress(OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError):
            text = file.read_text(encoding="utf-8")
            read = yaml.safe_load(text)
            # An archive of TorchServe always has processes, and its model.yaml no such key.
            named = isinstance(read, dict) and not read.keys() & {"executor", "torchserve"}
            if named and not text.endswith("}\n"):
                file.write_text(text.rstrip("\n") + "\nexecutor: process\n", encoding="utf-8")
