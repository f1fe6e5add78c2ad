// How bodies come in: into a block, counted in steps before they come, out of their chunks where they have any.

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "server/server.hpp"

namespace ksrv {

namespace {

constexpr size_t FIRST_CHUNKS = 16384;  // room for contents when the first chunk comes
constexpr uint64_t DIRECT_RUN = 16384;  // of contents that are received straight into the block

}  // namespace

// Takes the block for a body and moves the bytes that came with the head into it. False: the connection is not
// the caller's any more.
bool HttpServer::start_body(Connection *connection, uint64_t now) noexcept {
    IncomingBody &body = connection->body;
    const Head &head = connection->head;
    const uint64_t need = head.chunked ? FIRST_CHUNKS : head.content_length;
    const size_t with_head = connection->came_with_head();
    // The JSON ends, and so the first tensor begins, on a border of 64 bytes.
    body.offset = head.has_json_length ? (0 - head.json_length) & 63 : 0;
    body.block = process_pool().lease_body(body.offset + need);
    if (!body.block) {
        refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
        return false;
    }
    const size_t taken = head.chunked || connection->byte_stream ? 0 : std::min(with_head, static_cast<size_t>(need));
    body.got = taken;
    if (head.chunked) {
        body.chunks.begin(config.limits.chunks);
        body.chunks.most_bytes = config.limits.body;
    }
    // Only a fast-path request is worth it to be counted before it comes.
    body.prereserved = head.route == Route::infer && !head.chunked && body.block->pooled_before && taken < need;
    if (!count_body(connection, 0)) {
        body.block->unwritten = !body.block->pooled_before;
        process_pool().release(body.block);
        body.block = nullptr;
        await_memory(connection, now);
        return false;
    }
    body.block->unwritten = !body.block->pooled_before && taken < need;
    if (head.expects_continue && with_head == 0 && !send_continue(connection)) {
        drop(connection);
        return false;
    }
    if (taken) memcpy(body.block->data + body.offset, connection->buffer + head.length, taken);
    body.large = need > HEAD_BUFFER;
    body.slow = false;
    connection->message_end = head.length + taken;  // to be consumed when answered
    connection->stage_ns = now;
    connection->enter(Phase::body);
    return true;
}

// ---- the memory budget --------------------------------------------------------------------------

// Counts what has come of a body, `more` bytes, and the next step of it: as much again, within bounds. A block
// that was in use before is in memory already, so all of it is counted. False: there is no room.
bool HttpServer::count_body(Connection *connection, uint64_t more) noexcept {
    IncomingBody &body = connection->body;
    const Head &head = connection->head;
    const uint64_t got = body.got + more;
    const uint64_t need = head.chunked ? std::max<uint64_t>(body.chunks.announced(), got) : head.content_length;
    const uint64_t step = got < COUNTED_STEP ? COUNTED_STEP : got < TURN_BYTES ? got : TURN_BYTES;
    const uint64_t wanted = body.prereserved || step > need - got ? need : got + step;
    if (wanted <= body.counted) return true;
    if (!process_budget().reserve(wanted - body.counted, need <= MemoryBudget::SMALL_REQUEST)) return false;
    body.counted = wanted;
    return true;
}

// A body that was counted before it came does not come quickly: what is missing is neither counted nor
// kept in memory for it any longer.
void HttpServer::uncount_missing(Connection *connection) noexcept {
    IncomingBody &body = connection->body;
    body.prereserved = false;
    body.block->unwritten = true;
    BufferPool::give_back(body.block, body.offset + body.got, body.block->capacity);
    process_budget().give_back(body.counted - body.got);
    body.counted = body.got;
}

void HttpServer::give_back(Connection *connection) noexcept {
    process_budget().give_back(connection->body.counted);
    connection->body.counted = 0;
}

uint64_t HttpServer::take_counted(Connection *connection) noexcept {
    const uint64_t counted = connection->body.counted;
    connection->body.counted = 0;
    return counted;
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
    const uint64_t more = connection->head.chunked ? 1 : 0;
    if (!count_body(connection, more)) {
        await_memory(connection, now);
        return;
    }
    connection->stage_ns += now - connection->memory_wait_ns;  // the peer could do nothing meanwhile
    connection->enter(Phase::body);
    receive_body(connection, now);
}

// ---- receiving ----------------------------------------------------------------------------------

// Receives until the body is complete or cut short, the socket is empty, or it is the others' turn.
void HttpServer::receive_body(Connection *connection, uint64_t now) noexcept {
    IncomingBody &body = connection->body;
    if (connection->head.chunked) {
        receive_chunks(connection, now);
        return;
    }
    const size_t need = static_cast<size_t>(connection->head.content_length);
    unsigned char *const data = body.block->data + body.offset;
    size_t turn = 0;
    while (body.got < need) {
        if (body.counted == body.got && !count_body(connection, 0)) {
            await_memory(connection, now);
            return;
        }
        const size_t left = static_cast<size_t>(body.counted) - body.got;
        const ssize_t got = receive_some(connection, data + body.got, left);
        if (got < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                drop(connection);
                return;
            }
            await_more(connection, need - body.got);
            arm_for_phase(connection, now);
            return;
        }
        if (got == 0) break;
        body.got += static_cast<size_t>(got);
        turn += static_cast<size_t>(got);
        if (body.got < need && turn >= TURN_BYTES) {  // the others first
            await_more(connection, need - body.got);
            arm_for_phase(connection, now);
            return;
        }
    }
    set_low_water(connection, 1);
    body.prereserved = false;
    body.block->unwritten = body.block->unwritten && body.got < need;
    end_body(connection, body.got < need ? BodyState::cut_short : BodyState::whole);
}

