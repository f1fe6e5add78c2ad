// libFuzzer harness of a connection of HTTP/1.1 from its first byte to its end, by a clock that the input moves.
//
// The input is steps: bytes are sent in its cuts, the client takes what there is or leaves it, time passes, the app
// answers, asks for a body or drops a message, the server drains or stops accepting, and the client leaves. In any case,
// the clients get answers one after the other, no message is answered twice, and connections, descriptors and
// all memory of the budget are given back in the end.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "memory/buffer_pool.hpp"
#include "memory/memory_budget.hpp"
#include "server/server.hpp"
#include "../support/native/driven_loop.hpp"
#include "require.hpp"

namespace {

using namespace ksrv;

constexpr size_t LARGE = 1u << 20;  // bytes of an answer that no socket takes at once
constexpr size_t CLIENTS = 3;
constexpr int PATIENCE = 20000;  // times 500 us
constexpr std::uint64_t MOST_BODY = 1u << 17;

struct Worker {
    EventLoop events{1};
    HttpServer server{&events, config(), serve_requests, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};
    const std::string body = std::string(LARGE, 'a');
    sockaddr_un address{};
    socklen_t address_length = sizeof address;
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    std::vector<Turn> held;  // requests of models, which the loop takes while the program waits for it
    std::mutex mutex;
    std::vector<Connection *> asked;  // messages for the app
    uint64_t taken = 0;               // messages for the app since the program began
    uint64_t answers = 0;

    static HttpServerConfig config() {
        HttpServerConfig made;
        made.connections = 4;
        made.limits.body = 1 << 17;
        made.limits.head = 32768;
        return made;
    }
    static void serve_requests(void *owner) {
        Worker *self = static_cast<Worker *>(owner);
        while (Connection *connection = self->server.routes.next_to_run()) self->held.push_back(connection->open_turn());
    }

    Worker() {
        process_budget().set_bound(1u << 18);
        process_pool().cap_bytes.store(0);  // so that the address sanitizer sees each block's end
        for (PreparedAnswer &made : server.answers.prepared) made = {200, "200 OK", "content-length: 2\r\n", "ok"};
        const std::string length = "content-length: " + std::to_string(LARGE) + "\r\n";
        server.answers.prepared[ANSWER_LIVE] = {200, "200 OK", length, body};
        server.answers.ready.store(true);
        address.sun_family = AF_UNIX;  // and a name that the kernel chooses
        require(bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof(sa_family_t)) == 0 &&
                listen(listener, 64) == 0 &&
                getsockname(listener, reinterpret_cast<sockaddr *>(&address), &address_length) == 0 &&
                server.listen_on(&listener, 1));
        server.accept_enabled(true);
        for (const AppQueueKind kind : {AppQueueKind::metadata, AppQueueKind::others})
            std::thread([this, kind] {
                while (Connection *connection = server.next_app_message(kind)) {
                    std::lock_guard<std::mutex> guard(mutex);
                    asked.push_back(connection);
                    ++taken;
                }
            }).detach();
        loop.settle();
    }

    // Until every message for the app has been taken by its thread.
    void gather() {
        for (int turns = 0; turns < PATIENCE; ++turns) {
            {
                std::lock_guard<std::mutex> guard(mutex);
                if (taken == server.counts.counted(ServerCounter::app)) return;
            }
            usleep(turns < 50 ? 10 : 500);
        }
        require(false);
    }

    void settle(double seconds) {
        loop.settle_after(seconds);
        gather();
    }

    Connection *take_asked(size_t which) {
        std::lock_guard<std::mutex> guard(mutex);
        if (asked.empty()) return nullptr;
        which %= asked.size();
        Connection *found = asked[which];
        asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(which));
        return found;
    }

    // The app acts on one of its messages; false if it has none.
    bool act(unsigned char how) {
        Connection *connection = take_asked(how >> 3);
        if (!connection) return false;
        // The app refuses what its head says is too long, before it asks for the body.
        const bool fits = connection->head.chunked || connection->head.content_length <= MOST_BODY;
        if ((how & 7) == 0 && fits && connection->body.state == BodyState::unread && !connection->body.asked) {
            server.receive_for_app(connection, MOST_BODY);
        } else if (!(connection = server.answers.take_turn(connection->open_turn()))) {
            require(false);
        } else if ((how & 7) == 1) {
            server.connections.drop(connection);
        } else {
            const size_t length = how & 4 ? LARGE : 5;
            const std::string fields =
                "x-number: " + std::to_string(++answers) + "\r\ncontent-length: " + std::to_string(length) + "\r\n";
            if (server.answers.put(connection, 200, "200 OK", 6, fields.data(), fields.size(), body.data(), length)) {
                server.answers.send(connection, nullptr);
            } else {
                server.connections.drop(connection);
            }
        }
        gather();
        return true;
    }

    // Lets time pass, and answers all that waits for an answer then.
    void finish(double seconds) {
        settle(seconds);
        while (act(2) || answer_held(0)) settle(0);
    }

    bool answer_held(size_t which) {
        if (held.empty()) return false;
        which %= held.size();
        const Turn turn = held[which];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        if (Connection *connection = server.answers.take_turn(turn)) server.answers.send_prepared(connection, ANSWER_LIVE);
        gather();
        return true;
    }
};

