#include "server/disconnect_watch.hpp"

#include <sched.h>

#include "queue/request_queue.hpp"

namespace ksrv {

namespace {

Request *const LOOKING = reinterpret_cast<Request *>(1);  // a mark, not a request: see disconnect_watch.hpp

}  // namespace

void DisconnectWatch::watch(Message *message, Request *request) noexcept {
    retain(request);
    watched_.fetch_add(1, std::memory_order_relaxed);
    message->probed = message->head.http_1_0;  // clients of HTTP/1.0 do not know interim answers
    message->waiting.store(request, std::memory_order_release);
}

void DisconnectWatch::unwatch(Message *message) noexcept {
    Request *request = message->waiting.load(std::memory_order_acquire);
    while (request != nullptr) {
        if (request == LOOKING) {
            sched_yield();
            request = message->waiting.load(std::memory_order_acquire);
        } else if (message->waiting.compare_exchange_weak(request, nullptr)) {
            watched_.fetch_sub(1, std::memory_order_relaxed);
            release(request);
            return;
        }
    }
}

void DisconnectWatch::look_at_all(Connections *connections) noexcept {
    if (watched_.load(std::memory_order_relaxed) == 0) return;
    for (uint32_t slot = 0; Connection *connection = connections->at(slot); ++slot) look(connection);
}

void DisconnectWatch::look(Connection *connection) noexcept {
    Request *request = connection->waiting.load(std::memory_order_acquire);
    if (request == nullptr || request == LOOKING) return;
    if (!connection->waiting.compare_exchange_strong(request, LOOKING)) return;
    // A request that no queue has accepted cannot be cancelled yet. The next look is early enough.
    const bool gone =
        request->state.load(std::memory_order_acquire) != STATE_NEW && is_peer_gone(connection, &connection->probed);
    connection->waiting.store(gone ? nullptr : request, std::memory_order_release);
    if (!gone) return;
    watched_.fetch_sub(1, std::memory_order_relaxed);
    cancel(request);
    release(request);
}

}  // namespace ksrv
