// Moments of native/server/server.hpp that no client can bring about at will.
//
// accept: a thread is inside accept4 while another switches accepting off, to close the listeners.
// room: the sweep has claimed a connection whose deadline had passed, and finds that it waits for bytes
// in flight meanwhile.
// leaders: a thread that has just lost the lead serves streams beside the one that has taken it.
// Prints what is wrong and exits 1.

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {
std::atomic<bool> inside{false}, go_on{false};

}  // namespace

// In place of the C library's.
int accept4(int, sockaddr *, socklen_t *, int) noexcept(false) {
    inside.store(true);
    while (!go_on.load()) usleep(1000);
    errno = EAGAIN;
    return -1;
}

#define private public
#include "server/server.hpp"
#undef private
#include "../../support/native/checks.hpp"

using namespace ksrv;

namespace {

std::unique_ptr<HttpServer> made() {
    static EventLoop &events = *new EventLoop(2);
    HttpServerConfig config;
    config.connections = 4;
    process_budget().set_bound(1000);
    return std::make_unique<HttpServer>(&events, config, [](void *) {}, nullptr);
}

void check_accept() {
    auto server = made();
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    require(listen(listener, 1) == 0 && server->listen_on(&listener, 1), "it does not listen");
    server->accept_enabled(true);
    std::thread leader([&] { server->listeners.accept_some(0); });
    while (!inside.load()) usleep(1000);
    std::atomic<bool> off{false};
    std::thread worker([&] {
        server->accept_enabled(false);
        off.store(true);
    });
    for (int i = 0; i < 200 && !off.load(); ++i) usleep(1000);
    const bool too_early = off.load();
    go_on.store(true);
    worker.join();
    leader.join();
    require(!too_early, "accepting was off while a thread used the listener");
    inside.store(false);
    server->listeners.accept_some(0);  // by an event from before
    require(!inside.load(), "a listener was used after accepting was off");
    close(listener);
}

void check_room() {
    auto server = made();
    int pair[2];
    require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
    Connection *connection = server->connections.take();
    connection->enter(Phase::head);
    connection->fd = pair[0];
    connection->reserve(HEAD_BUFFER);
    connection->head.route = Route::infer;
    connection->head.content_length = 100;
    require(process_budget().reserve(1000, true), "the budget is held already");
    require(!server->start_body(connection, unsigned_now_ns()), "there was room");
    require(connection->phase.load() == Phase::awaiting_memory, "it does not wait for room");
    require(connection->claim_for_sweep(), "the sweep cannot claim it");
    server->connections.arm(connection, unsigned_now_ns());  // as the sweep does with what is not due
    require(connection->phase.load() == Phase::awaiting_memory, "it was dropped");
    require(connection->claim_for_sweep(), "the sweep will never see it again");
    connection->claim.store(ARMED);
    process_budget().give_back(1000);
    close(pair[1]);
}

// A stream whose body does not come: it says when it is armed, and is woken for nothing.
struct EmptyStream final : ByteStream {
    std::atomic<uint32_t> armed{0};
    ssize_t receive(void *, size_t) noexcept override {
        errno = EAGAIN;
        return -1;
    }
    void receive_ahead(void *, size_t) noexcept override {}
    size_t waiting() noexcept override { return 0; }
    bool send_continue() noexcept override { return true; }
    bool send_head(const char *, size_t) noexcept override { return true; }
    ssize_t send(const iovec *, int, bool) noexcept override { return receive(nullptr, 0); }
    Unread unread() noexcept override { return Unread::none; }
    uint64_t unsent() noexcept override { return 0; }
    bool is_cut() noexcept override { return false; }
    void close() noexcept override {}
    void arm(uint32_t) noexcept override { armed.fetch_add(1); }
};

// Whether every stream that is woken is armed anew.
void check_leaders() {
    auto server = made();
    require(server->listen_on(nullptr, 0), "it does not listen");
    static constexpr char text[] = "POST / HTTP/1.1\r\n\r\n";
    StreamHead head;
    head.text.append(reinterpret_cast<const unsigned char *>(text), sizeof text - 1);
    head.verdict = Verdict::app;
    head.head.length = sizeof text - 1;
    head.head.content_length = 100;
    server->config.limits.body = 100;
    EmptyStream streams[2];
    for (EmptyStream &stream : streams)
        require(server->open_stream(&stream, head, sockaddr_storage{}, 0, 0), "a stream is not opened");
    std::atomic<bool> over{false};
    std::vector<std::thread> leaders;
    for (int index = 0; index < 2; ++index)
        leaders.emplace_back([&] {
            while (!over.load()) server->on_turn(unsigned_now_ns());
        });
    std::vector<std::thread> wakers;
    std::atomic<bool> lost{false};
    for (EmptyStream &stream : streams)
        wakers.emplace_back([&] {
            for (int round = 0; round < 20000 && !lost.load(); ++round) {
                const uint32_t before = stream.armed.load();
                stream.ready(stream.owner, stream.tag);
                for (int looks = 0; stream.armed.load() == before && !lost.load(); ++looks) {
                    if (looks > 100) usleep(100);
                    if (looks > 50000) lost.store(true);
                }
            }
        });
    for (std::thread &waker : wakers) waker.join();
    over.store(true);
    for (std::thread &leader : leaders) leader.join();
    require(!lost.load(), "a stream was woken and never served");
}

}  // namespace

int main() {
    check_accept();
    check_room();
    check_leaders();
    std::printf("0 races\n");
    return 0;
}