struct Client {
    int fd = -1;
    std::string got;

    ~Client() { end(); }
    void end() {
        if (fd >= 0) close(fd);
        fd = -1;
    }
    void begin(const Worker &worker) {
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(fd, reinterpret_cast<const sockaddr *>(&worker.address), worker.address_length) != 0) end();
    }
    void take(size_t most) {
        char some[65536];
        while (fd >= 0 && most) {
            const ssize_t more = recv(fd, some, std::min(most, sizeof some), MSG_DONTWAIT);
            if (more <= 0) return;
            got.append(some, static_cast<size_t>(more));
            most -= static_cast<size_t>(more);
        }
    }

    // The received bytes are answers, one after the other; the last may be cut. An answer to HEAD has no body.
    void check(bool asked_for_heads) const {
        if (!got.empty() && got[0] == '\0') return;  // the frames that refuse an HTTP/2 client
        uint64_t last = 0;
        for (size_t at = 0; at < got.size();) {
            const std::string begin = got.substr(at, 9);
            require(begin == std::string("HTTP/1.1 ").substr(0, begin.size()) ||
                    begin == std::string("HTTP/1.0 ").substr(0, begin.size()));
            const size_t end = got.find("\r\n\r\n", at);
            if (end == std::string::npos) return;
            const std::string head = got.substr(at, end - at);
            at = end + 4;
            if (got[at - 4 - head.size() + 9] == '1') continue;  // interim: 100, 102
            const size_t number = head.find("x-number: "), length = head.find("content-length: ");
            if (number != std::string::npos) {
                const uint64_t found = std::strtoull(head.c_str() + number + 10, nullptr, 10);
                require(found > last);
                last = found;
            }
            if (asked_for_heads) return;
            require(length != std::string::npos);
            at += std::strtoull(head.c_str() + length + 16, nullptr, 10);
        }
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char *data, std::size_t size) {
    static Worker &worker = *new Worker;
    HttpServer &server = worker.server;
    const int free_before = dup(0);
    close(free_before);
    const bool asked_for_heads = std::string(reinterpret_cast<const char *>(data), size).find("HEA") != std::string::npos;
    {
        Client clients[CLIENTS];
        size_t current = 0;
        clients[0].begin(worker);
        worker.settle(0);
        for (size_t at = 0; at + 1 < size;) {
            const unsigned char step = data[at], more = data[at + 1];
            at += 2;
            Client &client = clients[current];
            switch (step & 7) {
            case 0:
            case 1: {  // short, or long
                const size_t wanted = step & 1 ? (more + 1u) * 512u : more + 1u;
                const size_t some = std::min(wanted, size - at);
                if (client.fd >= 0) (void)!send(client.fd, data + at, some, MSG_NOSIGNAL | MSG_DONTWAIT);
                at += some;
                if (step & 8) continue;  // the next bytes come with them
                break;
            }
            case 2: worker.settle(more < 200 ? more * 0.01 : more - 190.0); continue;
            case 3: client.take(more ? more * 1024u : SIZE_MAX); break;
            case 4: worker.act(more); break;
            case 5: worker.answer_held(more); break;
            case 6:
                current = more % CLIENTS;
                if (clients[current].fd < 0 && clients[current].got.empty()) clients[current].begin(worker);
                break;
            case 7:
                if (more % 5 == 0 && client.fd >= 0) shutdown(client.fd, SHUT_WR);
                if (more % 5 == 1) client.end();
                if (more % 5 == 2) server.drain();
                if (more % 5 == 3) server.accept_enabled(false);
                if (more % 5 == 4) server.accept_enabled(true);
                break;
            default: break;
            }
            worker.settle(0);
        }
        server.accept_enabled(true);
        worker.finish(0);
        for (Client &client : clients) {
            client.take(SIZE_MAX);
            if (client.fd >= 0) shutdown(client.fd, SHUT_WR);
        }
        for (int turns = 0; turns < 400 && (turns < 2 || server.connections.open()); ++turns) {
            worker.finish(1);
            for (Client &client : clients) client.take(SIZE_MAX);
        }
        require(server.connections.open() == 0);
        for (const Client &client : clients) client.check(asked_for_heads);
    }
    for (int turns = 0; turns < 400 && (turns < 2 || server.connections.open()); ++turns) worker.finish(1);
    require(server.connections.open() == 0);
    server.connections.draining.store(false);
    require(process_budget().held() == 0);
    require(server.counts.counted(ServerCounter::stray) == 0);
    const int free_after = dup(0);
    close(free_after);
    require(free_after == free_before);
    return 0;
}
