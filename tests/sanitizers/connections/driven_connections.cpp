// Connections of HTTP/1.1 and gRPC by a clock that stands until the program moves it: when clients are disconnected, what a
// connection takes for a peer that reads nothing, and what happens if memory is missing.
//
// Prints a line for each case, with its name and a number: seconds, bytes or calls.

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "server/server.hpp"
#include "../../support/native/sockets.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"
#include "../../support/native/http2_frames.hpp"

namespace {

constexpr size_t LOST_FIELD = 100;  // bytes of a field for which no memory is found
std::atomic<bool> lacks_memory{false};

}  // namespace

// In place of the C++ library's.
void *operator new(size_t size) {
    void *made = lacks_memory.load() && size == LOST_FIELD + 1 ? nullptr : std::malloc(size ? size : 1);
    if (!made) throw std::bad_alloc();
    return made;
}
void *operator new(size_t size, const std::nothrow_t &) noexcept { return std::malloc(size ? size : 1); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, size_t) noexcept { std::free(memory); }

using namespace ksrv;

namespace {

constexpr double STEP = 0.1, LONG = 90;  // seconds
constexpr size_t LARGE = 4u << 20;       // bytes of an answer that no socket takes at once
constexpr size_t LEFT = 70000;           // and of one that it takes, and is not writable until the client has taken it
constexpr size_t SMALL = 4000;           // bytes of an answer, which are copied
constexpr uint32_t SMALL_CALLS = 100;    // on one connection
constexpr int ACKNOWLEDGES = 1, ENDS_STREAM = 1, ENDS_HEADERS = 4;

void print(const char *name, uint64_t number) { std::printf("%s: %llu\n", name, static_cast<unsigned long long>(number)); }

void print_seconds(const char *name, double seconds) {
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

// ---- gRPC -----------------------------------------------------------------------------------------

// A server of two methods: /s/large answers with bytes that stay where they are, /s/small with a copy. With `cancels`, it
// cancels each call instead.
struct Calls {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};
    const std::string answer = std::string(LARGE, 'a');
    bool cancels = false;
    size_t served = 0;

    Calls() {
        for (const char *path : {"/s/large", "/s/small"})
            server.add_method({path, false, false, nullptr, nullptr, true, false});
        require(server.listen_on(nullptr, 0), "it does not listen");
    }
    ~Calls() {
        server.close_all();
        loop.settle_after(STEP);
        require(process_budget().held() == 0, "bytes are held");
    }

    static void serve_calls(void *owner) {
        Calls *self = static_cast<Calls *>(owner);
        int reasons = 0;
        while (grpc::Call *call = self->server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                grpc::free_message(&message, self->server.budget);
                self->cancels ? call->cancel() : self->finish(call);
                ++self->served;
            }
            call->release();
        }
    }

    void finish(grpc::Call *call) {
        const bool is_small = call->method->path == "/s/small";
        grpc::Payload *payload = grpc::Payload::make(&server, 1, is_small ? SMALL : 0);
        if (is_small) {
            std::fill_n(payload->bytes(), SMALL, 'a');
            payload->add(payload->bytes(), SMALL);
        } else {
            payload->add(answer.data(), answer.size());
        }
        payload->close();
        std::string words;
        grpc::Metadata none;
        call->finish(grpc::OK, words, none, payload);
    }
};

// With windows as wide as they can be.
struct Http2Peer : Peer {
    Calls *const calls;
    std::set<uint32_t> ended;  // streams
    std::string last_head;     // the payload of the last HEADERS that ended a stream

    explicit Http2Peer(Calls *calls, int send_buffer = 0) : calls(calls) {
        fd = connect_to(&calls->server, send_buffer);
        const std::string wide("\x7f\xff\xff\xff", 4), more("\x3f\xff\xff\xff", 4);
        send_all(HTTP2_PREFACE + frame(http2::FRAME_SETTINGS, 0, 0, std::string("\0\4", 2) + wide) +
                 frame(http2::FRAME_WINDOW_UPDATE, 0, 0, more));
    }

    void head(uint32_t stream, const std::string &fields = "", const char *path = "/s/large") const {
        send_all(frame(http2::FRAME_HEADERS, ENDS_HEADERS, stream, call_fields(path) + fields));
    }

    // Begins a call, with so many bytes of its message of eight.
    void call(uint32_t stream, size_t bytes = 8, const std::string &fields = "", const char *path = "/s/large") const {
        head(stream, fields, path);
        const std::string message = std::string("\0\0\0\0\3abc", 8);
        if (bytes) send_all(frame(http2::FRAME_DATA, bytes == 8, stream, message.substr(0, bytes)));
    }

    // Takes what the server sends until it would wait.
    size_t take_all() {
        size_t taken = 0;
        for (size_t more; !over && (more = take(SIZE_MAX)); taken += more) {
            for (ReceivedFrame found; ReceivedFrame::take(&got, &found);) {
                if (!found.ends_stream()) continue;
                ended.insert(found.stream);
                if (found.type == http2::FRAME_HEADERS) last_head = found.payload;
            }
            calls->loop.settle();
        }
        return taken;
    }

