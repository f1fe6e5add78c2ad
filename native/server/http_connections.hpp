// The connections of the HTTP server: slots and timers, permission of callers, epoll, and closing.
//
// Strategy: `arm` gives a connection to epoll, with a deadline by its phase. From then on the caller does not own it,
// and http/connection.hpp says how threads claim it. The owner closes it with `drop`, on any thread.
//
// Owned by the HTTP server. A function that gets a connection is for the connection's owner, except `mute`. Any thread
// may call the other functions, except `close_all`. Shared data is atomic; the table and `known_callers` have separate
// locks.

#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

#include "base/known_callers.hpp"
#include "http/connection_table.hpp"
#include "http/proxy_header.hpp"
#include "infer/plain_request.hpp"
#include "reactor/connection_limits.hpp"
#include "reactor/counters.hpp"
#include "reactor/event_loop.hpp"
#include "reactor/pending_decrefs.hpp"
#include "reactor/timers.hpp"
#include "server/disconnect_watch.hpp"

namespace ksrv {

struct HttpServerConfig : ConnectionLimits {
    HeadLimits limits;
    std::vector<PlainForm> plain_forms;   // of limits.plain_paths
    ProxyRules proxy;
    bool checks_callers = false;  // check callers before waiting for a body
    bool shared = false;          // other processes accept from the same listeners
    bool log = false;             // write the access log
};

class HttpConnections final : public Connections {
  public:
    HttpConnections(EventLoop *loop, Listeners *listeners, const HttpServerConfig *config, ServerCounters *counts)
        : Connections(config->connections),
          timers(config->connections),
          loop_(loop),
          listeners_(listeners),
          config_(config),
          counts_(counts) {}

    void close_all() noexcept;  // at the server's end, when no other function is called

    // The connection of an event. Null if the slot has another connection now.
    Connection *of(uint64_t tag) noexcept;
    void give_back_place(Connection *connection) noexcept;  // for a connection that did not begin
    // Closes the connection that has been idle for longest, so that idle connections do not lock out clients. Called
    // while the listeners are in use.
    bool recycle_idle() noexcept;

    // Whether the caller of a message is permitted, as known without Python.
    bool is_admitted(Connection *connection) noexcept;
    // Remembers that Python has permitted the caller, so that later messages with the same credentials are permitted at
    // once.
    void remember_caller(const Connection *connection) noexcept;

    // Gives the connection to epoll, with the deadline of its phase.
    void arm(Connection *connection, uint64_t now) noexcept;
    void arm_until(Connection *connection, uint64_t when) noexcept;  // gives it only to the sweep
    // Disarms epoll for a busy connection (EPOLLERR still fires once). May be called by a thread that does not own it.
    void mute(Connection *connection) noexcept;
    // Removes the connection from epoll. The caller owns it.
    void take_from_epoll(Connection *connection) noexcept;
    // The engine or the app has the message from now on: clears the timer.
    void begin_run(Connection *connection) noexcept;

    void drop(Connection *connection) noexcept;  // closes without an answer
    // Releases what the message and its answer use, except Python objects, which a thread with the GIL must release.
    void release_buffers(Connection *connection) noexcept;
    // Leaves the Python objects whose bytes were sent to the next thread with the GIL.
    void defer_decref(Connection *connection) noexcept;

    // Calls `due(connection)` for each connection whose deadline has passed. The caller then owns the connection.
    template <typename Due> void sweep(uint64_t now, Due due) noexcept {
        decrefs.sweep();
        if (is_draining()) end_idle(now);
        disconnects.look_at_all(this);
        timers.sweep(used(), now, [this, now, &due](uint32_t slot) {
            Connection *connection = at(slot);
            if (!connection || !connection->claim_for_sweep()) return;
            if (!timers.due(slot, now)) {  // it changed between the look and the claim
                arm(connection, now);
                return;
            }
            due(connection);
        });
    }
    // Idle connections end soon after the next sweep.
    void drain() noexcept { draining.store(true, std::memory_order_release); }
    bool is_draining() const noexcept { return draining.load(std::memory_order_relaxed); }

    Timers timers;
    PendingDecrefs<Owners> decrefs;
    DisconnectWatch disconnects;
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
    ServerCounters *const counts_;
};

}  // namespace ksrv
