// The HTTP server: I/O threads that own a worker's connections, without Python and without the GIL.
//
// Strategy: one thread leads: it waits in epoll and runs each connection with an event to
// completion, so that a request meets one thread and one warm cache. Complete infer requests wait in
// the run queue; the leader takes them into Python itself. If it does not come back soon, because a
// Python thread hogs the GIL or a handler takes its time, one of the followers takes the lead and
// stays with the sockets. Every other message goes to the Falcon app, on threads of Python's.
//
// http/connection.hpp is what a connection is, receive.cpp and receive_body.cpp how messages come in, send.cpp
// and stream.cpp how answers go out, app_messages.cpp the way to the app and back, route_table.hpp what is known
// of each model, known_callers.hpp who may call, fast_path.cpp the requests that need no Python before their handler, acceptor.cpp and
// event_loop.cpp the threads, accepting and deadlines, python_dispatch.cpp who enters Python,
// disconnect_watch.cpp requests whose client is gone.

#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"
#include "base/known_callers.hpp"
#include "http/connection.hpp"
#include "http/connection_deadlines.hpp"
#include "http/connection_table.hpp"
#include "http/prepared_answer.hpp"
#include "http/response_head.hpp"
#include "server/route_table.hpp"

namespace ksrv {

struct Request;
struct FastRequest;
struct FastRequestLayout;

struct HttpServerConfig {
    HeadLimits limits;
    int threads = 2;
    uint32_t connections = 1000;
    uint64_t head_ns = 10000000000u;      // a head must be complete by then
    uint64_t grace_ns = 10000000000u;     // bodies and answers: the rate counts from here on
    uint64_t rate = 4096;                 // bytes per second, received or taken by the peer
    uint64_t transfer_s = 300;            // behind the grace, for a body or an answer of any size
    uint64_t idle_ns = 75000000000u;      // between messages; 0: every answer closes
    uint64_t stop_idle_ns = 2000000000u;  // the same while draining
    uint64_t linger_ns = 2000000000u;     // for the peer to take an answer that closes
    uint64_t memory_wait_ns = 1000000000u;       // waiting for bytes in flight, before 503
    bool checks_callers = false;          // before a body is waited for
    bool shared = false;  // whether other processes accept from the same listeners
    bool log = false;
    std::string server_header = "gunicorn";
};

// A connection that turned out to speak HTTP/2, with what has come of it.
struct AcceptedHttp2 {
    int fd;
    TlsSession tls;
    const unsigned char *bytes;
    size_t length;
    sockaddr_storage peer;
    socklen_t peer_length;
    uint16_t listener;
};

// Takes such a connection over; false where there is no room, and it stays the caller's.
using AdoptHttp2 = bool (*)(void *owner, const AcceptedHttp2 &accepted);

// Takes requests into Python: called without the GIL, and pops the run queue until it is empty.
using Serve = void (*)(void *owner);

// One answered request, for the access log.
struct AccessRecord {
    uint64_t duration_ns;
    uint64_t answered_bytes;
    uint16_t status;
    uint16_t listener;
    std::string head;
    std::string request_id;
    std::string timing;  // the answer's Server-Timing, if it has one
    sockaddr_storage peer;
    socklen_t peer_length;
    timespec at;
};

enum ServerCounter : int {
    SERVER_ACCEPTED,
    SERVER_INFER,          // infer requests that took the hot route
    SERVER_HEALTH,
    SERVER_DESCRIBED,      // GETs of a server's or model's description
    SERVER_APP,            // messages given to the app; twice where it asked for the body
    SERVER_ANSWERED,
    SERVER_TOO_SLOW,
    SERVER_BYTES_IN_FLIGHT,
    SERVER_QUEUE_FULL,
    SERVER_IDLE_CLOSED,
    SERVER_DISCONNECTED,       // the peer went before its answer was sent
    SERVER_ACCEPT_PAUSED,
    SERVER_FAST_PATH,      // infer requests that were queued without Python
    SERVER_RECYCLED,       // idle connections that made room for others
    SERVER_LOST_RECORDS,   // of the access log, which was not read in time
    SERVER_TLS_AGREED,     // handshakes from the beginning,
    SERVER_TLS_RESUMED,    // those of clients that went on with an earlier session,
    SERVER_TLS_REFUSED,    // and those that failed
    SERVER_FLOOD,          // connections that sent too many TLS records without data
    SERVER_STRAY,          // second answers to a message, which were not sent: faults of this program
    SERVER_COUNTERS,
};

// Statuses of answers that tell of an error: 400 to 599.
constexpr int LEAST_ERROR = 400, STATUSES = 200;

class HttpServer {
  public:
    HttpServer(const HttpServerConfig &config, Serve serve, void *owner);
    ~HttpServer();

