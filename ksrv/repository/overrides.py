"""The configurations that load calls brought for models whose format takes one; each replaces the model's file.

They are stored in a private folder that all workers of a server share, one file for each text, so that the same
configuration is the same file to all of them. Each worker knows which of them applies to a model, from the changes that
it has made. The folder exists from the first such call on; its files are small, and are removed with the server.
"""

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class ConfigOverrides:
    """The configurations of one server.

    Args:
        folder: The folder for them; by default a separate folder among the temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        name = f"ksrv-configurations-{secrets.token_hex(8)}"
        self._folder = folder or Path(tempfile.gettempdir()) / name
        self._held: dict[str, Path] = {}

    def find(self, name: str) -> Path | None:
        """Return the config.pbtxt that replaces a model's file, or None."""
        return self._held.get(name)

    def path(self, config: str) -> Path:
        """Return the file of a configuration, which is written where it is not there yet.

        Raises:
            OSError: The configuration cannot be written.
        """
        text = config.encode()
        path = self._folder / hashlib.sha256(text).hexdigest() / "config.pbtxt"
        if path.is_file():
            return path
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        made = path.with_name(f".{secrets.token_hex(8)}")
        try:
            made.write_bytes(text)
            os.link(made, path)  # another worker's file stays, with the time that fingerprints know
        except FileExistsError:
            pass
        finally:
            made.unlink(missing_ok=True)
        return path

    @contextmanager
    def replaced(self, name: str, config: str | None) -> Iterator[None]:
        """Load a model by a configuration; if the body raises, restore the previous configuration.

        Args:
            config: The text of a config.pbtxt; None for the model's file.

        Raises:
            OSError: The configuration cannot be written.
        """
        before = self._held.get(name)
        self._hold(name, None if config is None else self.path(config))
        try:
            yield
        except BaseException:
            self._hold(name, before)
            raise

    def begin_with(self, configs: Mapping[str, str]) -> None:
        """Have models read by the configurations that hold when a worker starts.

        Args:
            configs: The text of a config.pbtxt for each model that has one.
        """
        for name, config in configs.items():
            self._hold(name, self.path(config))

    def remove(self) -> None:
        """Delete them all, at the end of the server."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _hold(self, name: str, path: Path | None) -> None:
        if path is None:
            self._held.pop(name, None)
        else:
            self._held[name] = path
