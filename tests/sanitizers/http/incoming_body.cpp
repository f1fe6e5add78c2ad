// native/http/incoming_body.hpp alone: its results, the bytes that it counts in the budget, and that it gives all back.
// Prints what is wrong and exits 1.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "http/incoming_body.hpp"
#include "http/receive_buffer.hpp"
#include "http/transport.hpp"
#include "memory/memory_budget.hpp"
#include "../../support/native/checks.hpp"

using namespace ksrv;

namespace {

constexpr uint64_t BOUND = 1u << 20;

// A message whose head is in the buffer, followed by `early` bytes of its body.
struct Message {
    Transport transport;
    ReceiveBuffer buffer;
    Head head;
    HeadLimits limits;
    IncomingBody body;
    int peer = -1;
    size_t used = 0;

    explicit Message(const std::string &early) {
        int ends[2];
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "there are sockets");
        transport.fd = ends[0];
        peer = ends[1];
        head.length = 4;
        limits.body = BOUND;
        check(buffer.reserve(HEAD_BUFFER), "there is memory");
        const std::string text = "head" + early;
        memcpy(buffer.buffer, text.data(), text.size());
        buffer.filled = text.size();
    }
    ~Message() {
        body.release();
        close_transport(&transport);
        close(peer);
    }

    BodyProgress begin() { return body.begin(&transport, buffer, head, limits, &used); }
    BodyProgress receive() { return body.receive(&transport, &buffer, &head); }
    void send(const std::string &text) const {
        check(write(peer, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "the socket has room");
    }
    bool ended(BodyState how) { return receive() == BodyProgress::ended && body.state == how; }
    std::string text() { return {reinterpret_cast<const char *>(body.data()), body.got}; }
};

void check_announced() {
    Message whole("abc");
    whole.head.content_length = 10;
    check(whole.begin() == BodyProgress::comes && whole.used == 7, "what came with the head is taken from the buffer");
    check(whole.receive() == BodyProgress::comes && whole.body.got == 3, "an empty socket is waited for");
    whole.send("defghijNEXT");
    check(whole.ended(BodyState::whole) && whole.text() == "abcdefghij", "a body ends with its length");
    char next[8];
    check(recv(whole.transport.fd, next, sizeof next, 0) == 4, "the next message stays in the socket");

    Message cut("abc");
    cut.head.content_length = 10;
    check(cut.begin() == BodyProgress::comes, "it begins");
    shutdown(cut.peer, SHUT_WR);
    check(cut.ended(BodyState::cut_short) && cut.body.got == 3, "the peer's end cuts a body short");

    Message broken("");
    broken.head.content_length = 10;
    check(broken.begin() == BodyProgress::comes, "it begins");
    close_transport(&broken.transport);
    check(broken.receive() == BodyProgress::broken, "a read that fails breaks the connection");
}

// No byte beyond what is counted is received.
void check_budget() {
    Message message("");
    message.head.content_length = 200000;
    process_budget().take(BOUND);
    check(message.begin() == BodyProgress::no_room && !message.body.block, "without room nothing is held");
    process_budget().give_back(BOUND);
    check(message.begin() == BodyProgress::comes && message.body.counted < 200000, "a body is counted in steps");
    const uint64_t rest = BOUND - message.body.counted;
    process_budget().take(rest);
    message.send(std::string(100000, 'x'));
    check(message.receive() == BodyProgress::no_room && message.body.got == message.body.counted, "no byte is taken uncounted");
    process_budget().give_back(rest);
    check(message.body.count(message.head, 0) && message.receive() == BodyProgress::comes, "it continues once there is room");
    check(message.body.got == 100000 && message.transport.low_water > 1, "a long rest is waited for in large pieces");
    message.body.uncount_missing();
    check(message.body.counted == 100000 && process_budget().held() == 100000, "what is missing is not counted");
    message.body.slow = true;
    check(message.receive() == BodyProgress::comes && message.transport.low_water == 1, "a slow peer is read byte by byte");
    check(message.body.take_counted() >= 100000 && message.body.counted == 0, "the bytes are the caller's");
    process_budget().give_back(process_budget().held());
}

void check_chunks() {
    const std::string wire = "5\r\nhello\r\n6; x=y\r\n world\r\n0\r\nt: v\r\n\r\n";
    Message split("");
    split.head.chunked = true;
    split.body.most = 100;
    check(split.begin() == BodyProgress::comes, "it begins");
    for (size_t at = 0; at + 1 < wire.size(); ++at) {
        split.send(wire.substr(at, 1));
        check(split.receive() == BodyProgress::comes, "chunks may come byte by byte");
    }
    split.send(wire.substr(wire.size() - 1) + "NEXT");
    check(split.ended(BodyState::whole) && split.text() == "hello world", "chunks are one body");
    check(split.head.content_length == 11 && split.body.counted == 11, "its length is known at its end, and counted");
    check(split.buffer.filled == 8 && memcmp(split.buffer.buffer + 4, "NEXT", 4) == 0, "what follows stays behind the head");

    Message large("");
    large.head.chunked = true;
    large.body.most = 200000;
    check(large.begin() == BodyProgress::comes, "it begins");
    large.send("186a0\r\n");
    for (int sent = 0; sent < 100000; sent += 20000) {
        large.send(std::string(20000, static_cast<char>('a' + sent / 20000)));
        check(large.receive() == BodyProgress::comes, "a long chunk arrives in pieces");
    }
    large.send("\r\n0\r\n\r\n");
    check(large.ended(BodyState::whole) && large.body.got == 100000 && large.text()[99999] == 'e', "a block grows with its body");

    Message beyond("6\r\n");
    beyond.head.chunked = true;
    beyond.body.most = 5;
    check(beyond.begin() == BodyProgress::comes && beyond.ended(BodyState::too_long), "more than the limit is reported");

    Message malformed("five\r\n");
    malformed.head.chunked = true;
    malformed.body.most = 5;
    check(malformed.begin() == BodyProgress::comes && malformed.ended(BodyState::malformed), "a malformed chunk is reported");

    Message cut("5\r\nhe");
    cut.head.chunked = true;
    cut.body.most = 5;
    check(cut.begin() == BodyProgress::comes, "it begins");
    shutdown(cut.peer, SHUT_WR);
    check(cut.ended(BodyState::cut_short), "the peer's end cuts chunks short");
}

}  // namespace

int main() {
    process_budget().set_bound(BOUND);
    for (const auto scene : {check_announced, check_budget, check_chunks}) {
        scene();
        check(process_budget().held() == 0, "all of a body's bytes are given back");
    }
    std::printf("0 faults\n");
    return 0;
}
