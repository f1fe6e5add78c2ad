#include "queue/completions.hpp"

namespace ksrv {

namespace {

// Answered requests of this thread whose waiters were not woken yet. Linked by `next`, which a final request no longer
// needs, so that adding a request cannot fail.
thread_local Request *first_answered = nullptr, *last_answered = nullptr;

}  // namespace

void publish_all() noexcept {
    Request *request = first_answered;
    first_answered = last_answered = nullptr;
    while (request != nullptr) {
        Request *const answered = request;
        request = request->next;
        answered->next = nullptr;
        publish(answered);
        release(answered);
    }
}

void publish_later(Request *request) noexcept {
    retain(request);
    (last_answered != nullptr ? last_answered->next : first_answered) = request;
    last_answered = request;
}

void Completions::add(Request *request) noexcept {
    retain(request);
    std::lock_guard<std::mutex> guard(mutex);
    request->next = first;
    first = request;
    any.store(true, std::memory_order_release);
    some.notify_one();
}

Request *Completions::fetch() noexcept {
    if (!any.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard<std::mutex> guard(mutex);
    Request *request = first;
    if (request != nullptr) first = request->next;
    if (first == nullptr) any.store(false, std::memory_order_release);
    if (request != nullptr) request->next = nullptr;
    return request;
}

void Completions::wait() noexcept {
    std::unique_lock<std::mutex> lock(mutex);
    const std::uint64_t before = wakes;
    while (first == nullptr && wakes == before) some.wait(lock);
}

void Completions::wake() noexcept {
    std::lock_guard<std::mutex> guard(mutex);
    ++wakes;
    some.notify_all();
}

Completions &completions() noexcept {
    static Completions *made = new Completions;
    return *made;
}

}  // namespace ksrv
