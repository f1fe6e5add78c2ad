// The table of all connections of a server. `take` and `give_back` lock; `at` does not, so any thread can find the
// connection of an event.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "http/connection.hpp"

namespace ksrv {

// At most `most` connections, created on first use and then reused.
class Connections {
  public:
    explicit Connections(size_t most) : most_(most), table_(most) {}

    ~Connections() {
        for (Connection *connection : table_) delete connection;
    }

    // NULL if `most` connections are in use, or memory is short.
    Connection *take() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        Connection *connection = nullptr;
        if (free_) {
            connection = free_;
            free_ = connection->next;
        } else {
            const uint32_t used = used_.load(std::memory_order_relaxed);
            if (used == most_) return nullptr;
            connection = new (std::nothrow) Connection;
            if (!connection) return nullptr;
            connection->slot = used;
            table_[used] = connection;
            used_.store(used + 1, std::memory_order_release);
        }
        connection->next = nullptr;
        connection->enter(Phase::idle, std::memory_order_release);
        open_.fetch_add(1, std::memory_order_relaxed);
        return connection;
    }

    void give_back(Connection *connection) noexcept {
        connection->generation.fetch_add(1, std::memory_order_release);
        connection->enter(Phase::free, std::memory_order_release);
        std::lock_guard<std::mutex> guard(mutex_);
        connection->next = free_;
        free_ = connection;
        open_.fetch_sub(1, std::memory_order_relaxed);
    }

    Connection *at(uint32_t slot) noexcept {
        return slot < used_.load(std::memory_order_acquire) ? table_[slot] : nullptr;
    }

    uint32_t used() const noexcept { return used_.load(std::memory_order_acquire); }
    uint32_t open() const noexcept { return open_.load(std::memory_order_relaxed); }
    size_t most() const noexcept { return most_; }

  private:
    const size_t most_;
    std::mutex mutex_;
    std::vector<Connection *> table_;
    Connection *free_ = nullptr;
    std::atomic<uint32_t> used_{0};
    std::atomic<uint32_t> open_{0};
};

}  // namespace ksrv
