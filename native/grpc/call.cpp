#include "grpc/call.hpp"

#include <algorithm>
#include <cstring>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t FORGOTTEN_TOGETHER = 1024;  // messages that were taken are erased together

}  // namespace

void Payload::release() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (owner) {
        server_->defer_decref(this);
    } else {
        destroy();
    }
}

void free_message(Message *message, MemoryBudget *budget) noexcept {
    if (message->block) process_pool().release(message->block);
    budget->give_back(message->counted);
    *message = Message{};
}

Call::~Call() {
    free_message(&incoming, connection->budget());
    free_untaken();
    drop_answer();
    if (watched) ksrv::release(watched);
    if (counted_open) connection->server()->open_calls.fetch_sub(1, std::memory_order_relaxed);
    connection->release();
}

void Call::release() noexcept {
    if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Call::drop_answer() noexcept {
    while (out_first) {
        Payload *payload = out_first;
        out_first = payload->next;
        payload->release();
    }
    out_last = nullptr;
    out_bytes = 0;
}

void Call::free_untaken() noexcept {
    for (; messages_taken < messages.size(); ++messages_taken)
        free_message(&messages[messages_taken], connection->budget());
}

void Call::note_model(const std::string &its_model, const std::string &its_version) noexcept {
    if (!connection->server()->config.log) return;
    std::lock_guard<std::mutex> guard(lock);
    try {
        model = its_model;
        version = its_version;
    } catch (const std::bad_alloc &) {
        model.clear();
    }
}

void Call::identify() noexcept {
    std::string_view id, trace;
    size_t ids = 0, traces = 0;
    const auto names_id = [&](const Entry &entry) {
        if (name_of(entry) == "traceparent") trace = traces++ ? std::string_view() : value_of(entry);
        if (name_of(entry) != "x-request-id") return false;
        id = ids++ ? std::string_view() : value_of(entry);
        return true;
    };
    const auto gone = std::remove_if(entries.begin(), entries.end(), names_id);
    entries.drop_last(static_cast<std::size_t>(entries.end() - gone));
    choose_request_id(&request_id, id.data(), id.size(), trace.data(), trace.size());
}

void Call::queue(Payload *payload) noexcept {
    payload->next = nullptr;
    (out_last ? out_last->next : out_first) = payload;
    out_last = payload;
    out_bytes += payload->size;
}

void Call::write(Payload *payload) noexcept {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (!ended && !finished) {
            queue(payload);
            payload = nullptr;
        }
    }
    if (payload) {
        payload->release();
    } else {
        connection->mail(this);
    }
}

void Call::finish(int code, std::string &words, Metadata &trailing, Payload *last) noexcept {
    Request *request = nullptr;
    bool open;
    {
        std::lock_guard<std::mutex> guard(lock);
        open = !finished;
        if (open) {
            if (last && !ended) {
                queue(last);
                last = nullptr;
            }
            finished = true;
            status = code;
            status_text.swap(words);
            metadata.swap(trailing);
            request = watched;
            watched = nullptr;
            changed.notify_all();
        }
    }
    if (last) last->release();
    if (request) ksrv::release(request);
    if (open) connection->mail(this);
}

void Call::admit() noexcept {
    if (admitted.exchange(true, std::memory_order_acq_rel)) return;
    if (!method->control && !method->is_open)
        connection->server()->known_callers.add(reinterpret_cast<const unsigned char *>(authorization.data()),
                                                authorization.size());
    connection->mail(this);
}

void Call::cancel() noexcept {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (finished) return;
        finished = cancelled = true;
        changed.notify_all();
    }
    connection->mail(this);
}

bool Call::wait_for_room(size_t most) noexcept {
    std::unique_lock<std::mutex> guard(lock);
    while (!ended && !finished && out_bytes > most) changed.wait(guard);
    return !ended && !finished;
}

Next Call::next_message(Message *out, int64_t until_ns) noexcept {
    {
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            if (ended || finished) return Next::ended;
            if (messages_taken < messages.size()) break;
            if (peer_over) return Next::over;
            if (now_ns() >= until_ns) return Next::late;
            changed.wait_until(guard, until_ns);
        }
        *out = messages[messages_taken++];
        if (messages_taken == messages.size() || messages_taken == FORGOTTEN_TOGETHER) {
            messages.drop_first(messages_taken);
            messages_taken = 0;
        }
    }
    connection->mail(this);  // to open its window
    return Next::message;
}

bool Call::take_message(Message *out) noexcept {
    std::lock_guard<std::mutex> guard(lock);
    if (messages_taken == messages.size()) return false;
    *out = messages[messages_taken++];
    return true;
}

void Call::unwatch() noexcept {
    Request *request;
    {
        std::lock_guard<std::mutex> guard(lock);
        request = watched;
        watched = nullptr;
    }
    if (request) ksrv::release(request);
}

void Call::watch(Request *request) noexcept {
    {
        std::lock_guard<std::mutex> guard(lock);
        if (finished || watched) return;
        if (!ended) {
            ksrv::retain(request);
            watched = request;
            return;
        }
    }
    ksrv::cancel(request);
}

}  // namespace ksrv::grpc