    // ---- set up and the threads' life (server/event_loop.cpp) ----
    bool listen_on(const int *listeners, size_t count) noexcept;
    // One I/O thread, or from `config.threads` on a relief thread; returns after stop().
    void run(int index) noexcept;
    void stop() noexcept;
    void accept_enabled(bool enabled) noexcept;
    void drain() noexcept;         // answers close, idle connections end soon
    uint64_t stuck_ns() noexcept;  // how long the busiest thread has not been back in epoll

    // ---- answers ----
    // Sends `connection->out`. True: it is over and `owners` are the caller's to give back; false:
    // the socket is full, and the server keeps them. The connection is not the caller's any more.
    bool answer(Connection *connection, Owners *owners) noexcept;
    // The same, with a prepared answer.
    void answer_prepared(Connection *connection, PreparedAnswerIndex which) noexcept;
    void drop(Connection *connection) noexcept;                       // no answer: closes
    void close_disconnected(Connection *connection) noexcept;  // the same for a client that is gone

    // The bytes of a message go back to the budget: it was answered, or its queue counts it.
    void give_back(Connection *connection) noexcept;
    // Takes an answer's bytes in place of its message's; false where there is no room for it.
    bool reserve_answer(Connection *connection, uint64_t nbytes) noexcept;
    // Goes on with a connection that was `checking`: a caller who may not send is the app's to refuse.
    void checked(Connection *connection, bool admitted) noexcept;
    // Notes that Python has admitted the caller of a message; another message of his is admitted at once.
    void remember_caller(const Connection *connection) noexcept;

    // ---- turns: who may answer a message that is with the engine ----
    Turn begin_turn(Connection *connection) noexcept;
    Turn turn_of(Connection *connection) noexcept {
        return {connection, connection->turn.load(std::memory_order_acquire)};
    }
    // The connection, for the caller to answer or drop. Null where the message was answered before;
    // that is counted.
    Connection *take_turn(const Turn &turn) noexcept;
    void fail(const Turn &turn) noexcept;  // 500, where it was not answered

    // Renders an answer into `connection->out`, with room for `parts` parts of a body that is not copied into it;
    // false when there is no memory.
    bool put_answer(Connection *connection, uint16_t status, const char *line, size_t line_length,
                    const char *fields, size_t fields_length, const char *body, size_t body_length,
                    int parts = 1) noexcept;

    // ---- requests that wait ----
    void watch(Connection *connection, Request *request) noexcept;  // disconnect_watch.cpp
    void unwatch(Connection *connection) noexcept;
    Connection *next_to_run() noexcept;
    size_t take_fast_requests(Connection *first, FastRequest **out, size_t room) noexcept;
    Turn undo_fast_request(FastRequest *request) noexcept;
    void answer_late(Connection *connection, const ModelSignature &signature, int64_t waited_ms,
                     bool running) noexcept;

    bool send_piece(Connection *connection) noexcept;  // stream.cpp

    // ---- HTTP/2 (http2_streams.cpp) ----
    // Streams hold at most half of the connections' places, so that clients of HTTP/1.1 are accepted beside them.
    uint32_t most_streams() const noexcept { return std::max(connections.most() / 2, 1u); }
    bool lacks_streams() const noexcept {
        return streams_.load(std::memory_order_relaxed) >= most_streams() - most_streams() / 4;
    }
    void note_refused(AccessRecord *made) noexcept;  // of a stream that was answered before it was opened
    bool open_stream(ByteStream *stream, const sockaddr_storage &peer, socklen_t peer_length,
                     uint16_t listener) noexcept;

    // ---- messages for the app ----
    static constexpr int QUESTIONS = 0, OTHERS = 1;
    Connection *next_app_message(int which) noexcept;
    void receive_for_app(Connection *connection, uint64_t most) noexcept;
    // The bytes that a message holds of the budget are the caller's to give back from here on.
    uint64_t take_counted(Connection *connection) noexcept;

