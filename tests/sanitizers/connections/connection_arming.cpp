// Connections armed, muted and armed again by several threads: no message may be lost.
//
// Clients pipeline, send in pieces, close their side or reset the connection, while a separate thread answers
// after the next bytes have arrived. Every client that reads gets all its answers. Prints "0 lost" and exits 0.

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/server.hpp"
#include "../../support/native/sockets.hpp"

using namespace ksrv;

namespace {

constexpr int CLIENTS = 8;

HttpServer *server;
std::mutex mutex;
std::condition_variable changed;
std::deque<Turn> turns;
bool over = false;
std::atomic<int> lost{0};

void serve(void *) {
    while (Connection *connection = server->routes.next_to_run()) {
        std::lock_guard<std::mutex> guard(mutex);
        turns.push_back(connection->open_turn());
        changed.notify_one();
    }
}

void answer_turns() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        while (turns.empty() && !over) changed.wait(lock);
        if (turns.empty()) return;
        const Turn turn = turns.front();
        turns.pop_front();
        lock.unlock();
        if (turn.number % 3 == 0) usleep(200);
        if (Connection *connection = server->answers.take_turn(turn)) server->answers.send_prepared(connection, ANSWER_LIVE);
        lock.lock();
    }
}

int answers_in(const std::string &text) {
    int count = 0;
    for (std::size_t at = 0; (at = text.find("HTTP/1.1 200", at)) != std::string::npos; ++at) ++count;
    return count;
}

// Reads until so many answers have come or the server closes; false where fewer came.
bool reads(int fd, int wanted) {
    std::string text;
    char room[4096];
    while (answers_in(text) < wanted || text.compare(text.size() - 2, 2, "ok") != 0) {
        const ssize_t got = recv(fd, room, sizeof room, 0);
        if (got <= 0) return false;
        text.append(room, static_cast<std::size_t>(got));
    }
    return true;
}

void run_client(const Loopback &listener, int number, int rounds) {
    const std::string one = "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd";
    const std::string live = "GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int round = 0; round < rounds; ++round) {
        const int fd = listener.connected();
        const int kind = (round + number) % 5;
        std::string sent = one;
        int wanted = 1;
        if (kind >= 1) sent += one + live, wanted = 3;  // pipelined
        for (std::size_t at = 0; at < sent.size();) {
            const std::size_t piece = kind == 2 ? 40 : sent.size();
            const std::size_t left = sent.size() - at;
            const ssize_t put = send(fd, sent.data() + at, piece < left ? piece : left, MSG_NOSIGNAL);
            require(put > 0, "the server took no more");
            at += static_cast<std::size_t>(put);
        }
        if (kind == 3) shutdown(fd, SHUT_WR);
        if (kind == 4) {  // the answers meet a reset
            const linger at_once{1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        } else {
            if (!reads(fd, wanted)) ++lost;
            if (kind == 0) {  // the same connection, armed as before
                require(send(fd, one.data(), one.size(), MSG_NOSIGNAL) > 0, "the server took no more");
                if (!reads(fd, 1)) ++lost;
            }
        }
        close(fd);
    }
}

}  // namespace

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 50;
    process_budget().set_bound(1 << 20);
    HttpServerConfig config;
    config.connections = 64;
    config.limits.body = 1024;
    EventLoop events(2);
    HttpServer made(&events, config, serve, nullptr);
    server = &made;
    for (PreparedAnswer &answer : made.answers.prepared)
        answer = {200, "200 OK", "content-length: 2\r\n", "ok"};
    const Loopback listener;
    require(made.listen_on(&listener.fd, 1), "it does not listen");
    std::vector<std::thread> threads, clients;
    for (int i = 0; i < events.threads(); ++i) threads.emplace_back([&events, i] { events.run(i); });
    threads.emplace_back(answer_turns);
    made.accept_enabled(true);
    for (int i = 0; i < CLIENTS; ++i)
        clients.emplace_back([&, i] { run_client(listener, i, rounds); });
    for (std::thread &client : clients) client.join();
    {
        std::lock_guard<std::mutex> guard(mutex);
        over = true;
        changed.notify_all();
    }
    made.stop();
    events.stop();
    for (std::thread &thread : threads) thread.join();
    require(made.counts.counted(ServerCounter::stray) == 0, "a message was answered twice");
    std::printf("%d lost\n", lost.load());
    return lost.load() != 0;
}
