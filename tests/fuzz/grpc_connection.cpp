// libFuzzer harness of native/grpc and native/http2: a connection of an arbitrary peer, from its preface to its end.
//
// The bytes follow the preface, an empty SETTINGS frame and the answer to the server's. The first byte chooses how they are cut into
// reads, and whether calls are answered with a message, with an error, or never. In any case, all memory
// of the budget is given back once the connection has ended, and no call is left.

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "grpc/fast_call.hpp"
#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "require.hpp"

namespace {

using namespace ksrv;

constexpr char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\0\0\0\4\1\0\0\0\0";

constexpr std::size_t MOST_AT_ONCE = 128 * 1024;  // more than any buffer of a read

grpc::ServerConfig config() {
    grpc::ServerConfig made;
    made.connections = 4;  // each of whose places is looked at again and again
    made.message = 1 << 16;
    made.small_message = 64;
    made.calls = 8;
    made.head = 1024;
    return made;
}

void answer_all(grpc::Server &server, int way) {
    int reasons = 0;
    while (grpc::Call *call = server.next_to_run(&reasons)) {
        std::string words = "no";
        std::vector<std::pair<std::string, std::string>> metadata{{"a", "b"}};
        grpc::Message message;
        if (reasons & grpc::RUN_READY && way != 3) {
            const bool streams = call->method->streams;
            if (!streams && call->take_message(&message)) grpc::free_message(&message, server.budget);
            while (streams && call->next_message(&message, 0) == grpc::Next::message)
                grpc::free_message(&message, server.budget);
            grpc::Payload *payload = way == 1 ? grpc::Payload::make(&server, 1, 3) : nullptr;
            if (payload) {
                std::memcpy(payload->bytes(), "abc", 3);
                payload->add(payload->bytes(), 3);
                payload->close();
            }
            call->finish(payload ? grpc::OK : grpc::INTERNAL, words, metadata, payload);
        }
        call->release();
    }
}

void drain(int fd) {
    char sink[65536];
    while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0) {
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char *data, std::size_t size) {
    if (!http2::library() || size == 0) return 0;
    const int way = data[0] & 3;
    const std::size_t cut = data[0] & 4 ? 1 + (data[0] >> 3) : MOST_AT_ONCE;
    process_pool().cap_bytes.store(0);  // so that the address sanitizer sees each block's end
    MemoryBudget budget;
    budget.set_bound(1 << 18);
    EventLoop events(1);
    grpc::Server server(&events, config(), &budget, nullptr, nullptr);
    server.add_method({"/s/unary", false, false, nullptr, nullptr, true, false});
    server.add_method({"/s/small", false, true, nullptr, nullptr, true, false});
    server.add_method({"/s/infer", false, false, &grpc::MODEL_INFER, nullptr, true, false});
    server.add_method({"/s/stream", true, false, nullptr, nullptr, true, false});
    require(server.listen_on(nullptr, 0));
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    require(write(ends[0], PREFACE, sizeof PREFACE - 1) == sizeof PREFACE - 1);
    sockaddr_storage address{};
    server.accepted(nullptr, {ends[1], 0, address}, true);
    for (std::size_t at = 1; at < size;) {
        const std::size_t some = std::min(cut, size - at);
        const ssize_t sent = send(ends[0], data + at, some, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) break;
        at += static_cast<std::size_t>(sent);
        server.post_all(grpc::EVENT_READABLE);
        answer_all(server, way);
        server.post_all(grpc::EVENT_TICK);
        drain(ends[0]);
    }
    server.drain();
    close(ends[0]);
    server.post_all(grpc::EVENT_READABLE);
    answer_all(server, 2);
    server.close_all();
    answer_all(server, 2);
    require(server.connections.count() == 0);
    require(server.unfinished.load() == 0);
    require(server.open_calls.load() == 0);
    require(server.undelivered.load() == 0);
    require(budget.held() == 0);
    return 0;
}