    Owners *take_deferred_decrefs() noexcept;
    void take_records(std::vector<AccessRecord> *out);
    int notify_fd() const noexcept { return notify_; }

    HttpServerConfig config;
    std::shared_ptr<const TlsContext> tls;  // of all listeners, set before they are; null without TLS
    AdoptHttp2 adopt_http2 = nullptr;  // set before it listens, with its owner; null without HTTP/2
    void *http2_owner = nullptr;
    void (*send_streams)(void *http2_owner) = nullptr;  // sends what streams have put together
    // Whether answers on streams may wait until this thread is through with its turn: those of a connection leave in one
    // piece then. Not where Python keeps it, so that another thread leads.
    bool gathers_streams() const noexcept;
    PreparedAnswer prepared_answers[PREPARED_ANSWERS];
    NotReadyAnswer unready;
    std::atomic<bool> live{true}, ready{false};
    std::atomic<bool> draining{false};
    std::atomic<uint64_t> counters[SERVER_COUNTERS] = {};
    std::atomic<uint64_t> errors[STATUSES] = {};  // answers by status, from LEAST_ERROR on
    Connections connections;
    Deadlines deadlines;
    Routes routes;
    KnownCallers known_callers;
    std::atomic<uint64_t> model_changes{0};  // routes of an earlier state describe no model
    std::atomic<uint64_t> open_fast_requests{0};  // requests that refer to this server

  private:
    static constexpr int EVENTS = 16;
    static constexpr int ACCEPTS = 16;          // connections taken per wake-up
    static constexpr int LAST_ACCEPTS = 65536;  // and by a server that stops accepting: a kernel's backlog
    static constexpr int MESSAGES = 16;         // pipelined messages served per turn
    static constexpr size_t TURN_BYTES = 8u << 20;  // received per turn of a huge body
    static constexpr uint64_t SWEEP_NS = 100000000u;
    // A leader has left when one request keeps it in Python for so long, or all that it took along.
    static constexpr uint64_t REQUEST_NS = 500000u;
    static constexpr uint64_t VISIT_NS = 2000000u;
    static constexpr uint64_t GATHER_NS = 200000u;  // of one request, behind which answers wait for no other
    static constexpr uint64_t STUCK_NS = 20000000u;  // another one serves when one request takes so long
    static constexpr uint64_t WATCHED_NS = 20000000u;  // since Python was last entered
    static constexpr uint64_t MEMORY_RETRY_NS = 20000000u;
    static constexpr uint64_t EARLY_BODY = 65536;  // received before the app is asked for it
    static constexpr size_t COUNTED_STEP = 65536;      // of a body, before it comes
    static constexpr uint64_t AHEAD_NS = 1000000000u;  // that a body may be counted before it comes
    static constexpr uint64_t DESCRIPTOR_PAUSE_NS = 200000000u;
    static constexpr int RECYCLE_TRIES = 8;
    static constexpr size_t RECORD_BYTES = 16u << 20;  // of access records that wait to be read
    static constexpr uint32_t LISTENER_TAG = 0x80000000u;
    static constexpr uint32_t WAKE_TAG = 0xffffffffu, HANDSHAKES_TAG = 0xfffffffeu;
    static constexpr uint32_t READING = EPOLLIN | EPOLLRDHUP;

    struct alignas(64) Thread {
        std::atomic<uint64_t> busy_since{0};
        std::vector<uint64_t> woken_streams;  // with an event, which this thread serves
    };

    struct IoThread {
        const HttpServer *server = nullptr;
        int index = -1;
    };
    static thread_local IoThread io_thread;  // which this thread is, if any

    void count(ServerCounter which) noexcept {
        counters[which].fetch_add(1, std::memory_order_relaxed);
    }

    // acceptor.cpp
    void begin_connection(Connection *connection, int fd, uint16_t listener, uint64_t now) noexcept;
    void accept_some(uint16_t listener, uint64_t now) noexcept;
    void accept_forgotten(uint64_t now) noexcept;
    void accept_from(uint16_t listener, uint64_t now, int most, bool serves) noexcept;
    bool recycle_idle(bool for_waiting) noexcept;
    bool client_waits() noexcept;
    void requeue_listener(uint16_t listener) noexcept;
    void pause_accept(uint64_t until) noexcept;
    void resume_accept(uint64_t now) noexcept;
    bool watch_listeners(bool on) noexcept;
    bool watch_listener(size_t listener, bool on) noexcept;

