// The server of a worker for HTTP/2, which carries gRPC, and REST on the addresses of HTTP: listeners, I/O threads,
// connections, and the way of calls into Python.
//
// Strategy: one thread leads: it waits in epoll and works on the connections with an event. Calls that are
// ready wait in the run queue; the leader takes them into Python itself, so that a call meets one
// thread and one warm cache. When it does not come back soon, another thread takes the lead; when a call
// hangs in Python, another one takes calls into Python. Answers given by the thread that is in Python are sent
// when it leaves, those of one connection in one piece.
//
// It has an event loop beside the HTTP server's, for a gRPC connection has no place in phases of one message.

#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/known_callers.hpp"
#include "base/monotonic_condition.hpp"
#include "grpc/connection.hpp"
#include "server/route_table.hpp"

namespace ksrv::grpc {

struct ServerConfig {
    int threads = 4;
    uint32_t connections = 1000;
    uint32_t streams = 128;           // of a connection
    uint64_t message = 4u << 20;      // bytes of a message
    bool message_by_budget = false;   // whether it is the budget that bounds it
    uint64_t small_message = 65536;   // of a method with small messages
    uint32_t head = 16384;
    uint32_t calls = 2048;            // without a message; that are run; whose answers are not taken for long
    uint64_t head_ns = 10000000000u;  // a message must begin by then
    uint64_t grace_ns = 10000000000u;
    uint64_t rate = 4096;             // bytes a second that a message or an answer must make
    uint64_t stream_begin_ns = 600000000000u;  // a stream may wait so long for its next message
    uint64_t idle_ns = 300000000000u;
    uint64_t age_ns = 0;  // after which a connection is told to end; 0: never
    uint64_t ping_ns = 60000000000u;
    uint64_t ping_timeout_ns = 20000000000u;
    bool checks_callers = false;
    bool decompress = true;
    bool log = false;  // whether records for an access log are kept
};

// One call that has ended, for the access log.
struct CallRecord {
    std::string path, request_id, model, version;
    uint64_t duration_ns = 0, answered_bytes = 0;
    int status = OK;
    sockaddr_storage peer;
    socklen_t peer_length = 0;
};

enum GrpcCounter : int {
    GRPC_ACCEPTED,
    GRPC_CALLS,
    GRPC_REFUSED_CONNECTIONS,
    GRPC_FLOODS,
    GRPC_TOO_SLOW,
    GRPC_TOO_LARGE,
    GRPC_BYTES_IN_FLIGHT,
    GRPC_TOO_MANY_CALLS,
    GRPC_INVALID,
    GRPC_UNKNOWN_METHOD,
    GRPC_IDLE_CLOSED,
    GRPC_DISCONNECTED,
    GRPC_FAST_PATH,  // calls that were queued without Python
    GRPC_LATE,       // and answered without it at their deadline
    GRPC_LOST_RECORDS,  // of the access log, which was not read in time
    GRPC_COUNTERS,
};

using ServeCalls = void (*)(void *owner);

class Server {
  public:
    Server(const ServerConfig &config, MemoryBudget *budget, ServeCalls serve, void *owner);
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;
    ~Server();

    void add_method(const Method &method);  // before it listens
    bool listen_on(const int *listeners, size_t count) noexcept;
    void run(int index) noexcept;
    void stop() noexcept;
    void accept_enabled(bool enabled) noexcept;
    void drain() noexcept;      // tells every peer that the server stops
    void close_all() noexcept;  // cuts off what is left
    void post_all(uint32_t events) noexcept;

    // ---- calls ----
    void run_later(Call *call, int reason) noexcept;
    // The next call for Python with the reasons; null where there is none. The caller gets a reference.
    Call *next_to_run(int *reasons) noexcept;
    // The fast calls behind one in the run queue, up to the first that goes to another model.
    size_t take_fast_calls(Call *first, Call **out, size_t room) noexcept;
    void *owner() const noexcept { return owner_; }
    void send_later(Connection *connection) noexcept;  // when the thread in Python leaves it, or the HTTP server's turn ends
    void defer_decref(Payload *payload) noexcept;
    Payload *take_decrefs() noexcept { return decrefs_.exchange(nullptr, std::memory_order_acquire); }

    // ---- connections ----
    bool adopt(int fd, const sockaddr_storage *address, socklen_t length,
               const AcceptedHttp2 *accepted = nullptr) noexcept;
    // Takes the HTTP server's connections that speak HTTP/2, and gives it their requests that are not gRPC's.
    void serve_with(HttpServer *http) noexcept;
    HttpServer *http() const noexcept { return http_; }
    bool watch(Connection *connection, int fd) noexcept;
    void forget(Connection *connection) noexcept;
    void read_again(Connection *connection) noexcept;  // once others have had their turn
    void queue_handshake(Connection *connection) noexcept;
    bool read_soon(Connection *connection) noexcept;   // within a millisecond or two; false: that was asked before
    const Method *method(const std::string &path) const noexcept;
    void count(GrpcCounter which) noexcept { counters[which].fetch_add(1, std::memory_order_relaxed); }
    void record(Call *call, uint64_t now) noexcept;
    void take_records(std::vector<CallRecord> *out);
    void make_room() noexcept;  // too many calls wait for their messages
    // The HTTP server waits for the clients of too many requests: those of another connection end, if it has far more of them
    // than the one that asks.
    void free_streams(uint32_t mine, uint64_t now) noexcept;
    void wake() noexcept;
    uint64_t least_rate(uint64_t whole) const noexcept {
        const uint64_t rate = whole / 300;
        return rate > config.rate ? rate : config.rate ? config.rate : 1;
    }

