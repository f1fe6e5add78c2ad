// libFuzzer harness of REST over HTTP/2: native/grpc's side of a stream, and the HTTP server's, as in a worker.
//
// The bytes stand behind the preface, an empty SETTINGS frame and the answer to the server's. The first byte chooses how they are cut into
// reads, and how large an answer is. The event loop runs on a thread of its own, and requests for the app are
// answered by two more, so that a stream's two sides meet as they do in a worker. Whatever comes, every stream and all
// memory of the budget are given back once the connection has gone.

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "grpc/server.hpp"
#include "http2/library.hpp"

namespace {

using namespace ksrv;

constexpr char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\0\4\1\0\0\0\0";
constexpr std::size_t MOST_AT_ONCE = 128 * 1024;  // more than any buffer of a read
constexpr int PATIENCE = 20000;  // times 500 us

void require(bool condition) {
    if (!condition) std::abort();
}

struct Worker {
    EventLoop events{2};
    HttpServer http{&events, http_config(), [](void *) {}, nullptr};
    grpc::Server server{&events, grpc_config(), &process_budget(), nullptr, nullptr};
    std::atomic<size_t> answer_length{5};
    const std::string body = std::string(300000, 'a');

    static HttpServerConfig http_config() {
        HttpServerConfig made;
        made.connections = 16;
        made.limits.body = 1 << 16;
        return made;
    }
    static grpc::ServerConfig grpc_config() {
        grpc::ServerConfig made;
        made.connections = 4;
        made.head = 1024;
        return made;
    }

    Worker() {
        process_budget().set_bound(8u << 20);
        process_pool().cap_bytes.store(0);  // so that the address sanitizer sees each block's end
        for (PreparedAnswer &made : http.answers.prepared) made = {200, "200 OK", "content-length: 4\r\n", "good"};
        server.serve_with(&http);
        require(http.listen_on(nullptr, 0) && server.listen_on(nullptr, 0));
        std::thread([this] { events.run(0); }).detach();
        for (const AppQueueKind kind : {AppQueueKind::metadata, AppQueueKind::others})
            std::thread([this, kind] { answer_messages(kind); }).detach();
    }

    void answer_messages(AppQueueKind kind) {
        while (Connection *connection = http.next_app_message(kind)) {
            connection = http.answers.take_turn(connection->open_turn());
            if (!connection) continue;
            const size_t length = answer_length.load();
            const std::string fields = "content-type: text/plain\r\ncontent-length: " + std::to_string(length) + "\r\n";
            if (http.answers.put(connection, 200, "200 OK", 6, fields.data(), fields.size(), body.data(), length)) {
                http.answers.send(connection, nullptr);
            } else {
                http.connections.drop(connection);
            }
        }
    }
};

void drain(int fd) {
    char sink[65536];
    while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0) {
    }
}

template <typename Done> void wait_for(Done done) {
    for (int turns = 0; turns < PATIENCE && !done(); ++turns) usleep(turns < 50 ? 10 : 500);
    require(done());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char *data, std::size_t size) {
    if (!http2::library() || size == 0) return 0;
    static Worker &worker = *new Worker;
    worker.answer_length.store(data[0] & 1 ? worker.body.size() : 5);
    const std::size_t cut = data[0] & 2 ? 1 + (data[0] >> 2) : MOST_AT_ONCE;
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    AcceptedHttp2 accepted{};
    accepted.fd = ends[1];
    accepted.bytes = reinterpret_cast<const unsigned char *>(PREFACE);
    accepted.length = sizeof PREFACE - 1;
    require(worker.http.adopt_http2(worker.http.http2_owner, accepted));
    for (std::size_t at = 1; at < size;) {
        const std::size_t some = std::min(cut, size - at);
        const ssize_t sent = send(ends[0], data + at, some, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) break;
        at += static_cast<std::size_t>(sent);
        worker.server.post_all(grpc::EVENT_READABLE);
        worker.server.post_all(grpc::EVENT_TICK);
        if (data[0] & 4) drain(ends[0]);
    }
    for (int turns = 0; data[0] & 8 && turns < 4; ++turns) {  // answers are on their way
        usleep(20);
        drain(ends[0]);
        worker.server.post_all(grpc::EVENT_READABLE | grpc::EVENT_WRITABLE);
    }
    close(ends[0]);
    worker.server.post_all(grpc::EVENT_READABLE);
    worker.server.close_all();
    wait_for([] { return worker.server.connections.count() == 0; });
    wait_for([] { return worker.http.connections.open() == 0; });
    wait_for([] { return process_budget().held() == 0; });
    wait_for([] { return worker.server.unfinished.load() == 0; });
    return 0;
}
