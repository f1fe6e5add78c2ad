// Listeners that the kernel has no memory to watch.
//
// The first EPOLL_CTL_ADD of the second listener fails. Until the sweep has tried again, accepting is paused; from then on, a
// client of either listener makes an event. Prints "watched again" and exits 0.

#include <arpa/inet.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.hpp"
#include "../../support/native/checks.hpp"
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

int listening() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    require(fd >= 0 && bind(fd, reinterpret_cast<sockaddr *>(&any), sizeof any) == 0 && listen(fd, 8) == 0,
            "no listener");
    return fd;
}

int client_of(int listener) {
    sockaddr_in there{};
    socklen_t length = sizeof there;
    require(getsockname(listener, reinterpret_cast<sockaddr *>(&there), &length) == 0, "no address");
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0 && connect(fd, reinterpret_cast<sockaddr *>(&there), length) == 0, "no connection");
    return fd;
}

}  // namespace

int main() {
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    const int fds[] = {listening(), listening()};
    NoPlaces owner;
    Listeners listeners(&owner);
    require(listeners.set(fds, 2, epoll, TAG, false), "not set");
    without_memory = fds[1];
    listeners.accept_enabled(true);
    require(listeners.is_paused(), "a listener is not watched, and accepting continues");
    const int waiting = client_of(fds[0]);
    epoll_event event{};
    require(epoll_wait(epoll, &event, 1, 0) == 0, "one of the listeners is watched while accepting is paused");
    listeners.note_closed(unsigned_now_ns() + SECOND_NS);
    require(listeners.is_paused(), "accepting continues without memory");
    without_memory = -1;
    listeners.note_closed(unsigned_now_ns() + 2 * SECOND_NS);
    require(!listeners.is_paused(), "accepting does not go on");
    require(epoll_wait(epoll, &event, 1, 0) == 1 && event.data.u64 == TAG, "the first listener is not watched");
    const int second = client_of(fds[1]);
    epoll_event both[2];
    require(epoll_wait(epoll, both, 2, 0) == 2, "the second listener is not watched");
    for (const int fd : {waiting, second, fds[0], fds[1], epoll}) close(fd);
    std::puts("watched again");
}
