# Needs the GIL: a change of a stream is a step without Python code, so that it needs no lock.
"""The answers of one streaming request, between the handler that makes them and the front end.

A stream keeps few answers: if the client reads slowly, the handler waits. So the memory of a stream
does not grow with its length. Large answers that wait are counted in the memory budget, like
answers that are being sent.

The first answer of a stream is an `InferResponse`, which the front end renders. It fixes a
`ChunkForm`. A `ChunkWriter` writes further chunks of this form at once, on the handler's thread,
and the front end takes them as bytes.
"""

import math
import sys
import threading

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libcpp.string cimport string

from native.base.clock cimport now_ns
from native.infer.chunk_form cimport ChunkForm as CChunkForm, ChunkKind
from native.tensor.datatype cimport datatype_of

from ksrv._native.batch.batch cimport ExecutorOutputs
from ksrv._native.memory.exported_bytes cimport ExportedBytes
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.tensor.tensor cimport Tensor

from ksrv._native.memory.memory_budget import PROCESS

if not cython.compiled:
    from collections.abc import Callable
    from typing import Any

cdef enum:
    # Answers and bytes that wait for a client; one answer may be larger.
    WAITING_ANSWERS = 64
    WAITING_BYTES = 1048576
    # As above, if a handler sends without waiting; four answers may be larger.
    ANSWERS_BEHIND = 256
    BYTES_BEHIND = 8388608
    # Answers up to this size are not counted in the memory budget, because few of them wait.
    SMALL_BYTES = 65536

MOST_WAITING: int = WAITING_ANSWERS
MOST_BEHIND: int = ANSWERS_BEHIND
MOST_BEHIND_BYTES: int = BYTES_BEHIND

KINDS = ("json_value", "json_array", "grpc_message")

cdef struct Text:
    const unsigned char *data
    size_t length


cdef bint text_of(object value, Text *out) except -1:
    """Read a text. False if the value is neither `bytes` nor a `str` that has a UTF-8 form."""
    cdef Py_ssize_t length = 0
    if type(value) is bytes:
        out.data = <const unsigned char *>PyBytes_AS_STRING(value)
        out.length = <size_t>PyBytes_GET_SIZE(value)
        return True
    if type(value) is not str:
        return False
    try:
        out.data = <const unsigned char *>PyUnicode_AsUTF8AndSize(value, &length)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    out.length = <size_t>length
    return True


@cython.final
cdef class ChunkForm:
    """The form of all chunks of a stream after the first.

    Args:
        tensor: The only output of the first chunk, of one row.
        kind: "json_value": a text or one number. "json_array": numbers in brackets. "grpc_message":
            a ModelStreamInferResponse with its prefix.
        pieces: Of JSON, the bytes before the value and after each of its occurrences. Of a message,
            the ModelInferResponse without raw_output_contents.
    """

    cdef CChunkForm native
    cdef str name, datatype
    cdef tuple shape

    def __cinit__(self, Tensor tensor not None, str kind, list pieces: list[bytes]):
        cdef bytes datatype = tensor.datatype.encode()
        self.name, self.datatype, self.shape = tensor.name, tensor.datatype, tensor.shape
        self.native.kind = <ChunkKind><int>KINDS.index(kind)
        self.native.datatype = datatype_of(datatype, <size_t>len(datatype))
        self.native.count = math.prod(tensor.shape)
        self.native.pieces = pieces


