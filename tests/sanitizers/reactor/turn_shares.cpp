// Turns of the event loop while one protocol always has events: how many of them the other protocol waits for, by a clock that the
// program moves.
//
//     turn_shares
//
// Prints a number for each case.

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "reactor/event_loop.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"

using namespace ksrv;

namespace {

constexpr uint64_t BEGIN = 100, MOST = 1000;  // events of the flood before the other protocol's event, and in all
constexpr int FLOODING = 200;                 // descriptors that are always readable
constexpr uint64_t EVENT_NS = 100'000;

// A protocol whose connections are eventfds.
struct Stub final : Protocol {
    std::function<void(int fd, bool is_late)> take;
    std::vector<int> fds;

    ~Stub() {
        for (int fd : fds) close(fd);
    }
    void watch(int count, uint64_t value, uint32_t edge) {
        for (int i = 0; i < count; ++i) {
            fds.push_back(eventfd(static_cast<unsigned>(value), EFD_NONBLOCK));
            epoll_event event{};
            event.events = EPOLLIN | edge;
            event.data.u64 = tag_of(static_cast<uint32_t>(fds.size()) - 1, 1);
            require(epoll_ctl(epoll(), EPOLL_CTL_ADD, fds.back(), &event) == 0, "it is not watched");
        }
    }
    void on_event(uint64_t tag, uint32_t, uint64_t, bool is_late) noexcept override { take(fds[slot_of(tag)], is_late); }
    void on_handshake(uint64_t, uint64_t) noexcept override {}
    void on_turn(uint64_t, TurnShare) noexcept override {}
    void on_sweep(uint64_t) noexcept override {}
    NextTurn next_turn() const noexcept override { return NextTurn::any; }
    PythonWork python_work() const noexcept override { return PythonWork::none; }
    void work_in_python() noexcept override {}
    void send_gathered() noexcept override {}
    void *take_place() noexcept override { return nullptr; }
    void give_back_place(void *) noexcept override {}
    void accepted(void *, const Accepted &, bool) noexcept override {}
    bool has_room() const noexcept override { return true; }
    void make_room() noexcept override {}
    void accept_paused(bool) noexcept override {}
};

void signal_event(int fd) {
    const uint64_t one = 1;
    require(write(fd, &one, sizeof one) == sizeof one, "nothing is written");
}

void clear_event(int fd) {
    uint64_t seen;
    (void)!read(fd, &seen, sizeof seen);
}

// Floods the protocol in the loop's epoll instance or in the separate instance, while the other protocol has an event.
void try_flood(const char *what, bool floods_apart) {
    EventLoop events{1};
    Stub shared, apart;
    require(events.add(&shared, 1000, nullptr, 0, false, false) && events.add(&apart, 1000, nullptr, 0, false, true), "not added");
    Stub &flooded = floods_apart ? apart : shared, &other = floods_apart ? shared : apart;
    uint64_t seen = 0, in_time = 0, waited = MOST;
    other.watch(1, 0, floods_apart ? 0u : EPOLLET);
    other.take = [&](int fd, bool) {
        clear_event(fd);
        waited = seen - BEGIN;
    };
    flooded.take = [&](int fd, bool is_late) {
        DrivenLoop::elapsed_ns().fetch_add(EVENT_NS);
        in_time += seen >= BEGIN && waited == MOST && !is_late;
        if (++seen == BEGIN) signal_event(other.fds[0]);
        if (seen >= MOST) {
            clear_event(fd);
        } else if (floods_apart) {
            signal_event(fd);  // an edge
        }
    };
    flooded.watch(FLOODING, 1, floods_apart ? EPOLLET : 0u);
    DrivenLoop loop{[&] { events.run(0); }, [&] { events.stop(); }};
    loop.settle();
    require(seen >= MOST && waited < MOST, "an event is lost");
    std::printf("%s, events before the other protocol's: %llu\n", what, static_cast<unsigned long long>(waited));
    std::printf("%s, of these in time: %llu\n", what, static_cast<unsigned long long>(in_time));
}

}  // namespace

int main() {
    try_flood("flood of the loop's epoll", false);
    try_flood("flood of the epoll apart", true);
    return 0;
}
