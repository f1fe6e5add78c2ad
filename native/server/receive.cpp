// How messages come in: classify the head, then receive into a block, or hand the connection to gunicorn.

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>

#include "server/server.hpp"

namespace ksrv {

// Goes on with an owned connection until it is armed, in the run queue, handed over or dropped.
void HttpServer::advance(Connection *connection, uint64_t now) noexcept {
    int messages = 0;
    bool drained = false;  // the last recv took everything there was
    if (connection->phase.load(std::memory_order_relaxed) == Phase::handshake &&
        !shake_hands(connection, now))
        return;
    for (;;) {
        const Phase phase = connection->phase.load(std::memory_order_relaxed);
        if (phase == Phase::body) {
            receive_body(connection, now);
            return;
        }
        const bool buffering = phase == Phase::buffering;
        Verdict verdict = Verdict::incomplete;
        if (buffering && connection->head.chunked) {
            if (!receive_chunks(connection, now)) return;
        } else if (buffering) {
            if (connection->filled >= connection->message_end) {
                hand_off(connection);
                return;
            }
        } else if (connection->filled) {
            verdict = classify_head(connection->buffer, connection->filled, &connection->searched,
                                config.limits, &connection->head);
        }
        if (verdict == Verdict::native) {
            if (connection->head.close) connection->close_after = true;
            if (connection->head.chunked) {
                if (check_first(connection)) return;
                connection->stage_ns = now;
                connection->phase.store(Phase::buffering, std::memory_order_relaxed);
                continue;
            }
            if (connection->head.route == Route::infer) {
                if (!start_body(connection, now)) return;
                continue;
            }
            if (is_description(connection->head.route) && check_first(connection)) return;
            if (!put_get(connection)) {
                hand_off(connection);
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
        if (verdict == Verdict::gunicorn) {
            const uint64_t body = connection->head.buffered_body;
            connection->message_end = connection->head.length + body;
            if (body == 0 || connection->filled >= connection->message_end) {
                hand_off(connection);
                return;
            }
            if (check_first(connection)) return;
            if (!process_budget().reserve(body, true)) {  // the app says so, with 503
                hand_off(connection);
                return;
            }
            connection->counted = body;
            connection->stage_ns = now;
            connection->phase.store(Phase::buffering, std::memory_order_relaxed);
            continue;
        }
        if (drained) {
            arm_for_phase(connection, now);
            return;
        }
        // Behind a large body, a short look for the next head leaves less to be moved into the block.
        const size_t room = connection->large && connection->filled < SHORT_LOOK ? SHORT_LOOK : HEAD_BUFFER;
        const size_t wanted = buffering ? connection->message_end : room;
        if (!connection->reserve(wanted < HEAD_BUFFER ? HEAD_BUFFER : wanted)) {
            drop(connection);
            return;
        }
        const size_t space = wanted - connection->filled;
        const ssize_t got = receive_some(connection, connection->buffer + connection->filled, space);
        if (got < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                drop(connection);
                return;
            }
            arm_for_phase(connection, now);
            return;
        }
        if (got == 0) {  // an unfinished message of a peer that will send no more
            if (buffering) {
                hand_off(connection);
            } else {
                drop(connection);
            }
            return;
        }
        if (phase == Phase::idle) {
            connection->phase.store(Phase::head, std::memory_order_relaxed);
            connection->message_ns = now;
            connection->saw_bytes = true;
        }
        connection->filled += static_cast<size_t>(got);
        drained = has_emptied(connection, static_cast<size_t>(got), space);
    }
}

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

// Has Python look at who calls, before a body is waited for. True: the connection is not the caller's.
bool HttpServer::check_first(Connection *connection) noexcept {
    if (is_admitted(connection)) return false;
    deadlines.set(connection->slot, Deadlines::NONE);
    connection->checking = true;
    connection->phase.store(Phase::run, std::memory_order_relaxed);
    queue_to_run(connection);
    return true;
}

void HttpServer::checked(Connection *connection, bool admitted) noexcept {
    if (!admitted) {
        hand_off(connection);
        return;
    }
    connection->admitted = true;
    remember_caller(connection);
    connection->phase.store(Phase::head, std::memory_order_relaxed);
    advance(connection, unsigned_now_ns());
}

// Whether requests reach the model that a message names.
bool HttpServer::is_routed(Connection *connection) noexcept {
    const std::shared_ptr<const RouteTable> table = routes.table();
    return table && table->named_by(connection->buffer, connection->head);
}

// Takes the block for an infer request's body and moves the bytes that came with the head into it. False: the
// connection is not the caller's any more.
bool HttpServer::start_body(Connection *connection, uint64_t now) noexcept {
    const uint64_t need = connection->head.content_length;
    const size_t with_head = connection->filled - connection->head.length;
    const size_t taken = with_head < need ? with_head : static_cast<size_t>(need);
    if (need > process_budget().most(need <= MemoryBudget::SMALL_REQUEST)) {  // the app says so, with 413
        hand_off(connection);
        return false;
    }
    if (taken < need && check_first(connection)) return false;
    const bool waits = connection->head.expects_continue && taken == 0;
    if (waits && !is_routed(connection)) {  // the app says so, before the body is sent
        hand_off(connection);
        return false;
    }
    const bool large = need > config.limits.buffered_body + connection->filled;
    if ((large || waits) && try_route(connection, false)) return false;
    // The JSON ends, and so the first tensor begins, on a border of 64 bytes.
    connection->body_offset =
        connection->head.has_json_length ? (0 - connection->head.json_length) & 63 : 0;
    connection->block = process_pool().lease(connection->body_offset + need, BACKEND_HEAP);
    if (!connection->block) {
        refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
        return false;
    }
    connection->body_got = taken;
    connection->ahead = connection->block->pooled_before && taken < need;
    if (!count_body(connection)) {
        connection->block->unwritten = !connection->block->pooled_before;
        process_pool().release(connection->block);
        connection->block = nullptr;
        await_memory(connection, now);
        return false;
    }
    connection->block->unwritten = !connection->block->pooled_before && taken < need;
    if (waits && !send_continue(connection)) {
        drop(connection);
        return false;
    }
    memcpy(connection->block->data + connection->body_offset,
           connection->buffer + connection->head.length, taken);
    connection->large = need > HEAD_BUFFER;
    connection->slow_body = false;
    connection->message_end = connection->head.length + taken;  // to be consumed when answered
    connection->stage_ns = now;
    connection->phase.store(Phase::body, std::memory_order_relaxed);
    return true;
}

// Counts what has come of a body and the next step of it: as much again, within bounds. A block that
// was in use before is in memory already, so all of it is counted. False: there is no room.
bool HttpServer::count_body(Connection *connection) noexcept {
    const uint64_t need = connection->head.content_length;
    const uint64_t got = connection->body_got;
    const uint64_t step = got < COUNTED_STEP ? COUNTED_STEP : got < TURN_BYTES ? got : TURN_BYTES;
    const uint64_t wanted = connection->ahead || step > need - got ? need : got + step;
    if (!process_budget().reserve(wanted - connection->counted, need <= MemoryBudget::SMALL_REQUEST))
        return false;
    connection->counted = wanted;
    return true;
}

// A body that was counted before it came does not come quickly: what is missing is neither counted nor
// kept in memory for it any longer.
void HttpServer::uncount_missing(Connection *connection) noexcept {
    connection->ahead = false;
    connection->block->unwritten = true;
    BufferPool::give_back_behind(connection->block, connection->body_offset + connection->body_got);
    process_budget().give_back(connection->counted - connection->body_got);
    connection->counted = connection->body_got;
}

void HttpServer::give_back(Connection *connection) noexcept {
    process_budget().give_back(connection->counted);
    connection->counted = 0;
}

// Has the sweep look again soon; the connection is its.
void HttpServer::await_memory(Connection *connection, uint64_t now) noexcept {
    if (connection->phase.load(std::memory_order_relaxed) != Phase::awaiting_memory) {
        connection->memory_wait_ns = now;
        connection->phase.store(Phase::awaiting_memory, std::memory_order_relaxed);
    } else if (now - connection->memory_wait_ns >= config.memory_wait_ns) {
        refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
        return;
    }
    deadlines.set(connection->slot, now + MEMORY_RETRY_NS);
    if (next_sweep_.load(std::memory_order_relaxed) > now + MEMORY_RETRY_NS)
        next_sweep_.store(now + MEMORY_RETRY_NS, std::memory_order_relaxed);
    connection->claim.store(ARMED, std::memory_order_release);  // for the sweep alone
}

void HttpServer::retry_memory(Connection *connection, uint64_t now) noexcept {
    if (!connection->block) {
        if (start_body(connection, now)) advance(connection, now);
        return;
    }
    if (!count_body(connection)) {
        await_memory(connection, now);
        return;
    }
    connection->stage_ns += now - connection->memory_wait_ns;  // the peer could do nothing meanwhile
    connection->phase.store(Phase::body, std::memory_order_relaxed);
    receive_body(connection, now);
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

// Receives until the body is complete or cut short, the socket is empty, or it is the others' turn. A
// request that has come to its end then goes into its model's queue, or waits for the GIL.
void HttpServer::receive_body(Connection *connection, uint64_t now) noexcept {
    const size_t need = static_cast<size_t>(connection->head.content_length);
    unsigned char *const body = connection->block->data + connection->body_offset;
    size_t turn = 0;
    while (connection->body_got < need) {
        if (connection->counted == connection->body_got && !count_body(connection)) {
            await_memory(connection, now);
            return;
        }
        const size_t left = static_cast<size_t>(connection->counted) - connection->body_got;
        const ssize_t got = receive_some(connection, body + connection->body_got, left);
        if (got < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                drop(connection);
                return;
            }
            await_more(connection, need - connection->body_got);
            arm_for_phase(connection, now);
            return;
        }
        if (got == 0) {  // the peer may still read: it is told, as on the slow route
            connection->close_after = true;
            break;
        }
        connection->body_got += static_cast<size_t>(got);
        turn += static_cast<size_t>(got);
        if (connection->body_got < need && turn >= TURN_BYTES) {  // the others first
            await_more(connection, need - connection->body_got);
            arm_for_phase(connection, now);
            return;
        }
    }
    set_low_water(connection, 1);
    connection->ahead = false;
    connection->block->unwritten = connection->block->unwritten && connection->body_got < need;
    begin_infer(connection);
}

// Puts an infer request whose body has come to its end into its model's queue, or has it wait for Python.
void HttpServer::begin_infer(Connection *connection) noexcept {
    count(SERVER_INFER);
    if (connection->body_got == connection->head.content_length && try_route(connection, true)) return;
    deadlines.set(connection->slot, Deadlines::NONE);
    connection->phase.store(Phase::run, std::memory_order_relaxed);
    queue_to_run(connection);
}

// Looks at what has come of a chunked body. A whole one goes on as a body of known length does; one that is
// not of the plainest form, or longer than CHUNKED_MOST, is gunicorn's. True: more of it is to be received,
// and `message_end` is how far the buffer may be filled.
bool HttpServer::receive_chunks(Connection *connection, uint64_t now) noexcept {
    const Head &head = connection->head;
    const uint64_t whole = head.has_json_length ? config.limits.body
                                                : std::min(config.limits.body, config.limits.json);
    const size_t come = connection->filled - head.length;
    const Chunks found = look_at_chunks(connection->buffer + head.length, come,
                                        std::min(config.limits.chunks, CHUNKS_MOST),
                                        static_cast<size_t>(std::min<uint64_t>(whole, CHUNKED_MOST)),
                                        &connection->chunks);
    const size_t decoded = connection->chunks.decoded;
    if (found == Chunks::whole && decoded != 0 && decoded >= head.json_length) {
        take_chunks(connection, now);
        return false;
    }
    if (found != Chunks::incomplete || come >= CHUNKED_MOST) {
        hand_off(connection);
        return false;
    }
    if (connection->filled < connection->message_end) return true;
    const size_t end = std::min(std::max(HEAD_BUFFER, 2 * connection->filled), head.length + CHUNKED_MOST);
    if (!process_budget().reserve(end - connection->filled, true)) {  // the app says so, with 503
        hand_off(connection);
        return false;
    }
    connection->counted += end - connection->filled;
    connection->message_end = end;
    return true;
}

// Moves the contents of a whole chunked body into a block, out of the buffer.
void HttpServer::take_chunks(Connection *connection, uint64_t now) noexcept {
    Head &head = connection->head;
    const size_t decoded = connection->chunks.decoded, end = head.length + connection->chunks.at;
    if (connection->counted > decoded) {
        process_budget().give_back(connection->counted - decoded);
        connection->counted = decoded;
    }
    if (process_budget().reserve(decoded - connection->counted, true)) {
        connection->counted = decoded;
        connection->body_offset = head.has_json_length ? (0 - head.json_length) & 63 : 0;
        connection->block = process_pool().lease(connection->body_offset + decoded, BACKEND_HEAP);
    }
    if (!connection->block) {
        refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
        return;
    }
    copy_chunks(connection->buffer + head.length, connection->block->data + connection->body_offset);
    memmove(connection->buffer + head.length, connection->buffer + end, connection->filled - end);
    connection->filled -= end - head.length;
    connection->shrink();
    connection->message_end = head.length;
    connection->body_got = decoded;
    head.content_length = decoded;
    connection->stage_ns = now;
    begin_infer(connection);
}

// The kernel makes no event for fewer bytes than this.
void HttpServer::set_low_water(Connection *connection, int bytes) noexcept {
    if (connection->tls || connection->low_water == bytes) return;  // records are no bytes of the body
    if (setsockopt(connection->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0)
        connection->low_water = bytes;
}

// The rest of a large body is waited for in large pieces, unless the peer turned out to be slow.
void HttpServer::await_more(Connection *connection, size_t left) noexcept {
    if (connection->slow_body || left < LOW_WATER_LEAST) {
        set_low_water(connection, 1);
    } else {
        set_low_water(connection, static_cast<int>(left < LOW_WATER_MOST ? left : LOW_WATER_MOST));
    }
}

void HttpServer::queue_to_run(Connection *connection) noexcept {
    if (!connection->fast_request) begin_turn(connection);
    std::lock_guard<std::mutex> guard(run_mutex_);
    connection->next = nullptr;
    (run_last_ ? run_last_->next : run_first_) = connection;
    run_last_ = connection;
    to_run_.fetch_add(1);
}

}  // namespace ksrv
