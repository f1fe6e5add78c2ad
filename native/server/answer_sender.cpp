#include "server/answer_sender.hpp"

#include <errno.h>
#include <locale.h>
#include <sys/socket.h>
#include <time.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace ksrv {

namespace {

constexpr size_t DATE_BYTES = 29;

// The texts that `put` writes into every head, to compute the size of a head. Add each field that `put` writes.
constexpr char FIXED_TEXT[] =
    "HTTP/1.1 \r\nServer: gunicorn\r\nDate: \r\nConnection: keep-alive\r\nx-request-id: \r\n\r\n";
constexpr size_t FIXED_BYTES = sizeof FIXED_TEXT - 1 + DATE_BYTES;

struct Date {
    time_t made_for = -1;
    char text[DATE_BYTES + 1] = {};
};

// Formatted once per second and thread.
const char *http_date() noexcept {
    static const locale_t english = newlocale(LC_ALL_MASK, "C", nullptr);
    thread_local Date thread_date;
    Date &date = thread_date;
    const time_t now = time(nullptr);
    if (now == date.made_for) return date.text;
    tm parts;
    gmtime_r(&now, &parts);
    strftime_l(date.text, sizeof date.text, "%a, %d %b %Y %H:%M:%S GMT", &parts, english);
    date.made_for = now;
    return date.text;
}

constexpr int STOP_LOOK_MS = 100;  // Between two looks of a waiting stream at whether the server stops.

// The bytes of all answers on this connection that the peer has received. The kernel buffers megabytes, so bytes that
// the peer has not acknowledged are subtracted from the sent bytes.
uint64_t acknowledged(Connection *connection) noexcept {
    const uint64_t sent = connection->out.sent, held = unacknowledged(connection);
    return sent > held ? sent - held : 0;
}

Sent flush(Connection *connection) noexcept { return send_now(connection, &connection->out); }

}  // namespace

Connection *AnswerSender::take_turn(const Turn &turn) noexcept {
    Connection *connection = turn.take();
    if (!connection) counts_->count(ServerCounter::stray);
    return connection;
}

void AnswerSender::fail(const Turn &turn) noexcept {
    if (Connection *connection = take_turn(turn)) send_prepared(connection, ANSWER_FAILED);
}

// ---- making answers -----------------------------------------------------------------------------

// Whether the next answer is the last of a connection that reached its maximum age or number of requests.
bool AnswerSender::is_last(const Connection *connection) const noexcept {
    return connections_->is_draining() || config_->idle_ns == 0 || connection->requests_left <= 1 ||
           (connection->ends_ns != Timers::NONE && unsigned_now_ns() >= connection->ends_ns);
}

