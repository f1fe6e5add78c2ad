// The event loop of a worker: its I/O threads, which serve the connections of all protocols, without Python and without the GIL.
//
// Strategy: one thread leads: it waits in epoll and has each event served to completion, so that a request meets one thread and
// one warm cache; who leads, and who goes into Python, is python_turn.hpp's. What an event means, its protocol knows: HTTP/1.1
// (native/server) and HTTP/2 (native/grpc) are two. A sweep, ten times a second, looks at the timers of all connections. Answers
// that are made while a thread is in Python leave in one piece for each connection, when it comes back.

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

// When a protocol wants the event loop's next turn, if no event comes.
enum class NextTurn : uint8_t { at_once, soon, at_sweep, any };

// What a protocol has for Python: objects whose bytes were sent, or something that is worth a visit.
enum class PythonWork : uint8_t { none, sent, wanted };

// One protocol of an event loop. All functions are called by the loop's threads, most of them by the leader.
class Protocol : public Listeners::Owner {
  public:
    virtual void on_event(uint64_t tag, uint32_t events, uint64_t now) noexcept = 0;
    virtual void on_handshake(uint64_t tag, uint64_t now) noexcept = 0;  // of `queue_handshake`
    virtual void on_turn(uint64_t now) noexcept = 0;  // behind the events of each turn
    virtual void on_sweep(uint64_t now) noexcept = 0;
    virtual NextTurn next_turn() const noexcept = 0;
    virtual PythonWork python_work() const noexcept = 0;
    // With the GIL: gives back what was sent, and runs requests for as long as `begin_request` allows.
    virtual void work_in_python() noexcept = 0;
    virtual void send_gathered() noexcept = 0;   // what `gathers` has put off

    // Tells a connection in epoll and in the queue of handshakes; `generation` tells it from others of the same slot.
    uint64_t tag_of(uint32_t slot, uint32_t generation) const noexcept {
        return static_cast<uint64_t>(generation) << 32 | number_ << NUMBER_SHIFT | slot;
    }
    static uint32_t slot_of(uint64_t tag) noexcept { return static_cast<uint32_t>(tag) & SLOT; }
    static uint32_t generation_of(uint64_t tag) noexcept { return static_cast<uint32_t>(tag >> 32); }

    Listeners listeners{this};

  protected:
    ~Protocol() = default;

  private:
    friend class EventLoop;
    static constexpr uint32_t SLOT = 0x00ffffff, NUMBER_SHIFT = 24, NUMBER = 0x0f;
    static constexpr uint32_t LISTENER = 0x80000000u;

    uint32_t number_ = 0;  // among the protocols of its loop
};

class EventLoop final : PythonTurn::Work {
  public:
    // Calls `work(loop)` with the GIL held.
    using HoldGil = void (*)(void (*work)(EventLoop *loop), EventLoop *loop);

    explicit EventLoop(int threads, HoldGil hold_gil = [](void (*work)(EventLoop *), EventLoop *loop) { work(loop); }) noexcept;
    EventLoop(const EventLoop &) = delete;
    EventLoop &operator=(const EventLoop &) = delete;
    ~EventLoop();

    // Serves a protocol from now on, for its connections, and its listeners once accepting is enabled. False: there is no memory,
    // no descriptor, or no place for it. The loop's threads may run already.
    bool add(Protocol *protocol, uint32_t connections, const int *listeners, size_t count, bool shared) noexcept;

    void run(int index) noexcept;  // one I/O thread; returns after `stop`
    void stop() noexcept;
    uint64_t stuck_ns() const noexcept;  // for how long the busiest thread has neither been in epoll nor begun a request
    int threads() const noexcept { return threads_; }
    int epoll() const noexcept { return epoll_; }

    // Has the leader take a turn soon. The leader itself takes one anyway.
    void wake() noexcept {
        if (!leads_here()) wake_up();
    }
    // Whether what is made now may wait until this thread is through with its turn. Not where Python keeps it, so that another
    // thread leads.
    bool gathers() const noexcept { return threads_ > 1 && leads_here(); }
    // The thread in Python is about to take a protocol's next request. False: the other protocols come first, because this one has
    // used up its share of the round. A thread outside the loop takes as many as it likes.
    bool begin_request() noexcept {
        if (here.loop != this) return true;
        const uint64_t now = unsigned_now_ns();
        if (turn_.begin_request(now) > GATHER_NS) send_gathered();
        each_thread_[static_cast<size_t>(here.index)].busy_since_ns.store(now, std::memory_order_relaxed);
        if (here.requests == 0) here.share_ends_ns = now + SHARE_NS;
        return ++here.requests <= SHARE_REQUESTS && now < here.share_ends_ns;
    }
    void queue_handshake(uint64_t tag) noexcept {
        if (handshakes_.push(tag)) wake();
    }
    void sweep_by(uint64_t when) noexcept {
        if (next_sweep_ns_.load(std::memory_order_relaxed) > when) next_sweep_ns_.store(when, std::memory_order_relaxed);
    }

  private:
    static constexpr int EVENTS = 32, PROTOCOLS = 4;
    static constexpr uint64_t SWEEP_NS = 100000000u;
    static constexpr uint64_t GATHER_NS = 200000u;  // of one request, behind which answers wait for no other
    // What one protocol may take of a round in Python, so that a flood of its requests keeps no other protocol waiting.
    static constexpr uint32_t SHARE_REQUESTS = 64;
    static constexpr uint64_t SHARE_NS = 500'000;
    static constexpr int SOON_MS = 1, PYTHON_MS = 2, IDLE_MS = 1000;  // between two turns without an event
    static constexpr uint64_t WAKE_TAG = 0xffffffffu;

    struct alignas(64) Thread {
        std::atomic<uint64_t> busy_since_ns{0};
    };
    struct Here {
        const EventLoop *loop = nullptr;
        int index = -1;
        uint32_t requests = 0;       // looks for a request of one protocol in this round,
        uint64_t share_ends_ns = 0;  // which the protocol takes until then
        bool worked = false;         // in this visit to Python
    };
    static thread_local Here here;  // of an I/O thread

    bool leads_here() const noexcept { return here.loop == this && turn_.leads(here.index); }
    void wake_up() noexcept;
    int wait_ms(uint64_t now) const noexcept;
    void take_event(const epoll_event &event, uint64_t now) noexcept;
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
    uint32_t room_ = 0;  // for tags in it
    Protocol *protocols_[PROTOCOLS] = {};
    std::atomic<uint32_t> count_{0};
};

}  // namespace ksrv
