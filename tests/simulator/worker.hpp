// A worker without Python: both servers in one event loop, its threads, and a handler that does what the path of a request says.
//
//     echo    answered at once with the request's bytes            late    the same, by another thread, some time later
//     fail    an error, with the request's number in it             drop    no answer: the connection, or stream, ends
//     pieces  answered in pieces (HTTP), a stream (gRPC)            early   refused before its body has come
//
// Requests of models (/v2/models/m/infer), messages for the app and calls of gRPC take different ways through the core, and so do they here.

#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpc/server.hpp"
#include "http2/library.hpp"
#include "memory/buffer_pool.hpp"
#include "memory/memory_budget.hpp"
#include "server/server.hpp"
#include "network.hpp"

namespace sim {

using namespace ksrv;

// In place of a Python object: bytes that an answer refers to until it was sent.
struct Held {
    Owners owners;
    std::string bytes;
    Held() { ++alive(); }
    ~Held() { --alive(); }
    static int &alive() {
        static int count = 0;
        return count;
    }
};

struct Late {  // a message that another thread answers
    int64_t when;
    Turn turn;
    grpc::Call *call = nullptr;
    std::string bytes;
    uint64_t counted = 0;
};

struct WorkerRules {
    int loops = 2;
    uint32_t connections = 32, streams = 16, calls = 32;
    uint64_t budget = 8u << 20;
    uint64_t lendable_above = UINT64_MAX;
    bool log = false, checks_callers = false;
    std::shared_ptr<const TlsContext> tls;
};

class Worker {
  public:
    Worker(const WorkerRules &rules, const std::vector<int> &http_listeners, const std::vector<int> &grpc_listeners)
        : events(rules.loops),
          server(&events, grpc_config(rules), &process_budget(), serve_calls, this),
          http(&events, http_config(rules), serve_requests, this) {
        process_budget().set_bound(rules.budget);
        process_pool().lendable_above.store(rules.lendable_above);
        for (PreparedAnswer &made : http.answers.prepared) made = {200, "200 OK", "content-length: 4\r\n", "good"};
        http.answers.prepared[ANSWER_TOO_SLOW] = {408, "408 Request Timeout", "content-length: 4\r\n", "slow"};
        http.answers.prepared[ANSWER_BYTES_IN_FLIGHT] = {503, "503 Service Unavailable", "content-length: 4\r\n", "full"};
        http.answers.prepared[ANSWER_FAILED] = {500, "500 Internal Server Error", "content-length: 4\r\n", "fail"};
        http.answers.prepared[ANSWER_NOT_TLS] = {400, "400 Bad Request", "content-length: 4\r\n", "tls?"};
        http.answers.ready.store(true);
        http.tls = server.tls = rules.tls;
        server.add_method({"/s/unary", false, false, nullptr, nullptr, true, false});
        server.add_method({"/s/small", false, true, nullptr, nullptr, true, false});
        server.add_method({"/s/checked", false, false, nullptr, nullptr, false, false});
        server.add_method({"/s/stream", true, false, nullptr, nullptr, true, false});
        if (!http.listen_on(http_listeners.data(), http_listeners.size()) ||
            !server.listen_on(grpc_listeners.data(), grpc_listeners.size()))
            machine().fail("the worker does not listen");
    }

    void start() {
        for (int i = 0; i < events.threads(); ++i) loops_.emplace_back([this, i] { events.run(i); });
        for (const AppQueueKind kind : {AppQueueKind::metadata, AppQueueKind::others, AppQueueKind::others})
            apps_.emplace_back([this, kind] { answer_messages(kind); });
        apps_.emplace_back([this] { answer_late(); });
        for (int i = 0; i < 2; ++i) apps_.emplace_back([this] { answer_streams(); });
        accept(true);
    }
    void accept(bool enabled) {
        http.accept_enabled(enabled);
        server.accept_enabled(enabled);
    }
    void stop() {
        http.stop();
        {
            std::lock_guard<std::mutex> guard(mutex_);
            stopped_ = true;
            changed_.notify_all();
        }
        for (std::thread &thread : apps_) thread.join();
        events.stop();
        for (std::thread &thread : loops_) thread.join();
        while (server.next_turn() == NextTurn::at_once)
            server.on_turn(UINT64_MAX, TurnShare());  // the loop's next turns would let go the connections that they were to read
        server.close_all();
        // Requests that arrived after the last answer; and the interpreter's end frees its objects.
        for (Late &late : late_)
            if (late.call) late.call->release();
        for (grpc::Call *call : streams_) call->release();
        int reasons = 0;
        while (grpc::Call *call = server.next_to_run(&reasons)) {
            if (call->callbacks) drop_held(call->callbacks);
            call->callbacks = nullptr;
            call->release();
        }
        late_.clear();
        streams_.clear();
        for (uint32_t slot = 0; slot < http.connections.used(); ++slot) {
            Outgoing &out = http.connections.at(slot)->out;
            if (out.owners) drop_held(out.owners->object);
            out.owners = nullptr;
        }
        give_back_sent();
    }

