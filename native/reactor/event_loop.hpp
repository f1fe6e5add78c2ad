// The event loop of a worker: I/O threads that serve the connections of all protocols, without Python and without the
// GIL.
//
// Strategy: one thread leads: it waits in epoll and serves each event to completion, so that a request stays on one
// thread with a warm cache. python_turn.hpp decides which thread leads and which enters Python. The protocols handle
// the events: HTTP/1.1 (native/server) and gRPC (native/grpc). Each turn takes some events of each protocol, however
// many of the other protocol wait: gRPC's connections have an epoll instance within the loop's. Ten times a second a
// sweep checks the timers of all connections. Answers that are made while a thread is in Python are sent together, in
// one piece per connection, when it returns.

#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "reactor/listeners.hpp"
#include "reactor/python_turn.hpp"
#include "reactor/tag_queue.hpp"

namespace ksrv {

class EventLoop;

// When a protocol needs the next turn of the event loop if no event arrives.
enum class NextTurn : uint8_t { at_once, at_sweep, any };

// A protocol's work for Python: objects to release, or work that justifies entering Python.
enum class PythonWork : uint8_t { none, sent, wanted };

// How long a protocol may work in a turn of the event loop, from the first check of the clock on.
class TurnShare {
  public:
    static constexpr uint64_t NS = 200'000;

    bool is_over(uint64_t now) noexcept {
        if (ends_ns_ == 0) ends_ns_ = now + NS;
        return now >= ends_ns_;
    }

  private:
    uint64_t ends_ns_ = 0;
};

// A protocol of an event loop. All functions are called by the loop's threads, usually by the leader.
class Protocol : public Listeners::Owner {
  public:
    // `is_late`: the protocol has used up its share of the turn, and may defer the event to a later turn.
    virtual void on_event(uint64_t tag, uint32_t events, uint64_t now, bool is_late) noexcept = 0;
    virtual void on_handshake(uint64_t tag, uint64_t now) noexcept = 0;  // a handshake from `queue_handshake`
    virtual void on_turn(uint64_t now, TurnShare share) noexcept = 0;    // after the events of each turn
    virtual void on_sweep(uint64_t now) noexcept = 0;
    virtual NextTurn next_turn() const noexcept = 0;
    virtual PythonWork python_work() const noexcept = 0;
    // With the GIL: releases sent objects, and runs requests while `begin_request` returns true.
    virtual void work_in_python() noexcept = 0;
    virtual void send_gathered() noexcept = 0;   // sends the answers that `gathers` deferred

    // Identifies a connection in epoll and in the queue of handshakes. `generation` distinguishes connections that use
    // the same slot.
    uint64_t tag_of(uint32_t slot, uint32_t generation) const noexcept {
        return static_cast<uint64_t>(generation) << 32 | number_ << NUMBER_SHIFT | slot;
    }
    static uint32_t slot_of(uint64_t tag) noexcept { return static_cast<uint32_t>(tag) & SLOT; }
    static uint32_t generation_of(uint64_t tag) noexcept { return static_cast<uint32_t>(tag >> 32); }
    int epoll() const noexcept { return epoll_; }  // of its connections

    Listeners listeners{this};

  protected:
    ~Protocol();

  private:
    friend class EventLoop;
    static constexpr uint32_t SLOT = 0x00ffffff, NUMBER_SHIFT = 24, NUMBER = 0x0f;
    static constexpr uint32_t LISTENER = 0x80000000u, EPOLL = 0x40000000u;

    uint32_t number_ = 0;    // the protocol's index in its loop
    int epoll_ = -1;            // watches the connections: the loop's instance, or an instance within it
    bool is_separate_ = false;  // the protocol has an instance of epoll within the loop's
};

class EventLoop final : PythonTurn::Work {
  public:
    // Calls `work(loop)` with the GIL held.
    using HoldGil = void (*)(void (*work)(EventLoop *loop), EventLoop *loop);

    // By default, for tests without Python, `hold_gil` only calls `work`.
    explicit EventLoop(int threads, HoldGil hold_gil = [](void (*work)(EventLoop *), EventLoop *loop) {
        work(loop);
    }) noexcept;
    EventLoop(const EventLoop &) = delete;
    EventLoop &operator=(const EventLoop &) = delete;
    ~EventLoop();

