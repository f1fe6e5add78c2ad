// A few threads that share a batch of decoding work with the calling thread.
//
// Strategy: a task is a number of chunks and a function. The caller and idle helpers claim chunks from a shared counter
// until none is left, and the caller returns when the last helper has finished. Nothing is allocated per task. Helpers
// start with the first task, so that a process that forks first has separate helpers. A child that is forked later
// starts new helpers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ksrv {

using ChunkFunction = void (*)(void *context, std::size_t chunk);

class DecodePool {
  public:
    // `threads` includes the caller: 1 means no helpers.
    explicit DecodePool(std::size_t threads) : helpers_(threads > 0 ? threads - 1 : 0) {}
    ~DecodePool();
    DecodePool(const DecodePool &) = delete;
    DecodePool &operator=(const DecodePool &) = delete;

    std::size_t threads() const noexcept { return helpers_ + 1; }

    // Into how many chunks to divide the decoding of `count` pictures. 1 if this thread alone is fastest.
    std::size_t chunks(std::size_t count, std::uint64_t work_ns) const noexcept;

    // Calls `function` once for each chunk, on this thread and on helpers. Returns when all calls have returned.
    void run(std::size_t chunks, ChunkFunction function, void *context) noexcept;

  private:
    struct Task;
    struct State;

    static void work(Task &task) noexcept;    // claims and runs chunks until none is left
    static void help(State *state) noexcept;  // the main function of a helper's thread

    // The helpers, which are started on the first call. Null if memory is short: the caller then does all the work.
    State *started() noexcept;

    std::size_t helpers_;
    std::mutex starting_;
    State *state_ = nullptr;
};

}  // namespace ksrv