    EventLoop events;
    grpc::Server server;
    HttpServer http;

  private:
    static HttpServerConfig http_config(const WorkerRules &rules) {
        HttpServerConfig made;
        made.connections = rules.connections;
        made.limits.body = 1 << 20;
        made.log = rules.log;
        made.checks_callers = rules.checks_callers;
        return made;
    }
    static grpc::ServerConfig grpc_config(const WorkerRules &rules) {
        grpc::ServerConfig made;
        made.connections = rules.connections;
        made.streams = rules.streams;
        made.calls = rules.calls;
        made.log = rules.log;
        made.checks_callers = rules.checks_callers;
        return made;
    }

    // ---- the interpreter ----
    // Python's work is outside of the simulation: its memory and its locks do not belong to the core.
    struct Path {
        std::string name, id;
    };
    static Path path_of(const Connection *connection) {
        const std::string line(reinterpret_cast<const char *>(connection->buffer),
                               std::min<size_t>(connection->filled, 256));
        const size_t from = line.find(' ') + 1, to = line.find(' ', from), last = line.rfind('/', to);
        return {line.substr(last + 1, to - last - 1),
                std::string(connection->request_id.text, connection->request_id.length)};
    }
    static std::string body_of(const Connection *connection) {
        if (!connection->body.block) return {};
        return {reinterpret_cast<const char *>(connection->body.block->data) + connection->body.offset, connection->body.got};
    }

    void send_answer(Connection *connection, uint16_t status, const char *line, const std::string &bytes) {
        auto *held = [&] {
            Machine::Outside outside;
            Held *made = new Held;
            made->owners.object = made;
            made->bytes = bytes;
            return made;
        }();
        std::string fields;
        {
            Machine::Outside outside;
            fields = "content-length: " + std::to_string(bytes.size()) + "\r\n";
        }
        if (bytes.size() > 65536 && !http.answers.reserve(connection, bytes.size())) {
            drop_held(held);
            http.answers.send_prepared(connection, ANSWER_BYTES_IN_FLIGHT);
            return;
        }
        if (!http.answers.put(connection, status, line, strlen(line), fields.data(), fields.size(), nullptr, 0, 1)) {
            drop_held(held);
            http.answers.send_prepared(connection, ANSWER_FAILED);  // as for a MemoryError
            return;
        }
        const bool is_head = memcmp(connection->buffer, "HEAD ", 5) == 0;
        if (!is_head) add_part(&connection->out, held->bytes.data(), held->bytes.size());
        connection->answered_bytes = bytes.size();
        if (http.answers.send(connection, &held->owners)) drop_held(held);
    }
    static void drop_held(void *held) {
        Machine::Outside outside;
        delete static_cast<Held *>(held);
    }
    void give_back_sent() {
        for (Owners *owners = http.connections.decrefs.take(); owners;) {
            Owners *following = owners->next;
            owners->give_back();
            drop_held(owners->object);
            owners = following;
        }
        for (grpc::Payload *payload = server.decrefs.take(); payload;) {
            grpc::Payload *following = payload->next;
            drop_held(payload->owner);
            payload->destroy();
            payload = following;
        }
    }
    void answer(Connection *connection, const Path &path, const std::string &bytes) {
        if (path.name == "fail") {
            send_answer(connection, 422, "422 Unprocessable Content", "fail " + path.id);
        } else if (path.name == "drop") {
            http.connections.drop(connection);
        } else {
            send_answer(connection, 200, "200 OK", bytes);
        }
    }

    void put_late(Late late) {
        {
            Machine::Outside outside;
            late.when = machine().now + static_cast<int64_t>(machine().random.below(400)) * MS;
        }
        std::lock_guard<std::mutex> guard(mutex_);
        {
            Machine::Outside outside;
            late_.push_back(std::move(late));
        }
        changed_.notify_all();
    }

