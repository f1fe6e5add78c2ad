// How answers are sent, and how their connections go on or close.

#include <errno.h>

#include <cstring>

#include "server/server.hpp"

namespace ksrv {

namespace {

// Puts a version of HTTP into a head's first line, in place of another of equal length.
void tell_version(std::string *head, const char *version) {
    const size_t length = strlen(version), end = head->find("\r\n");
    if (end != std::string::npos && end > length) head->replace(end - length, length, version);
}

}  // namespace

Sent HttpServer::flush(Connection *connection, bool last) noexcept {
    return send_now(connection, &connection->out, last);
}

// Whether the next answer is the last one of a connection that has its age or its number of requests.
bool HttpServer::at_its_end(const Connection *connection) noexcept {
    return connection->requests_left <= 1 ||
           (connection->ends_ns != Timers::NONE && unsigned_now_ns() >= connection->ends_ns);
}

bool HttpServer::put_answer(Connection *connection, uint16_t status, const char *line,
                      size_t line_length, const char *fields, size_t fields_length,
                      const char *body, size_t body_length, int parts) noexcept {
    Outgoing *out = &connection->out;
    forget_outgoing(out);
    if (!reserve_parts(out, parts)) return false;
    connection->status = status;
    connection->close_after = connection->close_after || draining.load(std::memory_order_relaxed) ||
                              config.idle_ns == 0 || at_its_end(connection);
    if (!connection->request_id.length) make_request_id(&connection->request_id);  // its head is not complete
    if (!put_head(out, line, line_length, fields, fields_length, config.server_header.data(),
                  config.server_header.size(), connection->close_after,
                  connection->head.http_1_0, connection->request_id, body, body_length))
        return false;
    connection->answered_bytes = body_length;
    return true;
}

// Sets up a ready-made answer, without its body for HEAD; the connection closes behind it where it must.
bool HttpServer::put_prepared(Connection *connection, const PreparedAnswer &made) noexcept {
    const bool head = connection->filled >= 5 && memcmp(connection->buffer, "HEAD ", 5) == 0;
    return put_answer(connection, made.status, made.status_line.data(), made.status_line.size(),
                      made.fields.data(), made.fields.size(), made.body.data(), head ? 0 : made.body.size());
}

// Sets up the answer to a GET that needs no Python; false where Python has to answer.
bool HttpServer::put_get(Connection *connection) noexcept {
    const Route route = connection->head.route;
    if (is_description(route)) return put_description(connection, route);
    count(SERVER_HEALTH);
    if (route == Route::live) {
        const bool good = live.load(std::memory_order_relaxed);
        return put_prepared(connection, prepared_answers[good ? ANSWER_LIVE : ANSWER_NOT_LIVE]);
    }
    if (ready.load(std::memory_order_relaxed))
        return put_prepared(connection, prepared_answers[ANSWER_READY]);
    return put_prepared(connection, *unready.answer());
}

bool HttpServer::put_description(Connection *connection, Route route) noexcept {
    const PreparedAnswer *made = &prepared_answers[ANSWER_SERVER];
    std::shared_ptr<const RouteTable> table;  // while the answer is copied
    if (route != Route::server) {
        table = routes.table();
        const ModelRoute *model = table ? table->named_by(connection->buffer, connection->head) : nullptr;
        if (!model || table->state != model_changes.load(std::memory_order_acquire)) return false;
        made = route == Route::metadata ? &model->metadata : &model->model_ready;
    }
    if (made->status == 0) return false;
    count(SERVER_DESCRIBED);
    return put_prepared(connection, *made);
}

// Answers a message whose rest is not read, and closes.
void HttpServer::refuse(Connection *connection, const PreparedAnswer &made, ServerCounter counter) noexcept {
    count(counter);
    connection->body.release();
    connection->close_after = true;
    if (!put_prepared(connection, made)) {
        drop(connection);
        return;
    }
    answer(connection, nullptr);
}

Turn HttpServer::begin_turn(Connection *connection) noexcept {
    const uint64_t number = (connection->turn.load(std::memory_order_relaxed) + 1) | 1;
    connection->turn.store(number, std::memory_order_release);
    return {connection, number};
}

Connection *HttpServer::take_turn(const Turn &turn) noexcept {
    uint64_t open = turn.number;
    if (turn.connection && (open & 1) &&
        turn.connection->turn.compare_exchange_strong(open, open + 1, std::memory_order_acq_rel))
        return turn.connection;
    count(SERVER_STRAY);
    return nullptr;
}

void HttpServer::fail(const Turn &turn) noexcept {
    Connection *connection = take_turn(turn);
    if (!connection) return;
    answer_prepared(connection, ANSWER_FAILED);
}

// The engine's answer, from whatever thread it comes.
bool HttpServer::answer(Connection *connection, Owners *owners) noexcept {
    unwatch(connection);
    const uint64_t now = unsigned_now_ns();
    const Sent sent = flush(connection);
    if (sent == Sent::blocked) {
        connection->out.owners = owners;
        wait_for_reader(connection, now);
        return false;
    }
    if (sent == Sent::broken) {
        count(SERVER_DISCONNECTED);
        drop(connection);
        return true;
    }
    if (finish(connection, now)) arm_for_phase(connection, now);
    return true;
}

bool HttpServer::reserve_answer(Connection *connection, uint64_t nbytes) noexcept {
    connection->body.give_back();
    connection->answer_counted = nbytes;
    connection->answer_room = process_budget().reserve_answer(nbytes);
    if (connection->answer_room != AnswerRoom::none) return true;
    count(SERVER_BYTES_IN_FLIGHT);
    return false;
}

void HttpServer::answer_prepared(Connection *connection, PreparedAnswerIndex which) noexcept {
    if (!put_prepared(connection, prepared_answers[which])) {
        drop(connection);
        return;
    }
    answer(connection, nullptr);
}

// The answer is out: closes, or makes the connection ready for its next message. True: it is still
// the caller's, in Phase::idle with what had come behind the message.
bool HttpServer::finish(Connection *connection, uint64_t now) noexcept {
    count(SERVER_ANSWERED);
    count_error(connection->status);
    if (config.log) record(connection, now);
    release_buffers(connection);
    if (connection->close_after || connection->byte_stream) {
        linger(connection, now);
        return false;
    }
    connection->requests_left -= connection->requests_left != UINT64_MAX;
    connection->consume(connection->message_end);
    connection->shrink();
    connection->reset_message();
    connection->enter(Phase::idle);
    if (connection->filled) {  // the next message was sent without waiting for this answer
        connection->message_ns = now;
        connection->enter(Phase::head);
    }
    return true;
}

// The bytes of all answers on this connection that the peer has taken. What the kernel has accepted
// says little, for it buffers megabytes; what the peer has not acknowledged yet is subtracted.
uint64_t HttpServer::acknowledged(Connection *connection) noexcept {
    const uint64_t sent = connection->out.sent, held = unacknowledged(connection);
    return sent > held ? sent - held : 0;
}

// The socket takes no more: the rest goes out when the peer has read.
void HttpServer::wait_for_reader(Connection *connection, uint64_t now) noexcept {
    if (connection->answer_room == AnswerRoom::none) {  // a small one, or an error
        process_budget().take(connection->out.total);
        connection->answer_counted = connection->out.total;
        connection->answer_room = AnswerRoom::shared;
    }
    connection->stage_ns = now;
    connection->out.taken = acknowledged(connection);
    connection->enter(Phase::send);
    arm_for_phase(connection, now);
}

// Whether the peer has taken enough since the last look.
bool HttpServer::still_reading(Connection *connection, uint64_t now) noexcept {
    const uint64_t taken = acknowledged(connection);
    const uint64_t since = taken > connection->out.taken ? taken - connection->out.taken : 0;
    const uint64_t rate = least_rate(connection->out.total);
    const uint64_t wanted = (now - connection->stage_ns) / 1000000u * rate / 1000u;
    connection->out.taken = taken;
    connection->stage_ns = now;
    return since >= wanted;
}

// Sends no more, and closes when the peer has received the sent bytes.
void HttpServer::linger(Connection *connection, uint64_t now) noexcept {
    if (connection->byte_stream) {  // which keeps what was sent, whatever still comes
        drop(connection);
        return;
    }
    end_sending(connection);
    connection->filled = 0;
    connection->stage_ns = now;
    connection->enter(Phase::linger);
    arm_for_phase(connection, now);
}

// Closing while the peer still sends would reset the connection and could take the answer with it.
void HttpServer::drain_lingering(Connection *connection, uint64_t now) noexcept {
    unsigned char waste[16384];
    for (int turns = 0; turns < 16; ++turns) {
        const ssize_t got = receive_some(connection, waste, sizeof waste);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (got <= 0) {
            drop(connection);
            return;
        }
    }
    arm_for_phase(connection, now);
}

namespace {

// The value of `Server-Timing` in an answer's head; empty where it has none.
std::string server_timing(const Outgoing &out) {
    static constexpr char name[] = "\r\nserver-timing: ";
    const char *head = out.long_head ? out.long_head : out.head;
    const size_t room = out.long_head ? strlen(out.long_head) : sizeof out.head;
    const void *end = memmem(head, room, "\r\n\r\n", 4);
    if (!end) return {};
    const size_t length = static_cast<size_t>(static_cast<const char *>(end) - head) + 2;
    const char *found = static_cast<const char *>(memmem(head, length, name, sizeof name - 1));
    if (!found) return {};
    found += sizeof name - 1;
    const size_t left = length - static_cast<size_t>(found - head);
    return {found, static_cast<size_t>(static_cast<const char *>(memmem(found, left, "\r\n", 2)) - found)};
}

}  // namespace

void HttpServer::record(Connection *connection, uint64_t now) noexcept {
    const size_t length =
        connection->head.length < connection->filled ? connection->head.length : connection->filled;
    try {
        AccessRecord made;
        made.duration_ns = now > connection->message_ns ? now - connection->message_ns : 0;
        made.answered_bytes = connection->answered_bytes;
        made.status = connection->status;
        made.listener = connection->listener;
        made.head.assign(reinterpret_cast<char *>(connection->buffer), length);
        made.request_id.assign(connection->request_id.text, connection->request_id.length);
        made.timing = server_timing(connection->out);
        if (connection->byte_stream) tell_version(&made.head, "HTTP/2.0");
        made.peer = connection->peer;
        made.peer_length = connection->peer_length;
        keep_record(std::move(made));
    } catch (const std::bad_alloc &) {
        count(SERVER_LOST_RECORDS);  // a line of the access log is not worth a request
    }
}

void HttpServer::note_refused(AccessRecord made) noexcept {
    count_error(made.status);
    if (config.log) keep_record(std::move(made));
}

void HttpServer::keep_record(AccessRecord made) noexcept {
    clock_gettime(CLOCK_REALTIME, &made.at);
    const size_t bytes = made.head.size();
    if (!records.keep(std::move(made), bytes)) count(SERVER_LOST_RECORDS);
}

}  // namespace ksrv
