"""The reader of inference messages, for messages of other forms."""

from native.protobuf.infer_request cimport Limits as CLimits, Outcome, Request as CRequest

# Records the fields of a message as if it were a ModelInferRequest.
ctypedef Outcome (*Scan)(
    const unsigned char *message, size_t size, const CLimits &limits, CRequest &found
) noexcept nogil


# As `scan`, for the messages that `scan_message` reads; `kind` is the name of their type.
cdef object ksrv_scan(object message, Scan scan_message, str kind, CLimits limits)
