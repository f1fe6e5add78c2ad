// The functions that threads call to answer a call: write messages, finish, cancel, wait. The connection's owner then
// sends what changed.

#include "grpc/call.hpp"

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

void Payload::release() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (owner) {  // a thread with the GIL must release the Python object
        server_->defer_decref(this);
    } else {
        destroy();
    }
}

Call::~Call() {
    free_message(&incoming.message, connection->budget());
    {
        std::lock_guard<std::mutex> guard(lock);
        free_messages();
    }
    out.clear();
    if (watched) ksrv::release(watched);
    if (counts_as_open()) connection->server()->open_calls.fetch_sub(1, std::memory_order_relaxed);
    connection->release();
}

void Call::enter(Receiving next) noexcept {
    ASSERT_OWNED(connection->owner);
    grpc::enter(&receiving, next, ALLOWED_NEXT.receiving);
}

void Call::enter(Answering next) noexcept {
    ASSERT_OWNED(connection->owner);
    grpc::enter(&answering, next, ALLOWED_NEXT.answering);
}

void Call::enter(Life next) noexcept {
    ASSERT_LOCKED(lock);
    grpc::enter(&life, next, ALLOWED_NEXT.life);
    changed.notify_all();
}

void Call::free_messages() noexcept {
    ASSERT_LOCKED(lock);
    for (Message &left : messages) free_message(&left, connection->budget());
    messages.clear();
}

void Call::note_model(const std::string &model, const std::string &version) noexcept {
    if (!connection->server()->config.log) return;
    std::lock_guard<std::mutex> guard(lock);
    try {
        observed.model = model;
        observed.version = version;
    } catch (const std::bad_alloc &) {
        observed.model.clear();
    }
}

void Call::write(Payload *payload) noexcept {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (life == Life::open) {
            out.add(payload);
            payload = nullptr;
        }
    }
    if (payload) {  // the call has ended
        payload->release();
    } else {
        connection->mail(this);
    }
}

void Call::finish(int status, std::string &text, Metadata &metadata, Payload *last) noexcept {
    Request *request;
    {
        std::unique_lock<std::mutex> guard(lock);
        if (life != Life::open) {
            guard.unlock();
            if (last) last->release();
            return;
        }
        enter(Life::finished);
        if (last) out.add(last);
        outcome.status = status;
        outcome.text.swap(text);
        outcome.metadata.swap(metadata);
        request = std::exchange(watched, nullptr);
    }
    if (request) ksrv::release(request);  // outside of the lock, because the last reference frees much
    connection->mail(this);
}

void Call::admit() noexcept {
    if (admitted.exchange(true, std::memory_order_acq_rel)) return;
    if (!method->control && !method->is_open)
        connection->server()->known_callers.add(
            reinterpret_cast<const unsigned char *>(head.authorization.data()), head.authorization.size());
    connection->mail(this);
}

void Call::cancel() noexcept {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (life != Life::open) return;
        enter(Life::cancelled);
    }
    connection->mail(this);
}

bool Call::wait_for_room(size_t most) noexcept {
    std::unique_lock<std::mutex> guard(lock);
    while (life == Life::open && out.bytes() > most) changed.wait(guard);
    return life == Life::open;
}

Next Call::next_message(Message *taken, int64_t until_ns) noexcept {
    {
        std::unique_lock<std::mutex> guard(lock);
        while (life == Life::open && !messages.size()) {
            if (peer_over) return Next::over;
            if (now_ns() >= until_ns) return Next::late;
            changed.wait_until(guard, until_ns);
        }
        if (life != Life::open) return Next::ended;
        *taken = messages[0];
        messages.drop_first(1);
    }
    connection->mail(this);  // so that the owner lets the client send more
    return Next::message;
}

bool Call::take_message(Message *taken) noexcept {
    std::lock_guard<std::mutex> guard(lock);
    if (!messages.size()) return false;
    *taken = messages[0];
    messages.clear();
    return true;
}

bool Call::tell_of_end(void *object) noexcept {
    std::lock_guard<std::mutex> guard(lock);
    if (life != Life::ended) callbacks = object;
    return life != Life::ended;
}

void Call::unwatch() noexcept {
    Request *request;
    {
        std::lock_guard<std::mutex> guard(lock);
        request = std::exchange(watched, nullptr);
    }
    if (request) ksrv::release(request);
}

void Call::watch(Request *request) noexcept {
    {
        std::lock_guard<std::mutex> guard(lock);
        // The code that answers has finished or cancelled the call itself: the request is not cancelled for it.
        if (watched || (life != Life::open && life != Life::ended)) return;
        if (life == Life::open) {
            ksrv::retain(request);
            watched = request;
            return;
        }
    }
    ksrv::cancel(request);  // the stream was closed before
}

}  // namespace ksrv::grpc
