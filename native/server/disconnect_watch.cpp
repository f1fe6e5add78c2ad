// Requests whose client went away while they wait for their model: they are cancelled, and their place
// is free.
//
// Strategy: a connection whose request is with the engine is not armed, so that epoll does not report
// its end. The sweep asks the kernel about waiting connections, ten times a second; a request that is run at
// once costs nothing. `waiting` is the request, held. The sweep puts LOOKING there while it
// looks, and the answering thread waits for that, so that the descriptor is the connection's all the while. The reset
// of an HTTP/2 stream is told at once.
//
// A peer that has reset the connection is gone. A peer that has closed its own direction may be gone as
// well, or may read on: its bytes do not tell. So it is sent an interim answer, which every client of
// HTTP/1.1 skips; the system of a client that is gone answers that with a reset.

#include <sched.h>

#include "queue/request.hpp"
#include "server/server.hpp"

namespace ksrv {

Request *const LOOKING = reinterpret_cast<Request *>(1);

// Has the connection watched until it is answered or dropped. Before the request is pushed, or with the
// GIL where only a thread with the GIL answers.
void HttpServer::watch(Connection *connection, Request *request) noexcept {
    retain(request);
    watched_.fetch_add(1, std::memory_order_relaxed);
    connection->probed = connection->head.http_1_0;  // its clients know no interim answers
    connection->waiting.store(request, std::memory_order_release);
}

void HttpServer::unwatch(Connection *connection) noexcept {
    Request *request = connection->waiting.load(std::memory_order_acquire);
    while (request != nullptr) {
        if (request == LOOKING) {
            sched_yield();
            request = connection->waiting.load(std::memory_order_acquire);
        } else if (connection->waiting.compare_exchange_weak(request, nullptr)) {
            watched_.fetch_sub(1, std::memory_order_relaxed);
            release(request);
            return;
        }
    }
}

void HttpServer::close_disconnected(Connection *connection) noexcept {
    count(SERVER_DISCONNECTED);
    drop(connection);
}

void HttpServer::cancel_disconnected() noexcept {
    if (watched_.load(std::memory_order_relaxed) == 0) return;
    for (uint32_t slot = 0; slot < connections.used(); ++slot) cancel_disconnected(connections.at(slot));
}

void HttpServer::cancel_disconnected(Connection *connection) noexcept {
    Request *request = connection->waiting.load(std::memory_order_acquire);
    if (request == nullptr || request == LOOKING) return;
    if (!connection->waiting.compare_exchange_strong(request, LOOKING)) return;
    // A request that no queue has accepted yet cannot be cancelled: the next look is early enough.
    const bool gone =
        request->state.load(std::memory_order_acquire) != STATE_NEW && is_peer_gone(connection, &connection->probed);
    connection->waiting.store(gone ? nullptr : request, std::memory_order_release);
    if (!gone) return;
    watched_.fetch_sub(1, std::memory_order_relaxed);
    cancel(request);
    release(request);
}

}  // namespace ksrv
