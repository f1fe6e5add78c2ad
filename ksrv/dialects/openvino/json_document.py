"""Reads an OpenVINO Model Server configuration in JSON as a `Document`, whose errors name the lines of keys.

Python's json reads the values, because only it follows JSON's rules exactly. `Document`, which reads YAML, finds the
lines and checks the limits. It can read the same text, because JSON is YAML if its tabs, which can occur only between
values, are replaced by spaces.
"""

import json
from pathlib import Path
from typing import Any

from ksrv.model.fault import ConfigError
from ksrv.repository.yaml_document import Document, read_settings_text


def read_json(path: Path) -> Document:
    """Return the parsed content of a file.

    Raises:
        ConfigError: The file cannot be read, is too long, is nested too deep, or is not JSON.
    """
    text = read_settings_text(path)
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None
    except ValueError as error:  # by `_refuse`, or for a number with too many digits
        raise ConfigError(f"{path}: not JSON: {' '.join(str(error).split())[:200]}") from None
    document = Document(path, text.replace("\t", " "))
    document.value = value
    return document


def _refuse(name: str) -> Any:
    """Refuse NaN and Infinity, which Python's json would accept."""
    raise ValueError(f"{name} is not a JSON number")