    // http2_streams.cpp
    enum class Preface : uint8_t { none, begun, whole };
    Preface look_for_preface(Connection *connection) noexcept;
    void hand_over(Connection *connection) noexcept;
    void wake_stream(uint64_t tag) noexcept;
    void cut_stream(uint64_t tag) noexcept;
    static bool is_cut(Connection *connection) noexcept {
        return connection->byte_stream && connection->byte_stream->is_cut();
    }
    bool drop_cut(Connection *connection) noexcept;
    void serve_woken_streams(int index, uint64_t now) noexcept;
    void send_gathered() noexcept {
        if (send_streams) send_streams(http2_owner);
    }

    // event_loop.cpp
    void wake() noexcept;
    static uint64_t tag_of(const Connection *connection) noexcept {
        return static_cast<uint64_t>(connection->generation.load(std::memory_order_relaxed)) << 32 | connection->slot;
    }
    Connection *connection_of(uint64_t tag) noexcept;  // null where the connection is another by now
    void look_at(uint64_t tag, uint64_t now) noexcept;
    void go_on_with_handshake() noexcept;
    void on_event(Connection *connection, uint64_t now) noexcept;
    void sweep(uint64_t now) noexcept;
    void expire(Connection *connection, uint64_t now) noexcept;
    int epoll_of(const Connection *connection) const noexcept {
        return connection->phase.load(std::memory_order_relaxed) == Phase::handshake ? handshakes_ : epoll_;
    }
    bool tell_epoll(Connection *connection, uint32_t events) noexcept;
    void take_from_epoll(Connection *connection) noexcept;
    void arm(Connection *connection, uint32_t events) noexcept;
    void arm_for_sweep(Connection *connection) noexcept;
    void mute(Connection *connection) noexcept;
    void arm_for_phase(Connection *connection, uint64_t now) noexcept;
    bool shake_hands(Connection *connection, uint64_t now) noexcept;
    void release_buffers(Connection *connection) noexcept;
    void notify() noexcept;
    void defer_decref(Owners *owners) noexcept;

    // disconnect_watch.cpp
    void cancel_disconnected() noexcept;
    void cancel_disconnected(Connection *connection) noexcept;

    // python_dispatch.cpp
    void serve(int index) noexcept;
    void visit_python(int index) noexcept;
    void leave_python(int index) noexcept;
    void call_relief() noexcept;
    void stand_by(int index) noexcept;
    void follow(int index) noexcept;
    static bool late(uint64_t since, uint64_t allowed) noexcept {
        const uint64_t now = unsigned_now_ns();
        return now > since && now - since >= allowed;
    }

    // receive.cpp
    void advance(Connection *connection, uint64_t now) noexcept;
    bool is_admitted(Connection *connection) noexcept;
    bool check_first(Connection *connection) noexcept;
    bool is_routed(Connection *connection) noexcept;
    bool start_infer(Connection *connection, uint64_t now) noexcept;
    bool try_route(Connection *connection, bool complete) noexcept;
    void begin_infer(Connection *connection) noexcept;
    void queue_to_run(Connection *connection) noexcept;

    // receive_body.cpp
    enum class Decoded : uint8_t { all, end, beyond, fault, no_room, no_memory };
    bool start_body(Connection *connection, uint64_t now) noexcept;
    bool count_body(Connection *connection, uint64_t more) noexcept;
    void uncount_missing(Connection *connection) noexcept;
    void await_memory(Connection *connection, uint64_t now) noexcept;
    void retry_memory(Connection *connection, uint64_t now) noexcept;
    void receive_body(Connection *connection, uint64_t now) noexcept;
    void receive_chunks(Connection *connection, uint64_t now) noexcept;
    Decoded make_room(Connection *connection, uint64_t more) noexcept;
    Decoded decode_chunks(Connection *connection) noexcept;
    void end_body(Connection *connection, BodyState state) noexcept;
    void set_low_water(Connection *connection, int bytes) noexcept;
    void await_more(Connection *connection, size_t left) noexcept;

    // app_messages.cpp
    bool start_app_message(Connection *connection, uint64_t now) noexcept;
    void ask_app(Connection *connection, BodyState state) noexcept;
    void stop_app_messages() noexcept;