// The same for a body in chunks, whose bytes wait in the buffer behind the head until they are decoded. Over HTTP/2 it has
// none, and ends with its stream.
void HttpServer::receive_chunks(Connection *connection, uint64_t now) noexcept {
    IncomingBody &body = connection->body;
    ChunkDecoder &chunks = body.chunks;
    const bool bare = connection->byte_stream;
    size_t turn = 0;
    for (;;) {
        const size_t come = bare ? connection->byte_stream->waiting() : 0;
        if (bare) chunks.announce(body.got + come);
        switch (decode_chunks(connection)) {
        case Decoded::all:
            break;
        case Decoded::no_room:
            await_memory(connection, now);
            return;
        case Decoded::no_memory:
            refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
            return;
        case Decoded::beyond:
            end_body(connection, BodyState::too_long);
            return;
        case Decoded::fault:
            end_body(connection, BodyState::malformed);
            return;
        case Decoded::end:
            end_chunks(connection);
            return;
        }
        if (turn >= TURN_BYTES) {  // the others first
            arm_for_phase(connection, now);
            return;
        }
        ssize_t got;
        if (bare || chunks.run() >= DIRECT_RUN) {  // nothing waits in the buffer
            const uint64_t step = bare ? come : std::min<uint64_t>(chunks.run(), COUNTED_STEP * 4);
            const Decoded room = make_room(connection, step);
            if (room == Decoded::no_room) {
                await_memory(connection, now);
                return;
            }
            if (room == Decoded::no_memory) {
                refuse(connection, prepared_answers[ANSWER_BYTES_IN_FLIGHT], SERVER_BYTES_IN_FLIGHT);
                return;
            }
            got = receive_some(connection, body.block->data + body.offset + body.got, static_cast<size_t>(step));
            if (got > 0) {
                body.got += static_cast<size_t>(got);
                if (!bare) chunks.take(static_cast<uint64_t>(got));
            }
        } else {
            const size_t room = std::max(connection->head.length + HEAD_BUFFER, connection->capacity);
            if (!connection->reserve(room)) {
                drop(connection);
                return;
            }
            got = receive_some(connection, connection->buffer + connection->filled,
                               room - connection->filled);
            if (got > 0) connection->filled += static_cast<size_t>(got);
        }
        if (got > 0) {
            turn += static_cast<size_t>(got);
        } else if (got == 0) {
            bare ? end_chunks(connection) : end_body(connection, BodyState::cut_short);
            return;
        } else if (errno != EINTR) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                drop(connection);
            } else {
                arm_for_phase(connection, now);
            }
            return;
        }
    }
}

// A body whose length was not announced is whole.
void HttpServer::end_chunks(Connection *connection) noexcept {
    IncomingBody &body = connection->body;
    connection->head.content_length = body.got;
    body.block->unwritten = !body.block->pooled_before && 2 * body.got < body.block->capacity;
    body.block->size = body.offset + body.got;
    if (body.counted > body.got) {
        process_budget().give_back(body.counted - body.got);
        body.counted = body.got;
    }
    end_body(connection, BodyState::whole);
}