    static void serve_requests(void *owner) {
        Worker *self = static_cast<Worker *>(owner);
        HttpServer &http = self->http;
        self->give_back_sent();
        while (Connection *connection = http.routes.next_to_run()) {
            if (connection->checking) {
                connection->checking = false;
                const Turn turn = connection->open_turn();
                if (Connection *mine = http.answers.take_turn(turn)) http.checked(mine, machine().random.below(8) != 0);
                continue;
            }
            Path path;
            std::string bytes;
            const Turn turn = connection->open_turn();
            {
                Machine::Outside outside;
                path = path_of(connection);
                const uint64_t wanted = connection->head.content_length;
                bytes = body_of(connection);
                path.name = connection->body.got < wanted && !connection->head.chunked ? "fail"
                            : bytes.size() % 7 == 3                                    ? "late"
                                                                                       : "echo";
            }
            if (path.name == "late") {
                connection->body.give_back();
                Late late;
                late.turn = turn;
                late.bytes = std::move(bytes);
                self->put_late(std::move(late));
            } else if (Connection *mine = http.answers.take_turn(turn)) {
                self->answer(mine, path, bytes);
            }
        }
    }

    void answer_messages(AppQueueKind kind) {
        while (Connection *connection = http.next_app_message(kind)) {
            Path path;
            {
                Machine::Outside outside;
                path = path_of(connection);
            }
            const BodyState state = connection->body.state;
            if (connection->body.asked || state == BodyState::none || state == BodyState::whole || path.name == "early" ||
                state != BodyState::unread || connection->head.fault != HeadFault::none) {
                const Turn turn = connection->open_turn();
                if (path.name == "late" && (state == BodyState::none || state == BodyState::whole)) {
                    Late late;
                    late.turn = turn;
                    {
                        Machine::Outside outside;
                        late.bytes = body_of(connection);
                    }
                    put_late(std::move(late));
                } else if ((connection = http.answers.take_turn(turn))) {
                    answer_app(connection, path, state);
                }
            } else {
                http.receive_for_app(connection, 1u << 20);
            }
            give_back_sent();
        }
    }
    void answer_app(Connection *connection, const Path &path, BodyState state) {
        std::string bytes;
        {
            Machine::Outside outside;
            bytes = body_of(connection);
        }
        if (connection->head.fault != HeadFault::none) {
            send_answer(connection, 400, "400 Bad Request", "fail");
        } else if (state != BodyState::none && state != BodyState::whole) {
            send_answer(connection, 413, "413 Content Too Large", "fail " + path.id);
        } else if (path.name == "pieces") {
            answer_in_pieces(connection, bytes);
        } else {
            answer(connection, path, bytes);
        }
    }
    void answer_in_pieces(Connection *connection, const std::string &bytes) {
        static constexpr char FIELDS[] = "transfer-encoding: chunked\r\n";
        http.connections.disconnects.unwatch(connection);
        if (!http.answers.put(connection, 200, "200 OK", 6, FIELDS, sizeof FIELDS - 1, nullptr, 0, 0)) {
            http.answers.send_prepared(connection, ANSWER_FAILED);
            return;
        }
        if (!http.answers.send_piece(connection)) return;
        const size_t step = bytes.size() / 5 + 1;
        for (size_t at = 0; at < bytes.size(); at += step) {
            std::string piece;
            {
                Machine::Outside outside;
                char size[16];
                const std::string part = bytes.substr(at, step);
                snprintf(size, sizeof size, "%zX\r\n", part.size());
                piece = size + part + "\r\n";
            }
            forget_outgoing(&connection->out);
            reserve_parts(&connection->out, 1);
            add_part(&connection->out, piece.data(), piece.size());
            if (!http.answers.send_piece(connection)) return;
        }
        forget_outgoing(&connection->out);
        reserve_parts(&connection->out, 1);
        add_part(&connection->out, "0\r\n\r\n", 5);
        http.answers.send(connection, nullptr);
    }

