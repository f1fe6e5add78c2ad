// The HTTP server of a worker: its connections of HTTP/1.1 and its messages, without Python and without the GIL.
//
// Strategy: the event loop (native/reactor) tells of events; its thread runs each connection with one to completion. Complete infer
// requests wait in the run queue until that thread takes them into Python. Every other message goes to the Falcon app, on threads
// of Python's.
//
// http/connection.hpp is what a connection is, events.cpp what becomes of events and timers, accepting.cpp how connections begin,
// receive.cpp how messages come in, send.cpp and stream.cpp how answers go out, app_messages.cpp the way to
// the app and back, route_table.hpp what is known of each model, known_callers.hpp who may call, fast_path.cpp the requests that
// need no Python before their handler, disconnect_watch.cpp requests whose client is gone, http2_streams.cpp HTTP/2.

#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/known_callers.hpp"
#include "http/connection.hpp"
#include "http/connection_table.hpp"
#include "http/prepared_answer.hpp"
#include "http/proxy_header.hpp"
#include "http/response_head.hpp"
#include "reactor/access_records.hpp"
#include "reactor/connection_end.hpp"
#include "reactor/event_loop.hpp"
#include "reactor/pending_decrefs.hpp"
#include "reactor/run_queue.hpp"
#include "reactor/timers.hpp"
#include "server/app_queue.hpp"
#include "server/route_table.hpp"

namespace ksrv {

struct Request;
struct FastRequest;
struct FastRequestLayout;

struct HttpServerConfig {
    HeadLimits limits;
    ProxyRules proxy;
    uint32_t connections = 1000;
    uint64_t head_ns = 10000000000u;      // a head must be complete by then
    uint64_t grace_ns = 10000000000u;     // bodies and answers: the rate counts from here on
    uint64_t rate = 4096;                 // bytes per second, received or taken by the peer
    uint64_t transfer_s = 300;            // behind the grace, for a body or an answer of any size
    uint64_t idle_ns = 75000000000u;      // between messages; 0: every answer closes
    uint64_t stop_idle_ns = 2000000000u;  // the same while draining, and of a connection at its end
    ConnectionEnd end;
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

// A connection that was closed for its header of the PROXY protocol, for the log.
struct ProxyRefusal {
    sockaddr_storage peer;
    socklen_t peer_length;
    ProxyFault fault;
};

enum ServerCounter : int {
    SERVER_ACCEPTED,
    SERVER_INFER,          // infer requests that took the hot route
    SERVER_HEALTH,
    SERVER_DESCRIBED,      // GETs of a server's or model's description
    SERVER_APP,            // messages given to a thread of the app; twice where the body was asked for
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
    SERVER_PROXY_HEADER,   // connections whose header of the PROXY protocol was refused
    SERVER_STRAY,          // second answers to a message, which were not sent: faults of this program
    SERVER_COUNTERS,
};

// Statuses of answers that tell of an error: 400 to 599.
constexpr int LEAST_ERROR = 400, STATUSES = 200;

class HttpServer final : public Protocol {
  public:
    HttpServer(EventLoop *loop, const HttpServerConfig &config, Serve serve, void *owner);
    ~HttpServer();

    // ---- set up, and the end (events.cpp) ----
    bool listen_on(const int *listeners, size_t count) noexcept;
    void accept_enabled(bool enabled) noexcept { listeners.accept_enabled(enabled); }
    void drain() noexcept;  // answers close, idle connections end soon
    void stop() noexcept;   // nobody waits for a message any more; before the event loop is stopped

    // ---- for the event loop (events.cpp, accepting.cpp) ----
    void on_event(uint64_t tag, uint32_t events, uint64_t now) noexcept override;
    void on_handshake(uint64_t tag, uint64_t now) noexcept override;
    void on_turn(uint64_t now) noexcept override;
    void on_sweep(uint64_t now) noexcept override;
    NextTurn next_turn() const noexcept override;
    bool wants_python() const noexcept override { return !to_run_.empty() || decrefs.are_many(); }
    void work_in_python() noexcept override;
    void send_gathered() noexcept override {}
    void *take_place() noexcept override;
    void give_back_place(void *place) noexcept override;
    void accepted(void *place, const Accepted &made, bool serves) noexcept override;
    bool has_room() const noexcept override { return connections.open() < connections.most(); }
    void make_room() noexcept override;
    void accept_paused() noexcept override { count(SERVER_ACCEPT_PAUSED); }

    // ---- answers ----
    // Sends `connection->out`. True: it is over and `owners` are the caller's to give back; false:
    // the socket is full, and the server keeps them. The connection is not the caller's any more.
    bool answer(Connection *connection, Owners *owners) noexcept;
    // The same, with a prepared answer.
    void answer_prepared(Connection *connection, PreparedAnswerIndex which) noexcept;
    void drop(Connection *connection) noexcept;                       // no answer: closes
    void close_disconnected(Connection *connection) noexcept;  // the same for a client that is gone

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
    bool at_its_end(const Connection *connection) noexcept;
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
    void note_refused(AccessRecord made) noexcept;  // of a stream that was answered before it was opened
    bool open_stream(ByteStream *stream, const StreamHead &head, const sockaddr_storage &peer,
                     socklen_t peer_length, uint16_t listener) noexcept;

    // ---- messages for the app ----
    Connection *next_app_message(AppQueueKind kind) noexcept;
    void receive_for_app(Connection *connection, uint64_t most) noexcept;