// Makes room for `more` bytes of contents behind those that have come: counted, and in the block.
HttpServer::Decoded HttpServer::make_room(Connection *connection, uint64_t more) noexcept {
    IncomingBody &body = connection->body;
    const uint64_t end = body.got + more;
    if (body.counted < end && !count_body(connection, more)) return Decoded::no_room;
    const uint64_t needed = body.offset + end;
    if (needed <= body.block->size) return Decoded::all;
    const uint64_t doubled = std::max<uint64_t>(needed, 2 * body.block->size);
    const uint64_t most = body.offset + body.most;
    const uint64_t room = std::max(needed, std::min(doubled, most));
    if (room <= body.block->capacity) {
        body.block->size = static_cast<size_t>(room);
        return Decoded::all;
    }
    body.block->size = body.offset + body.got;  // what a move copies
    return process_pool().grow(body.block, static_cast<size_t>(room)) ? Decoded::all : Decoded::no_memory;
}

// Decodes what waits in the buffer; what it leaves there comes behind the body, or waits for memory.
HttpServer::Decoded HttpServer::decode_chunks(Connection *connection) noexcept {
    IncomingBody &body = connection->body;
    ChunkDecoder &chunks = body.chunks;
    const size_t start = connection->head.length;
    size_t at = start;
    Decoded found = Decoded::all;
    while (found == Decoded::all && !chunks.ended()) {
        at += chunks.read(connection->buffer + at, connection->filled - at);
        if (chunks.fault() != ChunkFault::none) {
            found = chunks.fault() == ChunkFault::length ? Decoded::beyond : Decoded::fault;
            break;
        }
        if (chunks.announced() > body.most) {
            found = Decoded::beyond;
            break;
        }
        const uint64_t run = std::min<uint64_t>(chunks.run(), connection->filled - at);
        if (run == 0) break;
        found = make_room(connection, run);
        if (found != Decoded::all) break;
        memcpy(body.block->data + body.offset + body.got, connection->buffer + at, static_cast<size_t>(run));
        body.got += static_cast<size_t>(run);
        chunks.take(run);
        at += static_cast<size_t>(run);
    }
    if (found == Decoded::all && chunks.ended()) found = Decoded::end;
    const size_t rest = connection->filled - at;
    if (rest && at != start) memmove(connection->buffer + start, connection->buffer + at, rest);
    connection->filled = start + rest;
    return found;
}

// A body has come to its end, or comes no further.
void HttpServer::end_body(Connection *connection, BodyState state) noexcept {
    const IncomingBody &body = connection->body;
    const Head &head = connection->head;
    if (state == BodyState::cut_short) connection->close_after = true;
    const bool infer = head.route == Route::infer;
    const bool ended = state == BodyState::whole || state == BodyState::cut_short;
    // The app answers a body in chunks that was cut short, or has less than its JSON.
    const bool taken = !head.chunked || (state == BodyState::whole && body.got && body.got >= head.json_length);
    if (infer && ended && taken) {
        begin_infer(connection);
        return;
    }
    // The app is asked whether it wants a body that is longer than what is received unasked.
    const bool asked = infer || body.asked;
    if (state == BodyState::too_long && !asked && body.chunks.fault() == ChunkFault::none)
        state = BodyState::unread;
    ask_app(connection, state);
}

// ---- waiting for large pieces -------------------------------------------------------------------

// The kernel makes no event for fewer bytes than this.
void HttpServer::set_low_water(Connection *connection, int bytes) noexcept {
    if (connection->tls || connection->low_water == bytes) return;  // no bytes of the body
    if (connection->byte_stream || setsockopt(connection->fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0)
        connection->low_water = bytes;
}

// The rest of a large body is waited for in large pieces, unless the peer turned out to be slow.
void HttpServer::await_more(Connection *connection, size_t left) noexcept {
    const IncomingBody &body = connection->body;
    if (body.slow || left < LOW_WATER_LEAST) {
        set_low_water(connection, 1);
        return;
    }
    set_low_water(connection, static_cast<int>(left < LOW_WATER_MOST ? left : LOW_WATER_MOST));
    if (connection->byte_stream)
        connection->byte_stream->receive_ahead(body.block->data + body.offset + body.got,
                                               static_cast<size_t>(body.counted) - body.got);
}

}  // namespace ksrv
