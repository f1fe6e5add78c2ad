// The time that clients are given, by a clock that stands until the program moves it: each case says after how many
// seconds the server ended what it ended.
//
//     deadlines
//
// Prints a line for each case: its name, and the seconds, or "never".

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "server/server.hpp"
#include "../../support/native/adopted_socket.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"
#include "../../support/native/http2_frames.hpp"

using namespace ksrv;

namespace {

constexpr double STEP = 0.1, LONG = 90;  // seconds
constexpr size_t LARGE = 4u << 20;       // bytes of an answer that no socket takes at once
constexpr size_t LEFT = 70000;           // and of one that it takes, and is not writable until the client has taken it

void print(const char *name, double seconds) {
    seconds < LONG ? std::printf("%s: %.1f\n", name, seconds) : std::printf("%s: never\n", name);
}

struct Peer {
    int fd = -1;
    std::string got;
    bool over = false;

    ~Peer() { close(fd); }

    void send_all(const std::string &bytes) const {
        require(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size()),
                "the server takes no more");
    }

    // Takes at most so many bytes of what there is.
    size_t take(size_t most) {
        size_t taken = 0;
        char some[65536];
        while (taken < most) {
            const ssize_t more = recv(fd, some, std::min(most - taken, sizeof some), MSG_DONTWAIT);
            if (more == 0 || (more < 0 && errno != EAGAIN)) over = true;
            if (more <= 0) break;
            got.append(some, static_cast<size_t>(more));
            taken += static_cast<size_t>(more);
        }
        return taken;
    }
};

// ---- HTTP/2 ---------------------------------------------------------------------------------------

struct Calls {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};
    const std::string answer = std::string(LARGE, 'a');

    Calls() {
        server.add_method({"/s/large", false, false, false, true, false});
        require(server.listen_on(nullptr, 0), "it does not listen");
    }

    static void serve_calls(void *owner) {
        Calls *self = static_cast<Calls *>(owner);
        int reasons = 0;
        while (grpc::Call *call = self->server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                grpc::free_message(&message, self->server.budget);
                std::string words;
                grpc::Metadata none;
                grpc::Payload *payload = grpc::Payload::make(&self->server, 1, 0);
                payload->add(self->answer.data(), self->answer.size());
                payload->close();
                call->finish(grpc::OK, words, none, payload);
            }
            call->release();
        }
    }
};

struct Http2Peer : Peer {
    std::set<uint32_t> ended;  // streams

    explicit Http2Peer(Calls *calls) {
        fd = connect_to(&calls->server);
        const std::string wide("\x7f\xff\xff\xff", 4), more("\x3f\xff\xff\xff", 4);
        send_all("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" +
                 frame(http2::FRAME_SETTINGS, 0, 0, std::string("\0\4", 2) + wide) +
                 frame(http2::FRAME_WINDOW_UPDATE, 0, 0, more));
    }

    // Begins a call, with so many bytes of its message of eight.
    void call(uint32_t stream, size_t bytes, const std::string &timeout = "") const {
        std::string head = field(":method", "POST") + field(":scheme", "http") + field(":path", "/s/large") +
                           field(":authority", "x") + field("content-type", "application/grpc");
        if (!timeout.empty()) head += field("grpc-timeout", timeout);
        send_all(frame(http2::FRAME_HEADERS, 4, stream, head));
        const std::string message = std::string("\0\0\0\0\3abc", 8);
        if (bytes) send_all(frame(http2::FRAME_DATA, bytes == 8, stream, message.substr(0, bytes)));
    }

    // Takes what the server sends until it would wait.
    void take_all(Calls *calls) {
        while (!over && take(SIZE_MAX)) {
            for (ReceivedFrame found; ReceivedFrame::take(&got, &found);)
                if (found.ends_stream()) ended.insert(found.stream);
            calls->loop.settle();
        }
    }

    // The seconds until the server ends a stream.
    double until_end(Calls *calls, uint32_t stream) {
        const double begin = DrivenLoop::seconds();
        calls->loop.settle();
        while (DrivenLoop::seconds() - begin < LONG) {
            take_all(calls);
            if (ended.count(stream)) break;
            calls->loop.settle_after(STEP);
        }
        return DrivenLoop::seconds() - begin;
    }
};

void try_calls() {
    auto calls = std::make_unique<Calls>();
    for (const size_t bytes : {0, 4}) {
        Http2Peer peer(calls.get());
        peer.call(1, bytes);
        print(bytes ? "half a message" : "no message", peer.until_end(calls.get(), 1));
    }
    for (const size_t bytes : {0, 4}) {
        Http2Peer peer(calls.get());
        peer.call(1, bytes, "1S");
        print(bytes ? "half a message with a timeout of 1 s" : "no message with a timeout of 1 s",
              peer.until_end(calls.get(), 1));
    }
    {  // The socket is full but for a moment now and then, in which the client takes an answer whole.
        Http2Peer peer(calls.get());
        peer.call(1, 4);
        const double begin = DrivenLoop::seconds();
        for (uint32_t stream = 3; !peer.ended.count(1) && DrivenLoop::seconds() - begin < LONG; stream += 2) {
            peer.call(stream, 8);
            calls->loop.settle();
            for (double waited = 0; waited < 4; waited += STEP) calls->loop.settle_after(STEP);
            peer.take_all(calls.get());
        }
        print("half a message beside answers that are taken late", DrivenLoop::seconds() - begin);
    }
    {
        Http2Peer peer(calls.get());
        peer.call(1, 8);
        const double begin = DrivenLoop::seconds();
        calls->loop.settle();
        while (calls->server.connections.count() && DrivenLoop::seconds() - begin < LONG)
            calls->loop.settle_after(STEP);
        print("an answer that is not taken", DrivenLoop::seconds() - begin);
    }
    {
        Http2Peer peer(calls.get());
        const double begin = DrivenLoop::seconds();
        calls->loop.settle();
        while (!peer.over && DrivenLoop::seconds() - begin < LONG) {
            calls->loop.settle_after(STEP);
            peer.take(SIZE_MAX);
        }
        print("no call", DrivenLoop::seconds() - begin);
    }
    calls->server.close_all();
    calls->loop.settle();
}

