// The owners that the HTTP server is made of, each alone: time limits, log records, waits of streams, the watch of clients, the end
// of a connection. Prints what is wrong and exits 1.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "server/deadline.hpp"
#include "queue/request_queue.hpp"
#include "reactor/event_loop.hpp"
#include "server/answer_sender.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/no_places.hpp"

using namespace ksrv;

namespace {

constexpr uint64_t SECOND = 1000000000u;

void check_deadlines() {
    ConnectionLimits limits;
    limits.head_ns = 3 * SECOND;
    limits.grace_ns = 2 * SECOND;
    limits.idle_ns = 9 * SECOND;
    limits.rate = 1000;
    limits.transfer_s = 10;
    check(limits.least_rate(0) == 1000 && limits.least_rate(50000) == 5000, "large bodies must come in the time of a transfer");
    check(limits.keeps_up(2000, 2 * SECOND, 0) && !limits.keeps_up(1999, 2 * SECOND, 0), "a reader keeps the least rate");

    Connection connection;
    const uint64_t now = 100 * SECOND;
    connection.phase = Phase::idle;
    check(deadline(connection, limits, now, false) == now + 3 * SECOND, "the first head has another limit");
    connection.saw_bytes = true;
    check(deadline(connection, limits, now, false) == now + 9 * SECOND, "an idle connection may rest");
    check(deadline(connection, limits, now, true) == now + STOP_IDLE_NS, "while draining only shortly");
    connection.ends_ns = now + 4 * SECOND;
    check(deadline(connection, limits, now, false) == now + 4 * SECOND, "and not beyond its age");
    connection.ends_ns = now - SECOND;
    check(deadline(connection, limits, now, false) == now + STOP_IDLE_NS, "a busy connection is ended by an answer");
    connection.tls.unread = true;
    check(deadline(connection, limits, now, false) == now + UNSEEN_NS, "bytes without an event are read soon");
    connection.phase = Phase::send;
    connection.stage_ns = now;
    check(deadline(connection, limits, now, false) == now + 2 * SECOND, "but not before the answer has gone");
    connection.tls.unread = false;
    connection.phase = Phase::body;
    connection.head.content_length = 5000;
    connection.body.got = 3000;
    check(deadline(connection, limits, now, false) == now + 5 * SECOND, "each byte of a body buys time");
    connection.body.prereserved = true;
    check(deadline(connection, limits, now, false) == now + PRERESERVED_NS, "one that is counted ahead must be quick");
}

void check_log_records() {
    LogRecords<int> records{3 * sizeof(int) + 10};
    check(records.keep(1, 5) && records.keep(2, 5) && records.keep(3, 0) && !records.keep(4, 0), "records are bounded in bytes");
    std::vector<int> taken{9};
    records.take(&taken);
    check(taken == std::vector<int>({1, 2, 3}) && records.keep(5, 0), "taking them makes room");
}

void check_stream_waits() {
    StreamWaits waits;
    Connection connection;
    const auto wait = [&](auto &&meanwhile) {
        connection.stream = StreamState::waiting;
        StreamWaits::Outcome outcome = StreamWaits::Outcome::stopped;
        std::thread waiter([&, turn = connection.turn.load()] { outcome = waits.wait(&connection, turn); });
        meanwhile();
        waiter.join();
        return outcome;
    };
    check(wait([&] { waits.resume(&connection); }) == StreamWaits::Outcome::taken, "a piece that was taken ends the wait");
    check(connection.stream == StreamState::none, "and the connection waits no more");
    check(wait([&] { waits.end(&connection); }) == StreamWaits::Outcome::gone, "so does the end of the connection");
    const uint64_t turn = connection.turn;
    waits.end(&connection);
    check(connection.turn == turn, "a connection without a stream is not touched");
    check(wait([&] { waits.stop(); }) == StreamWaits::Outcome::stopped, "so does the server's end");
}

// A request as the queue has one, counted.
struct Waiting : Request {
    static void freed_here(Request *) noexcept { ++freed_count; }
    static inline int freed_count = 0;
    Waiting() { freed = freed_here; }
};

void check_disconnect_watch() {
    DisconnectWatch watch;
    Connections table(2);
    Connection *connection = table.take();
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there are sockets");
    connection->fd = ends[0];
    Waiting request;
    watch.watch(connection, &request);
    watch.look_at_all(&table);
    check(connection->waiting.load() == &request, "a client that is there keeps its request");
    close(ends[1]);
    watch.look_at_all(&table);
    check(connection->waiting.load() == &request, "what no queue has accepted is left alone");
    watch.unwatch(connection);
    watch.unwatch(connection);
    check(connection->waiting.load() == nullptr && Waiting::freed_count == 0, "the watch gives its reference back, once");
    release(&request);
    check(Waiting::freed_count == 1, "and holds no other");
    close_transport(connection);
}

void check_connections() {
    EventLoop loop(1);
    NoPlaces owner;
    Listeners listeners(&owner);
    HttpServerConfig config;
    config.connections = 4;
    config.log = true;
    ServerCounters counts;
    HttpConnections connections(&loop, &listeners, &config, &counts);
    AnswerSender answers(&connections, &config, &counts);

    connections.give_back_place(connections.take());
    check(connections.open() == 0, "an unused place is given back");

    Connection *connection = connections.take();
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "there are sockets");
    const uint64_t tag = uint64_t{connection->generation.load()} << 32 | connection->slot;
    connection->begin(ends[0], 0, tag, unsigned_now_ns());
    connection->reserve(HEAD_BUFFER);
    check(connections.of(tag) == connection, "an event finds its connection");
    connection->phase = Phase::run;
    const Turn turn = connection->begin_turn();
    // Longer than ANSWER_HEAD with its body, so that the head is in separate memory.
    answers.prepared[ANSWER_FAILED] = {500, "500 Failed", "server-timing: a;dur=1\r\ncontent-length: 900\r\n",
                                       std::string(900, 'x')};
    answers.fail(turn);
    std::vector<AccessRecord> records;
    answers.log.take(&records);
    check(records.size() == 1 && records[0].timing == "a;dur=1", "the access log has an answer's Server-Timing");
    char text[512];
    const ssize_t length = recv(ends[1], text, sizeof text, 0);
    check(length > 0 && std::string(text, static_cast<size_t>(length)).find("500 Failed") != std::string::npos, "it is answered");
    check(counts.errors(500) == 1, "and counted by its status");
    answers.fail(turn);
    check(counts.counted(ServerCounter::stray) == 1, "a message is answered once");

