// The deadline timer: a thread that ends the requests of all queues of the process at their deadlines.

#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "queue/request_queue.hpp"

namespace ksrv {

// Sleeps until the earliest deadline of all watched queues, and then calls `Queue::expire`. It never waits for the GIL:
// a Python thread later handles the requests that it ended.
class Timer {
  public:
    // Watches a queue, and holds a reference to it, until `forget`. False if the thread cannot be started.
    bool watch(Queue *queue) noexcept;
    void forget(Queue *queue) noexcept;

    // Wakes the thread if it would sleep past the deadline. Must be called after a deadline was added to a queue's
    // heap.
    void expect(std::int64_t deadline) noexcept;

    // Around fork: the child has no timer thread and watches none of the parent's queues.
    void before_fork() noexcept { mutex_.lock(); }
    void after_fork_in_parent() noexcept { mutex_.unlock(); }
    void after_fork_in_child() noexcept;

  private:
    void start_thread();
    void run() noexcept;

    std::mutex mutex_;
    MonotonicCondition sooner_;  // `wake_at_` became earlier
    std::atomic<std::int64_t> wake_at_{NEVER};  // changed only under the mutex
    std::vector<Queue *> queues_;
    bool running_ = false;
};

// Never destroyed, because its thread outlives the exit handlers.
Timer &process_timer() noexcept;

}  // namespace ksrv
