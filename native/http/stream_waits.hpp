// Lets threads that send an answer in pieces wait until the peer has read a piece.
//
// Strategy: the thread that makes the pieces owns the connection. If the socket takes a piece at once, nothing else
// happens. Otherwise the I/O threads get the connection, with their deadlines for slow readers, and the thread waits
// until they return it. So at most one piece of a stream is in memory.
//
// One mutex and one condition variable for all of them, because few threads wait at the same time.

#pragma once

#include <condition_variable>
#include <mutex>

#include "http/connection.hpp"

namespace ksrv {

class StreamWaits {
  public:
    enum class Outcome : uint8_t { taken, gone, stopped };

    // Waits for the peer of a connection in StreamState::waiting that the I/O threads have. `taken`: the caller owns
    // the connection again; `gone`: it was closed; `stopped`: it is no longer served.
    Outcome wait(Connection *connection, uint64_t turn) noexcept {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            if (connection->turn.load(std::memory_order_acquire) != turn) return Outcome::gone;
            if (connection->stream.load(std::memory_order_acquire) == StreamState::taken) break;
            if (stopped_) return Outcome::stopped;
            moved_.wait(lock);
        }
        connection->stream.store(StreamState::none, std::memory_order_relaxed);
        return Outcome::taken;
    }

    // The peer has read a whole piece: the waiting thread owns the connection again. Called by the owner.
    void resume(Connection *connection) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        connection->stream.store(StreamState::taken, std::memory_order_release);
        moved_.notify_all();
    }

    // The connection is closed: the thread of its stream, if any, stops waiting. Called by the owner.
    void end(Connection *connection) noexcept {
        if (connection->stream.load(std::memory_order_acquire) == StreamState::none) return;
        std::lock_guard<std::mutex> guard(mutex_);
        connection->stream.store(StreamState::none, std::memory_order_relaxed);
        connection->turn.fetch_add(2, std::memory_order_release);
        moved_.notify_all();
    }

    void stop() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        stopped_ = true;
        moved_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable moved_;
    bool stopped_ = false;
};

}  // namespace ksrv
