"""Reads a `config.pbtxt` with protobuf's parser of the text format and Triton's message.

The parser does not keep the lines of keys. So after the parser has accepted a text, `_lines` walks over its tokens once
more to note the line of each key, which later errors name.
"""

import functools
import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from ksrv.dialects.triton.config.model_keys import DATA_TYPES, RULES, Keys, MapEntry
from ksrv.errors import did_you_mean
from ksrv.model.fault import ConfigError, Fault, KeyPath
from ksrv.protocol.protobuf import files
from ksrv.repository.yaml_document import MAX_NODES, Document, describe, read_settings_text

PACKAGE = "inference."
_UNKNOWN = re.compile(r'(Message|Enum) type "([\w.]+)" has no (?:field|value) named "?(\w+)')
_LONGEST_FAULT = 300
_lock = threading.Lock()


def read_text_format(path: Path, text: str | None = None) -> tuple[Keys, Document]:
    """Return the keys of a file, and the document that knows their lines.

    Args:
        text: The content of the file; None to read the file.

    Raises:
        ConfigError: The file cannot be read, is too long, or is not UTF-8 text in protobuf's text format; or a key is
            unknown or has a wrong value.
    """
    from google.protobuf import text_format

    text = read_settings_text(path) if text is None else text
    # A descriptor pool crashes the process if two threads make it build a message at a time.
    with _lock:
        message = _message_class()()
        try:
            text_format.Parse(text, message)
        except text_format.ParseError as error:
            _fail(path, text, error, message.DESCRIPTOR)
        lines = _lines(text, message.DESCRIPTOR)
    document = Document.of(path, None, lines)
    if len(lines) > MAX_NODES:
        document.fail((), f"the file has more than {MAX_NODES} values")
    with document.naming_faults():
        return _keys(message, ()), document


@functools.cache
def _message_class() -> type[Any]:
    """Return the class of Triton's message, in the syntax proto2 and with maps as lists.

    Fields of proto2 know whether the file has them, and lists keep repeated keys of a map, which are errors.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto()
    file.CopyFrom(files()["model_config.proto"])
    file.syntax = "proto2"
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        message.options.ClearField("map_entry")
        waiting.extend(message.nested_type)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}ModelConfig"))


def _fail(path: Path, text: str, error: Any, message: Any) -> NoReturn:
    """Raise the error for a text that protobuf cannot read, with a hint for unknown names."""
    row, column = error.GetLine() or 1, error.GetColumn() or 1
    fault = str(error).removeprefix(f"{row}:{column} : ")
    fault = fault.removeprefix(f"'{text.split(chr(10))[row - 1]}': ")[:_LONGEST_FAULT]
    fault = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in fault)
    if unknown := _UNKNOWN.search(fault):
        kind, name, found = unknown.groups()
        pool = message.file.pool
        known = (
            pool.FindMessageTypeByName(name).fields_by_name
            if kind == "Message"
            else pool.FindEnumTypeByName(name).values_by_name
        )
        fault += did_you_mean(found, known) or f" Known here are {', '.join(sorted(known))}."
    raise ConfigError(f"{path}, line {row}, column {column}: {fault}") from None


# ---- lines ----------------------------------------------------------------------------------


def _lines(text: str, message: Any) -> dict[KeyPath, int]:
    """Return the lines of the keys of a valid text."""
    from google.protobuf import text_format

    lines: dict[KeyPath, int] = {(): 1}
    _note(text_format.Tokenizer(text.split("\n")), message, (), lines)
    return lines


def _note(tokens: Any, message: Any, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Note the lines of the keys of one message, up to the token that ends it."""
    counts: Counter[str] = Counter()
    while tokens.token not in ("", "}", ">"):
        field, key = message.fields_by_name[tokens.token], (*path, tokens.token)
        lines.setdefault(key, _line(tokens))
        tokens.NextToken()
        tokens.TryConsume(":")
        in_list = tokens.TryConsume("[")
        while not (in_list and tokens.TryConsume("]")):
            at = key if field.has_presence else (*key, counts[field.name])
            counts[field.name] += 1
            lines[at] = _line(tokens)
            tokens.NextToken()
            if field.message_type is not None:
                _note(tokens, field.message_type, at, lines)
                tokens.NextToken()
            while tokens.token[:1] in ('"', "'"):  # adjacent strings are one value
                tokens.NextToken()
            if not in_list:
                break
            tokens.TryConsume(",")
        if tokens.token in (",", ";"):
            tokens.NextToken()


def _line(tokens: Any) -> int:
    """Return the line of the current token. The tokenizer shows it only in its errors, so one is made, not raised."""
    return int(tokens.ParseError("").GetLine())


# ---- values ---------------------------------------------------------------------------------


def _keys(message: Any, path: KeyPath) -> Keys:
    """Return a message as `Keys`, checked by `RULES` and completed with their defaults."""
    name = message.DESCRIPTOR.full_name.removeprefix(PACKAGE)
    is_entry = name.endswith("Entry")
    keys: Keys = MapEntry() if is_entry else Keys()
    for field, value in message.ListFields():
        at = (*path, field.name)
        if field.has_presence:
            keys[field.name] = _value(field, value, at)
        else:
            keys[field.name] = [_value(field, v, (*at, index)) for index, v in enumerate(value)]
    if is_entry:
        if not keys.key and keys.key != 0:
            raise Fault((*path, "key"), "this section needs a key")
        below = message.DESCRIPTOR.fields_by_name["value"].message_type
        keys.setdefault("value", "" if below is None else _keys(message.value, path))
    for key, rule in RULES.get(name, {}).items():
        value, at = keys.get(key), (*path, key)
        if rule.needed and not value:
            raise Fault(at, f"this section needs a {key}, which must not be empty")
        if value is None:
            if rule.default is not None:
                keys[key] = rule.default
            continue
        if rule.entries is not None and len(value) > rule.entries:
            raise Fault(at, f"has {len(value)} entries; at most {rule.entries} are read")
        if rule.least is not None:
            _check_numbers(value, rule.least, rule.most, at)
    return keys


def _value(field: Any, value: Any, at: KeyPath) -> Any:
    if field.message_type is not None:
        return _keys(value, at)
    if field.enum_type is None:
        return value
    name = field.enum_type.values_by_number[value].name
    if field.enum_type.name == "DataType" and name not in DATA_TYPES:
        raise Fault(at, f"expected one of {', '.join(DATA_TYPES)}, found {name}")
    return name


def _check_numbers(value: Any, least: int, most: int, at: KeyPath) -> None:
    is_list = isinstance(value, list)
    for index, number in enumerate(value if is_list else [value]):
        if not least <= number <= most:
            raise Fault(
                (*at, index) if is_list else at,
                f"expected a whole number from {least} to {most}, found {describe(number)}",
            )
