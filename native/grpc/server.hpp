// The gRPC server of a worker, over HTTP/2: its connections, and the queue of calls for Python.
//
// Strategy: the event loop (native/reactor) reports events, and its I/O thread works on the connections that have
// events. Calls that need Python wait in the run queue, until an I/O thread enters Python and runs them. Their answers
// are sent when that thread leaves Python, so that all answers of a connection are one write.

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string_view>

#include "base/clock.hpp"
#include "base/known_callers.hpp"
#include "grpc/connection.hpp"
#include "grpc/open_connections.hpp"
#include "reactor/log_records.hpp"
#include "reactor/connection_limits.hpp"
#include "reactor/counters.hpp"
#include "reactor/event_loop.hpp"
#include "reactor/pending_decrefs.hpp"
#include "reactor/run_queue.hpp"
#include "reactor/timers.hpp"
#include "server/route_table.hpp"

namespace ksrv::grpc {

struct ServerConfig : ConnectionLimits {  // a message must begin within `head_ns`
    uint32_t streams = 128;           // per connection
    uint64_t message = 4u << 20;      // bytes per message
    bool message_by_budget = false;   // `message` is the limit --limits-in-flight, not --limits-body
    uint64_t small_message = 65536;   // limit for methods with small messages
    uint32_t head = 16384;
    // Limit for calls without a message, for running calls, and for answers that clients do not read.
    uint32_t calls = 2048;
    uint64_t ping_ns = 60'000'000'000u;
    uint64_t ping_timeout_ns = 20'000'000'000u;
    bool checks_callers = false;
    bool own_hosts = false;  // Python checks every call whose :authority is foreign (see is_foreign_host)
    bool decompress = true;
    bool log = false;  // keep records for an access log
};

// A call that has ended, for the access log.
struct CallRecord {
    std::string path, request_id, model, version;
    std::string metadata;  // lines, each with its CRLF
    uint64_t duration_ns = 0, answered_bytes = 0;
    int status = OK;
    sockaddr_storage peer;
};

using ServeCalls = void (*)(void *owner);  // enters Python, and runs the calls of `next_to_run` there

class Server final : public Protocol {
  public:
    Server(EventLoop *loop, const ServerConfig &config, MemoryBudget *budget, ServeCalls serve, void *owner);
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;
    ~Server();

    void add_method(const Method &method);  // before `listen`
    bool listen_on(const int *listeners, size_t count) noexcept;
    void accept_enabled(bool enabled) noexcept { listeners.accept_enabled(enabled); }
    void drain() noexcept;      // notifies every peer that the server stops
    void close_all() noexcept;  // closes all connections
    void post_all(uint32_t events) noexcept;

    // ---- for the event loop ----
    void on_event(uint64_t tag, uint32_t events, uint64_t now, bool is_late) noexcept override;
    void on_handshake(uint64_t tag, uint64_t now) noexcept override;
    void on_turn(uint64_t now, TurnShare share) noexcept override;
    void on_sweep(uint64_t now) noexcept override;
    NextTurn next_turn() const noexcept override;
    PythonWork python_work() const noexcept override {
        if (!to_run_.empty() || decrefs.are_many()) return PythonWork::wanted;
        return decrefs.any() ? PythonWork::sent : PythonWork::none;
    }
    void work_in_python() noexcept override;
    void send_gathered() noexcept override;
    void *take_place() noexcept override;
    void give_back_place(void *) noexcept override {}
    void accepted(void *place, const Accepted &made, bool serves) noexcept override;
    bool has_room() const noexcept override { return connections.count() < config.connections; }
    void make_room() noexcept override;
    void accept_paused(bool lacks_descriptors) noexcept override {
        count(ServerCounter::accept_pauses);
        if (lacks_descriptors) count(ServerCounter::lacked_descriptors);
    }

    // ---- calls ----
    void run_later(Call *call, int reason) noexcept;
    // The next call for Python, as a counted reference, with the reasons (`RunReason`). Null if no call waits, or it is
    // the turn of another protocol.
    Call *next_to_run(int *reasons) noexcept;
    // Takes the fast calls after `first` in the run queue, up to the first call to another model.
    size_t take_fast_calls(Call *first, Call **out, size_t room) noexcept;
    void *owner() const noexcept { return owner_; }
    void send_later(Connection *connection) noexcept;  // sent when the thread in Python leaves Python, or the turn ends
    void defer_decref(Payload *payload) noexcept {
        payload->next = nullptr;  // it may have been in a call's list of payloads, which are not released with it
        if (decrefs.add(payload, payload->size)) loop_->wake();
    }

    // ---- connections ----
    void forget(Connection *connection) noexcept;  // removes a closed connection
    void read_again(Connection *connection) noexcept;  // after other connections had their turn
    void queue_handshake(const Connection &connection) noexcept;
    const Method *method(std::string_view path) const noexcept;
    void count(ServerCounter which) noexcept { counters.count(which); }
    void end_unfinished() noexcept;  // called if too many calls wait for their messages

    const ServerConfig config;
    KnownCallers known_callers;
    Routes routes;  // to models that take calls without Python before their handler
    void (*fast_answered)(Request *request, void *answer) = nullptr;  // as `Request::answered`
    std::shared_ptr<const TlsContext> tls;  // set before `listen`; null without TLS
    // The JSON body of the answer to requests that are not gRPC. Set before `listen`.
    std::string misdirected_body;
    MemoryBudget *const budget;
    Timers timers;  // of connections: `tick` sets them, all other functions may only lower them
    LogRecords<CallRecord> records;
    PendingDecrefs<Payload> decrefs;
    ServerCounters counters;
    std::atomic<uint32_t> unfinished{0};  // calls whose message is incomplete
    std::atomic<uint32_t> open_calls{0};  // unary calls that Python runs, or that wait to run
    std::atomic<uint32_t> undelivered{0};  // calls whose complete answer waits for its client
    OpenConnections connections;
    std::atomic<bool> draining{false};

  private:
    static constexpr int RECYCLE_TRIES = 8;
    // The most undelivered answers, as a multiple of the limit on calls.
    static constexpr uint32_t UNDELIVERED_SHARE = 2;

    void end_undelivered() noexcept;
    bool recycle_idle() noexcept;
    Connection *at(uint64_t tag) noexcept { return connections.at(slot_of(tag), generation_of(tag)); }

    EventLoop *const loop_;
    const ServeCalls serve_python_;
    void *const owner_;
    std::map<std::string, Method, std::less<>> methods_;

    RunQueue<Call, &Call::run_next> to_run_;
    RunQueue<Connection, &Connection::next_unread> unread_;  // to be read in a later turn
    // With answers that wait for the end of a turn.
    RunQueue<Connection, &Connection::next_deferred> deferred_;
};

}  // namespace ksrv::grpc
