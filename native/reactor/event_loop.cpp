#include "reactor/event_loop.hpp"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/python_call.hpp"

namespace ksrv {

namespace {

// While every turn has a full event buffer, only each fourth turn also runs a step of a TLS handshake. A full buffer
// means that more events wait. Some may be requests on open connections, which must not wait for many handshakes.
constexpr unsigned FULL_TURNS = 4;

}  // namespace

thread_local EventLoop::Here EventLoop::here;

Protocol::~Protocol() {
    if (is_separate_) close(epoll_);
}

EventLoop::EventLoop(int threads, HoldGil hold_gil) noexcept
    : threads_(threads), hold_gil_(hold_gil),
      each_thread_(new (std::nothrow) Thread[static_cast<size_t>(threads)]), turn_(this, threads) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = WAKE_TAG;
    if (epoll_ >= 0 && epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0) return;
    if (epoll_ >= 0) close(epoll_);
    epoll_ = -1;
}

EventLoop::~EventLoop() {
    for (int fd : {epoll_, wake_})
        if (fd >= 0) close(fd);
}

bool EventLoop::add(Protocol *protocol, size_t connections, const int *listeners, size_t count, bool shared,
                    bool is_separate) noexcept {
    const uint32_t number = count_.load(std::memory_order_relaxed);
    if (epoll_ < 0 || !each_thread_ || number == PROTOCOLS) return false;
    room_ += 2 * connections;
    if (!handshakes_.reserve(room_)) return false;
    protocol->number_ = number;
    protocol->epoll_ = is_separate ? epoll_create1(EPOLL_CLOEXEC) : epoll_;
    if (protocol->epoll_ < 0) return false;
    protocol->is_separate_ = is_separate;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = Protocol::EPOLL | number << Protocol::NUMBER_SHIFT;
    if (is_separate && epoll_ctl(epoll_, EPOLL_CTL_ADD, protocol->epoll_, &event) != 0) return false;
    const uint64_t tag = Protocol::LISTENER | number << Protocol::NUMBER_SHIFT;
    if (!protocol->listeners.set(listeners, count, epoll_, tag, shared)) return false;
    protocols_[number] = protocol;
    count_.store(number + 1, std::memory_order_release);
    return true;
}

void EventLoop::run(int index) noexcept {
    std::atomic<uint64_t> &busy_since_ns = each_thread_[static_cast<size_t>(index)].busy_since_ns;
    here = {this, index};
    epoll_event events[EVENTS];
    uint64_t now = unsigned_now_ns();
    unsigned full_turns = 0;  // consecutive
    while (!stopping_.load(std::memory_order_acquire)) {
        busy_since_ns.store(0, std::memory_order_relaxed);
        send_gathered();  // also answers that were gathered while another thread took over the lead
        if (!turn_.leads(index)) {
            turn_.follow(index);
            now = unsigned_now_ns();
            continue;
        }
        const int ready = epoll_wait(epoll_, events, EVENTS, wait_ms(now));
        now = unsigned_now_ns();
        busy_since_ns.store(now, std::memory_order_relaxed);
        // If the buffer is full, the event of a separate epoll instance may not be in it. So look there, too.
        bool separate_ready = ready == EVENTS;
        for (int i = 0; i < ready; ++i)
            is_separate(events[i]) ? void(separate_ready = true) : take_event(events[i], now);
        each([this, separate_ready, now](Protocol *protocol) {
            separate_ready && protocol->is_separate_ ? take_share(protocol, now) : protocol->on_turn(now, TurnShare());
        });
        uint64_t due = next_sweep_ns_.load(std::memory_order_relaxed);
        if (now >= due && next_sweep_ns_.compare_exchange_strong(due, now + SWEEP_NS)) sweep(now);
        send_gathered();
        turn_.serve(index);
        full_turns = ready == EVENTS ? full_turns + 1 : 0;
        if (full_turns % FULL_TURNS == 0) go_on_with_handshake();
    }
    send_gathered();
    here = {};
    busy_since_ns.store(0, std::memory_order_relaxed);
}

void EventLoop::stop() noexcept {
    stopping_.store(true, std::memory_order_release);
    wake_up();
    turn_.stop();
}

uint64_t EventLoop::stuck_ns() const noexcept {
    const uint64_t now = unsigned_now_ns();
    uint64_t longest = 0;
    for (int i = 0; i < threads_; ++i) {
        const uint64_t since = each_thread_[static_cast<size_t>(i)].busy_since_ns.load();
        if (since && now > since) longest = std::max(longest, now - since);
    }
    return longest;
}