    connections.drain();
    connections.sweep(unsigned_now_ns(), [](Connection *) {});
    check(connections.timers.at(connection->slot) <= unsigned_now_ns() + STOP_IDLE_NS, "a drain ends idle connections soon");
    check(connection->claim_for_sweep(), "it was armed");
    connection->phase = Phase::run;
    check(answers.put(connection, 200, "200 OK", 6, "", 0, nullptr, 0) && connection->close_after, "answers close while draining");
    connections.drop(connection);
    check(connections.of(tag) == nullptr, "an event of a connection that is gone finds none");
    connections.drop(connection);
    check(connections.open() == 0 && counts.counted(ServerCounter::stray) == 2, "a place is given back once");

    Connection *left = connections.take();
    left->begin(-1, 0, 0, unsigned_now_ns());
    left->phase = Phase::send;
    check(answers.reserve(left, 100), "there is room for an answer");
    Owners owners;
    left->out.owners = &owners;
    connections.drop(left);
    check(process_budget().held() == 100, "an answer is in the budget as long as its Python objects are there");
    check(connections.decrefs.take() == &owners, "which wait for a thread in Python");
    owners.give_back();
    check(process_budget().held() == 0, "and no longer");
    close(ends[1]);
}

}  // namespace

int main() {
    check_deadlines();
    check_log_records();
    check_stream_waits();
    check_disconnect_watch();
    check_connections();
    std::printf("0 faults\n");
    return 0;
}
