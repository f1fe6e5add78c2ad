// The open HTTP/2 connections, by their slots.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "grpc/connection.hpp"

namespace ksrv::grpc {

// Functions return counted references. A listed connection may not be open yet: the creating thread owns it until it
// is.
class OpenConnections {
  public:
    bool reserve(size_t most) noexcept {
        try {
            by_slot_.assign(most, nullptr);
            open_.reserve(most);
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
        connection->place = open_.size();
        open_.push_back(connection);
        count_.fetch_add(1, std::memory_order_relaxed);
        return connection;
    }

    void remove(Connection *connection) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        by_slot_[connection->slot] = nullptr;
        open_.back()->place = connection->place;
        open_[connection->place] = open_.back();
        open_.pop_back();
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

    // Visits from the last to the first: if a connection is closed meanwhile, the connection that moves to its index
    // was visited before. So none is skipped.
    template <typename Visit> void each(Visit visit) noexcept {
        for (size_t left = SIZE_MAX; left > 0;) {
            Connection *connection;
            {
                std::lock_guard<std::mutex> guard(mutex_);
                left = std::min(left, open_.size());
                if (left == 0) return;
                connection = open_[--left];
                connection->retain();
            }
            visit(connection);
            connection->release();
        }
    }

    // The connection with the largest `measure` above a bound, or null.
    template <typename Measure> Connection *with_most(Measure measure, uint64_t above) noexcept {
        Connection *largest = nullptr;
        uint64_t most = above;
        each([&](Connection *connection) {
            const uint64_t its = measure(*connection);
            if (its <= most) return;
            most = its;
            connection->retain();
            if (largest) largest->release();
            largest = connection;
        });
        return largest;
    }

    uint32_t count() const noexcept { return count_.load(std::memory_order_relaxed); }

  private:
    static constexpr uint32_t MOST_GENERATIONS = 0x3fffffff;

    std::mutex mutex_;
    std::vector<Connection *> by_slot_;
    std::vector<Connection *> open_;  // in no order; a connection knows its index
    std::vector<uint32_t> free_;      // free slots
    uint32_t generations_ = 0;
    std::atomic<uint32_t> count_{0};
};

}  // namespace ksrv::grpc