// ---- HTTP/1.1 -------------------------------------------------------------------------------------

struct Messages {
    EventLoop events{1};
    HttpServer server{&events, config(), serve_requests, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};
    sockaddr_un address{};
    socklen_t address_length = sizeof address;
    int served = 0;
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

    static HttpServerConfig config() {
        HttpServerConfig made;
        made.limits.body = 64u << 20;
        return made;
    }
    static void serve_requests(void *owner) {
        Messages *self = static_cast<Messages *>(owner);
        HttpServer &server = self->server;
        while (Connection *connection = server.routes.next_to_run()) {
            ++self->served;
            if ((connection = server.answers.take_turn(connection->open_turn())))
                server.answers.send_prepared(connection, ANSWER_READY);
        }
    }

    Messages() {
        const std::string length = "content-length: " + std::to_string(LARGE) + "\r\n";
        for (PreparedAnswer &made : server.answers.prepared) made = {200, "200 OK", "content-length: 2\r\n", "ok"};
        server.answers.prepared[ANSWER_LIVE] = {200, "200 OK", length, std::string(LARGE, 'a')};
        server.answers.prepared[ANSWER_READY] = {200, "200 OK", "content-length: " + std::to_string(LEFT) + "\r\n",
                                                 std::string(LEFT, 'r')};
        server.answers.prepared[ANSWER_TOO_SLOW] = {408, "408 Too Slow", "content-length: 0\r\n", ""};
        address.sun_family = AF_UNIX;  // and a name that the kernel chooses
        require(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(sa_family_t)) == 0 &&
                    listen(listener, 64) == 0 &&
                    getsockname(listener, reinterpret_cast<sockaddr *>(&address), &address_length) == 0 &&
                    server.listen_on(&listener, 1),
                "it does not listen");
        server.accept_enabled(true);
        loop.settle();
    }
    ~Messages() { close(listener); }

    // The seconds until the server closes a connection that sends `first`, and at each step does what `go_on` says.
    double until_end(const std::string &first, const std::function<void(Peer &)> &go_on) {
        Peer peer;
        peer.fd = socket(AF_UNIX, SOCK_STREAM, 0);
        require(connect(peer.fd, reinterpret_cast<const sockaddr *>(&address), address_length) == 0, "no connection");
        peer.send_all(first);
        loop.settle();
        const double begin = DrivenLoop::seconds();
        while (server.connections.open() && DrivenLoop::seconds() - begin < LONG) {
            go_on(peer);
            loop.settle_after(STEP);
        }
        const double ended = DrivenLoop::seconds() - begin;
        shutdown(peer.fd, SHUT_RDWR);
        loop.settle();
        require(server.connections.open() == 0 && process_budget().held() == 0, "its place or its bytes are held");
        return ended;
    }
};

void try_messages() {
    auto messages = std::make_unique<Messages>();
    const std::string live = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    const std::string ready = "GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n";
    const std::string infer = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
    const auto nothing = [](Peer &) {};
    const auto taking = [](size_t bytes) { return [bytes](Peer &peer) { peer.take(bytes); }; };
    const auto sending = [](size_t bytes) {
        return [bytes](Peer &peer) {
            peer.take(SIZE_MAX);
            (void)!send(peer.fd, std::string(bytes, 'x').data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        };
    };
    const auto try_one = [&](const char *name, const std::string &first, const std::function<void(Peer &)> &go_on) {
        print(name, messages->until_end(first, go_on));
    };
    try_one("no byte", "", nothing);
    try_one("half a head", "GET / HTTP/1.1\r\nX-Long: ", nothing);
    try_one("a head byte by byte", "GET / HTTP/1.1\r\nX-Long: ", sending(1));
    try_one("a body that stops", infer + "x", sending(0));
    try_one("a body byte by byte", infer + "x", sending(1));
    try_one("a body at half of the rate", infer, sending(200));
    try_one("an answer over HTTP/1.1 that is not taken", live, nothing);
    try_one("an answer at half of the rate", live, taking(700));
    try_one("an answer at the rate", live, taking(1700));
    double until_second = LONG;
    const double begin = DrivenLoop::seconds();
    const std::string small = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx";
    messages->until_end(small + small, [&](Peer &) {
        if (messages->served == 2) until_second = std::min(until_second, DrivenLoop::seconds() - begin);
    });
    print("a request after an answer that is not taken", until_second);
    try_one("a connection that is kept open", ready, taking(SIZE_MAX));
    bool drains = false;
    try_one("a connection whose owner sets its timer as the server drains", ready, [&](Peer &peer) {
        peer.take(SIZE_MAX);
        if (std::exchange(drains, true)) return;
        messages->server.drain();
        messages->server.connections.timers.set(0, Timers::NONE);  // by an owner that has looked before that
    });
}

}  // namespace

int main() {
    process_budget().set_bound(64u << 20);
    try_messages();
    if (http2::library()) {
        try_calls();
    } else {
        std::printf("libnghttp2 is missing\n");
    }
    return 0;
}