    const ServerConfig config;
    KnownCallers known_callers;
    Routes routes;  // of the models that take calls without Python before their handler
    void (*fast_answered)(Request *request, void *answer) = nullptr;  // as `Request::answered`
    std::shared_ptr<const TlsContext> tls;  // set before it listens; null without TLS
    MemoryBudget *const budget;
    std::atomic<uint64_t> counters[GRPC_COUNTERS] = {};
    std::atomic<uint32_t> unfinished{0};  // calls whose message is not there
    std::atomic<uint32_t> open_calls{0};  // calls that Python has, or will have
    std::atomic<uint32_t> untaken{0};     // calls whose whole answer waits for its client
    std::atomic<uint32_t> open_connections{0};
    std::atomic<bool> draining{false};

  private:
    static constexpr int EVENTS = 32, ACCEPTS = 64, NOBODY = -1;
    static constexpr uint64_t SWEEP_NS = 100000000u, REQUEST_NS = 500000u, VISIT_NS = 2000000u;
    static constexpr uint64_t STUCK_NS = 20000000u, WATCHED_NS = 20000000u, DEFER_NS = 200000u;
    static constexpr uint64_t GATHER_NS = 1000000u;  // for a large piece of a message
    static constexpr uint64_t FREE_STREAMS_NS = 1000000u;  // between two looks at all connections
    static constexpr uint64_t DESCRIPTOR_PAUSE_NS = 200000000u;
    static constexpr uint64_t DECREF_BYTES = 1u << 20;
    static constexpr uint64_t LISTENER_TAG = uint64_t(1) << 63, WAKE_TAG = ~uint64_t(0);

    void accept_some(size_t listener) noexcept;
    void watch_listeners(bool on) noexcept;
    void pause_accept() noexcept;
    void end_untaken() noexcept;
    void accept_forgotten(uint64_t now) noexcept;
    void sweep(uint64_t now) noexcept;
    void serve(int index) noexcept;
    void follow(int index) noexcept;
    void leave_watch(int index) noexcept;
    void send_deferred() noexcept;
    void read_waiting() noexcept;
    void read_gathered(uint64_t now) noexcept;
    void go_on_with_handshake() noexcept;
    void visit_python(int index) noexcept;
    bool wants_python() const noexcept {
        return to_run_.load(std::memory_order_relaxed) != 0 ||
               decref_bytes_.load(std::memory_order_relaxed) >= DECREF_BYTES;
    }
    Connection *at(uint64_t tag) noexcept;
    template <typename Visit> void each(Visit visit) noexcept;
    Connection *with_most(std::atomic<uint32_t> Connection::*count, uint32_t above) noexcept;  // held; or null
    static bool late(uint64_t since, uint64_t allowed) noexcept {
        const uint64_t now = unsigned_now_ns();
        return now > since && now - since >= allowed;
    }

    HttpServer *http_ = nullptr;
    const ServeCalls serve_python_;
    void *const owner_;
    int epoll_ = -1, wake_ = -1;
    std::vector<int> listeners_;
    std::unordered_map<std::string, Method> methods_;
    std::atomic<bool> stopping_{false}, accepts_{false};
    std::mutex accept_mutex_;
    bool watches_listeners_ = false;                  // the listeners
    std::atomic<uint64_t> paused_until_ns_{0};  // without descriptors
    std::atomic<int> accepting_{0};
    std::atomic<uint64_t> next_sweep_{0}, next_free_streams_{0};

    std::mutex connections_mutex_;
    std::vector<Connection *> connections_;  // by slot
    std::vector<Connection *> open_;         // in no order; a connection knows its place
    std::vector<uint32_t> free_;
    uint32_t generations_ = 0;

    static constexpr size_t RECORDS = 16384;
    std::mutex records_mutex_;
    std::vector<CallRecord> records_;

    std::mutex run_mutex_;
    Call *run_first_ = nullptr, *run_last_ = nullptr;
    std::atomic<uint32_t> to_run_{0};
    std::atomic<Payload *> decrefs_{nullptr};
    std::atomic<uint64_t> decref_bytes_{0};
    std::mutex handshakes_mutex_;
    Connection *first_handshake_ = nullptr, *last_handshake_ = nullptr;
    std::atomic<bool> handshakes_wait_{false};
    std::atomic<Connection *> unread_{nullptr}, deferred_{nullptr}, gathering_{nullptr};
    std::atomic<uint64_t> gathered_ns_{0};
    std::atomic<int> leader_{0}, serving_{NOBODY}, in_python_{NOBODY}, away_{0};
    std::atomic<uint64_t> request_since_{0}, python_since_{0};
    std::mutex follow_mutex_;
    std::atomic<int> watching_{NOBODY};  // the one follower that watches the leader
    std::atomic<bool> watcher_rests_{false};  // until it is woken
    MonotonicCondition watch_, follow_;       // of the watcher, and of the others
};

}  // namespace ksrv::grpc