void EventLoop::wake_up() noexcept {
    const uint64_t one = 1;
    while (write(wake_, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

// How long the leader may wait for an event.
int EventLoop::wait_ms(uint64_t now) const noexcept {
    NextTurn next = handshakes_.waits() ? NextTurn::at_once : NextTurn::any;
    each([&next](Protocol *protocol) {
        next = std::min(next, protocol->listeners.is_paused() ? NextTurn::at_sweep : NextTurn::any);
        next = std::min(next, protocol->next_turn());
    });
    if (next == NextTurn::at_once) return 0;
    if (wants_python() || turn_.is_in_python()) return PYTHON_MS;
    if (next == NextTurn::any) return IDLE_MS;
    const uint64_t due = next_sweep_ns_.load(std::memory_order_relaxed);
    return due > now ? static_cast<int>((due - now) / 1'000'000u) + 1 : 0;
}

bool EventLoop::is_separate(const epoll_event &event) const noexcept {
    return event.data.u64 != WAKE_TAG && (event.data.u64 & (Protocol::LISTENER | Protocol::EPOLL)) == Protocol::EPOLL;
}

// The turn of a protocol with a separate epoll instance: the instance's events, and events that it deferred.
void EventLoop::take_share(Protocol *protocol, uint64_t now) noexcept {
    epoll_event events[EVENTS];
    const int ready = epoll_wait(protocol->epoll_, events, EVENTS, 0);
    TurnShare share;
    bool is_late = false;
    for (int i = 0; i < ready; ++i) {
        protocol->on_event(events[i].data.u64, events[i].events, now, is_late);
        if (i + 1 < ready && !is_late) is_late = share.is_over(now = unsigned_now_ns());
    }
    protocol->on_turn(now, share);
}

void EventLoop::take_event(const epoll_event &event, uint64_t now) noexcept {
    const uint64_t tag = event.data.u64;
    const uint32_t low = static_cast<uint32_t>(tag);
    if (tag == WAKE_TAG) {
        uint64_t woken;
        if (!stopping_.load(std::memory_order_acquire)) (void)!read(wake_, &woken, sizeof woken);
        return;
    }
    Protocol *const protocol = protocols_[low >> Protocol::NUMBER_SHIFT & Protocol::NUMBER];
    if (low & Protocol::LISTENER) {
        protocol->listeners.accept_some(static_cast<uint16_t>(Protocol::slot_of(tag)));
    } else {
        protocol->on_event(tag, event.events, now, false);
    }
}

// Runs one step of one TLS handshake per turn, however many wait, because a signature takes as long as a hundred
// requests on open connections. The queue is in order of arrival, so that a flood of new handshakes cannot delay
// earlier handshakes.
void EventLoop::go_on_with_handshake() noexcept {
    uint64_t tag;
    if (!handshakes_.pop(&tag)) return;
    const uint32_t number = static_cast<uint32_t>(tag) >> Protocol::NUMBER_SHIFT & Protocol::NUMBER;
    protocols_[number]->on_handshake(tag, unsigned_now_ns());
}

void EventLoop::sweep(uint64_t now) noexcept {
    each([now](Protocol *protocol) {
        protocol->listeners.sweep(now);
        protocol->on_sweep(now);
    });
}

void EventLoop::send_gathered() noexcept {
    each([](Protocol *protocol) { protocol->send_gathered(); });
}

bool EventLoop::wants_python() const noexcept {
    bool wants = false;
    each([&wants](Protocol *protocol) { wants = wants || protocol->python_work() == PythonWork::wanted; });
    return wants;
}

bool EventLoop::leads_here() const noexcept {
    const Here &mine = here;
    return mine.loop == this && turn_.leads(mine.index);
}

bool EventLoop::begin_request() noexcept {
    Here &mine = here;
    if (mine.loop != this) return true;
    const uint64_t now = unsigned_now_ns();
    if (mine.requests == 0) {
        mine.share_ends_ns = now + SHARE_NS;
    } else if (mine.requests >= SHARE_REQUESTS || now >= mine.share_ends_ns) {
        return false;
    }
    ++mine.requests;
    if (turn_.begin_request(now) > GATHER_NS) send_gathered();
    each_thread_[static_cast<size_t>(mine.index)].busy_since_ns.store(now, std::memory_order_relaxed);
    return true;
}

bool EventLoop::work_in_python() noexcept {
    Here &mine = here;
    mine.worked = false;
    // Hold the GIL from the first to the last round: if this thread released it in between, it and its requests would
    // wait for as long as another thread runs Python.
    call_python([this] {
        hold_gil_([](EventLoop *loop) {
            while (loop->run_round() && loop->wants_python()) loop->send_gathered();
        }, this);
    });
    send_gathered();
    return mine.worked;
}

// Lets each protocol use its share. False if no protocol had work.
bool EventLoop::run_round() noexcept {
    Here &mine = here;
    bool worked = false;
    each([&worked, &mine](Protocol *protocol) {
        const PythonWork work = protocol->python_work();
        if (work == PythonWork::none) return;
        mine.requests = 0;
        protocol->work_in_python();
        worked = worked || mine.requests || protocol->python_work() != work;
    });
    mine.worked = mine.worked || worked;
    return worked;
}

}  // namespace ksrv
