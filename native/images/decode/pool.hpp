// A few threads that share a batch of decoding work with the thread that brings it.
//
// Strategy: a task is a number of chunks and a function; the caller and any idle helper claim chunks
// from one counter until none is left, and the caller returns when the last helper has let go of the
// task. Nothing is allocated per task. Helpers start with the first task, so that a process which
// forks first and works later has its own; a child forked later starts new ones.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ksrv {

using ChunkFunction = void (*)(void *context, std::size_t chunk);

class DecodePool {
  public:
    // `threads` counts the caller: 1 means no helpers.
    explicit DecodePool(std::size_t threads) : helpers_(threads > 0 ? threads - 1 : 0) {}
    ~DecodePool();
    DecodePool(const DecodePool &) = delete;
    DecodePool &operator=(const DecodePool &) = delete;

    std::size_t threads() const noexcept { return helpers_ + 1; }

    // How many chunks to make of the decoding of so many pictures; one where this thread alone is the quickest.
    std::size_t chunks(std::size_t count, std::uint64_t work_ns) const noexcept;

    // Calls `function` once for each chunk, on this thread and on helpers; returns when all are done.
    void run(std::size_t chunks, ChunkFunction function, void *context) noexcept;

  private:
    struct Task;
    struct State;

    static void work(Task &task) noexcept;
    static void help(State *state) noexcept;

    // The helpers, or null when the system gives no thread: the caller then does all the work.
    State *started() noexcept;

    std::size_t helpers_;
    std::mutex starting_;
    State *state_ = nullptr;
};

}  // namespace ksrv
