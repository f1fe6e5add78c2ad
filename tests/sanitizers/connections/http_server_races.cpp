// Moments of native/server/server.hpp that no client can bring about at will.
//
// accept: a thread is inside accept4 while another switches accepting off, to close the listeners.
// room: the sweep has claimed a connection whose deadline had passed, and finds that it waits for bytes
// in flight meanwhile.
// handshake: an event of a connection is taken while another client gets its place, whose handshake begins.
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

// In place of the C library's: called by a thread with an event, while another thread arms the connection.
namespace {
void (*meanwhile)() = nullptr;
}
extern "C" int sched_yield() noexcept {
    if (meanwhile) meanwhile();
    return 0;
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

HttpServer *raced = nullptr;
Connection *taken = nullptr;

// The connection of the event closes, and another client gets its slot.
void replace_taken() {
    meanwhile = nullptr;
    raced->connections.drop(taken);
    require(raced->connections.take() == taken, "another place is taken");
    taken->begin(-1, 0, raced->tag_of(taken->slot, taken->generation.load()), unsigned_now_ns());
    taken->enter(Phase::handshake);
    taken->claim.store(ARMED);
}

void check_handshake() {
    auto server = made();
    require(server->listen_on(nullptr, 0), "it does not listen");
    raced = server.get();
    taken = server->connections.take();
    const uint64_t before = server->tag_of(taken->slot, taken->generation.load());
    taken->begin(-1, 0, before, unsigned_now_ns());
    taken->enter(Phase::handshake);
    taken->claim.store(ARMING);
    meanwhile = replace_taken;
    server->on_event(before, EPOLLIN, unsigned_now_ns(), false);
    uint64_t tag = 0;
    require(server->loop_->handshakes_.pop(&tag), "no handshake waits");
    require(server->connections.of(tag) == taken, "the handshake of the client that got the place is lost");
    taken->claim.store(OWNED);
    server->connections.drop(taken);
}

}  // namespace

int main() {
    check_accept();
    check_room();
    check_handshake();
    std::printf("0 races\n");
    return 0;
}
