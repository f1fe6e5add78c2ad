// A frame for which libnghttp2 has no memory is not made again, so that the stream it was for would stay open for ever:
// the connection ends, and its client learns of it.

#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "../../support/native/adopted_socket.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/driven_loop.hpp"
#include "../../support/native/http2_frames.hpp"

using namespace ksrv;

namespace {

constexpr int ENDS_STREAM = 1, ENDS_HEADERS = 4;

int submit_no_reset(http2::NgSession *, uint8_t, int32_t, uint32_t) { return http2::RESULT_NO_MEMORY; }

// Its calls are cancelled.
struct Calls {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};

    Calls() {
        server.add_method({"/s/call", false, false, false, true, false});
        require(server.listen_on(nullptr, 0), "it does not listen");
    }

    static void serve_calls(void *owner) {
        int reasons = 0;
        while (grpc::Call *call = static_cast<Calls *>(owner)->server.next_to_run(&reasons)) {
            if (reasons & grpc::RUN_READY) call->cancel();
            call->release();
        }
    }
};

}  // namespace

int main() {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    http2::nghttp2.submit_rst_stream = submit_no_reset;
    process_budget().set_bound(64u << 20);
    auto calls = std::make_unique<Calls>();
    const int client = connect_to(&calls->server);
    const std::string sent =
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(http2::FRAME_SETTINGS, 0, 0, "") +
        frame(http2::FRAME_HEADERS, ENDS_HEADERS, 1,
              field(":method", "POST") + field(":scheme", "http") + field(":path", "/s/call") + field(":authority", "x") +
                  field("content-type", "application/grpc")) +
        frame(http2::FRAME_DATA, ENDS_STREAM, 1, std::string("\0\0\0\0\3abc", 8));
    require(send(client, sent.data(), sent.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(sent.size()), "nothing is sent");
    calls->loop.settle();
    require(calls->server.connections.count() == 0, "the connection is open still");
    char room[4096];
    ssize_t got;
    do {
        got = recv(client, room, sizeof room, 0);
    } while (got > 0);
    require(got == 0, "the client does not see the end");
    close(client);
    std::printf("the connection has ended\n");
    return 0;
}
