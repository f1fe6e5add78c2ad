#include "queue/completions.hpp"

#include <new>
#include <vector>

namespace ksrv {

namespace {

thread_local std::vector<Request *> to_publish;

}  // namespace

void publish_all() noexcept {
    for (Request *request : to_publish) {
        publish(request);
        release(request);
    }
    to_publish.clear();
}

void publish_later(Request *request) noexcept {
    retain(request);
    try {
        to_publish.push_back(request);
    } catch (const std::bad_alloc &) {
        publish(request);
        release(request);
    }
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
