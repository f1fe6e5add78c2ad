"""Calls a TorchServe handler with a batch: one `CallForm` for each protocol over which requests arrive.

A form turns the batch into the rows that the handler expects, and the returned items, statuses and errors into answers.
All requests of a batch came over the same protocol: TorchServe's routes, KServe v1 or KServe v2.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ksrv.dialects.torchserve.api import answers
from ksrv.dialects.torchserve.api.context import DEFAULT_STATUS, Context, RequestHeaders
from ksrv.dialects.torchserve.api.entry import Entry
from ksrv.dialects.torchserve.api.envelopes import BARE_ENVELOPES, INSTANCE_ENVELOPES
from ksrv.dialects.torchserve.calls import KSERVE_V2, TorchServeAnswer
from ksrv.dialects.torchserve.runner import rows
from ksrv.dialects.torchserve.runner.kserve_outputs import kserve_tensors
from ksrv.errors import HandlerFailed, InferenceError, InvalidRequest, KsrvError, cut, quote
from ksrv.request import Element, ExecutorInputs, ExecutorOutputs, RequestPart, Tensor

log = logging.getLogger("ksrv.dialects.torchserve")

STREAMED = "ts_stream_next"
"""The response header by which the real torchserve marks a chunk."""
ROUTE_KEYS = frozenset({"explain", "describe", "url_path"})
"""Keys of the handler's request headers that the route sets, never a client's header."""


class Call(NamedTuple):
    """One call of an entry point.

    Attributes:
        entry: The handler's entry point, or its envelope's.
        rows: The rows of the batch, as the entry point takes them.
        owners: For each row the index of the request that it belongs to.
        refused: The errors of requests whose bodies are wrong, by the index of the request. They have no rows.
    """

    entry: Entry
    rows: list[Any]
    owners: list[int]
    refused: Mapping[int, KsrvError] = MappingProxyType({})


class LoadedHandler(NamedTuple):
    """The loaded handler that the forms call.

    Attributes:
        model: The model's name.
        bare: The handler's entry point.
        enveloped: The entry point of its envelope; `bare` without an envelope.
        envelope: The name of its envelope, or "".
        decode: Whether parts of requests are decoded by their content types.
        most_rows: Rows of a batch at most.
    """

    model: str
    bare: Entry
    enveloped: Entry
    envelope: str = ""
    decode: bool = True
    most_rows: int = 1


class CallForm(ABC):
    """One protocol, for one loaded handler."""

    too_large = 413
    """The status that the client gets if the handler raises a PredictionException with 413."""

    out_of_resources = 503
    """The status if the handler runs out of memory."""

    def __init__(self, handler: LoadedHandler) -> None:
        self.handler = handler
        self._model = handler.model
        # Of KServe v1: without an envelope, ksrv itself unpacks the instances of a body.
        self._opens_instances = not handler.envelope

    @abstractmethod
    def call(self, inputs: ExecutorInputs) -> Call:
        """Return the call of the handler that serves a batch."""

    def request_headers(self, request: RequestPart, inputs: ExecutorInputs) -> dict[str, Any]:
        """Return what `context.get_all_request_header` shows for a request of a batch."""
        shown = RequestHeaders(self._route_headers(request, inputs))
        shown |= {
            name: value for name, value in request.headers.items() if name.lower() not in ROUTE_KEYS
        }
        if "url_path" in request.facts:
            shown["url_path"] = request.facts["url_path"]
        return shown

    @abstractmethod
    def _route_headers(self, request: RequestPart, inputs: ExecutorInputs) -> dict[str, Any]:
        """Return the content types of a request's parts and the keys that the route sets."""

    def outputs(self, call: Call, items: list[Any], context: Context) -> ExecutorOutputs:
        """Return the answers of a batch.

        Args:
            context: The handler's context, with the statuses and headers of the rows.
        """
        outputs = ExecutorOutputs([])
        elements: list[Element] = []
        for row, (index, item) in enumerate(zip(call.owners, items, strict=True)):
            element: Element = b""
            try:
                failure = context.request_processor[row].failure
                if failure is not None:
                    shown = f"the model {self._model}"
                    request_id = quote(context.get_request_id(row) or "")
                    log.error("%s failed the request %s", shown, request_id, exc_info=failure)
                    raise failure
                element = self._add_item(item, index, outputs)
            except BaseException as error:  # noqa: BLE001  a row may have failed with anything
                outputs.failures[index] = self.failure(error)
            elements.append(element)
            headers = response_headers(context, row)
            if headers:
                outputs.headers[index] = outputs.headers.get(index, {}) | headers
            code, phrase = context.get_response_status(row)
            if code != DEFAULT_STATUS:
                self._set_status(code, phrase or "", index, element, outputs)
        outputs.tensors = [Tensor(answers.OUTPUT, "BYTES", (len(elements),), elements)]
        return outputs

    def chunk(self, items: Mapping[int, Any], owners: Sequence[int]) -> ExecutorOutputs:
        """Return an intermediate answer to the requests of some rows.

        Args:
            items: The items by row.
            owners: See `Call.owners`.
        """
        outputs = ExecutorOutputs([], only=frozenset(owners[row] for row in items))
        elements: list[Element] = [b""] * len(owners)
        for row, item in items.items():
            elements[row] = self._add_item(item, owners[row], outputs)
        outputs.tensors = [Tensor(answers.OUTPUT, "BYTES", (len(elements),), elements)]
        return outputs

    @abstractmethod
    def _add_item(self, item: Any, index: int, outputs: ExecutorOutputs) -> Element:
        """Return an item as an element of the output.

        Args:
            index: The index of the request.
            outputs: Takes the content type of the item, if the protocol has one.

        Raises:
            AnswerError: JSON cannot express the item.
        """

    @abstractmethod
    def _set_status(
        self, code: int, phrase: str, index: int, element: Element, outputs: ExecutorOutputs
    ) -> None:
        """Note the status that the handler set for a row."""

    def failure(self, error: BaseException) -> KsrvError:
        """Return the answer to a request whose handler failed."""
        if answers.is_prediction_exception(error):
            status = error.error_code if 400 <= error.error_code <= 599 else 500  # type: ignore[attr-defined]
            status = self.too_large if status == 413 else status
            return InferenceError(cut(str(error.message)), status)  # type: ignore[attr-defined]
        if isinstance(error, MemoryError) or "CUDA" in str(error):
            return InferenceError(answers.OUT_OF_RESOURCES, self.out_of_resources)
        return self._failure(error)

    def _failure(self, error: BaseException) -> KsrvError:
        """Return the answer to an error that has no status."""
        if isinstance(error, InvalidRequest):  # an envelope cannot read the body
            return error
        if isinstance(error, answers.AnswerError):
            return HandlerFailed(f"the handler of the model {self._model} failed: {error}")
        stage = answers.stage_of(error)
        where = f" in {stage}" if stage else ""
        return HandlerFailed(
            f"the handler of the model {self._model} failed{where} with {type(error).__name__}"
        )


