// The HTTP server of a worker: its HTTP/1.1 connections and messages, without Python and without the GIL.
//
// Strategy: the event loop (native/reactor) reports events, and its leading thread serves each connection with an event
// until it must wait. Prepared answers and fast-path requests need no Python. Other infer requests wait in the run
// queue until the thread enters Python. All other messages are left to the Falcon app, on Python threads.
//
// HttpServer moves each connection from phase to phase. Its members carry out the steps. Each member uses only the
// members before it, and none calls back: http_connections.hpp has slots, timers and epoll; answer_sender.hpp sends
// answers; native_routes.hpp has requests that need no app. http/incoming_body.hpp receives bodies.
//
// events.cpp handles events and timers, receive.cpp receives messages, app_messages.cpp exchanges messages with the
// app, proxied_connections.cpp handles the PROXY protocol.

#pragma once

#include <atomic>
#include <memory>

#include "server/app_messages.hpp"
#include "server/native_routes.hpp"

namespace ksrv {

// Runs requests in Python. Called with the GIL; pops the run queue until it returns null.
using Serve = void (*)(void *owner);

// A connection that was closed because of its protocol, for the log.
struct Refusal {
    sockaddr_storage peer;
    const char *protocol, *cause;  // static strings
};

class HttpServer final : public Protocol {
  public:
    HttpServer(EventLoop *loop, const HttpServerConfig &config, Serve serve, void *owner);
    ~HttpServer();

    // ---- start and end (events.cpp) ----
    bool listen_on(const int *listeners, size_t count) noexcept;
    void accept_enabled(bool enabled) noexcept { listeners.accept_enabled(enabled); }
    void drain() noexcept { connections.drain(); }  // answers close their connections, and idle connections end soon
    void stop() noexcept;   // ends waiting for messages; called before the event loop is stopped

    // ---- for the event loop (events.cpp) ----
    void on_event(uint64_t tag, uint32_t events, uint64_t now, bool is_late) noexcept override;
    void on_handshake(uint64_t tag, uint64_t now) noexcept override;
    void on_turn(uint64_t, TurnShare) noexcept override {}
    void on_sweep(uint64_t now) noexcept override;
    NextTurn next_turn() const noexcept override;
    PythonWork python_work() const noexcept override {
        if (routes.any_to_run() || connections.decrefs.are_many()) return PythonWork::wanted;
        return connections.decrefs.any() ? PythonWork::sent : PythonWork::none;
    }
    void work_in_python() noexcept override;
    void send_gathered() noexcept override {}
    void *take_place() noexcept override;
    void give_back_place(void *place) noexcept override;
    void accepted(void *place, const Accepted &made, bool serves) noexcept override;
    bool has_room() const noexcept override { return connections.open() < connections.most(); }
    void make_room() noexcept override;
    void accept_paused(bool lacks_descriptors) noexcept override {
        counts.count(ServerCounter::accept_pauses);
        if (lacks_descriptors) counts.count(ServerCounter::lacked_descriptors);
    }

    // Continues with a connection that was `checking`. Messages of callers who are not permitted are left to the app.
    void checked(Connection *connection, bool admitted) noexcept;

    // ---- messages for the app (app_messages.cpp) ----
    Connection *next_app_message(AppQueueKind kind) noexcept;
    void receive_for_app(Connection *connection, uint64_t most) noexcept;

    HttpServerConfig config;
    std::shared_ptr<const TlsContext> tls;  // for all listeners, set before `listen_on`; null without TLS
    ServerCounters counts;
    HttpConnections connections;
    AnswerSender answers;
    NativeRoutes routes;
    LogRecords<Refusal> refusals{REFUSALS * sizeof(Refusal)};  // more are not logged

  private:
    static constexpr int MESSAGES = 16;         // pipelined messages served per turn
    static constexpr uint64_t MEMORY_RETRY_NS = 20'000'000u;
    static constexpr uint64_t MEMORY_WAIT_NS = 1'000'000'000u;  // how long a request may wait for bytes in flight
    static constexpr uint64_t EARLY_BODY = 65536;  // bytes received before the app is asked
    static constexpr size_t REFUSALS = 16;  // that wait to be logged

    // ---- events.cpp ----
    void go_on(Connection *connection, uint64_t now) noexcept;
    void expire(Connection *connection, uint64_t now) noexcept;
    bool shake_hands(Connection *connection, uint64_t now) noexcept;

    // ---- proxied_connections.cpp ----
    bool take_proxy_header(Connection *connection, uint64_t now) noexcept;
    bool begin_direct(Connection *connection, uint64_t now) noexcept;
    void refuse_proxied(Connection *connection, const char *fault) noexcept;

    // ---- receive.cpp ----
    void refuse_http2(Connection *connection, uint64_t now) noexcept;
    void advance(Connection *connection, uint64_t now) noexcept;
    bool start_native(Connection *connection, uint64_t now, int *answered) noexcept;
    bool start_infer(Connection *connection, uint64_t now) noexcept;
    bool start_body(Connection *connection, uint64_t now) noexcept;
    void retry_memory(Connection *connection, uint64_t now) noexcept;
    void receive_body(Connection *connection, uint64_t now) noexcept;
    void follow_body(Connection *connection, BodyProgress progress, uint64_t now) noexcept;
    void end_body(Connection *connection) noexcept;

    // ---- app_messages.cpp ----
    bool start_app_message(Connection *connection, uint64_t now) noexcept;
    void ask_app(Connection *connection, BodyState state) noexcept;

    EventLoop *const loop_;
    const Serve serve_python_;
    void *const owner_;
    std::atomic<bool> stopping_{false};
    AppQueue app_queue_;
};

}  // namespace ksrv
