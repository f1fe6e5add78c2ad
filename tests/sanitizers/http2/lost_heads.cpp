// Heads whose fields find no memory: a call is refused as what may be sent again, not as too large.
//
// An allocation as long as a field fails. Prints what the client's stream got.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "http2/library.hpp"
#include "../../support/native/http2_frames.hpp"
#include "../../support/native/http2_worker.hpp"

namespace {

constexpr size_t LENGTH = 100;
constexpr size_t RETRY_BYTES = 200;  // fewer than a status has that names the time to retry
std::atomic<bool> lacks_memory{false};

}  // namespace

// In place of the C++ library's.
void *operator new(size_t size) {
    void *made = lacks_memory.load() && size == LENGTH + 1 ? nullptr : std::malloc(size ? size : 1);
    if (!made) throw std::bad_alloc();
    return made;
}
void *operator new(size_t size, const std::nothrow_t &) noexcept { return std::malloc(size ? size : 1); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

using namespace ksrv;

namespace {

// The bytes of the head that ends a stream; empty without a head.
std::string answer_to(Worker &worker, const std::string &more) {
    const int fd = worker.connect_http2();
    lacks_memory.store(true);
    const std::string sent = frame(http2::FRAME_HEADERS, 5, 1, field(":method", "POST") + field(":scheme", "http") +
                                                                   field(":authority", "x") + more);
    if (send(fd, sent.data(), sent.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(sent.size())) std::abort();
    std::string got, answer;
    char some[4096];
    for (pollfd asked{fd, POLLIN, 0}; answer.empty() && poll(&asked, 1, 20000) > 0;) {
        const ssize_t more_bytes = recv(fd, some, sizeof some, 0);
        if (more_bytes <= 0) break;
        got.append(some, static_cast<size_t>(more_bytes));
        for (ReceivedFrame found; ReceivedFrame::take(&got, &found);)
            if (found.stream == 1 && found.type == 1 && found.ends_stream()) answer = found.payload;
    }
    lacks_memory.store(false);
    close(fd);
    return answer;
}

}  // namespace

int main() {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    process_budget().set_bound(64u << 20);
    auto *worker = new Worker;
    worker->start(nullptr, nullptr, 0);
    const std::string lost(LENGTH, 'a');
    const std::string call = answer_to(*worker, field(":path", "/s/unary") + field("content-type", "application/grpc") +
                                                    field("authorization", lost));
    std::printf("gRPC: %s\n", call.size() > RETRY_BYTES ? "to be sent again" : "nothing more");
    std::printf("%llu too large\n", static_cast<unsigned long long>(worker->server.counters.counted(ServerCounter::too_large)));
    for (int turns = 0; turns < 500 && worker->server.connections.count(); ++turns) usleep(10000);
    worker->stop();
    delete worker;
    return 0;
}
