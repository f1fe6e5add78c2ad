"""The faults of settings: what is wrong with a key. Whoever knows the file adds its name and the line."""

from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]


class ConfigError(Exception):
    """Settings that cannot be used."""


class Fault(ConfigError):
    """A fault of a key; `Document.naming_faults` adds file and line.

    Args:
        path: The path of the key.
        text: The error's text.
    """

    def __init__(self, path: KeyPath, text: str) -> None:
        super().__init__(f"{show_path(path)}: {text}" if path else text)
        self.path = path
        self.text = text


def show_path(path: KeyPath) -> str:
    """Return a key path as people write it: `inputs[0].image.mean`."""
    shown = ""
    for entry in path:
        if isinstance(entry, int):
            shown += f"[{entry}]"
        else:
            shown += f".{entry}" if shown else entry
    return shown
