#include "queue/completions.hpp"

#include <new>
#include <vector>

namespace ksrv {

namespace {

thread_local std::vector<Entry *> to_publish;

}  // namespace

void publish_all() noexcept {
    for (Entry *entry : to_publish) {
        publish(entry);
        release(entry);
    }
    to_publish.clear();
}

void publish_later(Entry *entry) noexcept {
    retain(entry);
    try {
        to_publish.push_back(entry);
    } catch (const std::bad_alloc &) {
        publish(entry);
        release(entry);
    }
}

void Completions::add(Entry *entry) noexcept {
    retain(entry);
    std::lock_guard<std::mutex> guard(mutex);
    entry->next = first;
    first = entry;
    any.store(true, std::memory_order_release);
    some.notify_one();
}

Entry *Completions::fetch() noexcept {
    if (!any.load(std::memory_order_acquire)) return nullptr;
    std::lock_guard<std::mutex> guard(mutex);
    Entry *entry = first;
    if (entry != nullptr) first = entry->next;
    if (first == nullptr) any.store(false, std::memory_order_release);
    if (entry != nullptr) entry->next = nullptr;
    return entry;
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