class RoutesForm(CallForm):
    """TorchServe's routes: a request is one row, and an item is the whole body of its answer."""

    too_large = out_of_resources = 507  # as TorchServe's front end answers both

    def call(self, inputs: ExecutorInputs) -> Call:
        """See `CallForm.call`."""
        decode = self.handler.decode
        data = [rows.torchserve_row(inputs, request, decode) for request in inputs.requests]
        return Call(self.handler.enveloped, data, list(range(len(data))))

    def _route_headers(self, request: RequestPart, inputs: ExecutorInputs) -> dict[str, Any]:
        kinds = request.facts.get("content_types", {})
        shown: dict[str, Any] = {
            name: {"content-type": rows.media_type(kinds.get(name, ""))} for name in inputs.tensors
        }
        if "explain" in request.facts:
            shown["explain"] = request.facts["explain"]
        return shown

    def _add_item(self, item: Any, index: int, outputs: ExecutorOutputs) -> Element:
        element, content_type = answers.torchserve_item(item)
        outputs.facts[index] = TorchServeAnswer(content_type=content_type)
        return element

    def _set_status(
        self, code: int, phrase: str, index: int, element: Element, outputs: ExecutorOutputs
    ) -> None:
        head: TorchServeAnswer = outputs.facts.setdefault(index, {})
        head["status"] = f"{code} {phrase}".rstrip()

    def _failure(self, error: BaseException) -> KsrvError:
        if isinstance(error, answers.AnswerError):
            return InferenceError(error.shown, 503)
        return InferenceError(answers.PREDICTION_FAILED, 503)


