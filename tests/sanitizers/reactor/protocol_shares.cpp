// A visit to Python while one protocol never has an empty queue: what the other protocol waits for, counted in requests, by a clock
// that the program moves.
//
//     protocol_shares
//
// Requests of HTTP come again as soon as they have run. Prints for each case a number.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "grpc/server.hpp"
#include "server/server.hpp"
#include "http2/library.hpp"
#include "../../support/native/adopted_socket.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"
#include "../../support/native/http2_frames.hpp"

using namespace ksrv;

namespace {

constexpr uint64_t MOST = 10000;  // requests of the flood

struct Scene {
    const uint64_t request_ns;
    EventLoop events{1};
    HttpServer http{&events, config(), serve_requests, this};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    uint64_t ran = 0, ran_before_call = MOST, ran_before_decref = MOST, stuck_ns = 0;
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};

    explicit Scene(uint64_t each_ns) : request_ns(each_ns) {
        server.add_method({"/s/unary", false, false, false, true, false});
        require(http.listen_on(nullptr, 0) && server.listen_on(nullptr, 0), "it does not listen");
    }

    static HttpServerConfig config() {
        HttpServerConfig made;
        made.checks_callers = true;  // so that a request may wait for Python again and again
        return made;
    }
    void flood() {
        for (int i = 0; i < 2; ++i) {
            Connection *connection = http.connections.take();
            connection->begin(-1, 0, 0, 1);
            connection->phase.store(Phase::run);
            require(http.routes.check_first(connection), "the request does not wait for Python");
        }
    }
    static void serve_requests(void *owner) {
        Scene *scene = static_cast<Scene *>(owner);
        while (Connection *connection = scene->http.routes.next_to_run()) {
            DrivenLoop::elapsed_ns().fetch_add(static_cast<int64_t>(scene->request_ns));
            scene->stuck_ns = std::max(scene->stuck_ns, scene->events.stuck_ns());
            if (++scene->ran >= MOST) continue;
            connection->checking = false;
            scene->http.routes.check_first(connection);
        }
    }
    static void serve_calls(void *owner) {
        Scene *scene = static_cast<Scene *>(owner);
        for (grpc::Payload *payload = scene->server.decrefs.take(); payload;) {
            grpc::Payload *following = payload->next;
            payload->destroy();
            payload = following;
            scene->ran_before_decref = scene->ran;
        }
        int reasons = 0;
        while (grpc::Call *call = scene->server.next_to_run(&reasons)) {
            scene->ran_before_call = std::min(scene->ran_before_call, scene->ran);
            std::string words;
            grpc::Metadata none;
            call->finish(grpc::OK, words, none);
            call->release();
        }
    }
};

int send_call(grpc::Server *server) {
    const int fd = connect_to(server);
    const std::string sent = HTTP2_PREFACE + frame(http2::FRAME_SETTINGS, 0, 0, "") +
                             frame(http2::FRAME_HEADERS, 4, 1, call_fields("/s/unary")) +
                             frame(http2::FRAME_DATA, 1, 1, std::string("\0\0\0\0\3abc", 8));
    require(send(fd, sent.data(), sent.size(), 0) == static_cast<ssize_t>(sent.size()), "the socket is full");
    return fd;
}

void try_flood(const char *what, uint64_t request_ns) {
    auto scene = std::make_unique<Scene>(request_ns);
    grpc::Payload *sent = grpc::Payload::make(&scene->server, 1, 8);
    sent->owner = scene.get();
    scene->server.defer_decref(sent);
    const int fd = send_call(&scene->server);
    scene->flood();
    scene->loop.settle();
    require(scene->ran >= MOST, "the flood is not over");
    const auto print = [what](const char *before, uint64_t count) {
        std::printf("%s before %s: %llu\n", what, before, static_cast<unsigned long long>(count));
    };
    print("the call of the other protocol", scene->ran_before_call);
    print("what the other protocol has sent is freed", scene->ran_before_decref);
    std::printf("nanoseconds without a sign of life: %llu\n", static_cast<unsigned long long>(scene->stuck_ns));
    scene->server.close_all();
    scene->loop.settle();
    close(fd);
}

// Of a protocol that asks for Python and has nothing to do there.
struct Idle : PythonTurn::Work {
    int visits = 0;
    bool wants_python() const noexcept override { return visits < 100; }
    bool work_in_python() noexcept override {
        ++visits;
        return false;
    }
};

}  // namespace

int main() {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    try_flood("requests that take no time", 0);
    try_flood("requests of 100 us", 100000);
    Idle idle;
    PythonTurn turn(&idle, 1);
    turn.serve(0);
    std::printf("visits that found nothing to do: %d\n", idle.visits);
    return 0;
}
