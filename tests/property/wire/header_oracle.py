"""A slow plain-Python reader of infer requests in JSON: what ksrv's native reader must agree with.

It knows nothing of ksrv. The standard library parses the text into pairs, so that repeated keys are
seen, and words such as NaN into marks, so that they are accepted in `data` only.
"""

import base64
import itertools
import json
import math
import struct

INTEGERS = {
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
    "UINT32": (0, 2**32 - 1),
    "UINT64": (0, 2**64 - 1),
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
}
ITEM = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "BYTES": 1}
ITEM |= {name: int(name.lstrip("UINT")) // 8 for name in INTEGERS}
KNOWN = {
    "request": ("id", "parameters", "inputs", "outputs"),
    "input": ("name", "shape", "datatype", "parameters", "data"),
    "output": ("name", "parameters"),
}
DEPTH = 64


class Refused(Exception):
    pass


class Word(float):
    """NaN, Infinity or -Infinity."""


class MinusZero(int):
    """The text -0, which is an integer but no unsigned integer."""


class Pairs(list):
    """The pairs of an object, in order."""


def need(condition):
    if not condition:
        raise Refused


def load(text):
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=Pairs,
            parse_int=lambda digits: MinusZero() if digits == "-0" else int(digits),
            parse_constant=lambda word: Word(word.replace("Infinity", "inf")),
        )
    except (ValueError, RecursionError):
        raise Refused from None


def walk(value, depth=0):
    """Refuse values that no strict reader accepts, at any depth."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused from None
    if isinstance(value, Pairs):
        need(depth < DEPTH)
        for key, item in value:
            walk(key, depth)
            walk(item, depth + 1)
    elif isinstance(value, list):
        need(depth < DEPTH)
        for item in value:
            walk(item, depth + 1)


def no_words(value):
    need(not isinstance(value, Word))
    if isinstance(value, Pairs):
        for _, item in value:
            no_words(item)
    elif isinstance(value, list):
        for item in value:
            no_words(item)


def fields(value, place):
    need(isinstance(value, Pairs))
    found = {}
    for key, item in value:
        if key in KNOWN[place]:
            need(key not in found)
            found[key] = item
        # Data may contain the words; each input is read separately.
        if (place, key) not in (("input", "data"), ("request", "inputs")):
            no_words(item)
    return found


def integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def unsigned(value, most=2**64 - 1):
    need(integer(value) and not isinstance(value, MinusZero) and 0 <= value <= most)
    return value


def boolean(value):
    need(isinstance(value, bool))
    return value


def parameters(value, place):
    if value is None:
        return {}, {}
    need(isinstance(value, Pairs) and len(value) <= 256)
    custom, reserved = {}, {}
    for key, item in value:
        if item is None:
            continue
        need(key not in custom and key not in reserved)
        if place == "request" and key in ("timeout", "priority"):
            reserved[key] = unsigned(item)
        elif (
            place == "request"
            and key
            in (
                "binary_data_output",
                "triton_enable_empty_final_response",
            )
        ) or (place == "output" and key == "binary_data"):
            reserved[key] = boolean(item)
        elif place == "output" and key == "classification":
            reserved[key] = unsigned(item)
        elif place == "input" and key == "binary_data_size":
            reserved[key] = item
        else:
            need(not (place == "request" and key.startswith("triton_")))
            if place == "request" and key == "sequence_id" and not isinstance(item, str):
                unsigned(item)
            if place == "request" and key in ("sequence_start", "sequence_end"):
                boolean(item)
            need(isinstance(item, str | int | float))
            need(not isinstance(item, float) or math.isfinite(item))
            need(not integer(item) or -(2**63) <= item < 2**64)
            custom[key] = item
    return custom, reserved


def flat(value):
    for item in value:
        if isinstance(item, list) and not isinstance(item, Pairs):
            yield from flat(item)
        else:
            yield item


def value_of(item, datatype):
    if datatype == "BYTES":
        if isinstance(item, Pairs):
            item = dict(item)
            need(set(item) == {"b64"} and isinstance(item["b64"], str))
            try:
                decoded = base64.b64decode(item["b64"].encode(), validate=True)
            except ValueError:
                raise Refused from None
            need(base64.b64encode(decoded).decode() == item["b64"])  # no bits after the last byte
            return decoded
        need(isinstance(item, str))
        return item.encode()
    if datatype == "BOOL":
        return boolean(item)
    if datatype in INTEGERS:
        low, high = INTEGERS[datatype]
        need(integer(item) and low <= item <= high)
        return item
    need(isinstance(item, int | float) and not isinstance(item, bool))
    try:
        number = float(item)
        if datatype == "FP32" and not isinstance(item, Word):
            number = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        raise Refused from None
    need(isinstance(item, Word) or math.isfinite(number))
    return number


def one_input(value):
    found = fields(value, "input")
    need(isinstance(found.get("name"), str))
    datatype = found.get("datatype")
    need(isinstance(datatype, str) and datatype in ITEM)
    shape = found.get("shape")
    need(isinstance(shape, list) and not isinstance(shape, Pairs) and len(shape) <= 32)
    for entry in shape:
        unsigned(entry, 2**31 - 1)
    need(math.prod(entry for entry in shape if entry) * ITEM[datatype] < 2**63)
    custom, reserved = parameters(found.get("parameters"), "input")
    count = math.prod(shape)
    data = found.get("data")
    size = reserved.get("binary_data_size")
    if data is None:
        # No bytes follow these headers, so only an empty tensor is complete.
        need(count == 0)
        if isinstance(size, str):
            parts = size.split(",")
            need(all(part.strip(" ").isascii() and part.strip(" ").isdigit() for part in parts))
            need(all(len(part.strip(" ")) <= 10 for part in parts))
            need(sum(map(int, parts)) == 0 and (datatype != "BYTES" or len(parts) == count))
        elif size is not None:
            need(unsigned(size, 10**10 - 1) == 0)
        values = []
    else:
        need(size is None and isinstance(data, list) and not isinstance(data, Pairs))
        need(datatype not in ("FP16", "BF16"))
        values = [value_of(item, datatype) for item in flat(data)]
        need(len(values) == count)
    return found["name"], datatype, tuple(shape), custom, values


def one_output(value):
    found = fields(value, "output")
    need(isinstance(found.get("name"), str))
    custom, reserved = parameters(found.get("parameters"), "output")
    return (
        found["name"],
        reserved.get("binary_data"),
        reserved.get("classification", 0),
        custom,
    )


def read(text):
    """Return (id, parameters, reserved, inputs, outputs), or raise Refused."""
    document = load(text)
    walk(document)
    found = fields(document, "request")
    identity = found.get("id")
    need(identity is None or isinstance(identity, str))
    custom, reserved = parameters(found.get("parameters"), "request")
    inputs = found.get("inputs")
    need(isinstance(inputs, list) and not isinstance(inputs, Pairs) and len(inputs) <= 256)
    outputs = found.get("outputs")
    need(outputs is None or (isinstance(outputs, list) and not isinstance(outputs, Pairs)))
    read_inputs = [one_input(item) for item in inputs]
    read_outputs = [one_output(item) for item in outputs or []]
    for entries in (read_inputs, read_outputs):
        need(all(a[0] != b[0] for a, b in itertools.combinations(entries, 2)))
    return identity or "", custom, reserved, read_inputs, read_outputs
