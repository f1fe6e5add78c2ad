"""The parameters of the calls that load and unload models, as Triton's clients send them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from ksrv.errors import InvalidRequest, KsrvError, quote
from ksrv.protocol.protobuf import message_class

CONFIG = "config"
_LONG_WORD = re.compile(r"(\S{64})\S+")
DEEPEST = 32
"""Levels of a configuration; Triton's message has fewer, but for keys that it does not know."""


def check_parameters(given: Mapping[str, Any]) -> None:
    """Refuse what an unload call may not bring.

    Raises:
        InvalidRequest: One is not `unload_dependents`.
    """
    for name, value in given.items():
        if name != "unload_dependents":
            raise InvalidRequest(
                f"parameter {quote(name)} is not accepted: a call loads the files in the repository"
            )
        if not isinstance(value, bool):
            raise InvalidRequest("parameter 'unload_dependents' must be true or false")


def read_config(given: Mapping[str, Any]) -> str | None:
    """Return the configuration that a load call brings.

    Returns:
        The text of a config.pbtxt, or None if the call has none.

    Raises:
        InvalidRequest: Another parameter is given, or `config` is not the JSON of a configuration.
    """
    check_parameters({name: value for name, value in given.items() if name != CONFIG})
    if CONFIG not in given:
        return None
    try:
        return _text_format(given[CONFIG])
    except (TypeError, ValueError, RecursionError) as error:
        fault = str(error).partition("\n")[0]
        raise InvalidRequest(
            f"parameter 'config' is not the JSON of a model configuration of Triton's: {fault}"
        ) from None


def _text_format(config: object) -> str:
    from google.protobuf import json_format, text_format

    if not isinstance(config, str):
        raise TypeError(f"expected a string with JSON, found {quote(config)}")
    document = orjson.loads(config)
    if not isinstance(document, dict):
        raise TypeError("expected a JSON object")
    message = message_class("inference.ModelConfig")()
    try:
        json_format.ParseDict(document, message, max_recursion_depth=DEEPEST)
    except json_format.ParseError as error:
        raise ValueError(str(error)) from None
    return text_format.MessageToString(message, as_utf8=True)


@contextmanager
def failed_load_texts(name: str) -> Iterator[None]:
    """Have errors say which model failed to load, in the words that Triton's clients look for."""
    try:
        yield
    except KsrvError as error:
        # The texts of a configuration may be in it, of any length.
        said = _LONG_WORD.sub(r"\1...", error.message)
        shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in said)
        error.message = f"failed to load {quote(name)}, {shown}"
        error.args = (error.message,)
        raise
