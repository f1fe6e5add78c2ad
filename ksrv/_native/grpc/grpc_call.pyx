# Needs the GIL: Python objects pass from one thread to another.
"""A gRPC call of the native server, for Python: its metadata, messages and answers.

A `Call` owns one reference to the native call (native/grpc/call.hpp). Several `Call`s may refer to
the same native call one after the other: one to check the caller, another to answer.
"""

import time

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport Py_DECREF, Py_INCREF
cimport cython
from libc.stdint cimport int64_t
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from native.grpc.call cimport Next
from native.grpc.call_head cimport Encoding
from native.grpc.status cimport binary_value, retry_details as c_retry_details

from ksrv._native.memory.buffer_pool cimport ksrv_wrap
from ksrv._native.queue.request_handle cimport NativeHandle
from ksrv._native.server.exchange cimport ksrv_ip_address, ksrv_user

if not cython.compiled:
    from collections.abc import Callable

CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)
CODE_OF: dict[str, int] = {name: number for number, name in enumerate(CODES)}

cdef enum:
    COPIED_BYTES = 16384           # longer answers are not copied
    MAX_UNSENT_BYTES = 1048576     # of a stream; `write` blocks until the client has read the rest


def retry_details(str code not None, str text not None, uint64_t seconds) -> bytes:
    """Return the `grpc-status-details-bin` value for a call that may be retried.

    Args:
        seconds: When the call may be retried.

    Returns:
        A `google.rpc.Status` with a `google.rpc.RetryInfo`, serialized.
    """
    cdef string words = text.encode("utf-8", "replace")
    return c_retry_details(CODE_OF[code], words, seconds)


class PrefixedMessages(bytes):
    """Messages of a stream that have their prefixes already, one after the other.

    A prefix has 5 bytes: a flag for compression, and the length of the message in 4 bytes.
    """


@cython.final
cdef class MessageForm:
    """The form of a method's messages in which calls need no Python before their handler."""


cdef MessageForm form_of(const CMessageForm *native):
    cdef MessageForm form = MessageForm.__new__(MessageForm)
    form.native = native
    return form


cdef Call call_of(object owner, CServer *server, CCall *native):
    """Return a `Call` for a native call. `owner` keeps the server alive."""
    cdef Call call = Call.__new__(Call)
    native.retain()
    call.native = native
    call.owner = owner
    call.server = server
    call.path = (<bytes>native.method.path).decode("ascii")
    return call


