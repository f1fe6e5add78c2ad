// The connections of the HTTP server: their places and timers, who may call, what epoll is told of each, and their end.
//
// Strategy: `arm` gives a connection to the kernel, with a deadline by its phase; from then on it is not its owner's,
// and http/connection.hpp says who may claim it. Whoever owns it ends it by `drop`, from any thread.
//
// The HTTP server owns them. All functions but `of`, `look` and the counts are for the owner of a connection. What is
// shared is atomic; the table, `stream_waits` and `known_callers` have a lock each.

#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/known_callers.hpp"
#include "http/connection_table.hpp"
#include "http/proxy_header.hpp"
#include "http/stream_waits.hpp"
#include "http/time_limits.hpp"
#include "reactor/connection_end.hpp"
#include "reactor/event_loop.hpp"
#include "reactor/pending_decrefs.hpp"
#include "reactor/timers.hpp"
#include "server/disconnect_watch.hpp"

namespace ksrv {

// What has happened in the HTTP server so far. Any thread counts, and any thread reads.
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
    SERVER_LACKS_DESCRIPTORS,  // pauses of accepting, because the process had no descriptor left
    SERVER_STRAY,          // second answers to a message, which were not sent: faults of this program
    SERVER_COUNTERS,
};

// Statuses of answers that tell of an error: 400 to 599.
constexpr int LEAST_ERROR = 400, STATUSES = 200;

struct ServerCounts {
    std::atomic<uint64_t> counters[SERVER_COUNTERS] = {};
    std::atomic<uint64_t> errors[STATUSES] = {};  // answers by status, from LEAST_ERROR on

    void count(ServerCounter which) noexcept { counters[which].fetch_add(1, std::memory_order_relaxed); }

    void count_status(int status) noexcept {
        if (status >= LEAST_ERROR && status < LEAST_ERROR + STATUSES)
            errors[status - LEAST_ERROR].fetch_add(1, std::memory_order_relaxed);
    }
};

struct HttpServerConfig : TimeLimits {
    HeadLimits limits;
    ProxyRules proxy;
    uint32_t connections = 1000;
    ConnectionEnd end;
    bool checks_callers = false;          // before a body is waited for
    bool shared = false;  // whether other processes accept from the same listeners
    bool log = false;
    std::string server_header = "gunicorn";
};

class HttpConnections final : public Connections {
  public:
    HttpConnections(EventLoop *loop, Listeners *listeners, const HttpServerConfig *config, ServerCounts *counts)
        : Connections(config->connections),
          timers(config->connections),
          loop_(loop),
          listeners_(listeners),
          config_(config),
          counts_(counts) {}

    void close_all() noexcept;  // at the server's end, when nobody calls any more

    // The connection of an event; null where it is another by now.
    Connection *of(uint64_t tag) noexcept;
    void give_back_place(Connection *connection) noexcept;  // of a connection that did not begin
    // Closes the connection that has been idle for longest, so that connections kept open for nothing keep nobody out. Called while
    // the listeners are in use.
    bool recycle_idle() noexcept;

    // Whether the caller of a message may send it, as far as is known without Python.
    bool is_admitted(Connection *connection) noexcept;
    // Notes that Python has admitted the caller of a message; another message of his is admitted at once.
    void remember_caller(const Connection *connection) noexcept;

    // Gives the connection to the kernel, with the deadline of its phase.
    void arm(Connection *connection, uint64_t now) noexcept;
    void arm_until(Connection *connection, uint64_t when) noexcept;  // to the sweep alone
    // Has epoll report nothing more of a connection whose owner is busy, but for one reset. By a thread that does not own it.
    void mute(Connection *connection) noexcept;
    void take_from_epoll(Connection *connection) noexcept;
    // The message is the engine's or the app's from now on: no timer holds.
    void begin_run(Connection *connection) noexcept;

    void drop(Connection *connection) noexcept;  // no answer: closes
    void close_disconnected(Connection *connection) noexcept;  // the same for a client that is gone
    // Gives back what the message and its answer held, but for Python's objects: those a thread with the GIL gives back.
    void release_buffers(Connection *connection) noexcept;
    void defer_decref(Connection *connection) noexcept;

    // Calls `due(connection)` for each whose deadline has passed, and which its caller owns then.
    template <typename Due> void sweep(uint64_t now, Due due) noexcept {
        decrefs.sweep();
        if (is_draining()) end_idle(now);
        disconnects.look_at_all(this);
        timers.sweep(used(), now, [this, now, &due](uint32_t slot) {
            Connection *connection = at(slot);
            if (!connection || !connection->claim_for_sweep()) return;
            if (!timers.due(slot, now)) {  // it moved on between the look and the claim
                arm(connection, now);
                return;
            }
            due(connection);
        });
    }
    void drain() noexcept { draining.store(true, std::memory_order_release); }  // idle ones end soon after the next sweep
    bool is_draining() const noexcept { return draining.load(std::memory_order_relaxed); }

    Timers timers;
    PendingDecrefs<Owners> decrefs;
    DisconnectWatch disconnects;
    StreamWaits stream_waits;
    KnownCallers known_callers;
    std::atomic<bool> draining{false};

  private:
    static constexpr int RECYCLE_TRIES = 8;
    static constexpr uint32_t READING = EPOLLIN | EPOLLRDHUP;

    void end_idle(uint64_t now) noexcept;
    bool tell_epoll(Connection *connection, uint32_t events) noexcept;
    void arm_for(Connection *connection, uint32_t events) noexcept;
    void arm_for_sweep(Connection *connection) noexcept;

    EventLoop *const loop_;
    Listeners *const listeners_;
    const HttpServerConfig *const config_;
    ServerCounts *const counts_;
};

}  // namespace ksrv
