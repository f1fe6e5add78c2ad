// gRPC's server beside the HTTP server, as in a worker, without Python: calls of /s/unary, infer requests and messages for the
// app are answered at once.

#pragma once

#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "server/server.hpp"
#include "sockets.hpp"
#include "http2_frames.hpp"

namespace ksrv {

struct Worker {
    EventLoop events{4};
    HttpServer http{&events, config(), serve_requests, this};
    grpc::Server server{&events, grpc::ServerConfig{}, &process_budget(), serve_calls, this};
    std::vector<std::thread> threads;

    // Listens for HTTP, and for gRPC, at so many sockets each.
    void start(const int *listeners, const int *calls, size_t count) {
        for (PreparedAnswer &made : http.answers.prepared) made = {200, "200 OK", "content-length: 4\r\n", "good"};
        server.add_method({"/s/unary", false, false, nullptr, nullptr, true, false});
        if (!http.listen_on(listeners, count) || !server.listen_on(calls, count)) std::abort();
        for (int i = 0; i < events.threads(); ++i) threads.emplace_back([=] { events.run(i); });
        for (const AppQueueKind kind : {AppQueueKind::metadata, AppQueueKind::others, AppQueueKind::others})
            threads.emplace_back([=] { answer_messages(kind); });
    }
    void stop() {
        http.stop();
        events.stop();
        for (std::thread &thread : threads) thread.join();
    }

    // The client's end of a new connection of HTTP/2, whose preface and first SETTINGS have come.
    int connect_http2() {
        const int fd = connect_to(&server);
        const std::string come = HTTP2_PREFACE + frame(http2::FRAME_SETTINGS, 0, 0, "");
        if (send(fd, come.data(), come.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(come.size())) std::abort();
        return fd;
    }

    static HttpServerConfig config() {
        HttpServerConfig made;
        made.connections = 200;
        made.limits.body = 1 << 20;
        return made;
    }
    static void serve_requests(void *owner) {
        HttpServer &http = static_cast<Worker *>(owner)->http;
        while (Connection *connection = http.routes.next_to_run())
            if ((connection = http.answers.take_turn(connection->open_turn()))) http.answers.send_prepared(connection, ANSWER_LIVE);
    }
    static void serve_calls(void *owner) {
        grpc::Server &server = static_cast<Worker *>(owner)->server;
        int reasons = 0;
        while (grpc::Call *call = server.next_to_run(&reasons)) {
            grpc::Message message;
            if (reasons & grpc::RUN_READY && call->take_message(&message)) {
                grpc::free_message(&message, server.budget);
                std::string words;
                std::vector<std::pair<std::string, std::string>> none;
                grpc::Payload *payload = grpc::Payload::make(&server, 1, 3);
                std::memcpy(payload->bytes(), "abc", 3);
                payload->add(payload->bytes(), 3);
                payload->close();
                call->finish(grpc::OK, words, none, payload);
            }
            call->release();
        }
    }
    void answer_messages(AppQueueKind kind) {
        static constexpr char fields[] = "content-type: text/plain\r\ncontent-length: 5\r\n";
        while (Connection *connection = http.next_app_message(kind)) {
            connection = http.answers.take_turn(connection->open_turn());
            if (!connection) continue;
            if (http.answers.put(connection, 200, "200 OK", 6, fields, sizeof fields - 1, "hello", 5)) {
                http.answers.send(connection, nullptr);
            } else {
                http.connections.drop(connection);
            }
        }
    }
};

}  // namespace ksrv
