"""Protobuf's text format beside protobuf's own parser: the same values, and the same refusals."""

from pathlib import Path
from typing import Any, Literal

import msgspec
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    text_format,
)
from hypothesis import example, given
from hypothesis import strategies as st

from ksrv.dialects.triton.config.text_format import read_text_format
from ksrv.repository.yaml_document import ConfigError


class Inner(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The message M.Inner."""

    text: str | None = None
    numbers: list[int] = []
    again: list[Any] = []


class Message(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The message M."""

    text: str | None = None
    number: int | None = None
    truth: bool | None = None
    kind: Literal["KIND_ONE", "KIND_TWO"] | None = None
    words: list[str] = []
    inner: Inner | None = None
    inners: list[Inner] = []


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    enum = file.enum_type.add(name="Kind")
    enum.value.add(name="KIND_ONE", number=1)
    enum.value.add(name="KIND_TWO", number=2)
    made = file.message_type.add(name="M")
    inner = made.nested_type.add(name="Inner")
    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    inner.field.add(name="text", number=1, type=kinds.TYPE_STRING, label=one)
    inner.field.add(name="numbers", number=2, type=kinds.TYPE_INT64, label=many)
    fields = [
        ("text", kinds.TYPE_STRING, one, ""),
        ("number", kinds.TYPE_INT64, one, ""),
        ("truth", kinds.TYPE_BOOL, one, ""),
        ("kind", kinds.TYPE_ENUM, one, ".Kind"),
        ("words", kinds.TYPE_STRING, many, ""),
        ("inner", kinds.TYPE_MESSAGE, one, ".M.Inner"),
        ("inners", kinds.TYPE_MESSAGE, many, ".M.Inner"),
    ]
    for number, (name, kind, label, type_name) in enumerate(fields, 1):
        made.field.add(name=name, number=number, type=kind, label=label)
        if type_name:
            made.field[-1].type_name = type_name
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("M"))


MESSAGE = _message_class()


def ours(text: str, folder: Path) -> Any:
    """Return the message that ksrv reads, None if it refuses."""
    path = folder / "m.pbtxt"
    path.write_bytes(text.encode())
    try:
        read, _ = read_text_format(path, Message)
    except ConfigError as error:
        if not str(error).startswith(f"{path}, line "):
            raise
        return None
    return _without_empty(msgspec.to_builtins(read))


def theirs(text: str) -> Any:
    """Return the message that protobuf reads, None if it refuses."""
    try:
        message = text_format.Parse(text, MESSAGE())
    except (text_format.ParseError, UnicodeDecodeError):
        return None
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return _numbers(_without_empty(found))


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_empty(one) for key, one in value.items() if one is not None and one != []
        }
    return [_without_empty(one) for one in value] if isinstance(value, list) else value


def _numbers(value: Any) -> Any:
    """JSON has 64-bit numbers as texts."""
    if isinstance(value, dict):
        return {
            key: (
                [int(number) for number in one]
                if key == "numbers"
                else int(one)
                if key == "number"
                else _numbers(one)
            )
            for key, one in value.items()
        }
    return [_numbers(one) for one in value] if isinstance(value, list) else value


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
whole = st.integers(-(2**63), 2**63 - 1)
inners = st.fixed_dictionaries({}, optional={"text": texts, "numbers": st.lists(whole, max_size=3)})
messages = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "number": whole,
        "truth": st.booleans(),
        "kind": st.sampled_from(["KIND_ONE", "KIND_TWO"]),
        "words": st.lists(texts, max_size=3),
        "inner": inners,
        "inners": st.lists(inners, max_size=3),
    },
)


@given(messages, st.booleans(), st.booleans(), st.booleans())
def test_what_protobuf_prints_is_read_alike(tmp_path_factory, values, one_line, utf8, brackets):
    message = json_format.ParseDict(values, MESSAGE())
    text = text_format.MessageToString(
        message, as_one_line=one_line, as_utf8=utf8, pointy_brackets=brackets
    )
    assert ours(text, tmp_path_factory.getbasetemp()) == theirs(text)


# A value of an enumeration may be a number for protobuf; ksrv takes names alone.
TOKENS = st.sampled_from(
    ["text", "number", "truth", "kind: KIND_ONE", "kind: KIND_SIX", "words", "inner", "inners", "numbers", ":", ":", "{", "}",
     "<", ">", "[", "]", ",", ";", " ", "\n", "# note\n", '"a"', "'b'", '"\\x41\\101\\n"', '"\\q"',
     '"open', "1", "-7", "0x1F", "017", "09", "0", "true", "f", "KIND_ONE", "KIND_TWO", '"KIND_ONE"',
     "inner { text: 'x' }", "words: ['a', 'b']", "numbers: [1, 2]", "number: 5", "unknown: 1"]
)  # fmt: skip


@given(st.lists(TOKENS, max_size=14).map(" ".join))
@example("text: \"a\" 'b'")
@example("inners: [ { text: 'a' }, < numbers: 1 > ]")
@example("words: []")
@example("inner { } ; number: 1 ,")
@example("truth: 1")
@example("number: 1 number: 2")
@example("inner: { numbers: [] }")
def test_texts_made_of_tokens_are_read_or_refused_alike(tmp_path_factory, text):
    assert ours(text, tmp_path_factory.getbasetemp()) == theirs(text)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    ours(text, tmp_path_factory.getbasetemp())