    // Serves a protocol from now on: its connections and, once accepting is enabled, its listeners. False if memory or
    // descriptors are short, or the loop has too many protocols. The loop's threads may be running. With `is_separate`,
    // the protocol's connections get a separate epoll instance, so that events of other protocols do not delay theirs.
    bool add(Protocol *protocol, size_t connections, const int *listeners, size_t count, bool shared,
             bool is_separate) noexcept;

    void run(int index) noexcept;  // runs one I/O thread until `stop`
    void stop() noexcept;
    uint64_t stuck_ns() const noexcept;  // how long ago the busiest thread was in epoll or began a request
    int threads() const noexcept { return threads_; }
    int epoll() const noexcept { return epoll_; }

    // Makes the leader take a turn soon. If the caller leads, it takes one anyway.
    void wake() noexcept {
        if (!leads_here()) wake_up();
    }
    // Whether this thread's answers are gathered, and sent when it finishes its turn. False if another thread took over
    // the lead, because this thread was in Python for too long: its answers must be sent at once.
    bool gathers() const noexcept { return threads_ > 1 && leads_here(); }
    // Called in Python before a protocol's next request, if one waits. False if the protocol has used up its share of
    // the round, so that other protocols must run first. Threads outside of the loop have no limit.
    bool begin_request() noexcept;
    void queue_handshake(uint64_t tag) noexcept {
        if (handshakes_.push(tag)) wake();
    }
    void sweep_by(uint64_t when) noexcept {
        if (next_sweep_ns_.load(std::memory_order_relaxed) > when)
            next_sweep_ns_.store(when, std::memory_order_relaxed);
    }

  private:
    static constexpr int EVENTS = 16, PROTOCOLS = 4;  // of one epoll instance in a turn; of a loop
    static constexpr uint64_t SWEEP_NS = 100'000'000u;
    // If a request takes longer, gathered answers are sent before the next.
    static constexpr uint64_t GATHER_NS = 200'000u;
    // A protocol's share of a round in Python, so that a flood of its requests does not delay other protocols.
    static constexpr uint32_t SHARE_REQUESTS = 64;
    static constexpr uint64_t SHARE_NS = 200'000;
    static constexpr int PYTHON_MS = 2, IDLE_MS = 1000;  // between two turns without an event
    static constexpr uint64_t WAKE_TAG = 0xffffffffu;

    struct alignas(64) Thread {
        std::atomic<uint64_t> busy_since_ns{0};  // 0: the thread waits in epoll or follows
    };
    // The state of one I/O thread, which only the thread itself uses.
    struct Here {
        const EventLoop *loop = nullptr;
        int index = -1;
        uint32_t requests = 0;       // of the current protocol, begun in this round
        uint64_t share_ends_ns = 0;  // when the current protocol's share of the round ends
        bool worked = false;         // work was done during this visit to Python
    };
    static thread_local Here here;

    bool leads_here() const noexcept;
    void wake_up() noexcept;
    int wait_ms(uint64_t now) const noexcept;
    bool is_separate(const epoll_event &event) const noexcept;
    void take_event(const epoll_event &event, uint64_t now) noexcept;
    void take_share(Protocol *protocol, uint64_t now) noexcept;
    void go_on_with_handshake() noexcept;
    void sweep(uint64_t now) noexcept;
    void send_gathered() noexcept;
    bool wants_python() const noexcept override;
    bool work_in_python() noexcept override;
    bool run_round() noexcept;
    template <typename Visit> void each(Visit visit) const noexcept {
        const uint32_t count = count_.load(std::memory_order_acquire);
        for (uint32_t i = 0; i < count; ++i) visit(protocols_[i]);
    }

    const int threads_;
    const HoldGil hold_gil_;
    int epoll_ = -1, wake_ = -1;
    std::unique_ptr<Thread[]> each_thread_;
    PythonTurn turn_;
    std::atomic<bool> stopping_{false};
    std::atomic<uint64_t> next_sweep_ns_{0};
    TagQueue handshakes_;
    size_t room_ = 0;  // capacity of `handshakes_`
    Protocol *protocols_[PROTOCOLS] = {};
    std::atomic<uint32_t> count_{0};
};

}  // namespace ksrv