    void answer_late() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!stopped_ || !late_.empty()) {
            if (late_.empty()) {
                changed_.wait(lock);
                continue;
            }
            if (!stopped_ && late_.front().when > machine().now) {
                changed_.wait_until(lock, late_.front().when);
                continue;
            }
            Late late;
            {
                Machine::Outside outside;
                late = std::move(late_.front());
                late_.pop_front();
            }
            lock.unlock();
            if (late.call) {
                finish(late.call, grpc::OK, late.bytes);
                late.call->release();
            } else if (Connection *connection = http.answers.take_turn(late.turn)) {
                send_answer(connection, 200, "200 OK", late.bytes);
            }
            {
                Machine::Outside outside;
                late.bytes = std::string();
            }
            lock.lock();
        }
    }

    // ---- gRPC ----
    grpc::Payload *payload_of(const std::string &bytes) {
        Held *held;
        {
            Machine::Outside outside;
            held = new Held;
            held->bytes = bytes;
        }
        grpc::Payload *payload = grpc::Payload::make(&server, 1, 0);
        if (!payload) {
            drop_held(held);
            return nullptr;
        }
        payload->add(held->bytes.data(), held->bytes.size());
        payload->room = server.budget->reserve_answer(bytes.size());
        if (payload->room == AnswerRoom::none) {
            payload->destroy();
            drop_held(held);
            return nullptr;
        }
        payload->budget = server.budget;
        payload->counted = bytes.size();
        payload->owner = held;
        payload->close();
        return payload;
    }
    void finish(grpc::Call *call, int status, const std::string &bytes) {
        std::string words;
        std::vector<std::pair<std::string, std::string>> none;
        grpc::Payload *payload = nullptr;
        if (status == grpc::OK && !(payload = payload_of(bytes))) status = grpc::RESOURCE_EXHAUSTED;
        if (status != grpc::OK) {
            Machine::Outside outside;
            words = "fail " + bytes.substr(0, 40);
        }
        call->finish(status, words, none, payload);
        Machine::Outside outside;
        words = std::string();
    }
    std::string take_bytes(grpc::Message *message) {
        std::string bytes;
        {
            Machine::Outside outside;
            if (message->block)
                bytes.assign(reinterpret_cast<const char *>(message->block->data) + message->offset, message->length);
        }
        grpc::free_message(message, server.budget);
        return bytes;
    }
    static void serve_calls(void *owner) {
        Worker *self = static_cast<Worker *>(owner);
        self->give_back_sent();
        int reasons = 0;
        while (grpc::Call *call = self->server.next_to_run(&reasons)) {
            if (reasons & grpc::RUN_CHECK) call->admit();
            if (reasons & grpc::RUN_READY && call->method->streams) {
                call->retain();
                std::lock_guard<std::mutex> guard(self->mutex_);
                {
                    Machine::Outside outside;
                    self->streams_.push_back(call);
                }
                self->changed_.notify_all();
            } else if (reasons & grpc::RUN_READY) {
                grpc::Message message;
                if (call->take_message(&message)) self->answer(call, self->take_bytes(&message));
            }
            if (reasons & grpc::RUN_ENDED && call->callbacks) {
                drop_held(call->callbacks);
                call->callbacks = nullptr;
            }
            call->release();
        }
    }
    void answer(grpc::Call *call, const std::string &bytes) {
        const std::string what = [&] {
            Machine::Outside outside;
            return bytes.substr(0, 4);
        }();
        if (what == "late") {
            Held *callbacks;
            {
                Machine::Outside outside;
                callbacks = new Held;
            }
            if (!call->tell_of_end(callbacks)) drop_held(callbacks);
            call->retain();
            Late late;
            late.call = call;
            {
                Machine::Outside outside;
                late.bytes = bytes;
            }
            put_late(std::move(late));
        } else if (what == "drop") {
            call->cancel();
        } else {
            finish(call, what == "fail" ? int(grpc::INVALID_ARGUMENT) : int(grpc::OK), bytes);
        }
    }
    void answer_streams() {
        for (;;) {
            grpc::Call *call;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                while (streams_.empty() && !stopped_) changed_.wait(lock);
                if (streams_.empty()) return;
                call = streams_.front();
                streams_.pop_front();
            }
            std::string words;
            std::vector<std::pair<std::string, std::string>> none;
            int status = grpc::OK;
            for (;;) {
                grpc::Message message;
                const grpc::Next next = call->next_message(&message, machine().now + (stopped_ ? 0 : 20 * SECOND));
                if (next == grpc::Next::over) break;
                if (next != grpc::Next::message) {
                    status = grpc::DEADLINE_EXCEEDED;
                    break;
                }
                const std::string bytes = take_bytes(&message);
                grpc::Payload *payload = payload_of(bytes);
                if (!payload) {
                    status = grpc::RESOURCE_EXHAUSTED;
                    break;
                }
                call->write(payload);
                if (!call->wait_for_room(65536)) break;
            }
            call->finish(status, words, none);
            call->release();
            give_back_sent();
        }
    }

    std::vector<std::thread> loops_, apps_;
    std::mutex mutex_;
    MonotonicCondition changed_;
    bool stopped_ = false;
    std::deque<Late> late_;
    std::deque<grpc::Call *> streams_;
};

}  // namespace sim
