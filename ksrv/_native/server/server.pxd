"""The HTTP server's C++ classes, for its Cython shell."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.atomic cimport atomic
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector
from posix.time cimport timespec

from ksrv._native.memory.buffer_pool cimport CBlock
from ksrv._native.server.fast_images cimport EncodedImage, ImageRules
from ksrv._native.infer.infer_body cimport HeaderLimits
from ksrv._native.tensor.datatype cimport Datatype
from ksrv._native.tensor.padding cimport CLengthBuckets
from ksrv._native.queue.request_handle cimport Answered, CRequest, Taken
from ksrv._native.queue.request_queue cimport CQueue
from ksrv._native.http.chunked_body cimport ChunkDecoder
from ksrv._native.http.proxy_header cimport CProxyRules
from ksrv._native.http.request_head cimport Head, HeadLimits
from ksrv._native.reactor.connection_limits cimport CConnectionLimits
from ksrv._native.reactor.counters cimport ServerCounters
from ksrv._native.reactor.event_loop cimport (
    CEventLoop, EventLoop, Listeners, PendingDecrefs, ServePython,
)
from ksrv._native.tls.tls_context cimport const_tls


cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    cdef struct sockaddr_storage:
        unsigned short ss_family


cdef extern from "base/request_id.hpp" namespace "ksrv" nogil:
    cdef cppclass RequestId:
        unsigned char length
        cbool given
        char *text
        void set(const char *text, size_t length, cbool given) noexcept

    size_t identified_head_bytes(size_t head_length, const RequestId &id) noexcept
    void put_identified_head(
        char *to, const unsigned char *head, size_t length, const RequestId &id
    ) noexcept


cdef extern from "infer/fast_request.hpp" namespace "ksrv" nogil:
    cdef enum:
        FAST_INPUTS
        FAST_OUTPUTS

    cdef struct InputSignature:
        string name
        Datatype datatype
        vector[int64_t] tail
        uint64_t row_bytes
        ImageRules images
        cbool padded
        cbool made
        unsigned char padding[8]
        unsigned char one[8]
        uint64_t bytes_of_row(uint64_t length) noexcept

    cdef cppclass SignatureRefs "std::atomic<long>":
        long load() noexcept

    cdef cppclass Lengths "std::unique_ptr<ksrv::LengthBuckets>":
        CLengthBuckets *get() noexcept
        void reset(CLengthBuckets *made) noexcept

    cdef cppclass Sampler:
        void set(double share, uint64_t seed) noexcept

    cdef cppclass ModelSignature:
        SignatureRefs refs
        CQueue *queue
        void *endpoint
        Taken taken
        Answered answered
        string model
        string version
        vector[InputSignature] inputs
        vector[string] outputs
        vector[uint32_t] cut
        Lengths lengths
        uint64_t max_rows
        int64_t timeout_ns
        HeaderLimits limits
        size_t json_limit
        cbool nan_literals
        cbool hides_token
        Sampler recorded
        string late_status
        string late_fields
        string late_prefix
        string late_waiting
        string late_running
        void retain() noexcept
        void release() noexcept

    cdef cppclass Images "std::unique_ptr<ksrv::EncodedImage[]>":
        EncodedImage *get() noexcept
        cbool operator bool() noexcept

    cdef cppclass FastRequestLayout:
        size_t id_length
        uint32_t rows
        uint64_t row_length
        cbool given[FAST_INPUTS]
        size_t offsets[FAST_INPUTS]
        Images images[FAST_INPUTS]
        cbool has_images() noexcept

    cbool needs_padding(
        const ModelSignature &signature, const FastRequestLayout &layout
    ) noexcept


cdef extern from "http/connection.hpp" namespace "ksrv" nogil:
    cdef cppclass Connection

    cdef struct Turn:
        Connection *connection
        uint64_t number

    cdef enum class BodyState(unsigned char):
        none
        whole
        unread
        malformed


cdef extern from "server/fast_path.hpp" namespace "ksrv" nogil:
    cdef cppclass AnswerSender

    cdef struct FastAnswers

    cdef cppclass FastRequest(CRequest):
        const FastAnswers *answers
        void *call
        ModelSignature *signature
        AnswerSender *sender
        Turn turn
        CBlock *block
        size_t body_offset
        size_t body_length
        size_t json_length
        size_t head_length
        int64_t client_deadline_ns
        FastRequestLayout layout
        char *head() noexcept
        const unsigned char *body() noexcept

    Turn undo_fast_request(FastRequest *request) noexcept
    void fail_fast_request(FastRequest *request) noexcept


cdef extern from "http/incoming_body.hpp" namespace "ksrv" nogil:
    cdef cppclass IncomingBody:
        CBlock *block
        size_t offset
        size_t got
        BodyState state
        cbool asked
        ChunkDecoder chunks
        uint64_t take_counted() noexcept
        void give_back() noexcept


cdef extern from "server/server.hpp" namespace "ksrv" nogil:
    ctypedef RouteTable const_table "const ksrv::RouteTable"
    ctypedef CPreparedAnswer const_answer "const ksrv::PreparedAnswer"

    cdef cppclass Owners:
        Owners *next
        void *object
        void give_back() noexcept

    cdef enum:
        ANSWER_BLOCKS

    cdef struct Outgoing:
        CBlock *blocks[ANSWER_BLOCKS]
        int block_count

    cdef cppclass Connection:
        uint32_t slot
        int fd
        uint16_t listener
        cbool close_after
        cbool checking
        uint16_t status
        unsigned char *buffer
        size_t filled
        uint64_t answered_bytes
        IncomingBody body
        Head head
        RequestId request_id
        FastRequest *fast_request
        cbool sampled
        Outgoing out
        Turn open_turn() noexcept
        sockaddr_storage peer
        socklen_t peer_length

    cdef cppclass HttpServerConfig(CConnectionLimits):
        HeadLimits limits
        CProxyRules proxy
        cbool checks_callers
        cbool shared
        cbool log
        string server_header

    cdef cppclass CPreparedAnswer "ksrv::PreparedAnswer":
        uint16_t status
        string status_line
        string fields
        string body

    cdef cppclass NotReadyAnswer:
        void replace(shared_ptr[const_answer] answer) noexcept

    cdef cppclass ModelRoute:
        string name
        string version
        CQueue *queue
        CPreparedAnswer full
        CPreparedAnswer metadata
        CPreparedAnswer model_ready
        ModelSignature *signature

    cdef cppclass RouteTable:
        RouteTable(uint64_t state) except +
        void add(ModelRoute route) except +
        void sort() except +

    cdef cppclass Routes:
        void replace(shared_ptr[const_table] table) noexcept

    cdef cppclass AccessRecord:
        uint64_t duration_ns
        uint64_t answered_bytes
        uint16_t status
        uint16_t listener
        string head
        string request_id
        string timing
        sockaddr_storage peer
        socklen_t peer_length
        timespec at

    cdef enum class AppQueueKind(int):
        metadata
        others

    cdef struct Refusal:
        sockaddr_storage peer
        socklen_t peer_length
        const char *protocol
        const char *cause

    cdef enum PreparedAnswerIndex:
        ANSWER_BYTES_IN_FLIGHT
        ANSWER_FAILED
        PREPARED_ANSWERS

    cdef cppclass DisconnectWatch:
        void watch(Connection *connection, CRequest *request) noexcept
        void unwatch(Connection *connection) noexcept

    cdef cppclass HttpConnections:
        uint32_t open()
        void drop(Connection *connection) noexcept
        void remember_caller(const Connection *connection) noexcept
        PendingDecrefs[Owners] decrefs
        DisconnectWatch disconnects

    cdef cppclass AccessLog:
        void take(vector[AccessRecord] *out) except +

    cdef cppclass Refusals "ksrv::LogRecords<ksrv::Refusal>":
        void take(vector[Refusal] *out) except +

    cdef cppclass AnswerSender:
        HttpConnections &connections() noexcept
        Connection *take_turn(const Turn &turn) noexcept
        void fail(const Turn &turn) noexcept
        cbool put(
            Connection *connection, uint16_t status, const char *line, size_t line_length,
            const char *fields, size_t fields_length, const char *body, size_t body_length,
            int parts
        ) noexcept
        cbool reserve(Connection *connection, uint64_t nbytes) noexcept
        cbool send(Connection *connection, Owners *owners) noexcept
        void send_prepared(Connection *connection, PreparedAnswerIndex which) noexcept
        cbool send_piece(Connection *connection) noexcept
        CPreparedAnswer *prepared
        NotReadyAnswer unready
        atomic[cbool] live
        atomic[cbool] ready
        AccessLog log
        atomic[uint64_t] open_fast_requests

    cdef cppclass NativeRoutes:
        Connection *next_to_run() noexcept
        size_t take_fast_requests(Connection *first, FastRequest **out, size_t room) noexcept
        Routes tables
        atomic[uint64_t] model_changes

    cdef cppclass CHttpServer "ksrv::HttpServer":
        CHttpServer(
            CEventLoop *loop, const HttpServerConfig &config, ServePython serve, void *owner
        ) except +
        cbool listen_on(const int *listeners, size_t count) noexcept
        void stop() noexcept
        void accept_enabled(cbool enabled) noexcept
        void drain() noexcept
        void checked(Connection *connection, cbool admitted) noexcept
        Connection *next_app_message(AppQueueKind kind) noexcept
        void receive_for_app(Connection *connection, uint64_t most) noexcept
        shared_ptr[const_tls] tls
        ServerCounters counts
        HttpConnections connections
        AnswerSender answers
        NativeRoutes routes
        Refusals refusals
        Listeners listeners

    void forget_outgoing(Outgoing *out) noexcept
    cbool reserve_parts(Outgoing *out, int count) noexcept
    void add_part(Outgoing *out, const void *data, size_t length) noexcept


cdef class HttpServer:
    cdef CHttpServer *server
    cdef EventLoop loop
    cdef object handler
    cdef object check
    cdef list endpoints

    cdef int _set_unready(self, tuple answer) except -1
