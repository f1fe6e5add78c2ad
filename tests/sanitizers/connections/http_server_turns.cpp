// Tries forbidden calls: a message is answered twice, an answer arrives when its connection serves another client, a
// connection is given back twice. Each must be counted, nothing sent, and no place given to two clients. Exits 1 otherwise.

#include <cstdio>
#include <thread>

#include "server/server.hpp"
#include "../../support/native/checks.hpp"

using namespace ksrv;

namespace {

struct Client {
    int ends[2];
    Connection *connection;

    explicit Client(HttpServer &server) : connection(server.connections.take()) {
        check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "there are sockets");
        connection->fd = ends[0];
        connection->reserve(HEAD_BUFFER);
        connection->phase.store(Phase::run);
    }
    ~Client() { close(ends[1]); }

    bool got(const char *what) const {
        char text[4096];
        const ssize_t length = recv(ends[1], text, sizeof text, 0);
        return std::string(text, length > 0 ? static_cast<size_t>(length) : 0).find(what) !=
               std::string::npos;
    }
    bool got_nothing() const {
        char byte;
        return recv(ends[1], &byte, 1, 0) < 0 && errno == EAGAIN;
    }
};

}  // namespace

int main() {
    HttpServerConfig config;
    EventLoop events(1);
    HttpServer server(&events, config, [](void *) {}, nullptr);
    server.answers.prepared[ANSWER_FAILED] = {500, "500 Failed", "content-length: 0\r\n", ""};
    const auto strays = [&server] { return server.counts.counted(ServerCounter::stray); };

    // One answer to one message.
    Client one(server);
    const Turn first = one.connection->begin_turn();
    check(one.connection->open_turn().number == first.number, "an open turn can be looked up");
    server.answers.fail(first);
    check(one.got("500 Failed"), "the first answer is sent");
    server.answers.fail(first);
    check(one.got_nothing() && strays() == 1, "a second answer is not sent");
    check(server.answers.take_turn(Turn{}) == nullptr && strays() == 2, "no turn is nobody's");

    // The turn of a message does not answer the client's next message.
    one.connection->claim.store(OWNED);
    one.connection->phase.store(Phase::run);
    const Turn second = one.connection->begin_turn();
    server.answers.fail(first);
    check(one.got_nothing() && strays() == 3, "an answer does not go to another message");

    // Nor is another client who has got the place.
    check(server.answers.take_turn(second) == one.connection, "an open turn is taken");
    server.connections.drop(one.connection);
    Client other(server);
    check(other.connection == one.connection, "places are used again");
    other.connection->begin_turn();
    server.answers.fail(first);
    server.answers.fail(second);
    check(other.got_nothing() && strays() == 5, "an answer does not go to another client");

    // A place that is given back twice is still one place.
    server.connections.drop(other.connection);
    server.connections.drop(other.connection);
    check(strays() == 6 && server.connections.open() == 0, "a connection is dropped once");
    Client third(server), fourth(server);
    check(third.connection != fourth.connection, "two clients have two places");

    // Of many that answer at once one does.
    for (int round = 0; round < 2000; ++round) {
        const Turn turn = third.connection->begin_turn();
        std::atomic<int> took{0};
        std::thread threads[3];
        for (std::thread &thread : threads)
            thread = std::thread([&] { took.fetch_add(server.answers.take_turn(turn) != nullptr); });
        for (std::thread &thread : threads) thread.join();
        check(took.load() == 1, "one of several takes a turn");
    }
    std::printf("%lu strays\n", static_cast<unsigned long>(strays()));
    return strays() == 6 + 2 * 2000 ? 0 : 1;
}
