"""The gRPC server's C++ classes, for its Cython shell."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.atomic cimport atomic
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from ksrv._native.memory.buffer_pool cimport CBlock
from ksrv._native.memory.memory_budget cimport CMemoryBudget
from ksrv._native.queue.request_handle cimport Answered, CRequest
from ksrv._native.reactor.connection_limits cimport CConnectionLimits
from ksrv._native.reactor.counters cimport ServerCounters
from ksrv._native.reactor.event_loop cimport (
    CEventLoop, Listeners, PendingDecrefs, ServePython,
)
from ksrv._native.server.server cimport (
    FastRequest, ModelRoute, RequestId, RouteTable, Routes, const_table,
)
from ksrv._native.tls.tls_context cimport const_tls


cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    cdef struct sockaddr_storage:
        unsigned short ss_family


cdef extern from "http2/library.hpp" namespace "ksrv::http2" nogil:
    cdef struct Library:
        int version
        const char *version_text

    const Library *library() noexcept


cdef extern from "grpc/status.hpp" namespace "ksrv::grpc" nogil:
    string c_retry_details "ksrv::grpc::retry_details"(
        int status, const string &text, uint64_t seconds
    ) except +
    string binary_value(const string &value) except +


cdef extern from "grpc/call.hpp" namespace "ksrv::grpc" nogil:
    cdef enum RunReason:
        RUN_READY
        RUN_ENDED
        RUN_CHECK

    cdef enum class Next(int):
        message
        over
        ended
        late

    cdef enum class Encoding(unsigned char):
        identity
        gzip
        deflate
        other

    cdef struct Method:
        string path
        cbool streams
        cbool small
        cbool infer
        cbool is_open
        cbool control

    cdef struct Message:
        CBlock *block
        size_t offset
        size_t length
        cbool compressed
        uint64_t counted

    cdef cppclass Payload:
        @staticmethod
        Payload *make(CServer *server, int parts, size_t room) noexcept
        void add(const void *data, size_t length) noexcept
        void copy(const void *data, size_t length) noexcept
        cbool count_answer(CMemoryBudget *budget, uint64_t bytes) noexcept
        void close() noexcept
        void destroy() noexcept
        Payload *next
        void *owner

    cdef cppclass Text "ksrv::SmallVector<char, 192>":
        const char *data() noexcept
        size_t size() noexcept

    cdef cppclass CallHead:
        Text text
        string authority
        string authorization
        int authorizations
        RequestId request_id
        Encoding encoding
        uint64_t deadline_ns

    cdef cppclass Observed:
        bint sampled

    cdef cppclass CCall "ksrv::grpc::Call":
        Connection *connection
        const Method *method
        FastRequest *fast
        CallHead head
        Observed observed
        atomic[cbool] admitted
        void *callbacks
        void retain() noexcept
        void release() noexcept
        void write(Payload *payload) noexcept
        void finish(
            int status, string &text, vector[pair[string, string]] &metadata, Payload *last
        ) noexcept
        void cancel() noexcept
        cbool wait_for_room(size_t most) noexcept
        Next next_message(Message *out, int64_t until_ns) noexcept
        cbool take_message(Message *out) noexcept
        void watch(CRequest *request) noexcept
        void unwatch() noexcept
        void note_model(const string &model, const string &version) noexcept
        void admit() noexcept
        cbool tell_of_end(void *callbacks) noexcept
        cbool is_active() noexcept

    void free_message(Message *message, CMemoryBudget *budget) noexcept


cdef extern from "grpc/connection.hpp" namespace "ksrv::grpc" nogil:
    cdef cppclass Connection:
        sockaddr_storage address
        socklen_t address_length
        CServer *server() noexcept


cdef extern from "grpc/server.hpp" namespace "ksrv::grpc" nogil:
    cdef cppclass ServerConfig(CConnectionLimits):
        uint32_t streams
        uint64_t message
        cbool message_by_budget
        uint64_t small_message
        uint32_t head
        uint32_t calls
        cbool checks_callers
        cbool own_hosts
        cbool decompress
        cbool log

    cdef cppclass CallRecord:
        string path
        string request_id
        string model
        string version
        string metadata
        uint64_t duration_ns
        uint64_t answered_bytes
        int status
        sockaddr_storage peer
        socklen_t peer_length

    cdef cppclass CallRecords "ksrv::LogRecords<ksrv::grpc::CallRecord>":
        void take(vector[CallRecord] *out) except +

    cdef cppclass OpenConnections:
        uint32_t count() noexcept

    cdef cppclass CServer "ksrv::grpc::Server":
        CServer(
            CEventLoop *loop, const ServerConfig &config, CMemoryBudget *budget,
            ServePython serve, void *owner
        ) except +
        CMemoryBudget *budget
        shared_ptr[const_tls] tls
        string misdirected_body
        Listeners listeners
        ServerCounters counters
        OpenConnections connections
        atomic[uint32_t] open_calls
        atomic[uint32_t] unfinished
        void add_method(const Method &method) except +
        cbool listen_on(const int *listeners, size_t count) noexcept
        void accept_enabled(cbool enabled) noexcept
        void drain() noexcept
        void close_all() noexcept
        CCall *next_to_run(int *reasons) noexcept
        size_t take_fast_calls(CCall *first, CCall **out, size_t room) noexcept
        void *owner() noexcept
        Routes routes
        Answered fast_answered
        CallRecords records
        PendingDecrefs[Payload] decrefs


cdef extern from "grpc/fast_call.hpp" namespace "ksrv::grpc" nogil:
    void undo_fast_call(FastRequest *request) noexcept