class KServeV1Form(RoutesForm):
    """KServe v1: with an envelope, the JSON body is one row, as on TorchServe's routes.

    A handler without an envelope gets each of the `instances` as a row, and its items become the `predictions`, as with
    the `kserve` envelope. But here a row that fails fails only its request.
    """

    # KServe's protocols have other statuses and errors than TorchServe's routes.
    too_large = CallForm.too_large
    out_of_resources = CallForm.out_of_resources

    def call(self, inputs: ExecutorInputs) -> Call:
        """See `CallForm.call`."""
        data: list[Any] = []
        owners: list[int] = []
        refused: dict[int, KsrvError] = {}
        needs_instances = self.handler.envelope in ("", *INSTANCE_ENVELOPES)
        for index, request in enumerate(inputs.requests):
            row = rows.torchserve_row(inputs, request, self.handler.decode)
            try:
                document = rows.predict_document(row, needs_instances=needs_instances)
                instances = document.get("instances")
                if isinstance(instances, list) and 1 < self.handler.most_rows < len(instances):
                    raise InvalidRequest(
                        f"the request has {len(instances)} instances, above the batchSize ({self.handler.most_rows}) of the "
                        f"model {self._model}"
                    )
                added = rows.instance_rows(document) if self._opens_instances else [row]
            except InvalidRequest as error:
                refused[index] = error
                continue
            data += added
            owners += [index] * len(added)
        return Call(self.handler.enveloped, data, owners, refused)

    def outputs(self, call: Call, items: list[Any], context: Context) -> ExecutorOutputs:
        """See `CallForm.outputs`."""
        outputs = super().outputs(call, items, context)
        (by_row,) = outputs.tensors
        # A refused request gets a body too, which nobody reads: the runner adds its error.
        by_request: dict[int, list[bytes]] = {index: [] for index in (*call.owners, *call.refused)}
        for index, element in zip(call.owners, by_row.data, strict=True):
            by_request[index].append(bytes(element))
        # The engine never joins a request to explain with a request to predict, so the first row speaks for all.
        explained = context.get_request_header(0, "explain") == "True"
        key = b"explanations" if explained else b"predictions"
        # Each request has a tensor of its body, because bodies are joined from several rows.
        outputs.tensors, outputs.parts = [], {}
        for index, texts in by_request.items():
            joined = b",".join(texts) if self._opens_instances else b"".join(texts)
            body = b'{"%b":[%b]}' % (key, joined) if self._opens_instances else joined
            outputs.parts[index] = (len(outputs.tensors), len(outputs.tensors) + 1)
            outputs.tensors.append(Tensor(answers.OUTPUT, "BYTES", (1,), [body]))
        return outputs

    def _add_item(self, item: Any, index: int, outputs: ExecutorOutputs) -> Element:
        if not self._opens_instances and isinstance(item, (str, bytes, bytearray)):
            # The envelope has written the JSON already.
            return super()._add_item(item, index, outputs)
        outputs.facts[index] = TorchServeAnswer(content_type="application/json")
        return answers.json_item(item)

    _failure = CallForm._failure


class KServeForm(CallForm):
    """KServe v2: each row of a request is a row, and an item is an element of the BYTES output."""

    def call(self, inputs: ExecutorInputs) -> Call:
        """See `CallForm.call`."""
        owned = rows.kserve_rows(inputs)
        owners = [index for index, _ in owned]
        # These envelopes would unpack instances from JSON. Here the rows of the tensor are the instances already.
        if self.handler.envelope in BARE_ENVELOPES:
            return Call(self.handler.bare, [value for _, value in owned], owners)
        return Call(self.handler.enveloped, [{"body": value} for _, value in owned], owners)

    def _route_headers(self, request: RequestPart, inputs: ExecutorInputs) -> dict[str, Any]:
        return {"body": {"content-type": ""}, "explain": str(inputs.explain)}

    def _add_item(self, item: Any, index: int, outputs: ExecutorOutputs) -> Element:
        return answers.kserve_element(item)

    def _set_status(
        self, code: int, phrase: str, index: int, element: Element, outputs: ExecutorOutputs
    ) -> None:
        given: Any = code  # a handler may set anything
        if not isinstance(given, int):
            outputs.failures[index] = HandlerFailed(
                f"the handler of the model {self._model} set the status {quote(given)}; expected a whole number"
            )
        elif code >= 400:
            text = bytes(element).decode("utf-8", "replace")
            outputs.failures.setdefault(index, InferenceError(text, min(code, 599)))


class KServeEnvelopeForm(KServeForm):
    """KServe v2 for a handler with the `kservev2` envelope, which reads and writes typed tensors."""

    def call(self, inputs: ExecutorInputs) -> Call:
        """See `CallForm.call`."""
        if len(inputs.requests) != 1:
            raise HandlerFailed(
                f"requests to the model {self._model}, which has the {KSERVE_V2} envelope,"
                f" cannot be joined: leave out its batching"
            )
        return Call(self.handler.enveloped, [{"body": rows.kserve_document(inputs)}], [0])

    def outputs(self, call: Call, items: list[Any], context: Context) -> ExecutorOutputs:
        """See `CallForm.outputs`."""
        outputs = ExecutorOutputs(kserve_tensors(items[0], self._model))
        if headers := response_headers(context, 0):
            outputs.headers[0] = headers
        return outputs


def response_headers(context: Context, row: int) -> dict[str, str]:
    """Return the headers that the handler set for a row, without `STREAMED`."""
    return {
        str(name): str(value)
        for name, value in context.get_response_headers(row).items()
        if name != STREAMED
    }
