// The memory that an HTTP/2 connection takes for a peer that takes nothing, with an event loop that runs only when the program calls it.
//
//     held_bytes
//
// Prints a line for each case: its name, and bytes.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"
#include "../../support/native/http2_frames.hpp"

using namespace ksrv;

namespace {

constexpr size_t SMALL = 4000;          // bytes of an answer, which are copied
constexpr uint32_t CALLS = 100;         // on one connection

struct Peer {
    int fd = -1;

    ~Peer() { close(fd); }
    void send_all(const std::string &bytes) const {
        require(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size()),
                "the server takes no more");
    }
    size_t take_all() const {
        char some[65536];
        size_t taken = 0;
        for (ssize_t more; (more = recv(fd, some, sizeof some, MSG_DONTWAIT)) > 0;) taken += static_cast<size_t>(more);
        return taken;
    }
};

const std::string PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string window(uint32_t stream, uint32_t bytes) {
    std::string payload;
    for (int shift : {24, 16, 8, 0}) payload.push_back(static_cast<char>(bytes >> shift));
    return frame(http2::FRAME_WINDOW_UPDATE, 0, stream, payload);
}

struct Scene {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};

    Scene() {
        server.add_method({"/s/small", false, false, false, true, false});
        require(server.listen_on(nullptr, 0), "it does not listen");
    }

    static void serve_calls(void *owner) {
        grpc::Server &server = static_cast<Scene *>(owner)->server;
        int reasons = 0;
        while (grpc::Call *call = server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                grpc::free_message(&message, server.budget);
                std::string words;
                grpc::Metadata none;
                grpc::Payload *payload = grpc::Payload::make(&server, 1, SMALL);
                std::fill_n(payload->bytes(), SMALL, 'a');
                payload->add(payload->bytes(), SMALL);
                payload->close();
                call->finish(grpc::OK, words, none, payload);
            }
            call->release();
        }
    }
};

// Answers that are copied, on a connection whose peer takes nothing.
void leave_answers(Scene *scene) {
    Peer peer;
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "no sockets");
    const int least = 1;
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &least, sizeof least);
    peer.fd = ends[0];
    scene->server.accepted(nullptr, {ends[1], 0, {}}, true);
    peer.send_all(PREFACE + frame(http2::FRAME_SETTINGS, 0, 0, "") + window(0, 1u << 30));
    const std::string head = field(":method", "POST") + field(":scheme", "http") + field(":path", "/s/small") +
                             field(":authority", "x") + field("content-type", "application/grpc");
    for (uint32_t i = 0; i < CALLS; ++i) {
        peer.send_all(frame(http2::FRAME_HEADERS, 4, 2 * i + 1, head) +
                      frame(http2::FRAME_DATA, 1, 2 * i + 1, std::string(5, '\0')));
        scene->loop.settle();
    }
    std::printf("held for answers that are not taken: %llu\n", static_cast<unsigned long long>(process_budget().held()));
    size_t taken = 0;
    for (size_t more; (more = peer.take_all()) > 0; taken += more) scene->loop.settle();
    std::printf("taken at last: %zu\n", taken);
    std::printf("held afterwards: %llu\n", static_cast<unsigned long long>(process_budget().held()));
}

}  // namespace

int main() {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    process_budget().set_bound(64u << 20);
    Scene scene;
    leave_answers(&scene);
    scene.server.close_all();
    scene.loop.settle();
    return 0;
}