    // fast_path.cpp
    bool extend_with_numbers(Connection *connection, const ModelSignature &signature,
                             const FastRequestLayout &layout) noexcept;
    FastRequest *make_fast_request(Connection *connection, ModelSignature *signature, uint64_t now) noexcept;
    bool submit_fast_request(Connection *connection, const ModelRoute &route) noexcept;

    // stream.cpp
    void resume_stream(Connection *connection) noexcept;
    bool take_back_stopped(Connection *connection, uint64_t turn) noexcept;
    void end_stream_of(Connection *connection) noexcept;
    void stop_streams() noexcept;

    // send.cpp
    bool put_get(Connection *connection) noexcept;
    bool put_description(Connection *connection, Route route) noexcept;
    bool put_prepared(Connection *connection, const PreparedAnswer &made) noexcept;
    void refuse(Connection *connection, const PreparedAnswer &made, ServerCounter counter) noexcept;
    bool finish(Connection *connection, uint64_t now) noexcept;
    Sent flush(Connection *connection) noexcept;
    static uint64_t acknowledged(Connection *connection) noexcept;
    void wait_for_reader(Connection *connection, uint64_t now) noexcept;
    bool still_reading(Connection *connection, uint64_t now) noexcept;
    void linger(Connection *connection, uint64_t now) noexcept;
    void drain_lingering(Connection *connection, uint64_t now) noexcept;
    void record(Connection *connection, uint64_t now) noexcept;
    void keep_record(AccessRecord *made);
    void count_error(int status) noexcept {
        if (status >= LEAST_ERROR && status < LEAST_ERROR + STATUSES)
            errors[status - LEAST_ERROR].fetch_add(1, std::memory_order_relaxed);
    }
    // Bytes per second that are asked of a transfer of so many bytes.
    uint64_t least_rate(uint64_t whole) const noexcept {
        const uint64_t rate = whole / (config.transfer_s ? config.transfer_s : 1);
        return rate > config.rate ? rate : config.rate ? config.rate : 1;
    }
    uint64_t rate_deadline(uint64_t since, uint64_t bytes, uint64_t whole) const noexcept {
        return since + config.grace_ns + bytes * 1000000u / least_rate(whole) * 1000u;
    }

    const Serve serve_python_;
    void *const owner_;
    int epoll_ = -1, wake_ = -1, notify_ = -1;
    int handshakes_ = -1;  // the epoll that has the connections in a handshake, and is in the other one
    std::vector<int> listeners_;
    std::unique_ptr<Thread[]> threads_;
    std::atomic<bool> stopping_{false};
    std::atomic<uint64_t> next_sweep_{0};

    std::mutex accept_mutex_;
    std::atomic<bool> wanted_{false};
    std::atomic<int> accepting_{0};  // threads that use the listeners
    bool watching_ = false;
    std::atomic<bool> paused_{false};
    uint64_t paused_until_ = 0;

    std::atomic<uint32_t> streams_{0};  // places that streams hold
    std::mutex woken_mutex_;
    std::vector<uint64_t> woken_;  // streams with an event

    std::mutex run_mutex_;
    Connection *run_first_ = nullptr, *run_last_ = nullptr;
    std::atomic<uint32_t> to_run_{0};
    static constexpr int NOBODY = -1;
    std::atomic<int> serving_{NOBODY};          // who takes requests into Python
    std::atomic<uint32_t> watched_{0};         // connections that are watched while they wait
    std::atomic<int> away_{0};                 // I/O threads that are in Python
    std::mutex relief_mutex_;
    std::condition_variable relief_;
    bool relief_called_ = false;

    std::atomic<int> leader_{0};
    std::atomic<int> in_python_{NOBODY};       // the thread that is there
    std::atomic<uint64_t> python_since_{0};    // when it went in last,
    std::atomic<uint64_t> request_since_{0};   // and when it took its last request there
    std::mutex follow_mutex_;
    MonotonicCondition follow_;
    std::atomic<int> resting_{0};              // followers that sleep until they are woken

    struct AppQueue {
        Connection *first = nullptr, *last = nullptr;
        std::condition_variable come;
    };
    std::mutex app_mutex_;
    AppQueue app_queues_[2];

    std::mutex stream_mutex_;
    std::condition_variable stream_moved_;
    std::atomic<Owners *> deferred_decrefs_{nullptr};

    std::mutex records_mutex_;
    std::vector<AccessRecord> records_;
    size_t record_bytes_ = 0;
};

}  // namespace ksrv
