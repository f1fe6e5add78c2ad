"""A JSON file as a document that knows the lines of its keys.

JSON is YAML once its tabs, which can only be between values, are spaces: the values are read by
Python's JSON, the lines and the limits by the YAML document.
"""

import json
from pathlib import Path
from typing import Any

from ksrv.model.fault import ConfigError
from ksrv.repository.yaml_document import Document, read_settings_text


def read_json(path: Path) -> Document:
    """Return the parsed content of a file.

    Raises:
        ConfigError: It cannot be read, is too long or too deep, or is no JSON.
    """
    text = read_settings_text(path)
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deep") from None
    except ValueError as error:
        raise ConfigError(f"{path}: no JSON: {' '.join(str(error).split())[:200]}") from None
    document = Document(path, text.replace("\t", " "))
    document.value = value
    return document


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