@cython.final
cdef class ResponseStream:
    """A bounded queue of answers, with one reader.

    Args:
        notify: Called when an answer was added, or the request has ended. It must not block.

    Attributes:
        ended: Whether no further answer will arrive: the request has ended or its reader has gone.
        chunked: Whether the handler answers in chunks. Then the end of the request holds nothing.
        form_of: Gets an answer, and returns the form of all chunks after it, or None if they have
            no fixed form. Set by a reader that takes chunks as bytes.
    """

    cdef readonly bint ended
    cdef public bint chunked
    cdef public object form_of
    cdef ChunkForm form
    cdef object notify, changed
    cdef bint awaits_room
    cdef uint64_t wakes_at  # how many answers the reader waits for; 0: it does not wait
    cdef list items  # answer or bytes of chunks, its bytes in the budget, its chunks, its size
    cdef string written  # the chunks after the last of `items`
    cdef uint64_t written_count
    cdef uint64_t count, nbytes  # of everything that waits
    cdef int64_t taken_ns
    cdef list on_room

    form_of: Callable[[Any], ChunkForm | None] | None

    def __init__(self, notify: Callable[[], object] | None = None):
        self.changed = threading.Condition()
        self.items = []
        self.taken_ns = now_ns()
        self.notify = notify
        self.on_room = []

    # ---- the handler's side -----------------------------------------------------------------

    def put(self, response: Any) -> bool:
        """Append an `InferResponse`, without waiting; drop it if the stream has ended.

        Returns:
            Whether the memory budget has room for it.
        """
        cdef uint64_t nbytes = sum([tensor.nbytes for tensor in response.outputs])
        held = PROCESS.reserve_answer(nbytes) if nbytes > SMALL_BYTES else None
        if held is None and nbytes > SMALL_BYTES:
            return False
        if not self.ended:
            self.close_written()
            self.items.append((response, held, 1, nbytes))
            self.added(nbytes)
        return True

    def fix_form(self, response: Any) -> None:
        """Let the chunks after an answer be written in its form, if they have one."""
        if self.form_of is not None:
            self.form = self.form_of(response)
            self.form_of = None

    cdef bint can_write(self, const Text &text, str name, str datatype, tuple shape) except -1:
        """Whether a value of an output has the stream's form, and the stream has room for it."""
        cdef ChunkForm form = self.form
        return (
            form is not None and form.name == name and form.datatype == datatype
            and form.shape == shape and self.has_space() and text.length <= SMALL_BYTES
            and form.native.fits(text.data, text.length)
        )

    cdef int write(self, const Text &text) except -1:
        """Append a chunk that `can_write` allows; drop it if the stream has ended."""
        cdef size_t before = self.written.size()
        if not self.ended:
            self.form.native.put(&self.written, text.data, text.length)
            self.written_count += 1
            self.added(self.written.size() - before)
            if self.written.size() >= SMALL_BYTES:
                self.close_written()
        return 0

    cdef int close_written(self) except -1:
        """Make one item of the chunks that were written.

        A reader that takes one item may then wait for its client, so an item is never much larger
        than SMALL_BYTES.
        """
        cdef list item
        if not self.written_count:
            return 0
        # The only step that may run a garbage collection, and with it another thread, which may
        # have written more or closed the item when this step returns.
        item = [None, None, None, None]
        if self.written_count:
            item[0], item[2], item[3] = <bytes>self.written, self.written_count, self.written.size()
            self.items.append(item)
            self.written.clear()
            self.written_count = 0
        return 0

    cdef int added(self, uint64_t nbytes) except -1:
        """Count an answer that was added, and wake the reader if it has what it waits for."""
        self.count += 1
        self.nbytes += nbytes
        if self.wakes_at and self.has_gathered(self.wakes_at):
            self.wake()
        if self.notify is not None:
            self.notify()
        return 0

    cdef int wake(self) except -1:
        """Wake all sleepers. A sleeper sets its flag before it looks at the stream again."""
        self.awaits_room, self.wakes_at = False, 0
        with self.changed:
            self.changed.notify_all()
        return 0

    cdef int tell_room(self) except -1:
        """Wake the handler, and run the callbacks of `call_with_room`."""
        cdef list callbacks = self.on_room
        if self.awaits_room:
            self.wake()
        self.on_room = []
        for callback in callbacks:
            callback()
        return 0

    def end(self) -> None:
        """Say that the request has ended."""
        self.ended = True
        self.wake()
        self.tell_room()
        if self.notify is not None:
            self.notify()

    cdef bint has_space(self) noexcept:
        return self.ended or (self.count < WAITING_ANSWERS and self.nbytes < WAITING_BYTES)

    def has_room(self) -> bool:
        """Tell whether another answer may come: the client keeps up, or the request has ended."""
        return self.has_space()

    def is_far_behind(self) -> bool:
        """Tell whether so much waits for the client that no handler may send it more."""
        return not self.ended and (
            self.count >= ANSWERS_BEHIND or (self.count >= 4 and self.nbytes >= BYTES_BEHIND)
        )

    def taken_since(self, int64_t time_ns) -> bool:
        """Tell whether the client has taken an answer since a time of `time.monotonic_ns`."""
        return self.taken_ns >= time_ns

    def wait_room(self, int64_t until_ns) -> bool:
        """Sleep until there is room.

        Args:
            until_ns: The time of `time.monotonic_ns` at which to give up.

        Returns:
            Whether there is room.
        """
        cdef int64_t left_ns = until_ns - now_ns()
        while not self.has_space() and left_ns > 0:
            with self.changed:
                self.awaits_room = True
                if not self.has_space():
                    self.changed.wait(left_ns / 1e9)
            left_ns = until_ns - now_ns()
        return self.has_space()

    def call_with_room(self, callback: Callable[[], object]) -> None:
        """Have a function called once there is room; at once if there is.

        Args:
            callback: Called on the thread that makes room. It must not block.
        """
        if self.has_space():
            callback()
        else:
            self.on_room.append(callback)

    # ---- the front end's side ---------------------------------------------------------------

    def take(self, timeout: float | None = None) -> Any:
        """Take the next answer, waiting for it.

        Args:
            timeout: Seconds to wait at most; None for as long as the request takes.

        Returns:
            An `InferResponse`, or the bytes of chunks. None if no answer has arrived in time, and
            after the last.
        """
        taken = self.take_some(timeout, 1)
        return taken[0] if taken else None

    def take_all(self, timeout: float | None = None) -> list[Any]:
        """Take every answer that waits, waiting for the first; see `take`."""
        return self.take_some(timeout, sys.maxsize)

    cdef list take_some(self, object timeout, Py_ssize_t most):
        cdef list taken, found = []
        if timeout != 0:
            self.sleep(timeout, 1)
        self.close_written()
        taken = self.items[:most]
        del self.items[:most]
        for item, held, count, nbytes in taken:
            found.append(item)
            self.count -= <uint64_t>count
            self.nbytes -= <uint64_t>nbytes
            self.taken_ns = now_ns()
            if held is not None:
                held.close()
        if self.has_space():
            self.tell_room()
        return found

    def gather(self, seconds: float) -> None:
        """Wait for more answers, until the handler would have to wait, or the last has come."""
        self.sleep(seconds, WAITING_ANSWERS)

    cdef int sleep(self, object timeout, uint64_t count) except -1:
        """Sleep until `count` answers wait, the stream is full, or the last answer has arrived."""
        if not self.has_gathered(count):
            with self.changed:
                self.wakes_at = count
                if not self.has_gathered(count):
                    self.changed.wait(timeout)
        return 0

    cdef bint has_gathered(self, uint64_t count) noexcept:
        return self.ended or self.count >= count or not self.has_space()

    def give_up(self) -> None:
        """Drop the answers that wait, and all later answers, because nobody takes them any more.

        Their bytes go back to the memory budget at once, whoever still refers to the stream.
        """
        self.end()
        self.take_all(0)

    @property
    def waiting(self) -> bool:
        """Whether an answer waits to be taken."""
        return self.count != 0

    @property
    def finished(self) -> bool:
        """Whether every answer was taken and no further answer will arrive."""
        return self.ended and self.count == 0


