// The open HTTP/2 connections, by their slots.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "grpc/connection.hpp"

namespace ksrv::grpc {

// Functions return counted references. A listed connection may not be open yet: until then, the thread that created it
// owns it. The mutex guards the list, not the connections.
class OpenConnections {
  public:
    bool reserve(size_t most) noexcept {
        try {
            by_slot_.assign(most, nullptr);
            free_.reserve(most);
        } catch (const std::bad_alloc &) {
            return false;
        }
        for (size_t slot = most; slot > 0; --slot) free_.push_back(static_cast<uint32_t>(slot - 1));
        return true;
    }

    // Lists the connection that `make(slot, generation)` creates. Null if no slot is free, or nothing was created. The
    // result is not a counted reference.
    template <typename Make> Connection *add(Make make) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        if (free_.empty()) return nullptr;
        const uint32_t slot = free_.back();
        generations_ = (generations_ + 1) & MOST_GENERATIONS;
        Connection *connection = make(slot, generations_);
        if (!connection) return nullptr;
        free_.pop_back();
        by_slot_[slot] = connection;
        count_.fetch_add(1, std::memory_order_relaxed);
        return connection;
    }

    void remove(Connection *connection) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        by_slot_[connection->slot] = nullptr;
        free_.push_back(connection->slot);
        count_.fetch_sub(1, std::memory_order_relaxed);
    }

    Connection *at(uint32_t slot) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        Connection *connection = slot < by_slot_.size() ? by_slot_[slot] : nullptr;
        if (connection) connection->retain();
        return connection;
    }

    // Null if another connection uses the slot now.
    Connection *at(uint32_t slot, uint32_t generation) noexcept {
        Connection *connection = at(slot);
        if (!connection || connection->generation == generation) return connection;
        connection->release();
        return nullptr;
    }

    template <typename Visit> void each(Visit visit) noexcept {
        for (uint32_t slot = 0; slot < by_slot_.size(); ++slot) {
            Connection *connection = at(slot);
            if (!connection) continue;
            visit(connection);
            connection->release();
        }
    }

    // The connection with the largest `measure` above 0, or null.
    template <typename Measure> Connection *with_most(Measure measure) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        Connection *largest = nullptr;
        uint64_t most = 0;
        for (Connection *connection : by_slot_) {
            const uint64_t its = connection ? measure(*connection) : 0;
            if (its <= most) continue;
            most = its;
            largest = connection;
        }
        if (largest) largest->retain();
        return largest;
    }

    uint32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

  private:
    static constexpr uint32_t MOST_GENERATIONS = 0x3fffffff;  // then from 0 again; a tag has 32 bits for a generation

    std::mutex mutex_;
    std::vector<Connection *> by_slot_;  // null in a free slot; its size is constant after `reserve`
    std::vector<uint32_t> free_;         // free slots
    uint32_t generations_ = 0;           // the generation of the latest connection
    std::atomic<uint32_t> count_{0};
};

}  // namespace ksrv::grpc
