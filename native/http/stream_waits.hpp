// Threads that send an answer piece by piece, and wait until the peer has taken one.
//
// Strategy: the thread that makes the pieces owns the connection. What the socket takes at once costs it nothing more; else the
// connection goes to the I/O threads, with their deadlines for slow readers, and the thread waits until they give it back. So at
// most one piece of a stream lies in memory.
//
// One mutex and one condition for all of them: few wait at a time.

#pragma once

#include <condition_variable>
#include <mutex>

#include "http/connection.hpp"

namespace ksrv {

class StreamWaits {
  public:
    enum class Outcome : uint8_t { taken, gone, stopped };

    // Waits for the peer of a connection that is `StreamState::waiting` and was given away. `taken`: it is the caller's again;
    // `gone`: it was closed; `stopped`: nobody serves it any more.
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

    // The peer has taken all of a piece: the connection is the waiting thread's. By its owner.
    void resume(Connection *connection) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        connection->stream.store(StreamState::taken, std::memory_order_release);
        moved_.notify_all();
    }

    // A connection is closed: the thread of its stream, if it has one, need not wait any longer. By its owner.
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
