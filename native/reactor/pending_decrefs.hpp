// Python objects whose bytes were sent, until a thread with the GIL gives them back.

#pragma once

#include <atomic>
#include <cstdint>

namespace ksrv {

// A list through `Item::next`. Any thread adds; the next thread that is in Python takes all. Many of them are worth a way into
// Python of their own, as they are once the sweep has seen them.
template <typename Item> class PendingDecrefs {
  public:
    // Adds a list of items that hold so many bytes. True: they have become worth a way into Python.
    bool add(Item *first, uint64_t bytes) noexcept {
        Item *last = first;
        while (last->next) last = last->next;
        Item *seen = first_.load(std::memory_order_relaxed);
        do {
            last->next = seen;
        } while (!first_.compare_exchange_weak(seen, first));
        const uint64_t before = bytes_.fetch_add(bytes);
        return before < MANY_BYTES && before + bytes >= MANY_BYTES;
    }

    Item *take() noexcept {
        if (!any()) return nullptr;
        bytes_.store(0);
        return first_.exchange(nullptr, std::memory_order_acquire);
    }

    bool any() const noexcept { return first_.load() != nullptr; }
    bool are_many() const noexcept { return bytes_.load() >= MANY_BYTES; }

    // They have waited for long enough.
    void sweep() noexcept {
        if (any()) bytes_.fetch_add(MANY_BYTES);
    }

  private:
    static constexpr uint64_t MANY_BYTES = 1u << 20;

    std::atomic<Item *> first_{nullptr};
    std::atomic<uint64_t> bytes_{0};
};

}  // namespace ksrv
