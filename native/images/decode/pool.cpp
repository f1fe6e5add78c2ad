#include "images/decode/pool.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <new>
#include <thread>
#include <vector>

#include "base/python_call.hpp"

namespace ksrv {

// One call of `run`, on the stack of its caller.
struct DecodePool::Task {
    ChunkFunction function;
    void *context;
    std::size_t chunks;
    std::atomic<std::size_t> next{0};
    std::size_t helping = 0;  // helpers that work on it; guarded by the lock, as is `older`
    Task *older = nullptr;
};

struct DecodePool::State {
    std::mutex lock;
    std::condition_variable wake, done;  // of helpers without work, and of callers that wait for their helpers
    Task *newest = nullptr;              // the tasks whose callers are in `run`
    bool closing = false;
    pid_t owner = 0;  // the process that started the threads
    std::vector<std::thread> threads;
};

std::size_t DecodePool::chunks(std::size_t count, std::uint64_t work_ns) const noexcept {
    // For less work, waking a thread costs more than it saves.
    constexpr std::uint64_t shared_ns = 200'000;
    if (count < 2 || work_ns < shared_ns || helpers_ == 0) return 1;
    // Small chunks, because the threads wait for the last chunk of a thread that was preempted.
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(count, std::max<std::uint64_t>(2, 2 * work_ns / shared_ns)));
}

DecodePool::~DecodePool() {
    if (state_ == nullptr) return;
    if (state_->owner != getpid()) return;  // forked child: the threads exist only in the parent
    {
        std::lock_guard<std::mutex> guard(state_->lock);
        state_->closing = true;
    }
    state_->wake.notify_all();
    for (std::thread &thread : state_->threads) thread.join();
    delete state_;
}

void DecodePool::run(std::size_t chunks, ChunkFunction function, void *context) noexcept {
    Task task{function, context, chunks};
    State *state = chunks > 1 && helpers_ > 0 ? started() : nullptr;
    if (state != nullptr) {
        {
            std::lock_guard<std::mutex> guard(state->lock);
            task.older = state->newest;
            state->newest = &task;
        }
        for (std::size_t i = 0; i + 1 < chunks && i < helpers_; ++i) state->wake.notify_one();
    }
    work(task);
    if (state == nullptr) return;
    std::unique_lock<std::mutex> guard(state->lock);
    for (Task **link = &state->newest; *link != nullptr; link = &(*link)->older) {
        if (*link != &task) continue;
        *link = task.older;
        break;
    }
    state->done.wait(guard, [&] { return task.helping == 0; });
}

void DecodePool::work(Task &task) noexcept {
    for (;;) {
        const std::size_t chunk = task.next.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= task.chunks) return;
        // A chunk may call cv2 in Python.
        call_python([&task, chunk] { task.function(task.context, chunk); });
    }
}

void DecodePool::help(State *state) noexcept {
    std::unique_lock<std::mutex> guard(state->lock);
    for (;;) {
        Task *task = state->newest;
        while (task != nullptr && task->next.load(std::memory_order_relaxed) >= task->chunks)
            task = task->older;
        if (task == nullptr) {
            if (state->closing) return;
            state->wake.wait(guard);
            continue;
        }
        ++task->helping;
        guard.unlock();
        work(*task);
        guard.lock();
        if (--task->helping == 0) state->done.notify_all();
    }
}

DecodePool::State *DecodePool::started() noexcept {
    std::lock_guard<std::mutex> guard(starting_);
    if (state_ != nullptr && state_->owner == getpid()) return state_;
    // In a forked child the parent's state is abandoned, because its lock may be locked for ever.
    State *state = new (std::nothrow) State;
    if (state == nullptr) return nullptr;
    state->owner = getpid();
    sigset_t all, before;
    sigfillset(&all);  // signals are handled by the threads that wait for them
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (std::size_t i = 0; i < helpers_; ++i) state->threads.emplace_back(help, state);
    } catch (...) {
        // Continue with fewer helpers. Without any helper, the caller does all the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    state_ = state;
    return state_;
}

}  // namespace ksrv
