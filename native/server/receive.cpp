// Receives requests: classifies each head, then dispatches it to the fast path, a prepared answer or the app.

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "server/server.hpp"

namespace ksrv {

namespace {

enum class Preface : uint8_t { none, begun, whole };

// SETTINGS without a setting, which must be a server's first frame (RFC 9113 3.4), and the head of GOAWAY with the
// error HTTP_1_1_REQUIRED. A text for people follows.
constexpr char NO_HTTP2[] = "this address serves REST over HTTP/1.1 only; gRPC has a separate address";
constexpr unsigned char GO_AWAY[] = {0, 0, 0, 4, 0, 0, 0, 0, 0,                             // SETTINGS
                                     0, 0, 8 + sizeof NO_HTTP2 - 1, 7, 0, 0, 0, 0, 0,       // GOAWAY of so many bytes:
                                     0, 0, 0, 0, 0, 0, 0, 0x0d};                            // no stream was served

// Looks for the preface of HTTP/2 (RFC 9113 3.4) at the beginning of a connection. Marks the bytes as searched if the
// rest has not arrived.
Preface look_for_preface(Connection *connection) noexcept {
    if (!connection->filled || connection->buffer[0] != HTTP2_PREFACE[0]) return Preface::none;
    if (connection->out.sent != 0) return Preface::none;  // an answer was sent, so these are not the first bytes
    const size_t length = std::min(connection->filled, HTTP2_PREFACE_BYTES);
    if (memcmp(connection->buffer, HTTP2_PREFACE, length) != 0) {
        if (connection->searched < HTTP2_PREFACE_BYTES) connection->searched = 0;
        return Preface::none;
    }
    if (length == HTTP2_PREFACE_BYTES) return Preface::whole;
    connection->searched = connection->filled;
    return Preface::begun;
}

// Sets the verdict about the received bytes. False if the client speaks HTTP/2.
bool classify(Connection *connection, const HeadLimits &limits) noexcept {
    if (connection->verdict == Verdict::incomplete) {
        const Preface preface = look_for_preface(connection);
        if (preface == Preface::whole) return false;
        if (connection->filled && preface == Preface::none)
            connection->verdict = classify_head(connection->buffer, connection->filled, &connection->searched, limits,
                                                &connection->head);
    }
    if (connection->verdict == Verdict::incomplete) return true;
    connection->message_end = connection->head.length;
    connection->identify();
    if (connection->head.close) connection->close_after = true;
    return true;
}

// Reads bytes of a head. False if the caller no longer owns the connection.
bool receive_head(HttpServer *server, Connection *connection, uint64_t now, bool *drained) noexcept {
    // After a large body, a short read for the next head leaves less to be moved into the block.
    const size_t usual = connection->body.large && connection->filled < SHORT_LOOK ? SHORT_LOOK : HEAD_BUFFER;
    const size_t room =
        connection->filled < HEAD_BUFFER ? usual : std::max(server->config.limits.longest_head, connection->filled + 1);
    if (!connection->reserve(std::max(room, HEAD_BUFFER))) {
        server->connections.drop(connection);
        return false;
    }
    const size_t space = room - connection->filled;
    const ssize_t got = receive_some(connection, connection->buffer + connection->filled, space);
    if (got < 0) {
        if (errno == EINTR) return true;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            server->connections.arm(connection, now);
        else
            server->connections.drop(connection);
        return false;
    }
    if (got == 0) {  // an incomplete head, and the peer sends nothing more
        server->connections.drop(connection);
        return false;
    }
    if (connection->phase.load(std::memory_order_relaxed) == Phase::idle) {
        connection->enter(Phase::head);
        connection->message_ns = now;
        connection->saw_bytes = true;
    }
    connection->filled += static_cast<size_t>(got);
    *drained = has_emptied(connection, static_cast<size_t>(got), space);
    return true;
}

}  // namespace

// Answers an HTTP/2 client in frames, because it would not show an answer of HTTP/1.1.
void HttpServer::refuse_http2(Connection *connection, uint64_t now) noexcept {
    refusals.keep({connection->peer, "HTTP/2", NO_HTTP2}, 0);
    add_part(&connection->out, GO_AWAY, sizeof GO_AWAY);
    add_part(&connection->out, NO_HTTP2, sizeof NO_HTTP2 - 1);
    if (send_now(connection, &connection->out) == Sent::all) {
        answers.linger(connection, now);
    } else {
        connections.drop(connection);
    }
}

// Continues with an owned connection until it is armed, in the run queue, with the app or dropped.
void HttpServer::advance(Connection *connection, uint64_t now) noexcept {
    int answered = 0;      // messages that got a prepared answer
    bool drained = false;  // the last read emptied the socket
    if (connection->phase.load(std::memory_order_relaxed) == Phase::proxy_header &&
        !take_proxy_header(connection, now))
        return;
    if (connection->phase.load(std::memory_order_relaxed) == Phase::handshake && !shake_hands(connection, now)) return;
    for (;;) {
        if (connection->phase.load(std::memory_order_relaxed) == Phase::body) {
            receive_body(connection, now);
            return;
        }
        if (!classify(connection, config.limits)) {
            refuse_http2(connection, now);
            return;
        }
        switch (connection->verdict) {
        case Verdict::native:
            if (!start_native(connection, now, &answered)) return;
            break;
        case Verdict::app:
            if (!start_app_message(connection, now)) return;
            break;
        case Verdict::refused:
            ask_app(connection, BodyState::unread);  // which reports the fault; the end of the message is unknown
            return;
        case Verdict::incomplete:
            if (drained) {
                connections.arm(connection, now);
                return;
            }
            if (!receive_head(this, connection, now, &drained)) return;
        }
    }
}

// Starts an infer request, or answers a GET of health or of a description. False if the caller no longer owns the
// connection.
bool HttpServer::start_native(Connection *connection, uint64_t now, int *answered) noexcept {
    if (connection->head.plain && routes.is_for_app(connection)) {
        connection->verdict = Verdict::app;
        connection->head.route = Route::none;
        return start_app_message(connection, now);
    }
    if (connection->head.route == Route::infer) return start_infer(connection, now);
    if (is_description(connection->head.route) && routes.check_first(connection)) return false;
    if (!routes.put_get(connection)) {
        ask_app(connection, BodyState::none);
        return false;
    }
    if (!answers.send_at_once(connection, now)) return false;
    if (++*answered < MESSAGES) return true;
    connections.arm(connection, now);  // let other connections have their turn
    return false;
}

// Continues after Python has checked the caller.
void HttpServer::checked(Connection *connection, bool admitted) noexcept {
    if (!admitted) {
        const bool has_body = connection->head.chunked || connection->head.content_length > 0;
        ask_app(connection, has_body ? BodyState::unread : BodyState::none);
        return;
    }
    connection->admitted = true;
    connections.remember_caller(connection);
    connection->enter(Phase::head);
    advance(connection, unsigned_now_ns());
}

// Checks an infer request before its body is received. False if the caller no longer owns the connection.
bool HttpServer::start_infer(Connection *connection, uint64_t now) noexcept {
    const Head &head = connection->head;
    const uint64_t need = head.content_length;
    const size_t with_head = connection->came_with_head();
    if (need > process_budget().most(need <= SMALL_REQUEST_BYTES)) {  // the app answers 413
        ask_app(connection, BodyState::unread);
        return false;
    }
    if ((head.chunked || with_head < need) && routes.check_first(connection)) return false;
    const bool waits = head.expects_continue && with_head == 0;  // the client waits for 100 Continue
    if (waits && !routes.is_routed(connection)) {  // the app answers 404, before the body is sent
        ask_app(connection, BodyState::unread);
        return false;
    }
    const bool large = need > EARLY_BODY + connection->filled;
    if ((large || waits) && routes.try_route(connection, false)) return false;
    connection->body.most =
        head.has_json_length ? config.limits.body : std::min(config.limits.body, config.limits.json);
    return start_body(connection, now);
}

// ---- bodies ---------------------------------------------------------------------------------------

// Starts receiving a body. False if the caller no longer owns the connection.
bool HttpServer::start_body(Connection *connection, uint64_t now) noexcept {
    const BodyProgress progress = connection->body.begin(connection, *connection, connection->head, config.limits,
                                                         &connection->message_end);
    if (progress != BodyProgress::more) {
        follow_body(connection, progress, now);
        return false;
    }
    connection->stage_ns = now;
    connection->enter(Phase::body);
    return true;
}

void HttpServer::receive_body(Connection *connection, uint64_t now) noexcept {
    follow_body(connection, connection->body.receive(connection, connection, &connection->head), now);
}

// Continues after a step of receiving a body.
void HttpServer::follow_body(Connection *connection, BodyProgress progress, uint64_t now) noexcept {
    switch (progress) {
    case BodyProgress::more:
        connections.arm(connection, now);
        return;
    case BodyProgress::ended:
        end_body(connection);
        return;
    case BodyProgress::no_room:  // the sweep retries soon
        if (connection->phase.load(std::memory_order_relaxed) != Phase::awaiting_memory) {
            connection->memory_wait_ns = now;
            connection->enter(Phase::awaiting_memory);
        } else if (now - connection->memory_wait_ns >= MEMORY_WAIT_NS) {
            answers.refuse(connection, ANSWER_BYTES_IN_FLIGHT, ServerCounter::bytes_in_flight);
            return;
        }
        connections.arm_until(connection, now + MEMORY_RETRY_NS);
        return;
    case BodyProgress::no_memory:
        answers.refuse(connection, ANSWER_BYTES_IN_FLIGHT, ServerCounter::bytes_in_flight);
        return;
    case BodyProgress::broken:
        connections.drop(connection);
    }
}

// Called by the sweep for a connection in Phase::awaiting_memory.
void HttpServer::retry_memory(Connection *connection, uint64_t now) noexcept {
    if (!connection->body.block) {
        if (start_body(connection, now)) advance(connection, now);
        return;
    }
    // A chunked body asks for a byte more than it has. It may have counted bytes that did not arrive yet, and `count`
    // for the received bytes would then be true without asking the budget.
    if (!connection->body.count(connection->head, connection->head.chunked ? 1 : 0)) {
        follow_body(connection, BodyProgress::no_room, now);
        return;
    }
    connection->stage_ns += now - connection->memory_wait_ns;  // the wait for memory does not count against the peer
    connection->enter(Phase::body);
    receive_body(connection, now);
}

// The body has ended, or cannot be received further.
void HttpServer::end_body(Connection *connection) noexcept {
    const IncomingBody &body = connection->body;
    const Head &head = connection->head;
    if (body.state == BodyState::cut_short) connection->close_after = true;
    const bool infer = head.route == Route::infer;
    const bool ended = body.state == BodyState::whole || body.state == BodyState::cut_short;
    // The app answers a chunked body that was cut short, or that is shorter than its JSON.
    const bool complete = !head.chunked || (body.state == BodyState::whole && body.got && body.got >= head.json_length);
    if (infer && ended && complete) {
        routes.begin_infer(connection);
        return;
    }
    // The app must first request a body that is too long to be received unasked.
    const bool asked = infer || body.asked;
    const bool unread = body.state == BodyState::too_long && !asked && body.chunks.fault() == ChunkFault::none;
    ask_app(connection, unread ? BodyState::unread : body.state);
}

}  // namespace ksrv
