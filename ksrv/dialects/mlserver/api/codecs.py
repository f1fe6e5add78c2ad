"""`mlserver.codecs`: the codecs, their registry, and `decode_args`.

A codec turns an input or an output (`InputCodec`), or a whole request or response (`RequestCodec`), into a Python
value. Its name is a content type, which a request, an input or the settings of the model name.
"""

import base64
import binascii
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import numpy as np

from ksrv.dialects.mlserver.api import types as t
from ksrv.model.datatypes import DTYPES, NAME_BY_DTYPE

DecodedParameterName = "_decoded_payload"  # as MLServer calls it


class _Codec:
    """Converts values of one content type."""

    ContentType: ClassVar[str] = ""
    TypeHint: ClassVar[Any] = type(None)

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """Tell whether the codec encodes a value."""
        return False


class InputCodec(_Codec):
    """Converts one input or output. Subclasses define `can_encode`, `encode_output` and `decode_input`."""

    encode_output: ClassVar[Any]
    decode_input: ClassVar[Any]

    @classmethod
    def decode_output(cls, response_output: t.ResponseOutput) -> Any:
        """Return the value of an output."""
        return cls.decode_input(response_output)

    @classmethod
    def encode_input(cls, name: str, payload: Any, **options: Any) -> t.RequestInput:
        """Return a value as an input."""
        return _as_input(cls.encode_output(name, payload, **options))


class RequestCodec(_Codec):
    """Converts a whole request or response.

    Subclasses define `can_encode`, `decode_request`, and `encode_outputs` or `encode_response`.
    """

    encode_outputs: ClassVar[Any]

    @classmethod
    def encode_response(
        cls, model_name: str, payload: Any, model_version: str | None = None, **options: Any
    ) -> t.InferenceResponse:
        """Return a value as a response."""
        outputs = cls.encode_outputs(payload, **options)
        return _response(model_name, model_version, outputs, cls.ContentType)


InputCodecLike, RequestCodecLike = type[InputCodec] | InputCodec, type[RequestCodec] | RequestCodec
InputOrOutput = t.RequestInput | t.ResponseOutput

INPUT_CODECS: dict[str, Any] = {}
REQUEST_CODECS: dict[str, Any] = {}
"""The codecs by content type, in the order of registration."""


def _register(known: dict[str, Any], codec: Any) -> Any:
    """Register a codec under its content type."""
    known[codec.ContentType] = codec
    return codec


def _find(known: Any, content_type: Any = None, payload: Any = None, type_hint: Any = None) -> Any:
    """Return the codec for a content type, a type or a value; None if no codec fits."""
    if content_type:
        return known.get(content_type)
    if type_hint is not None:
        return next((c for c in known.values() if _parts(c.TypeHint) == _parts(type_hint)), None)
    return next((codec for codec in known.values() if codec.can_encode(payload)), None)


def _parts(hint: Any) -> Any:
    """Return a type so that `List[str]` of `typing` equals `list[str]`."""
    if getattr(hint, "__name__", "") == "DataFrame":  # pandas need not be installed
        return "DataFrame"
    return (get_origin(hint), get_args(hint)) if get_origin(hint) else hint


find_input_codec = functools.partial(_find, INPUT_CODECS)
find_request_codec = functools.partial(_find, REQUEST_CODECS)
register_input_codec = functools.partial(_register, INPUT_CODECS)
register_request_codec = functools.partial(_register, REQUEST_CODECS)

# ---- values of requests and inputs -----------------------------------------------------------


def _as_input(output: t.ResponseOutput) -> t.RequestInput:
    return t.RequestInput(**{name: getattr(output, name) for name in t.RequestInput.model_fields})


def _response(name: str, version: Any, outputs: list[Any], kind: str = "") -> t.InferenceResponse:
    shown = t.Parameters(content_type=kind) if kind else None
    found = t.InferenceResponse(model_name=name, outputs=outputs, parameters=shown)
    return found.model_copy(update={"model_version": version})


def is_list_of(payload: Any, instance_type: Any) -> bool:
    """Tell whether a value is a list, and all elements have a type."""
    return isinstance(payload, list) and all(isinstance(each, instance_type) for each in payload)


def as_list(payload: Any) -> Iterator[Any]:
    """Yield the elements of a list, however it is nested; any other value is a single element."""
    if not isinstance(payload, list):
        yield payload
        return
    for element in payload:
        yield from as_list(element)