@cython.no_gc_clear  # __dealloc__ answers a call that was dropped without an answer
cdef class Call:
    """A call, with the methods of `grpc.ServicerContext` that ksrv needs.

    Attributes:
        path: The method's path.
    """

    def __dealloc__(self):
        if self.native != NULL:
            if not self.finished:
                self.finish(CODE_OF["INTERNAL"], "the server gave no answer; see its log")
            self.give_back_bytes()
            self.native.release()

    def metadata(self) -> dict[str, str]:
        """Return the text metadata, with names in lower case."""
        lines = &self.native.head.text
        cdef str text = lines.data()[:lines.size()].decode("latin-1")
        pairs = [line.partition(": ") for line in text.split("\r\n") if line]
        found = {name: value for name, _, value in pairs if not name.endswith("-bin")}
        found["x-request-id"] = self.request_id
        return found

    @property
    def request_id(self) -> str:
        """The call's id: from the client, or generated."""
        return self.native.head.request_id.text[:self.native.head.request_id.length].decode("ascii")

    @property
    def authorization(self) -> str | None:
        """The `authorization` entry, or None."""
        if self.native.head.authorization.empty():
            return None
        return (<bytes>self.native.head.authorization).decode("latin-1")

    @property
    def host(self) -> str:
        """The call's `:authority`, or else its `host`; "" if both are missing."""
        if self.native.head.authority.empty():
            return self.metadata().get("host", "")
        return (<bytes>self.native.head.authority).decode("latin-1")

    @property
    def repeats_authorization(self) -> bool:
        """Whether `authorization` occurs more than once."""
        return self.native.head.authorizations > 1

    @property
    def sampled(self) -> bool:
        """Whether the request was chosen for recording."""
        return self.native.observed.sampled

    def note_model(self, str model not None, str version not None) -> None:
        """Set the model for the access log."""
        cdef string name = model.encode()
        cdef string number = version.encode()
        self.native.note_model(name, number)

    def client_user(self) -> tuple[int, int] | None:
        """Return the user and group of the program at the other end of a unix socket, or None."""
        return ksrv_user(&self.native.connection.address)

    def peer_address(self) -> str:
        """Return the caller's IP address, or "" for a unix socket."""
        return ksrv_ip_address(&self.native.connection.address)

    @property
    def deadline_ns(self) -> int | None:
        """The deadline, on the clock of `time.monotonic_ns`, or None."""
        return self.native.head.deadline_ns or None

    def is_active(self) -> bool:
        """Return whether the call has neither ended nor been answered."""
        return self.native.is_active()

    @property
    def encoding(self) -> str | None:
        """The compression of the call's messages: "gzip", "deflate", or None."""
        if self.native.head.encoding == Encoding.gzip:
            return "gzip"
        return "deflate" if self.native.head.encoding == Encoding.deflate else None

    # ---- messages ---------------------------------------------------------------------------

    cdef object _taken(self, Message *message):
        """Return a message, and whether it is compressed. The call keeps its counted bytes."""
        cdef object whole
        cdef bint compressed = message.compressed
        self.give_back_bytes()
        self.counted = message.counted
        if message.block == NULL:
            return b"", compressed
        whole = memoryview(ksrv_wrap(message.block))
        return whole[message.offset:message.offset + message.length], compressed

    def message(self) -> tuple[bytes | memoryview, bool]:
        """Return the only message of a unary call, and whether it is compressed. Works once."""
        cdef Message message
        if not self.native.take_message(&message):
            raise RuntimeError("the call's message was taken before")
        return self._taken(&message)

    def next_message(self, double timeout) -> tuple[bytes | memoryview, bool] | bool | None:
        """Wait for the next message of a stream.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            The message, and whether it is compressed. None if the client sends no more messages or
            the call has ended. False if no message arrived in time.
        """
        cdef Message message
        cdef Next found
        cdef int64_t until = time.monotonic_ns() + <int64_t>(timeout * 1e9)
        with nogil:
            found = self.native.next_message(&message, until)
        if found == Next.message:
            return self._taken(&message)
        return False if found == Next.late else None

    def give_back_bytes(self) -> None:
        """Return the bytes of the last message that was taken to the budget."""
        if self.counted:
            self.server.budget.give_back(self.counted)
            self.counted = 0

    @property
    def admitted(self) -> bool:
        """Whether the caller needs no check: it was checked, or no credentials are needed.

        Calls that change the repository always need a check, even if no token is needed.
        """
        return self.native.admitted.load() and not self.native.method.control

    def admit(self) -> None:
        """Allow messages of any size, because the caller is permitted to call."""
        self.native.admit()

    # ---- the end ----------------------------------------------------------------------------

    def add_callback(self, callback: Callable[[], object]) -> bool:
        """Set a function to call when the call ends. False if the call has ended already.

        Args:
            callback: Called on any thread. It must not block.
        """
        cdef list callbacks
        if self.native.callbacks != NULL:
            (<list>self.native.callbacks).append(callback)
            return True
        callbacks = [callback]
        # The native call owns this reference. The GrpcServer releases it when it calls them.
        Py_INCREF(callbacks)
        if self.native.tell_of_end(<void *>callbacks):
            return True
        Py_DECREF(callbacks)
        return False

    def watch(self, NativeHandle handle not None) -> None:
        """Cancel `handle` if the call ends before it is answered."""
        with nogil:
            self.native.watch(handle.native)

    def cancel(self) -> None:
        """End the call without a status."""
        self.finished = True
        with nogil:
            self.native.cancel()

    # ---- answers ----------------------------------------------------------------------------

    def write(self, message not None: bytes) -> bool | None:
        """Send a message of a stream, or `PrefixedMessages`. Blocks while the client does not read.

        Returns:
            Whether the call continues. None if the budget does not allow the message.
        """
        cdef bint is_open
        cdef bint prefixed = isinstance(message, PrefixedMessages)
        # `_payload` writes a prefix for all of its bytes as one message. So the first prefix is
        # left out here, and put back by `set_prefix`.
        cdef Payload *payload = self._payload(memoryview(message)[5:] if prefixed else message)
        if payload == NULL:
            return None
        if prefixed:
            payload.set_prefix(PyBytes_AS_STRING(message))
        with nogil:
            self.native.write(payload)
            is_open = self.native.wait_for_room(MAX_UNSENT_BYTES)
        return is_open

    def answer(
        self,
        object message not None,
        list metadata: list[tuple[str, str]] | None = None,
    ) -> bool:
        """Send the only message of an answer, and end the call with status OK.

        Args:
            message: Contiguous bytes, or a list of such parts. They are kept until they are sent.

        Returns:
            False if the budget does not allow the answer. The call is then still open.
        """
        cdef Payload *payload = self._payload(message)
        if payload == NULL:
            return False
        self.finished = True
        self._send(payload, 0, b"", metadata)
        return True

    def finish(
        self,
        int code=0,
        str text="",
        list metadata: list[tuple[str, str | bytes]] | None = None,
    ) -> None:
        """End the call. Further calls do nothing.

        Args:
            metadata: Trailing metadata as pairs of text. Values are bytes if the name ends in
                "-bin".
        """
        if not self.finished:
            self.finished = True
            self._send(NULL, code, text.encode("utf-8", "replace"), metadata)

    cdef int _send(self, Payload *payload, int code, bytes text, list metadata) except -1:
        cdef vector[pair[string, string]] pairs
        cdef pair[string, string] entry
        cdef string words = text
        if metadata is not None:
            for name, value in metadata:
                entry.first = (<str>name).encode("latin-1")
                if isinstance(value, bytes):
                    entry.second = binary_value(<bytes>value)
                else:
                    entry.second = (<str>value).encode("latin-1")
                pairs.push_back(entry)
        with nogil:
            self.native.finish(code, words, pairs, payload)
        return 0

    cdef Payload *_payload(self, message) except? NULL:
        """Make a payload of contiguous bytes, or a list of such parts. NULL if the budget is full.

        A large payload refers to the parts, and owns a reference to them until they are sent.
        """
        cdef list views = [
            memoryview(part) for part in (message if isinstance(message, list) else [message])
        ]
        cdef uint64_t total = sum([part.nbytes for part in views])
        cdef bint copies = total <= COPIED_BYTES
        cdef Py_buffer view
        cdef Payload *payload = Payload.make(self.server, <int>len(views), total if copies else 0)
        if payload == NULL:
            raise MemoryError()
        try:
            for part in views:
                PyObject_GetBuffer(part, &view, PyBUF_SIMPLE)
                if copies:
                    payload.copy(view.buf, <size_t>view.len)
                else:
                    payload.add(view.buf, <size_t>view.len)
                PyBuffer_Release(&view)  # the memoryview keeps the bytes alive
        except BaseException:
            payload.destroy()
            raise
        payload.close()
        if not payload.count(self.server.budget):
            payload.destroy()
            return NULL
        if not copies:
            payload.owner = <void *>views
            Py_INCREF(views)
        return payload
