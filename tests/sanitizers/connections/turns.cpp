// The turns of connections while other clients flood the server, by a clock that advances at each look.
//
//     turns KEY CERTIFICATE
//
// Over TLS, the message of a client arrives in many records. Most of them only renew keys. The program prints for each
// protocol how often a good client was served before that message was complete. In cleartext, two connections of HTTP/2
// send a flood of small frames. The program prints for each call of a good connection how many bytes of the floods
// waited in the kernel when the call was served.

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
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
long step_us = 50;  // turns of HTTP/2 end by time, of HTTP/1.1 by records

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec *now) noexcept {
    if (clock != CLOCK_MONOTONIC) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
    const long us = elapsed_us.fetch_add(step_us) + step_us;
    now->tv_sec = 1 + us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}

using namespace ksrv;

namespace {

constexpr uint32_t CALLS = 4;
constexpr size_t FLOOD_FRAMES = 40000;  // of nine bytes: more than four turns
constexpr int FRAME_UNKNOWN = 0x20;     // which is ignored
const std::string PREFACE = HTTP2_PREFACE + frame(http2::FRAME_SETTINGS, 0, 0, "");

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

std::string prefix(size_t length) { return std::string("\0\0\0\0", 4) + static_cast<char>(length); }

std::string head_of(uint32_t stream) { return frame(http2::FRAME_HEADERS, 4, stream, call_fields("/s/unary")); }

std::string call_of(uint32_t stream, const std::string &body) {
    return head_of(stream) + frame(http2::FRAME_DATA, 1, stream, prefix(body.size()) + body);
}

// Answers each call, and then calls `answered` with the length of the call's message.
struct CallServer {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    std::function<void(size_t)> answered;
    std::thread loop;

    CallServer() {
        server.add_method({"/s/unary", false, false, nullptr, nullptr, true, false});
        require(server.listen_on(nullptr, 0), "it does not listen");
    }
    void begin() {
        loop = std::thread([this] { events.run(0); });
    }
    void end() {
        events.stop();
        loop.join();
        while (server.next_turn() == NextTurn::at_once)
            server.on_turn(UINT64_MAX, TurnShare());  // the loop's next turns would let go the connections that they were to read
        server.close_all();
    }

    static void serve_calls(void *owner) {
        CallServer *self = static_cast<CallServer *>(owner);
        int reasons = 0;
        while (grpc::Call *call = self->server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                const size_t length = message.length;
                grpc::free_message(&message, self->server.budget);
                std::string none;
                grpc::Metadata nothing;
                call->finish(grpc::OK, none, nothing);
                self->answered(length);
            }
            call->release();
        }
    }
};

void try_grpc_over_tls(const std::shared_ptr<const TlsContext> &context) {
    Scene scene;
    CallServer calls;
    uint32_t asked = 1;  // the good client's last stream
    calls.answered = [&](size_t length) {
        scene.question = call_of(asked += 2, "x");
        scene.serve(length == BODY);
    };
    calls.server.tls = context;
    calls.begin();
    for (std::unique_ptr<TlsPeer> *peer : {&scene.good, &scene.flooding}) {
        int ends[2];
        require(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no sockets");
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        calls.server.accepted(nullptr, {ends[1], 0, {}}, true);
        *peer = std::make_unique<TlsPeer>(ends[0]);
    }
    require(scene.good->shake_hands() && scene.flooding->shake_hands(), "no handshake");
    scene.good->send_all(scene.good->data(PREFACE + call_of(1, "x")));
    const std::string body = frame(http2::FRAME_DATA, 1, 1, prefix(BODY) + std::string(BODY, 'x'));
    scene.flood(PREFACE + head_of(1), body);
    calls.end();
    std::printf("gRPC: served %d times\n", scene.served);
}

struct Client {
    int fd, served;  // its end, and the server's

    explicit Client(grpc::Server *server) {
        int ends[2];
        const int room = 1 << 20;
        require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "no sockets");
        fd = ends[0];
        served = ends[1];
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        send_all(PREFACE);
        server->accepted(nullptr, {ends[1], 0, {}}, true);
    }

    void send_all(const std::string &bytes) const {
        require(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()), "the socket is full");
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

// The good client makes its next call while the last call is served.
void try_small_frames() {
    step_us = 100;
    CallServer calls;
    const Client first(&calls.server), second(&calls.server), good(&calls.server);
    uint32_t served = 0;
    uint64_t waiting[CALLS] = {};
    std::promise<void> all_served;
    calls.answered = [&](size_t) {
        waiting[served++] = first.unread() + second.unread();
        if (served == CALLS) return all_served.set_value();
        good.send_all(call_of(2 * served + 1, "abc"));
    };
    std::string flood;
    for (size_t i = 0; i < FLOOD_FRAMES; ++i) flood += frame(FRAME_UNKNOWN, 0, 0, "");
    flood += frame(http2::FRAME_PING, 0, 0, "the end.");
    first.send_all(flood);
    second.send_all(flood);
    good.send_all(call_of(1, "abc"));
    calls.begin();
    const bool read = first.reads("the end.") && second.reads("the end.");
    if (read) all_served.get_future().wait();  // the floods may be read before
    calls.end();
    std::printf("small frames:");
    for (const uint64_t bytes : waiting) std::printf(" %llu", static_cast<unsigned long long>(bytes));
    std::printf(" bytes waited\n%u calls served, floods %s, %llu bytes are held\n", served, read ? "read" : "not read",
                static_cast<unsigned long long>(process_budget().held()));
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
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    try_grpc_over_tls(context);
    try_small_frames();
    return 0;
}