def inject_batch_dimension(shape: list[int]) -> list[int]:
    """Return a shape with at least two dimensions: [N] becomes [N, 1]."""
    return shape if len(shape) > 1 else [*shape, 1]


def has_decoded(parametrised_obj: Any) -> bool:
    """Tell whether a request or an input has been decoded."""
    # A client's parameter of this name is not in `vars`.
    return DecodedParameterName in vars(parametrised_obj.parameters or parametrised_obj)


def get_decoded_or_raw(parametrised_obj: Any) -> Any:
    """Return the decoded value of a request or an input; without one, the request or the input's data."""
    raw = getattr(parametrised_obj, "data", parametrised_obj)
    return vars(parametrised_obj.parameters or parametrised_obj).get(DecodedParameterName, raw)


def _save(parametrised_obj: Any, decoded: Any) -> Any:
    """Keep and return the decoded value of a request or an input."""
    parametrised_obj.parameters = parametrised_obj.parameters or t.Parameters()
    object.__setattr__(parametrised_obj.parameters, DecodedParameterName, decoded)
    return decoded


def content_type_of(*owners: Any) -> str:
    """Return the content type of the first owner that names one, or ""."""
    found = (owner.parameters.content_type for owner in owners if owner and owner.parameters)
    return next((each for each in found if each), "")


def decode_request_input(request_input: t.RequestInput, metadata_inputs: Any = None) -> Any:
    """Decode an input by its content type, or the content type in the metadata; return None without one."""
    declared = (metadata_inputs or {}).get(request_input.name)
    codec = INPUT_CODECS.get(content_type_of(request_input, declared))
    return _save(request_input, codec.decode_input(request_input)) if codec else None


def decode_inference_request(
    request: Any, settings: Any = None, metadata_inputs: Any = None
) -> Any:
    """Decode all inputs of a request, then the request by its content type or that of the settings."""
    for request_input in request.inputs:
        decode_request_input(request_input, metadata_inputs)
    codec = REQUEST_CODECS.get(content_type_of(request, settings))
    return _save(request, codec.decode_request(request)) if codec else request


class SingleInputRequestCodec(RequestCodec):
    """Takes the only input of a request for the whole request; subclasses name its `InputCodec`."""

    InputCodec: ClassVar[Any]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """See `RequestCodec`."""
        return bool(cls.InputCodec.can_encode(payload))

    @classmethod
    def encode_outputs(cls, payload: Any, **options: Any) -> list[t.ResponseOutput]:
        """Return a value as the only output."""
        return [cls.InputCodec.encode_output("output-1", payload, **options)]

    @classmethod
    def decode_request(cls, request: t.InferenceRequest) -> Any:
        """Return the value of a request."""
        if len(request.inputs) != 1:
            found = f"takes one input, and the request has {len(request.inputs)}"
            remedy = "a table with a column in each input has the content type 'pd'"
            raise t.CodecError(f"the content type {cls.ContentType!r} {found}; {remedy}")
        [only] = request.inputs
        if not has_decoded(only):
            _save(only, cls.InputCodec.decode_input(only))
        return get_decoded_or_raw(only)


# ---- texts, bytes and dates -------------------------------------------------------------------