    // The seconds until a condition is true, while the peer takes what the server sends.
    double until(const std::function<bool()> &holds, bool takes = true) {
        const double begin = DrivenLoop::seconds();
        calls->loop.settle();
        while (DrivenLoop::seconds() - begin < LONG) {
            if (takes) take_all();
            if (holds()) break;
            calls->loop.settle_after(STEP);
        }
        return DrivenLoop::seconds() - begin;
    }
    double until_end(uint32_t stream) {
        return until([this, stream] { return ended.count(stream) > 0; });
    }
};

void try_deadlines_of_calls() {
    Calls calls;
    for (const size_t bytes : {0, 4}) {
        Http2Peer peer(&calls);
        peer.call(1, bytes);
        print_seconds(bytes ? "half a message" : "no message", peer.until_end(1));
    }
    for (const size_t bytes : {0, 4}) {
        Http2Peer peer(&calls);
        peer.call(1, bytes, field("grpc-timeout", "1S"));
        print_seconds(bytes ? "half a message with a timeout of 1 s" : "no message with a timeout of 1 s", peer.until_end(1));
    }
    {  // The socket is full but for a moment now and then, in which the client takes an answer whole.
        Http2Peer peer(&calls);
        peer.call(1, 4);
        const double begin = DrivenLoop::seconds();
        for (uint32_t stream = 3; !peer.ended.count(1) && DrivenLoop::seconds() - begin < LONG; stream += 2) {
            peer.call(stream);
            calls.loop.settle();
            for (double waited = 0; waited < 4; waited += STEP) calls.loop.settle_after(STEP);
            peer.take_all();
        }
        print_seconds("half a message beside answers that are taken late", DrivenLoop::seconds() - begin);
    }
    {
        Http2Peer peer(&calls);
        peer.call(1);
        print_seconds("an answer that is not taken", peer.until([&] { return calls.server.connections.count() == 0; }, false));
    }
    Http2Peer peer(&calls);
    print_seconds("no call", peer.until([&peer] { return peer.over; }));
}

// Small answers, on a connection whose peer takes nothing until all calls are made.
void try_unread_answers() {
    Calls calls;
    Http2Peer peer(&calls, 1);
    for (uint32_t stream = 1; stream < 2 * SMALL_CALLS; stream += 2) {
        peer.call(stream, 8, "", "/s/small");
        calls.loop.settle();
    }
    print("held for answers that are not taken", process_budget().held());
    print("taken at last", peer.take_all());
    print("held afterwards", process_budget().held());
}

int submit_no_reset(http2::NgSession *, uint8_t, int32_t, uint32_t) { return http2::RESULT_NO_MEMORY; }

// A frame for which libnghttp2 has no memory is not made again, so that its stream would stay open for ever: the connection
// ends, and its client learns of it.
void try_frame_without_memory() {
    const auto submit_reset = std::exchange(http2::nghttp2.submit_rst_stream, submit_no_reset);
    Calls calls;
    calls.cancels = true;
    Http2Peer peer(&calls);
    peer.call(1);
    calls.loop.settle();
    print("open connections after a frame without memory", calls.server.connections.count());
    peer.take(SIZE_MAX);
    require(peer.over, "the client does not see the end");
    http2::nghttp2.submit_rst_stream = submit_reset;
}

// A DATA frame that libnghttp2 passes over, because its stream has sent more than its content-length: later bytes are not
// read into the memory of the stream's message, which is freed with the stream. The client does not read an answer, so that
// the server's RST_STREAM waits and the client's arrives first.
void try_ignored_data() {
    Calls calls;
    Http2Peer peer(&calls);
    const auto send_all = [&](const std::string &bytes) {
        peer.send_all(bytes);
        calls.loop.settle();
    };
    send_all(frame(http2::FRAME_SETTINGS, ACKNOWLEDGES, 0, ""));
    peer.call(1, 8, field("content-length", "8"));
    calls.loop.settle();
    require(calls.served == 1, "the first call is not served");
    peer.head(3, field("content-length", "30000"));
    send_all(frame(http2::FRAME_DATA, 0, 3, std::string("\0\0\1\x86\xa0", 5) + std::string(20000, 'm')));  // of 100,000 bytes
    send_all(frame(http2::FRAME_DATA, 0, 3, std::string(40000, 'm')));
    peer.send_all(frame(http2::FRAME_RST_STREAM, 0, 3, std::string("\0\0\0\x08", 4)));
    peer.call(5, 8, field("content-length", "8"));
    calls.loop.settle();
    print("calls served around ignored data", calls.served);
}

// A head whose fields find no memory is refused as what may be sent again, not as too large.
void try_lost_head() {
    Calls calls;
    Http2Peer peer(&calls);
    peer.call(1, 0, field("authorization", std::string(LOST_FIELD, 'a')));
    lacks_memory.store(true);
    calls.loop.settle();
    lacks_memory.store(false);
    peer.take_all();
    print("bytes of the answer to a head without memory", peer.last_head.size());
    print("heads without memory that count as too large", calls.server.counters.counted(ServerCounter::too_large));
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
        print_seconds(name, messages->until_end(first, go_on));
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
    print_seconds("a request after an answer that is not taken", until_second);
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
    process_pool().cap_bytes.store(0);  // memory that is given back is freed, so that the sanitizer sees every access
    process_budget().set_bound(64u << 20);
    try_messages();
    if (!http2::library()) {
        std::printf("libnghttp2 is missing: 1\n");
        return 0;
    }
    try_deadlines_of_calls();
    try_unread_answers();
    try_frame_without_memory();
    try_ignored_data();
    try_lost_head();
    return 0;
}
