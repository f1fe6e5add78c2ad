"""The errors of settings. A `Fault` names the key; the reader of the file makes a `ConfigError` with the line."""

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
    """Return the text of a key path, such as `inputs[0].image.mean`."""
    shown = ""
    for entry in path:
        if isinstance(entry, int):
            shown += f"[{entry}]"
        else:
            shown += f".{entry}" if shown else entry
    return shown
