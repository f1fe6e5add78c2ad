// How messages come in: each head is judged, and its message goes the way that the verdict names.

#include <errno.h>

#include <algorithm>

#include "server/server.hpp"

namespace ksrv {

// Goes on with an owned connection until it is armed, in the run queue, with the app or dropped.
void HttpServer::advance(Connection *connection, uint64_t now) noexcept {
    int messages = 0;
    bool drained = false;  // the last read took everything there was
    if (connection->phase.load(std::memory_order_relaxed) == Phase::proxy_header &&
        !take_proxy_header(connection, now))
        return;
    if (connection->phase.load(std::memory_order_relaxed) == Phase::handshake &&
        !shake_hands(connection, now))
        return;
    for (;;) {
        const Phase phase = connection->phase.load(std::memory_order_relaxed);
        if (phase == Phase::body) {
            receive_body(connection, now);
            return;
        }
        if (connection->verdict == Verdict::incomplete) {
            const Preface preface = look_for_preface(connection);
            if (preface == Preface::whole) {
                hand_over(connection);
                return;
            }
            if (connection->filled && preface == Preface::none)
                connection->verdict = classify_head(connection->buffer, connection->filled, &connection->searched,
                                                    config.limits, &connection->head);
        }
        const Verdict verdict = connection->verdict;
        if (verdict != Verdict::incomplete) {
            connection->message_end = connection->head.length;
            connection->identify();
            if (connection->head.close) connection->close_after = true;
        }
        if (verdict == Verdict::native) {
            if (connection->head.route == Route::infer) {
                if (!start_infer(connection, now)) return;
                continue;
            }
            if (is_description(connection->head.route) && check_first(connection)) return;
            if (!put_get(connection)) {
                ask_app(connection, BodyState::none);
                return;
            }
            const Sent sent = flush(connection);
            if (sent == Sent::broken) {
                drop(connection);
                return;
            }
            if (sent == Sent::blocked) {
                wait_for_reader(connection, now);
                return;
            }
            if (!finish(connection, now)) return;
            if (++messages == MESSAGES) {
                arm_for_phase(connection, now);  // the others first
                return;
            }
            continue;
        }
        if (verdict == Verdict::app) {
            if (!start_app_message(connection, now)) return;
            continue;
        }
        if (verdict == Verdict::refused) {
            ask_app(connection, BodyState::unread);  // for the sentence; where the message ends is not known
            return;
        }
        if (drained) {
            arm_for_phase(connection, now);
            return;
        }
        // Behind a large body, a short look for the next head leaves less to be moved into the block.
        const size_t usual = connection->body.large && connection->filled < SHORT_LOOK ? SHORT_LOOK : HEAD_BUFFER;
        const size_t room = connection->filled < HEAD_BUFFER
                                ? usual
                                : std::max(config.limits.longest_head, connection->filled + 1);
        if (!connection->reserve(std::max(room, HEAD_BUFFER))) {
            drop(connection);
            return;
        }
        const size_t space = room - connection->filled;
        const ssize_t got =
            receive_some(connection, connection->buffer + connection->filled, space);
        if (got < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                drop(connection);
                return;
            }
            arm_for_phase(connection, now);
            return;
        }
        if (got == 0) {  // an unfinished head of a peer that will send no more
            drop(connection);
            return;
        }
        if (phase == Phase::idle) {
            connection->enter(Phase::head);
            connection->message_ns = now;
            connection->saw_bytes = true;
        }
        connection->filled += static_cast<size_t>(got);
        drained = has_emptied(connection, static_cast<size_t>(got), space);
    }
}

// ---- who may call -------------------------------------------------------------------------------

// Whether the caller of a message may send it, as far as is known without Python.
bool HttpServer::is_admitted(Connection *connection) noexcept {
    if (!config.checks_callers || connection->admitted) return true;
    const Span &value = connection->head.authorization;
    connection->admitted =
        value.length != 0 && known_callers.knows(connection->buffer + value.offset, value.length);
    return connection->admitted;
}

void HttpServer::remember_caller(const Connection *connection) noexcept {
    const Span &value = connection->head.authorization;
    const unsigned char *const begin = connection->buffer + value.offset, *const end = begin + value.length;
    if (std::count_if(begin, end, [](unsigned char c) { return c == ' ' || c == '\t'; }) == 1)
        known_callers.add(begin, value.length);
}

// Has Python check the credentials, before a body is waited for. True: the connection is not the caller's.
bool HttpServer::check_first(Connection *connection) noexcept {
    if (is_admitted(connection)) return false;
    timers.set(connection->slot, Timers::NONE);
    connection->checking = true;
    connection->enter(Phase::run);
    queue_to_run(connection);
    return true;
}

void HttpServer::checked(Connection *connection, bool admitted) noexcept {
    if (!admitted) {
        const bool has_body = connection->head.chunked || connection->head.content_length > 0;
        ask_app(connection, has_body ? BodyState::unread : BodyState::none);
        return;
    }
    connection->admitted = true;
    remember_caller(connection);
    connection->enter(Phase::head);
    advance(connection, unsigned_now_ns());
}

// ---- routes ---------------------------------------------------------------------------------------

// Whether requests reach the model that a message names.
bool HttpServer::is_routed(Connection *connection) noexcept {
    const std::shared_ptr<const RouteTable> table = routes.table();
    return table && table->named_by(connection->buffer, connection->head);
}

