// Listeners that the kernel has no memory to watch.
//
// The first EPOLL_CTL_ADD of the second listener fails. Until the sweep has tried again, accepting is paused; from then on, a
// client of either listener makes an event. Prints "watched again" and exits 0.

#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.hpp"
#include "../../support/native/sockets.hpp"
#include "../../support/native/no_places.hpp"

namespace {

int without_memory = -1;  // the listener that cannot be watched

}  // namespace

// In place of the C library's.
extern "C" int epoll_ctl(int epoll, int what, int fd, epoll_event *event) noexcept {
    if (what == EPOLL_CTL_ADD && fd == without_memory) {
        errno = ENOMEM;
        return -1;
    }
    return static_cast<int>(syscall(SYS_epoll_ctl, epoll, what, fd, event));
}

using namespace ksrv;

namespace {

constexpr uint64_t TAG = 100, SECOND_NS = 1000000000u;

}  // namespace

int main() {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const Loopback places[2];
    const int fds[] = {places[0].fd, places[1].fd};
    NoPlaces owner;
    Listeners listeners(&owner);
    require(listeners.set(fds, 2, epoll, TAG, false), "not set");
    without_memory = fds[1];
    listeners.accept_enabled(true);
    require(listeners.is_paused(), "a listener is not watched, and accepting continues");
    const int waiting = places[0].connected();
    epoll_event event{};
    require(epoll_wait(epoll, &event, 1, 0) == 0, "one of the listeners is watched while accepting is paused");
    listeners.note_closed(unsigned_now_ns() + SECOND_NS);
    require(listeners.is_paused(), "accepting continues without memory");
    without_memory = -1;
    listeners.note_closed(unsigned_now_ns() + 2 * SECOND_NS);
    require(!listeners.is_paused(), "accepting does not go on");
    require(epoll_wait(epoll, &event, 1, 0) == 1 && event.data.u64 == TAG, "the first listener is not watched");
    const int second = places[1].connected();
    epoll_event both[2];
    require(epoll_wait(epoll, both, 2, 0) == 2, "the second listener is not watched");
    for (const int fd : {waiting, second, epoll}) close(fd);
    std::puts("watched again");
}