@contextmanager
def _reading(tensor: Any, content_type: str) -> Iterator[None]:
    """Turn an error of a value into an error of the client."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as error:
        shown = f"the input {tensor.name!r} ({tensor.datatype} {tensor.shape}) cannot be read"
        raise t.CodecError(f"{shown} with the content type {content_type!r}: {error}") from error


class ElementCodec(InputCodec):
    """A list of elements of BYTES, which `pack` and `unpack` convert."""

    Element: ClassVar[Any]
    pack: ClassVar[Any]
    unpack: ClassVar[Any]

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """See `InputCodec`."""
        return is_list_of(payload, cls.Element)

    @classmethod
    def encode_output(cls, name: str, payload: Any, use_bytes: bool = True) -> Any:
        """Return a value as an output; without `use_bytes` the elements are texts."""
        convert = encode_str if use_bytes else decode_str
        data = [convert(cls.pack(element)) for element in payload]
        return _output(name, "BYTES", [len(data), 1], data, cls.ContentType)

    @classmethod
    def decode_input(cls, request_input: t.RequestInput) -> list[Any]:
        """Return the value of an input."""
        with _reading(request_input, cls.ContentType):
            return [cls.unpack(element) for element in as_list(request_input.data.root)]


def _output(name: str, datatype: str, shape: list[int], data: Any, kind: str = "") -> Any:
    shown = t.Parameters(content_type=kind) if kind else None
    facts = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return t.ResponseOutput.model_validate(facts | {"parameters": shown})


def encode_str(elem: Any) -> Any:
    """Return a text as UTF-8."""
    return elem.encode() if isinstance(elem, str) else elem


def decode_str(encoded: Any, str_codec: str = "utf-8") -> Any:
    """Return the text of an element, which may be a text already."""
    if encoded is not None and not isinstance(encoded, str | bytes):
        raise TypeError(f"expected BYTES, found a {type(encoded).__name__}")
    return encoded.decode(str_codec) if isinstance(encoded, bytes) else encoded


def from_base64(element: Any) -> bytes:
    """Return the bytes of an element. An element that is not base64 is taken as it is, as in MLServer."""
    given: bytes = encode_str(element)
    try:
        return base64.b64decode(given, validate=True)
    except binascii.Error:
        return given


@register_input_codec
class StringCodec(ElementCodec):
    """A list of texts."""

    ContentType, TypeHint, Element = "str", list[str], str
    pack, unpack = staticmethod(encode_str), staticmethod(decode_str)


@register_input_codec
class Base64Codec(ElementCodec):
    """A list of bytes, sent in base64."""

    ContentType, TypeHint, Element = "base64", list[bytes], bytes
    pack = staticmethod(lambda element: base64.b64encode(encode_str(element)))
    unpack = staticmethod(from_base64)


@register_input_codec
class DatetimeCodec(ElementCodec):
    """A list of dates in the form of ISO 8601."""

    ContentType, TypeHint, Element = "datetime", list[str | datetime], datetime
    pack = staticmethod(lambda date: date if isinstance(date, str) else date.isoformat())
    unpack = staticmethod(lambda element: datetime.fromisoformat(decode_str(element)))


@register_request_codec
class StringRequestCodec(SingleInputRequestCodec):
    """A request whose only input is a list of texts."""

    InputCodec, ContentType, TypeHint = StringCodec, "str", list[str]


# ---- arrays and tables ------------------------------------------------------------------------


def to_datatype(dtype: Any) -> str:
    """Return the datatype for a dtype; texts, bytes and objects are BYTES."""
    found = NAME_BY_DTYPE.get(dtype)
    if found is None and getattr(dtype, "kind", "O") not in "OSUT":
        raise t.CodecError(f"KServe has no datatype for {dtype}; convert the values, as by astype")
    return found or "BYTES"


def convert_nan(val: Any) -> Any:
    """Return None for NaN, because JSON has no NaN."""
    return None if isinstance(val, float) and val != val else val


@register_input_codec
class NumpyCodec(InputCodec):
    """An array."""

    ContentType, TypeHint = "np", np.ndarray

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """See `InputCodec`."""
        return isinstance(payload, np.ndarray)

    @classmethod
    def encode_output(cls, name: str, payload: Any, **options: Any) -> Any:
        """Return a value as an output. Arrays of one dimension have the shape [N, 1]."""
        payload = np.asarray(payload)  # a model may return a scalar of numpy
        data: Any = payload
        if payload.dtype.kind not in "biuf" or (payload != payload).any():
            data = [encode_str(convert_nan(value)) for value in payload.reshape(-1).tolist()]
        shape = inject_batch_dimension(list(payload.shape))
        return _output(name, to_datatype(payload.dtype), shape, data, cls.ContentType)

    @classmethod
    def decode_input(cls, request_input: t.RequestInput) -> Any:
        """Return the value of an input."""
        dtype = DTYPES.get(request_input.datatype)  # none for BYTES: numpy sees texts or bytes
        with _reading(request_input, cls.ContentType):
            return np.array(request_input.data.values, dtype).reshape(request_input.shape)


@register_request_codec
class NumpyRequestCodec(SingleInputRequestCodec):
    """A request whose only input is an array."""

    InputCodec, ContentType, TypeHint = NumpyCodec, "np", np.ndarray


def encode_to_json(v: Any, use_bytes: bool = True) -> Any:
    """Return a value as compact JSON; arrays are lists."""
    plain: Any = np.ndarray.tolist
    text = json.dumps(v, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)
    return text.encode() if use_bytes else text


@register_request_codec
class PandasCodec(RequestCodec):
    """A table: each input or output is a column. pandas is imported when a request needs it."""

    ContentType, JsonContentType, TypeHint = "pd", "pd_json", "DataFrame"

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        """See `RequestCodec`."""
        return any(kind.__name__ == cls.TypeHint for kind in type(payload).__mro__)

    @classmethod
    def encode_outputs(cls, payload: Any, use_bytes: bool = True) -> list[t.ResponseOutput]:
        """Return the columns of a table as outputs: texts as `str`, other objects as `pd_json`."""
        outputs = []
        for name in payload:
            datatype = to_datatype(payload[name].dtype)
            data, kind = [convert_nan(value) for value in payload[name].tolist()], ""
            if datatype == "BYTES" and is_list_of(data, str | bytes):
                data, kind = [encode_str(each) if use_bytes else each for each in data], "str"
            elif datatype == "BYTES":
                data, kind = [encode_to_json(each, use_bytes) for each in data], cls.JsonContentType
            outputs.append(_output(str(name), datatype, [len(data), 1], data, kind))
        return outputs

    @classmethod
    def decode_request(cls, request: t.InferenceRequest) -> Any:
        """Return the value of a request."""
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            text = "the content type 'pd' needs pandas, which the server lacks: pip install pandas"
            raise t.CodecError(text) from error
        columns = {each.name: cls._column(each, pd.Series) for each in request.inputs}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise t.CodecError(f"expected columns of one length, found {lengths}")
        return pd.DataFrame(columns)

    @classmethod
    def _column(cls, tensor: t.RequestInput, series: Any) -> Any:
        if content_type_of(tensor) == cls.JsonContentType:
            with _reading(tensor, cls.JsonContentType):
                return series([json.loads(each) for each in as_list(tensor.data.root)])
        values, is_text = get_decoded_or_raw(tensor), tensor.datatype == "BYTES"
        if isinstance(values, t.TensorData):
            values = list(as_list(values.root)) if is_text else NumpyCodec.decode_input(tensor)
        if isinstance(values, np.ndarray):
            if values.size != len(values):
                text = f"the input {tensor.name!r} has the shape {tensor.shape}; a column has [N] or [N, 1]"
                raise t.CodecError(text)
            values = values.reshape(-1)
        return series(values, dtype=None if is_text else DTYPES[tensor.datatype])


# ---- decode_args ------------------------------------------------------------------------------


def decode_args(predict: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `predict` that takes a request and returns a response.

    Args:
        predict: A method with an annotation for each argument, and one for the result; a tuple has several outputs.

    Raises:
        CodecNotFound: No codec fits an annotation.
    """
    hints = get_type_hints(predict)
    result = hints.pop("return", None)
    results = get_args(result) if get_origin(result) is tuple else (result,) if result else ()
    inputs = {name: _codec(hint) for name, hint in hints.items()}
    codecs = [_codec(hint) for hint in results]

    @functools.wraps(predict)
    async def decoded(self: Any, request: t.InferenceRequest) -> t.InferenceResponse:
        value = await predict(self, **_arguments(inputs, request))
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        outputs: list[t.ResponseOutput] = []
        for index, each in enumerate(values):
            codec = codecs[index] if index < len(codecs) else None
            if codec is None or not codec.can_encode(each):
                raise t.OutputNotFound(f"predict names no output {index} of {type(each)}", 500)
            if hasattr(codec, "encode_output"):
                outputs.append(codec.encode_output(name=f"output-{index}", payload=each))
            else:
                outputs += codec.encode_response("", each).outputs
        return _response(self.name, self.version, outputs)

    return decoded


def _arguments(codecs: dict[str, Any], request: t.InferenceRequest) -> dict[str, Any]:
    """Return the arguments of a request. An argument for a whole request gets the inputs that have no argument."""
    named, others = {}, []
    for each in request.inputs:
        if hasattr(codecs.get(each.name), "decode_input"):
            named[each.name] = codecs[each.name].decode_input(each)
        else:
            others.append(each)
    whole = next((name for name, codec in codecs.items() if hasattr(codec, "decode_request")), "")
    if others and not whole:
        unknown = ", ".join(repr(each.name) for each in others)
        raise t.InputsNotFound(f"unknown inputs {unknown}; expected {', '.join(codecs)}")
    if others:
        named[whole] = codecs[whole].decode_request(t.InferenceRequest(inputs=others))
    return named


def _codec(hint: Any) -> Any:
    inner = [each for each in get_args(hint) if each is not type(None)]
    if len(inner) < len(get_args(hint)):  # Optional
        hint = inner[0]
    found = find_input_codec(type_hint=hint) or find_request_codec(type_hint=hint)
    if found is None:
        raise t.CodecNotFound(f"no codec has the type {hint}, which an annotation of predict names")
    return found
