"""Turns the items that a TorchServe handler returns into bytes, and tells how a handler failed.

A handler returns a list with one item for each row. On TorchServe's routes an item is sent as TorchServe sends it. Over
KServe v2 an item is one element of the BYTES output; numbers and objects become compact JSON.
"""

import io
import json
import sys
from typing import Any

import numpy as np
import orjson

from ksrv.dialects.torchserve.api.errors import PredictionException
from ksrv.request import Element
from ksrv.torch_interop import is_tensor

OUTPUT = "output"
"""The name of the BYTES output over KServe v2."""
PREDICTION_FAILED = "Prediction failed"
OUT_OF_RESOURCES = "Out of resources"

STAGES = ("preprocess", "inference", "postprocess", "explain_handle")
"""The methods that an error can name. Every handler class has the first three."""


class AnswerError(Exception):
    """A return value of a handler that cannot be sent.

    Args:
        shown: TorchServe's text for this fault, for clients of TorchServe's routes.
        text: The fault in detail, for the log and for clients of KServe v2.
    """

    def __init__(self, shown: str, text: str) -> None:
        super().__init__(text)
        self.shown = shown


def checked_items(returned: Any, rows: int) -> list[Any]:
    """Return the items of a handler's answer.

    Raises:
        AnswerError: The answer is not a list of `rows` items.
    """
    if not isinstance(returned, list):
        raise AnswerError(
            "Invalid model predict output",
            f"it returned {type(returned).__name__} for {_counted(rows, 'row')}; expected is a list"
            f" with one item for each",
        )
    if len(returned) != rows:
        raise AnswerError(
            "number of batch response mismatched",
            f"it returned {_counted(len(returned), 'item')} for {_counted(rows, 'row')}; expected is"
            f" a list with one item for each",
        )
    return returned


def torchserve_item(item: Any) -> tuple[bytes, str]:
    """Return an item as TorchServe's routes send it, and the content type that fits it.

    Raises:
        AnswerError: JSON cannot express the item.
    """
    if isinstance(item, (bytes, bytearray)):
        return bytes(item), "application/octet-stream"
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass"), "text/plain; charset=utf-8"
    if is_tensor(item):
        import torch

        buffer = io.BytesIO()
        torch.save(item, buffer)
        return buffer.getvalue(), "application/octet-stream"
    try:
        return json.dumps(item, indent=2).encode(), "application/json"
    except (TypeError, ValueError, RecursionError):
        raise _unsupported(item) from None


def kserve_element(item: Any) -> Element:
    """Return an item as an element of the BYTES output over KServe v2.

    Raises:
        AnswerError: JSON cannot express the item.
    """
    if isinstance(item, (bytes, bytearray, str)):
        return torchserve_item(item)[0]
    return json_item(item)


def json_item(item: Any) -> bytes:
    """Return an item as compact JSON; a tensor becomes lists, and bytes are decoded to text.

    Raises:
        AnswerError: JSON cannot express the item.
    """
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(item, _plain, option)
    except TypeError:
        raise _unsupported(item) from None


def _plain(value: Any) -> Any:
    """Convert a value inside an item that orjson does not know; orjson calls it as its `default`."""
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8")
    if is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
        # orjson itself takes no array of texts, of objects or in Fortran order.
        return value.tolist()
    raise TypeError


def stage_of(error: BaseException) -> str:
    """Return the stage of a handler that raised, "" if it has no stages or none was running.

    Args:
        error: The exception. The stage is the outermost method in its traceback of an object
            with all stages, so that the handler's `handle` may call the stages as it likes.
    """
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name in STAGES and code.co_argcount:
            owner = trace.tb_frame.f_locals.get(code.co_varnames[0])
            if all(callable(getattr(owner, stage, None)) for stage in STAGES[:3]):
                return code.co_name
        trace = trace.tb_next
    return ""


def is_prediction_exception(error: BaseException) -> bool:
    """Whether an error is ksrv's PredictionException, or the class of an installed torchserve."""
    installed = getattr(sys.modules.get("ts.utils.util"), "PredictionException", ())
    return isinstance(error, (PredictionException, installed))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _unsupported(item: Any) -> AnswerError:
    return AnswerError(
        "Unsupported model output data type.",
        f"JSON cannot express an item of the type {type(item).__name__}",
    )