bool AnswerSender::put(Connection *connection, uint16_t status, const char *line, size_t line_length,
                       const char *fields, size_t fields_length, const char *body, size_t body_length,
                       int parts) noexcept {
    Outgoing *out = &connection->out;
    forget_outgoing(out);
    if (!reserve_parts(out, parts)) return false;
    connection->status = status;
    connection->close_after = connection->close_after || is_last(connection);
    if (!connection->request_id.length) make_request_id(&connection->request_id);  // the head is not complete
    const RequestId &id = connection->request_id;
    const size_t most = line_length + fields_length + body_length + id.length + FIXED_BYTES;
    char *text = out->head;
    if (most > ANSWER_HEAD) {
        text = out->long_head = static_cast<char *>(malloc(most));
        if (!text) return false;
    }
    char *at = text;
    const auto append = [&at](const char *piece, size_t length) {
        memcpy(at, piece, length);
        at += length;
    };
    append(connection->head.http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ", 9);
    append(line, line_length);
    append("\r\nServer: gunicorn\r\nDate: ", 26);
    append(http_date(), DATE_BYTES);
    if (connection->close_after) {
        append("\r\nConnection: close\r\n", 21);
    } else {
        append("\r\nConnection: keep-alive\r\n", 26);
    }
    append("x-request-id: ", 14);
    append(id.text, id.length);
    append("\r\n", 2);
    append(fields, fields_length);
    append("\r\n", 2);
    out->head_bytes = static_cast<size_t>(at - text);
    if (body_length) append(body, body_length);
    add_part(out, text, static_cast<size_t>(at - text));
    connection->answered_bytes = body_length;
    return true;
}

bool AnswerSender::put_prepared(Connection *connection, const PreparedAnswer &made) noexcept {
    const bool head = connection->filled >= 5 && memcmp(connection->buffer, "HEAD ", 5) == 0;
    return put(connection, made.status, made.status_line.data(), made.status_line.size(), made.fields.data(),
               made.fields.size(), made.body.data(), head ? 0 : made.body.size());
}

bool AnswerSender::put_health(Connection *connection) noexcept {
    if (connection->head.route == Route::live)
        return put_prepared(connection, prepared[ANSWER_LIVE]);
    if (ready.load(std::memory_order_relaxed)) return put_prepared(connection, prepared[ANSWER_READY]);
    return put_prepared(connection, *unready.get());
}

bool AnswerSender::reserve(Connection *connection, uint64_t nbytes) noexcept {
    connection->body.give_back();
    connection->answer_counted = nbytes;
    connection->answer_room = process_budget().reserve_answer(nbytes);
    if (connection->answer_room != AnswerRoom::none) return true;
    counts_->count(ServerCounter::bytes_in_flight);
    return false;
}

// ---- sending answers ----------------------------------------------------------------------------

// Sends the engine's answer. Called on any thread.
bool AnswerSender::send(Connection *connection, Owners *owners) noexcept {
    connections_->disconnects.unwatch(connection);
    const uint64_t now = unsigned_now_ns();
    const Sent sent = flush(connection);
    if (sent == Sent::blocked) {
        connection->out.owners = owners;
        wait_for_reader(connection, now);
        return false;
    }
    if (sent == Sent::broken) {
        connections_->drop(connection);
        return true;
    }
    if (finish(connection, now)) connections_->arm(connection, now);
    return true;
}

void AnswerSender::send_prepared(Connection *connection, PreparedAnswerIndex which) noexcept {
    send_prepared(connection, prepared[which]);
}

void AnswerSender::send_prepared(Connection *connection, const PreparedAnswer &made) noexcept {
    if (put_prepared(connection, made)) {
        send(connection, nullptr);
    } else {
        connections_->drop(connection);
    }
}

void AnswerSender::refuse(Connection *connection, const PreparedAnswer &made, ServerCounter counter) noexcept {
    counts_->count(counter);
    connection->body.release();
    connection->close_after = true;
    send_prepared(connection, made);
}

bool AnswerSender::send_at_once(Connection *connection, uint64_t now) noexcept {
    const Sent sent = flush(connection);
    if (sent == Sent::all) return finish(connection, now);
    if (sent == Sent::broken) {
        connections_->drop(connection);
    } else {
        wait_for_reader(connection, now);
    }
    return false;
}

bool AnswerSender::go_on(Connection *connection, uint64_t now) noexcept {
    const Sent sent = flush(connection);
    if (sent == Sent::blocked) {
        connections_->arm(connection, now);
    } else if (sent == Sent::broken) {
        connections_->drop(connection);
    } else {
        connections_->defer_decref(connection);
        return finish(connection, now);
    }
    return false;
}

// The answer was sent: closes the connection, or prepares it for its next message. True if the caller still owns it, in
// Phase::idle, or in Phase::head if the next message has begun to arrive.
bool AnswerSender::finish(Connection *connection, uint64_t now) noexcept {
    counts_->count(ServerCounter::answered);
    counts_->count_status(connection->status);
    if (config_->log && !keep_record(&log, *connection, now)) counts_->count(ServerCounter::lost_lines);
    connections_->release_buffers(connection);
    if (connection->close_after) {
        linger(connection, now);
        return false;
    }
    connection->requests_left -= connection->requests_left != UINT64_MAX;  // UINT64_MAX: unlimited
    connection->consume(connection->message_end);
    connection->shrink();
    connection->reset_message();
    connection->enter(Phase::idle);
    if (connection->filled) {  // the next message is pipelined
        connection->message_ns = now;
        connection->enter(Phase::head);
    }
    return true;
}

// The socket is full: counts the bytes that wait for the peer, and begins to watch how fast it reads.
void AnswerSender::await_reader(Connection *connection, uint64_t now) noexcept {
    if (connection->answer_room == AnswerRoom::none) {  // a small answer, or an error
        process_budget().take(connection->out.total);
        connection->answer_counted = connection->out.total;
        connection->answer_room = AnswerRoom::shared;
    }
    connection->stage_ns = now;
    connection->out.taken = acknowledged(connection);
}

// The rest is sent by the event loop when the peer has read.
void AnswerSender::wait_for_reader(Connection *connection, uint64_t now) noexcept {
    await_reader(connection, now);
    connection->enter(Phase::send);
    connections_->arm(connection, now);
}

// Whether the peer has read enough since the last check.
bool AnswerSender::reads_enough(Connection *connection, uint64_t now) noexcept {
    Outgoing *out = &connection->out;
    const uint64_t before = std::exchange(out->taken, acknowledged(connection));
    const uint64_t since = out->taken > before ? out->taken - before : 0;
    const uint64_t elapsed = now - std::exchange(connection->stage_ns, now);
    if (config_->keeps_up(since, elapsed, out->total)) return true;
    counts_->count(ServerCounter::too_slow);
    return false;
}

void AnswerSender::look_at_reader(Connection *connection, uint64_t now) noexcept {
    if (reads_enough(connection, now)) {
        connections_->arm(connection, now);
    } else {
        connections_->drop(connection);
    }
}

bool AnswerSender::send_piece(Connection *connection) noexcept {
    Sent sent = flush(connection);
    if (sent == Sent::blocked) {
        uint64_t now = unsigned_now_ns();
        await_reader(connection, now);
        while (sent == Sent::blocked && !stopped_.load(std::memory_order_relaxed)) {
            await_writable(connection, STOP_LOOK_MS);
            sent = flush(connection);
            now = unsigned_now_ns();
            const bool is_due = now >= connection->stage_ns + config_->grace_ns;
            if (sent == Sent::blocked && is_due && !reads_enough(connection, now))
                break;
        }
        process_budget().give_back_answer(connection->answer_counted, connection->answer_room);
        connection->answer_room = AnswerRoom::none;
    }
    if (sent == Sent::all) return true;
    connections_->drop(connection);
    return false;
}

void AnswerSender::linger(Connection *connection, uint64_t now) noexcept {
    end_sending(connection);
    connection->filled = 0;
    connection->stage_ns = now;
    connection->enter(Phase::linger);
    connections_->arm(connection, now);
}

// Discards data from the peer. Closing while the peer still sends would reset the connection, and the answer might be
// lost.
void AnswerSender::drain_lingering(Connection *connection, uint64_t now) noexcept {
    unsigned char waste[16384];
    for (int turns = 0; turns < 16; ++turns) {
        // Not through TLS: records that nobody reads need not be decrypted. MSG_TRUNC: TCP discards without copying.
        const ssize_t got = recv(connection->fd, waste, sizeof waste, MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
        if (got <= 0) {
            connections_->drop(connection);
            return;
        }
    }
    connections_->arm(connection, now);
}

}  // namespace ksrv
