// Servers that drain, close and stop while connections come.
//
//     drains [ROUNDS]
//
// Two moments are held still first: a connection is listed and not open yet when the server drains, or closes all. Then
// workers are stopped as Python does it while clients connect, speak HTTP/1.1, HTTP/2 and gRPC, and break off. Prints what is
// wrong and exits 1.

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "http2/library.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/http2_frames.hpp"
#include "../../support/native/http2_worker.hpp"
#include "../../support/native/sockets.hpp"

namespace {

std::atomic<bool> holds{false}, inside{false}, go_on{false};

void wait_for(const std::atomic<bool> &flag) {
    while (!flag.load()) usleep(100);
}

}  // namespace

// In place of the C library's: where a connection is opened, which has been made and listed before.
extern "C" int setsockopt(int fd, int level, int name, const void *value, socklen_t length) noexcept {
    if (level == IPPROTO_TCP && name == TCP_NODELAY && holds.load()) {
        inside.store(true);
        wait_for(go_on);
    }
    return static_cast<int>(syscall(SYS_setsockopt, fd, level, name, value, length));
}

using namespace ksrv;

namespace {

constexpr int CLIENTS = 4;
const std::string PREFACE = HTTP2_PREFACE + frame(http2::FRAME_SETTINGS, 0, 0, "");

// All that comes until the end of the stream.
std::string read_all(int fd) {
    std::string got;
    char some[4096];
    for (ssize_t more; (more = recv(fd, some, sizeof some, 0)) > 0;) got.append(some, static_cast<size_t>(more));
    return got;
}

void check_held(bool closes) {
    EventLoop events(1);
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), [](void *) {}, nullptr};
    require(server.listen_on(nullptr, 0), "it does not listen");
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "no sockets");
    require(send(ends[0], PREFACE.data(), PREFACE.size(), 0) > 0, "nothing is sent");
    inside.store(false);
    go_on.store(false);
    holds.store(true);
    std::thread adopter([&] {
        server.accepted(nullptr, {ends[1], 0, {}}, true);
    });
    wait_for(inside);
    closes ? server.close_all() : server.drain();
    const bool open = fcntl(ends[1], F_GETFD) >= 0;
    holds.store(false);
    go_on.store(true);
    adopter.join();
    require(open, "the descriptor was closed while a thread opened its connection");
    server.close_all();
    require(server.connections.count() == 0, "a connection is open still");
    fcntl(ends[0], F_SETFL, 0);
    const std::string goodbye = frame(http2::FRAME_GOAWAY, 0, 0, std::string("\x7f\xff\xff\xff\0\0\0\0", 8));
    require(closes || read_all(ends[0]).find(goodbye) != std::string::npos, "the peer gets no GOAWAY");
    close(ends[0]);
}

// Connects, sends and breaks off until the server takes nobody any more.
void run_client(const Loopback *listeners, unsigned seed, const std::atomic<bool> &over) {
    const std::string call = frame(http2::FRAME_HEADERS, 4, 1, call_fields("/s/unary")) +
                             frame(http2::FRAME_DATA, 1, 1, std::string("\0\0\0\0\3abc", 8));
    const std::string rest = frame(http2::FRAME_HEADERS, 4, 3,
                                   field(":method", "POST") + field(":scheme", "http") + field(":path", "/x") +
                                       field(":authority", "x") + field("content-type", "text/plain")) +
                             frame(http2::FRAME_DATA, 1, 3, std::string(5000, 'a'));
    const std::string reset = frame(http2::FRAME_HEADERS, 4, 5, call_fields("/s/unary")) +
                              frame(http2::FRAME_RST_STREAM, 0, 5, std::string("\0\0\0\x08", 4));
    const std::string live = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    const std::string infer = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd";
    // Each to HTTP or to gRPC, whether it is of that protocol or not.
    const std::string sent[] = {PREFACE, PREFACE + call, PREFACE + call + rest, PREFACE + call + rest + reset,
                                PREFACE.substr(0, 10), live, live + infer, infer.substr(0, infer.size() - 2)};
    for (unsigned i = seed; !over.load(); i = i * 1103515245 + 12345) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);  // a full backlog is not waited for
        const sockaddr_in &address = listeners[i / 512 % 2].address;
        if (connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0) {
            const std::string &bytes = sent[i / 65536 % (sizeof sent / sizeof *sent)];
            if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0 && i / 1024 % 4) {
                pollfd asked{fd, POLLIN, 0};
                char some[4096];
                if (poll(&asked, 1, static_cast<int>(i / 2048 % 4)) > 0) (void)!recv(fd, some, sizeof some, 0);
            }
        }
        close(fd);
    }
}

// Stops a worker beside its clients. After a quiet stop all memory is given back. After a stop at once, queues keep their
// content, as in a process that ends.
void check_stop(unsigned seed, bool quiet) {
    const Loopback listeners[2];
    auto *worker = new Worker;
    worker->start(&listeners[0].fd, &listeners[1].fd, 1);
    worker->http.accept_enabled(true);
    worker->server.accept_enabled(true);
    std::atomic<bool> over{false};
    std::vector<std::thread> clients;
    for (unsigned i = 0; i < CLIENTS; ++i) clients.emplace_back([&, i] { run_client(listeners, seed * CLIENTS + i, over); });
    usleep(1000 * (seed % 7));
    // As in a worker that stops: gRPC drains before the HTTP server stops accepting.
    worker->server.drain();
    usleep(1000 * (seed % 3));
    worker->server.accept_enabled(false);
    worker->http.accept_enabled(false);
    worker->http.drain();
    if (seed % 2) usleep(2000);
    worker->server.close_all();
    if (!quiet) worker->stop();
    over.store(true);
    for (std::thread &client : clients) client.join();
    if (!quiet) {
        static auto &kept = *new std::vector<Worker *>;
        kept.push_back(worker);
        return;
    }
    const auto is_empty = [worker] {
        return !worker->server.connections.count() && !worker->http.connections.open() && !process_budget().held();
    };
    for (int turns = 0; turns < 2000 && !is_empty(); ++turns) {
        worker->server.close_all();  // what was accepted meanwhile
        usleep(5000);
    }
    require(is_empty(), "connections or bytes are held still");
    worker->stop();
    delete worker;
}

}  // namespace

int main(int count, char **arguments) {
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 40;
    if (!http2::library()) {
        std::printf("0 faults: libnghttp2 is missing\n");
        return 0;
    }
    process_budget().set_bound(64u << 20);
    check_held(false);
    check_held(true);
    for (int round = 0; round < rounds; ++round) check_stop(static_cast<unsigned>(round), round < rounds * 3 / 4);
    std::printf("0 faults\n");
    return 0;
}