    void take_proxy_refusals(std::vector<ProxyRefusal> *out);  // proxied_connections.cpp

    HttpServerConfig config;
    std::shared_ptr<const TlsContext> tls;  // of all listeners, set before they are; null without TLS
    AdoptHttp2 adopt_http2 = nullptr;  // set before it listens, with its owner; null without HTTP/2
    void *http2_owner = nullptr;
    PreparedAnswer prepared_answers[PREPARED_ANSWERS];
    NotReadyAnswer unready;
    std::atomic<bool> live{true}, ready{false};
    std::atomic<bool> draining{false};
    std::atomic<uint64_t> counters[SERVER_COUNTERS] = {};
    std::atomic<uint64_t> errors[STATUSES] = {};  // answers by status, from LEAST_ERROR on
    Connections connections;
    Timers timers;
    AccessRecords<AccessRecord> records;
    PendingDecrefs<Owners> decrefs;
    Routes routes;
    KnownCallers known_callers;
    std::atomic<uint64_t> model_changes{0};  // routes of an earlier state describe no model
    std::atomic<uint64_t> open_fast_requests{0};  // requests that refer to this server

  private:
    static constexpr int MESSAGES = 16;         // pipelined messages served per turn
    static constexpr uint64_t MEMORY_RETRY_NS = 20000000u;
    static constexpr uint64_t EARLY_BODY = 65536;  // received before the app is asked for it
    static constexpr uint64_t AHEAD_NS = 1000000000u;  // that a body may be counted before it comes
    static constexpr int RECYCLE_TRIES = 8;
    static constexpr size_t PROXY_REFUSALS = 16;  // that wait to be logged; more are only counted
    static constexpr uint32_t READING = EPOLLIN | EPOLLRDHUP;

    void count(ServerCounter which) noexcept {
        counters[which].fetch_add(1, std::memory_order_relaxed);
    }

    // accepting.cpp
    bool recycle_idle() noexcept;

    // proxied_connections.cpp
    bool take_proxy_header(Connection *connection, uint64_t now) noexcept;
    bool begin_direct(Connection *connection, uint64_t now) noexcept;
    void refuse_proxied(Connection *connection, ProxyFault fault) noexcept;

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

    // events.cpp
    using Protocol::tag_of;
    uint64_t tag_of(const Connection *connection) const noexcept {
        return tag_of(connection->slot, connection->generation.load(std::memory_order_relaxed));
    }
    Connection *connection_of(uint64_t tag) noexcept;  // null where the connection is another by now
    void go_on(Connection *connection, uint64_t now) noexcept;
    void expire(Connection *connection, uint64_t now) noexcept;
    bool tell_epoll(Connection *connection, uint32_t events) noexcept;
    void take_from_epoll(Connection *connection) noexcept;
    void arm(Connection *connection, uint32_t events) noexcept;
    void arm_for_sweep(Connection *connection) noexcept;
    void mute(Connection *connection) noexcept;
    void arm_for_phase(Connection *connection, uint64_t now) noexcept;
    bool shake_hands(Connection *connection, uint64_t now) noexcept;
    void release_buffers(Connection *connection) noexcept;
    void defer_decref(Connection *connection) noexcept;

    // disconnect_watch.cpp
    void cancel_disconnected() noexcept;
    void cancel_disconnected(Connection *connection) noexcept;

    // receive.cpp
    void advance(Connection *connection, uint64_t now) noexcept;
    bool is_admitted(Connection *connection) noexcept;
    bool check_first(Connection *connection) noexcept;
    bool is_routed(Connection *connection) noexcept;
    bool start_infer(Connection *connection, uint64_t now) noexcept;
    bool try_route(Connection *connection, bool complete) noexcept;
    void begin_infer(Connection *connection) noexcept;
    void queue_to_run(Connection *connection) noexcept;
    bool start_body(Connection *connection, uint64_t now) noexcept;
    void await_memory(Connection *connection, uint64_t now) noexcept;
    void retry_memory(Connection *connection, uint64_t now) noexcept;
    void receive_body(Connection *connection, uint64_t now) noexcept;
    void follow_body(Connection *connection, BodyProgress progress, uint64_t now) noexcept;
    void end_body(Connection *connection) noexcept;

    // app_messages.cpp
    bool start_app_message(Connection *connection, uint64_t now) noexcept;
    void ask_app(Connection *connection, BodyState state) noexcept;

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
    Sent flush(Connection *connection, bool last = true) noexcept;
    static uint64_t acknowledged(Connection *connection) noexcept;
    void wait_for_reader(Connection *connection, uint64_t now) noexcept;
    bool still_reading(Connection *connection, uint64_t now) noexcept;
    void linger(Connection *connection, uint64_t now) noexcept;
    void drain_lingering(Connection *connection, uint64_t now) noexcept;
    void record(Connection *connection, uint64_t now) noexcept;
    void keep_record(AccessRecord made) noexcept;
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

    EventLoop *const loop_;
    const Serve serve_python_;
    void *const owner_;
    std::atomic<bool> stopping_{false};
    std::atomic<uint32_t> streams_{0};  // places that streams hold
    TagQueue woken_;                    // streams with an event
    RunQueue<Connection, &Connection::next> to_run_;
    std::atomic<uint32_t> watched_{0};  // connections that are watched while they wait
    AppQueue app_queue_;
    std::mutex stream_mutex_;
    std::condition_variable stream_moved_;
    std::mutex proxy_mutex_;
    std::vector<ProxyRefusal> proxy_refusals_;
};

}  // namespace ksrv