@cython.final
cdef class ChunkWriter:
    """Writes the chunks of a batch into the streams of its requests, once these have a form.

    Args:
        handles: The `NativeHandle` of each request. Each request has one row.
        streams: The stream of each request.
        row_ended: Stands in a chunk for a row that gets nothing more.
        text_output: The name of the output that texts are for, or None.
        rank: The number of its dimensions.
        lone: Whether a chunk may be a text, instead of a list with a text for each row.
    """

    cdef list handles, streams
    cdef object row_ended
    cdef str text_output
    cdef tuple text_shape
    cdef bint lone

    def __init__(
        self,
        list handles not None: list[NativeHandle],
        list streams not None: list[ResponseStream],
        object row_ended: object,
        str text_output: str | None,
        Py_ssize_t rank,
        bint lone,
    ):
        if len(handles) != len(streams):
            raise ValueError(f"{len(handles)} requests have {len(streams)} streams")
        self.handles = [<NativeHandle?>handle for handle in handles]
        self.streams = [<ResponseStream?>stream for stream in streams]
        self.row_ended = row_ended
        self.text_output = text_output
        self.text_shape = (1,) * rank
        self.lone = lone

    def write(self, chunk: Any) -> int:
        """Write a chunk of texts, as a handler yields it.

        Returns:
            How many requests still take chunks. -1 if nothing was written, because the chunk or a
            stream has no such form, or a stream has no room.
        """
        cdef list texts
        cdef bint sparse = type(chunk) is list  # only a bare list may leave rows without a text
        if type(chunk) is dict:
            chunk = (<dict>chunk).get(self.text_output) if len(<dict>chunk) == 1 else None
        if type(chunk) is list and len(self.text_shape) == 1:
            texts = <list>chunk
        elif self.lone:
            texts = [chunk]
        else:
            return -1
        if self.text_output is None:
            return -1
        for text in texts:
            if not sparse and self.is_absent(text):
                return -1
        return self.write_rows(texts, self.text_output, "BYTES", self.text_shape)

    def write_outputs(self, ExecutorOutputs outputs not None) -> bool:
        """Write a chunk that is one tensor, with a row for each request.

        Returns:
            Whether it was written: it has the form of each stream, and the streams have room.
        """
        cdef Py_ssize_t i, rows = len(self.handles)
        cdef size_t nbytes
        cdef Tensor tensor
        cdef ExportedBytes numbers
        cdef list values = []
        if not outputs.is_bare() or outputs.last or len(outputs.tensors) != 1:
            return False
        tensor = outputs.tensors[0]
        if tensor.its_parameters or len(tensor.shape) == 0 or tensor.shape[0] != rows:
            return False
        if type(tensor.data) is list:
            values = tensor.data[:]
        elif tensor.data.flags.c_contiguous:
            numbers.take(tensor.data)
            nbytes = numbers.length // <size_t>rows
            for i in range(rows):
                values.append((<const char *>numbers.data)[i * nbytes:(i + 1) * nbytes])
        if outputs.only is not None and len(values) == rows:
            values = [values[i] if i in outputs.only else None for i in range(rows)]
        shape = (1, *tensor.shape[1:])
        return self.write_rows(values, tensor.name, tensor.datatype, shape) >= 0

    cdef Py_ssize_t write_rows(
        self, list values, str name, str datatype, tuple shape
    ) except -2:
        """Write a value for each request: a text, the bytes of numbers, or nothing for None."""
        cdef Py_ssize_t i, rows = len(self.handles), listening = 0
        cdef Text text
        cdef ResponseStream stream
        if len(values) != rows:
            return -1
        for i in range(rows):
            if not self.is_absent(values[i]):
                stream = self.streams[i]
                if not text_of(values[i], &text):
                    return -1
                if self.is_open(i) and not stream.can_write(text, name, datatype, shape):
                    return -1
        for i in range(rows):
            if self.is_open(i):
                listening += 1
                if not self.is_absent(values[i]):
                    text_of(values[i], &text)  # True, as in the loop above
                    (<ResponseStream>self.streams[i]).write(text)
        return listening

    cdef bint is_absent(self, object value) noexcept:
        return value is None or value is self.row_ended

    cdef bint is_open(self, Py_ssize_t i) noexcept:
        return (<NativeHandle>self.handles[i]).native.done.load() == 0
