// How two protocols share the turns of the event loop and a visit to Python while one of them always has something to do, by a clock
// that the program moves. Prints a number for each case: the events, or requests, that the other protocol waits for.

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "reactor/event_loop.hpp"
#include "server/server.hpp"
#include "../../support/native/sockets.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"
#include "../../support/native/http2_frames.hpp"

using namespace ksrv;

namespace {

constexpr uint64_t FLOOD_BEGIN = 100, MOST_EVENTS = 1000;  // events of the flood before the other protocol's event, and in all
constexpr int FLOODING = 200;                 // descriptors that are always readable
constexpr uint64_t EVENT_NS = 100'000;

// A protocol whose connections are eventfds.
struct StubProtocol final : Protocol {
    std::function<void(int fd, bool is_late)> take;
    std::vector<int> fds;

    ~StubProtocol() {
        for (int fd : fds) close(fd);
    }
    void watch(int count, uint64_t value, uint32_t edge) {
        for (int i = 0; i < count; ++i) {
            fds.push_back(eventfd(static_cast<unsigned>(value), EFD_NONBLOCK));
            epoll_event event{};
            event.events = EPOLLIN | edge;
            event.data.u64 = tag_of(static_cast<uint32_t>(fds.size()) - 1, 1);
            require(epoll_ctl(epoll(), EPOLL_CTL_ADD, fds.back(), &event) == 0, "it is not watched");
        }
    }
    void on_event(uint64_t tag, uint32_t, uint64_t, bool is_late) noexcept override { take(fds[slot_of(tag)], is_late); }
    void on_handshake(uint64_t, uint64_t) noexcept override {}
    void on_turn(uint64_t, TurnShare) noexcept override {}
    void on_sweep(uint64_t) noexcept override {}
    NextTurn next_turn() const noexcept override { return NextTurn::any; }
    PythonWork python_work() const noexcept override { return PythonWork::none; }
    void work_in_python() noexcept override {}
    void send_gathered() noexcept override {}
    void *take_place() noexcept override { return nullptr; }
    void give_back_place(void *) noexcept override {}
    void accepted(void *, const Accepted &, bool) noexcept override {}
    bool has_room() const noexcept override { return true; }
    void make_room() noexcept override {}
    void accept_paused(bool) noexcept override {}
};

void signal_event(int fd) {
    const uint64_t one = 1;
    require(write(fd, &one, sizeof one) == sizeof one, "nothing is written");
}

void clear_event(int fd) {
    uint64_t seen;
    (void)!read(fd, &seen, sizeof seen);
}

// Floods the protocol in the loop's epoll instance or in the separate instance, while the other protocol has an event.
void try_events(const char *what, bool floods_separate) {
    EventLoop events{1};
    StubProtocol shared, separate;
    require(events.add(&shared, 1000, nullptr, 0, false, false) && events.add(&separate, 1000, nullptr, 0, false, true), "not added");
    StubProtocol &flooded = floods_separate ? separate : shared, &other = floods_separate ? shared : separate;
    uint64_t seen = 0, in_time = 0, waited = MOST_EVENTS;
    other.watch(1, 0, floods_separate ? 0u : EPOLLET);
    other.take = [&](int fd, bool) {
        clear_event(fd);
        waited = seen - FLOOD_BEGIN;
    };
    flooded.take = [&](int fd, bool is_late) {
        DrivenLoop::elapsed_ns().fetch_add(EVENT_NS);
        in_time += seen >= FLOOD_BEGIN && waited == MOST_EVENTS && !is_late;
        if (++seen == FLOOD_BEGIN) signal_event(other.fds[0]);
        if (seen >= MOST_EVENTS) {
            clear_event(fd);
        } else if (floods_separate) {
            signal_event(fd);  // an edge
        }
    };
    flooded.watch(FLOODING, 1, floods_separate ? EPOLLET : 0u);
    DrivenLoop loop{[&] { events.run(0); }, [&] { events.stop(); }};
    loop.settle();
    require(seen >= MOST_EVENTS && waited < MOST_EVENTS, "an event is lost");
    std::printf("%s, events before the other protocol's: %llu\n", what, static_cast<unsigned long long>(waited));
    std::printf("%s, of these in time: %llu\n", what, static_cast<unsigned long long>(in_time));
}

constexpr uint64_t MOST_REQUESTS = 10000;  // requests of the flood

struct Scene {
    const uint64_t request_ns;
    EventLoop events{1};
    HttpServer http{&events, config(), serve_requests, this};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    uint64_t ran = 0, ran_before_call = MOST_REQUESTS, ran_before_decref = MOST_REQUESTS, stuck_ns = 0;
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};

    explicit Scene(uint64_t each_ns) : request_ns(each_ns) {
        server.add_method({"/s/unary", false, false, nullptr, nullptr, true, false});
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
            if (++scene->ran >= MOST_REQUESTS) continue;
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

void try_requests(const char *what, uint64_t request_ns) {
    auto scene = std::make_unique<Scene>(request_ns);
    grpc::Payload *sent = grpc::Payload::make(&scene->server, 1, 8);
    sent->owner = scene.get();
    scene->server.defer_decref(sent);
    const int fd = send_call(&scene->server);
    scene->flood();
    scene->loop.settle();
    require(scene->ran >= MOST_REQUESTS, "the flood is not over");
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
    try_events("flood of the loop's epoll", false);
    try_events("flood of the separate epoll", true);
    if (!http2::library()) return 0;
    try_requests("requests that take no time", 0);
    try_requests("requests of 100 us", 100000);
    Idle idle;
    PythonTurn turn(&idle, 1);
    turn.serve(0);
    std::printf("visits that found nothing to do: %d\n", idle.visits);
    return 0;
}
