// The turns of HTTP/2 connections, by a clock that advances by 100 us at each look: two connections have sent a
// flood of small frames, and a good connection makes one call after the other. Prints for each call how many bytes of the floods
// waited in the kernel when it was served.

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <string>
#include <thread>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "../../support/native/http2_frames.hpp"

namespace {

std::atomic<long> elapsed_us{0};

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec *now) noexcept {
    if (clock != CLOCK_MONOTONIC) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
    const long us = elapsed_us.fetch_add(100) + 100;
    now->tv_sec = 1 + us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

using namespace ksrv;

namespace {

constexpr uint32_t CALLS = 4;
constexpr size_t FLOOD_FRAMES = 40000;  // of nine bytes: more than four turns
constexpr int FRAME_UNKNOWN = 0x20;     // which is ignored

std::string call(uint32_t number) {
    return frame(http2::FRAME_HEADERS, 4, 2 * number - 1, call_fields("/s/unary")) +
           frame(http2::FRAME_DATA, 1, 2 * number - 1, std::string("\0\0\0\0\3abc", 8));
}

std::string flood() {
    std::string made;
    for (size_t i = 0; i < FLOOD_FRAMES; ++i) made += frame(FRAME_UNKNOWN, 0, 0, "");
    return made + frame(http2::FRAME_PING, 0, 0, "the end.");
}

struct Client {
    int fd, served;  // its end, and the server's

    explicit Client(grpc::Server *server) {
        int ends[2];
        const int room = 1 << 20;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) std::abort();
        fd = ends[0];
        served = ends[1];
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        send_all("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(http2::FRAME_SETTINGS, 0, 0, ""));
        server->accepted(nullptr, {ends[1], 0, {}}, true);
    }

    void send_all(const std::string &bytes) const {
        if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) std::abort();
    }

    // Bytes that the server has not read.
    uint64_t unread() const {
        int bytes = 0;
        return ioctl(served, FIONREAD, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
    }

    // Waits until the peer has sent these bytes.
    bool reads(const std::string &wanted) const {
        std::string got;
        char some[65536];
        while (got.find(wanted) == std::string::npos) {
            pollfd asked{fd, POLLIN, 0};
            if (poll(&asked, 1, 60000) <= 0) return false;
            const ssize_t more = recv(fd, some, sizeof some, 0);
            if (more <= 0) return false;
            got.append(some, static_cast<size_t>(more));
        }
        return true;
    }
};

// The server, and the good client, which makes its next call while the last call is served.
struct Scene {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    const Client *good = nullptr, *floods[2] = {};
    uint32_t served = 0;
    uint64_t waiting[CALLS] = {};
    std::promise<void> all_served;

    static void serve_calls(void *owner) {
        Scene *scene = static_cast<Scene *>(owner);
        int reasons = 0;
        while (grpc::Call *call = scene->server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                grpc::free_message(&message, scene->server.budget);
                scene->waiting[scene->served++] = scene->floods[0]->unread() + scene->floods[1]->unread();
                std::string none;
                grpc::Metadata nothing;
                call->finish(grpc::OK, none, nothing);
                if (scene->served < CALLS) {
                    scene->good->send_all(::call(scene->served + 1));
                } else {
                    scene->all_served.set_value();
                }
            }
            call->release();
        }
    }
};

}  // namespace

int main() {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    process_budget().set_bound(64u << 20);
    Scene scene;
    scene.server.add_method({"/s/unary", false, false, false, true, false});
    if (!scene.server.listen_on(nullptr, 0)) std::abort();
    const Client first(&scene.server), second(&scene.server), good(&scene.server);
    scene.good = &good;
    scene.floods[0] = &first;
    scene.floods[1] = &second;
    first.send_all(flood());
    second.send_all(flood());
    good.send_all(call(1));
    std::thread loop([&] { scene.events.run(0); });
    const bool read = first.reads("the end.") && second.reads("the end.");
    if (read) scene.all_served.get_future().wait();  // the floods may be read before
    scene.events.stop();
    loop.join();
    while (scene.server.next_turn() == NextTurn::at_once)
        scene.server.on_turn(UINT64_MAX, TurnShare());  // the loop's next turns would let go the connections that they were to read
    scene.server.close_all();
    for (const uint64_t bytes : scene.waiting) std::printf("%llu ", static_cast<unsigned long long>(bytes));
    std::printf("bytes waited, %u calls served, floods %s, %llu bytes are held\n", scene.served,
                read ? "read" : "not read", static_cast<unsigned long long>(process_budget().held()));
    return 0;
}
