// A few threads that share a batch of decoding work with the thread that brings it.
//
// Strategy: a task is a number of chunks and a function; the caller and any idle helper claim chunks
// from one counter until none is left, and the caller returns when the last helper has let go of the
// task. Nothing is allocated per task. Helpers start with the first task, so that a process which
// forks first and works later has its own; a child forked later starts new ones.

#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/python_call.hpp"

namespace ksrv {

using ChunkFunction = void (*)(void *context, std::size_t chunk);

class DecodePool {
  public:
    // `threads` counts the caller: 1 means no helpers.
    explicit DecodePool(std::size_t threads) : helpers_(threads > 0 ? threads - 1 : 0) {}
    ~DecodePool() {
        if (state_ == nullptr) return;
        if (state_->owner != getpid()) return;  // the threads stayed behind in the parent
        {
            std::lock_guard<std::mutex> guard(state_->lock);
            state_->closing = true;
        }
        state_->wake.notify_all();
        for (std::thread &thread : state_->threads) thread.join();
        delete state_;
    }
    DecodePool(const DecodePool &) = delete;
    DecodePool &operator=(const DecodePool &) = delete;

    std::size_t threads() const noexcept { return helpers_ + 1; }

    // Calls `function` once for each chunk, on this thread and on helpers; returns when all are done.
    void run(std::size_t chunks, ChunkFunction function, void *context) noexcept {
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

  private:
    struct Task {
        ChunkFunction function;
        void *context;
        std::size_t chunks;
        std::atomic<std::size_t> next{0};
        std::size_t helping = 0;  // guarded by the lock
        Task *older = nullptr;
    };
    struct State {
        std::mutex lock;
        std::condition_variable wake, done;
        Task *newest = nullptr;
        bool closing = false;
        pid_t owner = 0;
        std::vector<std::thread> threads;
    };

    static void work(Task &task) noexcept {
        for (;;) {
            const std::size_t chunk = task.next.fetch_add(1, std::memory_order_relaxed);
            if (chunk >= task.chunks) return;
            call_python([&task, chunk] { task.function(task.context, chunk); });
        }
    }

    static void help(State *state) noexcept {
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

    // The helpers, or null when the system gives no thread: the caller then does all the work.
    State *started() noexcept {
        std::lock_guard<std::mutex> guard(starting_);
        if (state_ != nullptr && state_->owner == getpid()) return state_;
        State *state = new (std::nothrow) State;
        if (state == nullptr) return nullptr;
        state->owner = getpid();
        sigset_t all, before;
        sigfillset(&all);  // signals are for the thread that waits for them
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (std::size_t i = 0; i < helpers_; ++i) state->threads.emplace_back(help, state);
        } catch (...) {
            // As many helpers as there are; with none, the tasks still complete on their callers.
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        state_ = state;
        return state_;
    }

    std::size_t helpers_;
    std::mutex starting_;
    State *state_ = nullptr;
};

}  // namespace ksrv
