"""The context object that TorchServe handlers get: `ts.context`.

A handler has one `Context` for its whole life, because handlers keep the reference that `initialize` got. Only the
fields in `RunFields` change from batch to batch. A thread that was started while a batch ran sees the fields of that
batch, because ksrv passes the context variable `WORKS_FOR` on to it (`ksrv/handlers/batch_threads.py`). A thread that
`initialize` started sees the fields of the newest batch, as in TorchServe.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from ksrv._native.batch.stages import WORKS_FOR, no_batch
from ksrv.dialects.torchserve.api.metrics import Metrics

DEFAULT_STATUS = 200


class RequestHeaders(dict[str, Any]):
    """The headers of a request. Names are found in any case.

    The server does not keep the case in which a client wrote a name, and iteration shows `X-My-Header` for all. A
    handler that asks for `x-my-header`, as its clients write it, must find the header too.
    """

    def __missing__(self, key: str) -> Any:
        wanted = key.lower()
        for name, value in self.items():
            if name.lower() == wanted:
                return value
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (
            isinstance(key, str) and any(name.lower() == key.lower() for name in self)
        )

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


class RequestProcessor:
    """The headers of one row's request, and the status and headers of its answer.

    Attributes:
        failure: The error that fails only this row's request, or None.
    """

    def __init__(self, request_header: dict[str, Any]) -> None:
        self._request_header = request_header
        self._status_code = DEFAULT_STATUS
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}
        self.failure: Exception | None = None

    def get_request_property(self, key: str) -> Any:
        return self._request_header.get(key)

    def get_request_properties(self) -> dict[str, Any]:
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        return self._response_header.get(key)


@dataclass
class RunFields:
    """The fields of a context that belong to one batch.

    Attributes:
        request_ids: The id of each row.
        request_processor: The headers, and the status and headers of the answer, of each row.
        cl_socket: Sends intermediate answers; None outside of a server. In TorchServe this is a socket.
        rows_are_requests: Whether the handler's rows are the rows of the batch; False if an envelope makes other rows.
    """

    request_ids: dict[int, str] | None = None
    request_processor: list[RequestProcessor] = field(default_factory=list)
    cl_socket: Any = None
    rows_are_requests: bool = True


def _header(name: str) -> str:
    """Return the name of a header, which a variable of the same name in capitals may change."""
    return os.environ.get(name.upper(), name)


def _of_batch(name: str) -> Any:
    """Return a property of `Context` that reads and sets a field of the calling thread's `RunFields`."""

    def get(context: "Context") -> Any:
        return getattr(context.batch_fields(), name)

    def set_value(context: "Context", value: Any) -> None:
        setattr(context.batch_fields(), name, value)

    return property(get, set_value)


class Context:
    """The context of a handler: its model, and the batch that it works on.

    Handlers may set additional attributes on it.

    Args:
        model_dir: The folder that the model was loaded from.
        batch_size: The most requests of a batch.
        gpu: The index of the assigned GPU, or None on the CPU.
        mms_version: The version of the server that the handler believes to run in.
        limit_max_image_pixels: Whether Pillow's limit on image sizes stays in force.
        metrics: Takes custom metrics.
        model_yaml_config: The whole model-config.yaml, `{}` without one.

    Attributes:
        newest: The fields of the newest batch.
    """

    request_ids: dict[int, str] | None = _of_batch("request_ids")
    request_processor: list[RequestProcessor] = _of_batch("request_processor")
    cl_socket: Any = _of_batch("cl_socket")
    rows_are_requests: bool = _of_batch("rows_are_requests")

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str,
        limit_max_image_pixels: bool = True,
        metrics: Metrics | None = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.newest = RunFields()
        self.metrics = metrics
        self.model_yaml_config = {} if model_yaml_config is None else model_yaml_config
        self.stopping_criteria: list[Any] | None = None
        self.header_key_sequence_id = _header("ts_request_sequence_id")
        self.header_key_sequence_start = _header("ts_request_sequence_start")
        self.header_key_sequence_end = _header("ts_request_sequence_end")

    def batch_fields(self) -> RunFields:
        """Return the fields of the batch that this thread works for.

        Raises:
            HandlerFailed: The thread was started while a batch ran that has been answered since.
        """
        bound = WORKS_FOR.get()
        if bound is None:
            return self.newest
        if bound.made is None:  # released, because the batch has been answered
            raise no_batch()
        fields: RunFields = bound.made  # TorchServeRunner binds them in place of ksrv's `Batch`
        return fields

    def get_request_id(self, idx: int = 0) -> str | None:
        return self.request_ids.get(idx) if self.request_ids else None

    def get_request_header(self, idx: int, key: str) -> Any:
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        return self.request_processor[idx].get_request_properties()

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        return self.get_response_headers(idx).get("content-type")

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        if self.request_processor:
            self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self.request_processor[idx].get_response_headers()

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.request_processor[idx].add_response_property(key, value)

    def listening(self, idx: int | None = None) -> bool:
        """Tell whether a client still waits. TorchServe has no such method; it is for handlers that stream.

        Args:
            idx: The row whose client to ask for; by default any client of the batch.

        Returns:
            False once the client's connection is gone or its deadline has passed. If no client
            of the batch takes intermediate answers, this is not known, and the result is True.
        """
        return self.cl_socket is None or bool(self.cl_socket.listening(idx))

    def fail(self, idx: int, error: Exception) -> None:
        """Fail only the request of one row, and drop the row's return value. TorchServe has no such method.

        Args:
            error: The reason. The client reads the text of a PredictionException; any other error has the effect on
                this row that it would have had on the whole batch.

        Raises:
            Exception: `error` itself, if an envelope makes other rows than the batch has.
        """
        if not self.rows_are_requests:
            raise error
        processor = self.request_processor[idx]
        processor.failure = processor.failure or error

    def get_sequence_id(self, idx: int) -> str:
        return str(self.get_request_header(idx, self.header_key_sequence_id) or "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]
