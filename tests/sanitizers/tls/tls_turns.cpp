// The turns of TLS connections: a good client sends requests while another client's message arrives in very many records,
// most of which only renew keys. Prints how often the good client was served before that message was complete.
//
//     tls_turns KEY CERTIFICATE
//
// The clock advances by 50 us at each look: HTTP/2's turns end by time, HTTP/1.1's by records.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "server/server.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/http2_frames.hpp"
#include "../../support/native/tls_peer.hpp"

namespace {

std::atomic<long> elapsed_us{0};

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec *now) noexcept {
    if (clock != CLOCK_MONOTONIC) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
    const long us = elapsed_us.fetch_add(50) + 50;
    now->tv_sec = 1 + us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

using namespace ksrv;

namespace {

constexpr int BODY = 160, UPDATES = 31;  // as many after each byte of the body

// Shared by both protocols: the good client sends a request after each answer, and the flooding client is served last.
struct Scene {
    std::unique_ptr<TlsPeer> good, flooding;
    std::string question;
    std::promise<void> flood_is_sent, over;
    int served = 0;
    bool began = false, ended = false;

    void serve(bool is_flood) {
        if (is_flood) {
            ended = true;
            over.set_value();
        }
        if (ended) return;
        if (!began) {
            began = true;
            flood_is_sent.get_future().wait();
        } else {
            ++served;
        }
        good->send_all(good->data(question));
    }

    // Sends a message's beginning, and its body between updates of the keys, and waits until the server has it all.
    void flood(const std::string &head, const std::string &body) {
        std::string records = flooding->data(head);
        for (const char byte : body) {
            for (int i = 0; i < UPDATES; ++i) records += flooding->key_update();
            records += flooding->data(std::string(1, byte));
        }
        flooding->send_all(records);
        flood_is_sent.set_value();
        over.get_future().wait();
    }
};

struct HttpScene : Scene {
    EventLoop events{1};
    HttpServer server{&events, config(), serve_requests, this};

    static HttpServerConfig config() {
        HttpServerConfig made;
        made.limits.body = 1 << 20;
        return made;
    }
    static void serve_requests(void *owner) {
        HttpScene *scene = static_cast<HttpScene *>(owner);
        while (Connection *connection = scene->server.routes.next_to_run()) {
            const Turn turn = connection->open_turn();
            scene->serve(connection->body.got == BODY);
            if ((connection = scene->server.answers.take_turn(turn))) scene->server.answers.send_prepared(connection, ANSWER_LIVE);
        }
    }
};

int connected(const sockaddr_un &address, socklen_t length) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0), room = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);  // for the whole flood
    require(connect(fd, reinterpret_cast<const sockaddr *>(&address), length) == 0, "no connection");
    return fd;
}

void try_http(const std::shared_ptr<const TlsContext> &context) {
    HttpScene scene;
    scene.server.tls = context;
    for (PreparedAnswer &made : scene.server.answers.prepared) made = {200, "200 OK", "content-length: 2\r\n", "ok"};
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;  // and a name that the kernel chooses
    socklen_t length = sizeof address;
    require(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(sa_family_t)) == 0 &&
                listen(listener, 64) == 0 &&
                getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length) == 0 &&
                scene.server.listen_on(&listener, 1),
            "it does not listen");
    std::thread loop([&] { scene.events.run(0); });
    scene.server.accept_enabled(true);
    scene.good = std::make_unique<TlsPeer>(connected(address, length));
    scene.flooding = std::make_unique<TlsPeer>(connected(address, length));
    require(scene.good->shake_hands() && scene.flooding->shake_hands(), "no handshake");
    const std::string head = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: ";
    scene.question = head + "1\r\n\r\nx";
    scene.good->send_all(scene.good->data(scene.question));
    scene.flood(head + std::to_string(BODY) + "\r\n\r\n", std::string(BODY, 'x'));
    scene.events.stop();
    loop.join();
    close(listener);
    std::printf("HTTP/1.1: served %d times\n", scene.served);
}

struct GrpcScene : Scene {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};

    static void serve_calls(void *owner) {
        GrpcScene *scene = static_cast<GrpcScene *>(owner);
        int reasons = 0;
        while (grpc::Call *call = scene->server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                const bool is_flood = message.length == BODY;
                grpc::free_message(&message, scene->server.budget);
                std::string none;
                grpc::Metadata nothing;
                call->finish(grpc::OK, none, nothing);
                scene->question = call_of(scene->asked += 2, "x");
                scene->serve(is_flood);
            }
            call->release();
        }
    }
    static std::string head_of(uint32_t stream) {
        return frame(http2::FRAME_HEADERS, 4, stream, call_fields("/s/unary"));
    }
    static std::string call_of(uint32_t stream, const std::string &body) {
        return head_of(stream) + frame(http2::FRAME_DATA, 1, stream, prefix(body.size()) + body);
    }
    static std::string prefix(size_t length) {
        return std::string("\0\0\0\0", 4) + static_cast<char>(length);
    }
    uint32_t asked = 1;  // the good client's last stream
};

void try_grpc(const std::shared_ptr<const TlsContext> &context) {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return;
    }
    GrpcScene scene;
    scene.server.tls = context;
    scene.server.add_method({"/s/unary", false, false, false, true, false});
    require(scene.server.listen_on(nullptr, 0), "it does not listen");
    std::thread loop([&] { scene.events.run(0); });
    sockaddr_storage address{};
    for (std::unique_ptr<TlsPeer> *peer : {&scene.good, &scene.flooding}) {
        int ends[2];
        require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        scene.server.accepted(nullptr, {ends[1], 0, address}, true);
        *peer = std::make_unique<TlsPeer>(ends[0]);
    }
    require(scene.good->shake_hands() && scene.flooding->shake_hands(), "no handshake");
    const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(http2::FRAME_SETTINGS, 0, 0, "");
    scene.good->send_all(scene.good->data(preface + GrpcScene::call_of(1, "x")));
    const std::string body = frame(http2::FRAME_DATA, 1, 1, GrpcScene::prefix(BODY) + std::string(BODY, 'x'));
    scene.flood(preface + GrpcScene::head_of(1), body);
    scene.events.stop();
    loop.join();
    scene.server.close_all();
    std::printf("gRPC: served %d times\n", scene.served);
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 3) return 2;
    process_budget().set_bound(64u << 20);
    TlsRules rules;
    rules.key = arguments[1];
    rules.chain = arguments[2];
    std::string why;
    auto context = std::make_shared<TlsContext>();
    require(context->set_up(rules, &why), why.c_str());
    try_http(context);
    try_grpc(context);
    return 0;
}