// Looks at an infer request before its body is received. False: the connection is not the caller's any more.
bool HttpServer::start_infer(Connection *connection, uint64_t now) noexcept {
    const Head &head = connection->head;
    const uint64_t need = head.content_length;
    const size_t with_head = connection->came_with_head();
    if (need > process_budget().most(need <= MemoryBudget::SMALL_REQUEST)) {  // the app says so, with 413
        ask_app(connection, BodyState::unread);
        return false;
    }
    if ((head.chunked || with_head < need) && check_first(connection)) return false;
    const bool waits = head.expects_continue && with_head == 0;
    if (waits && !is_routed(connection)) {  // the app says so, before the body is sent
        ask_app(connection, BodyState::unread);
        return false;
    }
    const bool large = need > EARLY_BODY + connection->filled;
    if ((large || waits) && try_route(connection, false)) return false;
    connection->body.most =
        head.has_json_length ? config.limits.body : std::min(config.limits.body, config.limits.json);
    return start_body(connection, now);
}

// Answers 503 without Python where the model's queue is full. A body that is not `complete` stays
// unread, and the connection closes behind the answer. A complete fast-path request goes into
// the queue. True: the connection is not the caller's.
bool HttpServer::try_route(Connection *connection, bool complete) noexcept {
    if (!is_admitted(connection)) return false;  // whom a full queue is not told of
    const std::shared_ptr<const RouteTable> table = routes.table();
    if (!table) return false;
    const ModelRoute *route = table->named_by(connection->buffer, connection->head);
    if (!route) return false;
    if (!route->queue->turns_away())
        return complete && route->signature && submit_fast_request(connection, *route);
    if (!complete) {
        refuse(connection, route->full, SERVER_QUEUE_FULL);
        return true;
    }
    count(SERVER_QUEUE_FULL);
    if (!put_prepared(connection, route->full)) {
        drop(connection);
    } else {
        answer(connection, nullptr);
    }
    return true;
}

// Puts an infer request whose body has come to its end into its model's queue, or has it wait for Python.
void HttpServer::begin_infer(Connection *connection) noexcept {
    count(SERVER_INFER);
    if (connection->body.got == connection->head.content_length && try_route(connection, true)) return;
    timers.set(connection->slot, Timers::NONE);
    connection->enter(Phase::run);
    queue_to_run(connection);
}

void HttpServer::queue_to_run(Connection *connection) noexcept {
    if (!connection->fast_request) begin_turn(connection);
    to_run_.push(connection);
    loop_->wake();
}

// A request that its client still wants answered; null where none waits.
Connection *HttpServer::next_to_run() noexcept {
    loop_->note_request();
    for (;;) {
        Connection *connection = to_run_.pop();
        if (!connection || !drop_cut(connection)) return connection;
    }
}

// ---- bodies ---------------------------------------------------------------------------------------

// Has a body begin to come. False: the connection is not the caller's any more.
bool HttpServer::start_body(Connection *connection, uint64_t now) noexcept {
    const BodyProgress progress = connection->body.begin(connection, *connection, connection->head, config.limits,
                                                         &connection->message_end);
    if (progress != BodyProgress::comes) {
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

void HttpServer::follow_body(Connection *connection, BodyProgress progress, uint64_t now) noexcept {
    switch (progress) {
    case BodyProgress::comes:
        arm_for_phase(connection, now);
        return;
    case BodyProgress::ended:
        end_body(connection);
        return;
    case BodyProgress::no_room:
        await_memory(connection, now);
        return;
    case BodyProgress::no_memory:
        refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
        return;
    case BodyProgress::broken:
        drop(connection);
    }
}

// Has the sweep look again soon; the connection is its.
void HttpServer::await_memory(Connection *connection, uint64_t now) noexcept {
    if (connection->phase.load(std::memory_order_relaxed) != Phase::awaiting_memory) {
        connection->memory_wait_ns = now;
        connection->enter(Phase::awaiting_memory);
    } else if (now - connection->memory_wait_ns >= config.memory_wait_ns) {
        refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
        return;
    }
    timers.set(connection->slot, now + MEMORY_RETRY_NS);
    loop_->sweep_by(now + MEMORY_RETRY_NS);
    arm_for_sweep(connection);
}

void HttpServer::retry_memory(Connection *connection, uint64_t now) noexcept {
    if (!connection->body.block) {
        if (start_body(connection, now)) advance(connection, now);
        return;
    }
    if (!connection->body.count(connection->head, connection->head.chunked ? 1 : 0)) {
        await_memory(connection, now);
        return;
    }
    connection->stage_ns += now - connection->memory_wait_ns;  // the peer could do nothing meanwhile
    connection->enter(Phase::body);
    receive_body(connection, now);
}

// A body has come to its end, or comes no further.
void HttpServer::end_body(Connection *connection) noexcept {
    const IncomingBody &body = connection->body;
    const Head &head = connection->head;
    if (body.state == BodyState::cut_short) connection->close_after = true;
    const bool infer = head.route == Route::infer;
    const bool ended = body.state == BodyState::whole || body.state == BodyState::cut_short;
    // The app answers a body in chunks that was cut short, or has less than its JSON.
    const bool taken = !head.chunked || (body.state == BodyState::whole && body.got && body.got >= head.json_length);
    if (infer && ended && taken) {
        begin_infer(connection);
        return;
    }
    // The app is asked whether it wants a body that is longer than what is received unasked.
    const bool asked = infer || body.asked;
    const bool unread = body.state == BodyState::too_long && !asked && body.chunks.fault() == ChunkFault::none;
    ask_app(connection, unread ? BodyState::unread : body.state);
}

}  // namespace ksrv
