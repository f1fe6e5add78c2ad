// A DATA frame that libnghttp2 passes over, because its stream has sent more than its content-length: later bytes
// are not read into the memory of the stream's message, which is freed with the stream.
//
// The client does not read an answer, so that the server's RST_STREAM waits and the client's arrives first. Memory that is
// given back is freed, so that the sanitizer sees every access.

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

constexpr size_t LARGE = 4u << 20;  // bytes of an answer that no socket takes at once
constexpr double SHORTLY = 0.1;          // seconds after which the loop's lists are empty
constexpr int ACKNOWLEDGES = 1, ENDS_STREAM = 1, ENDS_HEADERS = 4;

struct Calls {
    EventLoop events{1};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    DrivenLoop loop{[this] { events.run(0); }, [this] { events.stop(); }};
    const std::string answer = std::string(LARGE, 'a');
    size_t served = 0;

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
                ++self->served;
            }
            call->release();
        }
    }
};

std::string head(uint32_t stream, const std::string &length) {
    return frame(http2::FRAME_HEADERS, ENDS_HEADERS, stream,
                 field(":method", "POST") + field(":scheme", "http") + field(":path", "/s/large") +
                     field(":authority", "x") + field("content-type", "application/grpc") +
                     field("content-length", length));
}

std::string call(uint32_t stream) {
    return head(stream, "8") + frame(http2::FRAME_DATA, ENDS_STREAM, stream, std::string("\0\0\0\0\3abc", 8));
}

}  // namespace

int main() {
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    process_pool().cap_bytes.store(0);
    process_budget().set_bound(64u << 20);
    auto calls = std::make_unique<Calls>();
    const int client = connect_to(&calls->server);
    const auto send_all = [&](const std::string &bytes) {
        require(send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()),
                "the server takes no more");
        calls->loop.settle();
    };
    const std::string wide("\x7f\xff\xff\xff", 4), more("\x3f\xff\xff\xff", 4), cancel("\0\0\0\x08", 4);
    send_all("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(http2::FRAME_SETTINGS, 0, 0, std::string("\0\4", 2) + wide) +
             frame(http2::FRAME_WINDOW_UPDATE, 0, 0, more));
    send_all(frame(http2::FRAME_SETTINGS, ACKNOWLEDGES, 0, "") + call(1));
    require(calls->served == 1, "the first call is not served");
    const std::string begin = std::string("\0\0\1\x86\xa0", 5) + std::string(20000, 'm');  // of 100,000 bytes
    send_all(head(3, "30000") + frame(http2::FRAME_DATA, 0, 3, begin));
    send_all(frame(http2::FRAME_DATA, 0, 3, std::string(40000, 'm')));
    send_all(frame(http2::FRAME_RST_STREAM, 0, 3, cancel) + call(5));
    std::printf("%zu calls are served\n", calls->served);
    close(client);
    calls->loop.settle_after(SHORTLY);
    calls->server.close_all();
    calls->loop.settle_after(SHORTLY);
    require(process_budget().held() == 0, "bytes are held");
    return 0;
}
