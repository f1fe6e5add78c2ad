// Connections of HTTP/2 under the thread sanitizer: gRPC's server beside the HTTP server, as in a worker, with calls, requests that
// are not gRPC, resets and breaks from several clients at once. Prints how many streams were left unanswered.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "http2/library.hpp"
#include "../../support/native/http2_frames.hpp"
#include "../../support/native/http2_worker.hpp"

using namespace ksrv;

namespace {

constexpr int CLIENTS = 4, STREAMS = 40;

std::string head(const char *method, const char *path, const char *type) {
    std::string made = field(":method", method) + field(":scheme", "http") + field(":path", path) +
                       field(":authority", "x");
    return type ? made + field("content-type", type) : made;
}

// The streams whose answers have come to their end.
size_t count_ended(int fd, std::string *buffer, bool *over) {
    char some[65536];
    pollfd asked{fd, POLLIN, 0};
    if (poll(&asked, 1, 20) <= 0) return 0;
    const ssize_t got = recv(fd, some, sizeof some, MSG_DONTWAIT);
    if (got <= 0) {
        *over = true;
        return 0;
    }
    buffer->append(some, static_cast<size_t>(got));
    size_t ended = 0;
    for (ReceivedFrame got_frame; ReceivedFrame::take(buffer, &got_frame);) ended += got_frame.ends_stream();
    return ended;
}

// A client that waits for its answers, or breaks off. Returns the streams that got none.
size_t run_client(Worker &worker, unsigned seed, bool breaks) {
    const int fd = worker.connect_http2();
    size_t ended = 0;
    std::string buffer;
    bool over = false;
    for (uint32_t i = 0; i < STREAMS; ++i) {
        const uint32_t stream = 2 * i + 1;
        std::string sent;
        switch ((seed + i) % 5) {
        case 0:
            sent = frame(http2::FRAME_HEADERS, 4, stream, head("POST", "/s/unary", "application/grpc")) +
                   frame(http2::FRAME_DATA, 1, stream, std::string("\0\0\0\0\3abc", 8));
            break;
        case 1:
            sent = frame(http2::FRAME_HEADERS, 5, stream, head("GET", "/v2/health/live", nullptr));
            break;
        case 2:
            sent = frame(http2::FRAME_HEADERS, 4, stream, head("POST", "/x", "text/plain")) +
                   frame(http2::FRAME_DATA, 0, stream, std::string(5000, 'a')) +
                   frame(http2::FRAME_DATA, 1, stream, std::string(5000, 'b'));
            break;
        case 3:
            sent = frame(http2::FRAME_HEADERS, 5, stream, head("GET", "/x", nullptr));
            break;
        default:
            sent = frame(http2::FRAME_HEADERS, 4, stream, head("POST", "/s/unary", "application/grpc")) +
                   frame(http2::FRAME_RST_STREAM, 0, stream, std::string("\0\0\0\x08", 4));
            ++ended;  // it wants no answer
        }
        for (size_t at = 0; at < sent.size() && !over;) {
            const ssize_t some = send(fd, sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
            if (some > 0) at += static_cast<size_t>(some);
            if (some < 0) ended += count_ended(fd, &buffer, &over);
        }
    }
    for (int turns = 0; !breaks && !over && ended < STREAMS && turns < 2000; ++turns)
        ended += count_ended(fd, &buffer, &over);
    close(fd);
    return breaks || ended >= STREAMS ? 0 : STREAMS - ended;
}

}  // namespace

int main(int count, char **arguments) {
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 5;
    if (!http2::library()) {
        std::printf("0 left: libnghttp2 is missing\n");
        return 0;
    }
    process_budget().set_bound(64u << 20);
    auto *worker = new Worker;
    worker->start(nullptr, nullptr, 0);
    std::atomic<size_t> left{0};
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::thread> clients;
        for (unsigned i = 0; i < CLIENTS; ++i)
            clients.emplace_back([&, i] { left += run_client(*worker, i, (round + static_cast<int>(i)) % 4 == 3); });
        for (std::thread &client : clients) client.join();
    }
    worker->server.drain();
    worker->http.drain();
    for (int turns = 0; turns < 500 && (worker->server.connections.count() || worker->http.connections.open()); ++turns)
        usleep(10000);
    if (worker->server.connections.count() || worker->http.connections.open()) {
        std::printf("%u connections and %u streams are open still\n", worker->server.connections.count(),
                    worker->http.connections.open());
        return 1;
    }
    worker->stop();
    delete worker;
    if (process_budget().held()) {
        std::printf("%llu bytes are held still\n", static_cast<unsigned long long>(process_budget().held()));
        return 1;
    }
    std::printf("%zu left\n", left.load());
    return left.load() ? 1 : 0;
}
