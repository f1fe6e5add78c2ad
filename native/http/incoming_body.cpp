// Receives bodies: `begin` leases the block; `receive` fills it, with a known length or in chunks.
//
// `Block::unwritten` keeps a block out of the pool: the pages of a pooled block are taken to be in memory
// (`prereserved`), but a new block has only the pages that were written. For a new block it is true until a body of
// known length is complete, and for a chunked body that fills less than half of its block.

#include "http/incoming_body.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "http/receive_buffer.hpp"
#include "http/transport.hpp"
#include "memory/memory_budget.hpp"

namespace ksrv {

namespace {

constexpr size_t FIRST_CHUNKS = 16384;  // first allocation for a chunked body
constexpr uint64_t DIRECT_RUN = 16384;  // chunks of at least this size are received directly into the block
constexpr size_t TURN_BYTES = 8u << 20;  // limit for receiving per turn
constexpr size_t COUNTED_STEP = 65536;   // bytes that are counted before they are received
// Bytes that the kernel collects before it reports the socket, so that a large body needs fewer reads.
constexpr size_t LOW_WATER_LEAST = 65536, LOW_WATER_MOST = 524288;

}  // namespace

BodyProgress IncomingBody::begin(Transport *transport, const ReceiveBuffer &buffer, const Head &head, const HeadLimits &limits,
                                 size_t *used) noexcept {
    const uint64_t need = head.chunked ? FIRST_CHUNKS : head.content_length;
    const size_t with_head = buffer.filled - head.length;
    // The end of the JSON, and so the first tensor, is aligned to 64 bytes.
    offset = head.has_json_length ? (0 - head.json_length) & 63 : 0;
    block = process_pool().lease_body(offset + need);
    if (!block) return BodyProgress::no_memory;
    const size_t taken = head.chunked ? 0 : std::min(with_head, static_cast<size_t>(need));
    got = taken;
    if (head.chunked) {
        chunks.begin(limits.chunks);
        chunks.most_bytes = limits.body;
    }
    // Charge the whole body in advance if its block was used before, because its memory exists already. Only for
    // fast-path requests: for others it saves nothing.
    prereserved = head.route == Route::infer && !head.chunked && block->pooled_before && taken < need;
    if (!count(head, 0)) {
        block->unwritten = !block->pooled_before;
        process_pool().release(block);
        block = nullptr;
        return BodyProgress::no_room;
    }
    block->unwritten = !block->pooled_before && taken < need;
    if (head.expects_continue && with_head == 0 && !send_continue(transport)) return BodyProgress::broken;
    if (taken) memcpy(data(), buffer.buffer + head.length, taken);
    large = need > HEAD_BUFFER;
    slow = false;
    *used = head.length + taken;
    return BodyProgress::more;
}

// ---- the memory budget --------------------------------------------------------------------------

// Each step charges as many bytes as were received, within limits. A prereserved body is charged completely.
bool IncomingBody::count(const Head &head, uint64_t more) noexcept {
    const uint64_t come = got + more;
    const uint64_t need = head.chunked ? std::max<uint64_t>(chunks.announced(), come) : head.content_length;
    const uint64_t step = come < COUNTED_STEP ? COUNTED_STEP : come < TURN_BYTES ? come : TURN_BYTES;
    const uint64_t wanted = prereserved || step > need - come ? need : come + step;
    if (wanted <= counted) return true;
    if (!process_budget().reserve(wanted - counted, need <= SMALL_REQUEST_BYTES)) return false;
    counted = wanted;
    return true;
}

void IncomingBody::uncount_missing() noexcept {
    prereserved = false;
    block->unwritten = true;
    BufferPool::give_back(block, offset + got, block->capacity);
    process_budget().give_back(counted - got);
    counted = got;
}

uint64_t IncomingBody::take_counted() noexcept { return std::exchange(counted, 0); }

void IncomingBody::give_back() noexcept { process_budget().give_back(take_counted()); }

void IncomingBody::release() noexcept {
    if (block) process_pool().release(block);
    block = nullptr;
    give_back();
}

// ---- receiving ----------------------------------------------------------------------------------

BodyProgress IncomingBody::receive(Transport *transport, ReceiveBuffer *buffer, Head *head) noexcept {
    return head->chunked ? receive_chunks(transport, buffer, head) : receive_announced(transport, *head);
}

BodyProgress IncomingBody::end(BodyState how) noexcept {
    state = how;
    return BodyProgress::ended;
}

BodyProgress IncomingBody::receive_announced(Transport *transport, const Head &head) noexcept {
    const size_t need = static_cast<size_t>(head.content_length);
    size_t turn = 0;
    while (got < need) {
        if (counted == got && !count(head, 0)) return BodyProgress::no_room;
        const size_t left = static_cast<size_t>(counted) - got;
        const ssize_t came = receive_some(transport, data() + got, left);
        if (came < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN && errno != EWOULDBLOCK) return BodyProgress::broken;
            await_more(transport, need - got);
            return BodyProgress::more;
        }
        if (came == 0) break;
        got += static_cast<size_t>(came);
        turn += static_cast<size_t>(came);
        if (got < need && turn >= TURN_BYTES) {  // let other connections have their turn
            await_more(transport, need - got);
            return BodyProgress::more;
        }
    }
    set_low_water(transport, 1);
    prereserved = false;
    block->unwritten = block->unwritten && got < need;
    return end(got < need ? BodyState::cut_short : BodyState::whole);
}

BodyProgress IncomingBody::receive_chunks(Transport *transport, ReceiveBuffer *buffer, Head *head) noexcept {
    size_t turn = 0;
    for (;;) {
        const BodyProgress decoded = decode_chunks(buffer, head);
        if (decoded != BodyProgress::more) return decoded;
        if (turn >= TURN_BYTES) return BodyProgress::more;  // let other connections have their turn
        ssize_t came;
        if (chunks.run() >= DIRECT_RUN) {  // the buffer is empty, so the next bytes of the socket are contents
            const uint64_t step = std::min<uint64_t>(chunks.run(), COUNTED_STEP * 4);
            const BodyProgress room = make_room(*head, step);
            if (room != BodyProgress::more) return room;
            came = receive_some(transport, data() + got, static_cast<size_t>(step));
            if (came > 0) {
                got += static_cast<size_t>(came);
                chunks.take(static_cast<uint64_t>(came));
            }
        } else {
            const size_t room = std::max(head->length + HEAD_BUFFER, buffer->capacity);
            if (!buffer->reserve(room)) return BodyProgress::broken;
            came = receive_some(transport, buffer->buffer + buffer->filled, room - buffer->filled);
            if (came > 0) buffer->filled += static_cast<size_t>(came);
        }
        if (came > 0) {
            turn += static_cast<size_t>(came);
        } else if (came == 0) {
            return end(BodyState::cut_short);
        } else if (errno != EINTR) {
            return errno == EAGAIN || errno == EWOULDBLOCK ? BodyProgress::more : BodyProgress::broken;
        }
    }
}

// A body of unknown length is complete.
BodyProgress IncomingBody::end_unannounced(Head *head) noexcept {
    head->content_length = got;
    block->unwritten = !block->pooled_before && 2 * got < block->capacity;
    block->size = offset + got;
    if (counted > got) {
        process_budget().give_back(counted - got);
        counted = got;
    }
    return end(BodyState::whole);
}

// Makes room for `more` bytes of contents after the received contents: in the budget and in the block.
// Returns BodyProgress::more if there is room.
BodyProgress IncomingBody::make_room(const Head &head, uint64_t more) noexcept {
    const uint64_t contents = got + more;
    if (counted < contents && !count(head, more)) return BodyProgress::no_room;
    const uint64_t needed = offset + contents;
    if (needed <= block->size) return BodyProgress::more;
    const uint64_t doubled = std::max<uint64_t>(needed, 2 * block->size);
    const uint64_t room = std::max(needed, std::min<uint64_t>(doubled, offset + most));
    if (room <= block->capacity) {
        block->size = static_cast<size_t>(room);
        return BodyProgress::more;
    }
    Block *const larger = process_pool().lease_body(static_cast<size_t>(room));
    if (!larger) return BodyProgress::no_memory;
    memcpy(larger->data + offset, data(), got);
    block->unwritten = !block->pooled_before && 2 * got < block->capacity;
    process_pool().release(std::exchange(block, larger));
    block->unwritten = !block->pooled_before;
    return BodyProgress::more;
}

// Decodes the data in the buffer. The rest stays there: it follows the body, or waits for memory.
BodyProgress IncomingBody::decode_chunks(ReceiveBuffer *buffer, Head *head) noexcept {
    const size_t start = head->length;
    size_t at = start;
    BodyProgress found = BodyProgress::more;
    while (found == BodyProgress::more && !chunks.ended()) {
        at += chunks.read(buffer->buffer + at, buffer->filled - at);
        const ChunkFault fault = chunks.fault();
        const uint64_t run = std::min<uint64_t>(chunks.run(), buffer->filled - at);
        if (fault == ChunkFault::length || (fault == ChunkFault::none && chunks.announced() > most)) {
            found = end(BodyState::too_long);
        } else if (fault != ChunkFault::none) {
            found = end(BodyState::malformed);
        } else if (run == 0) {
            break;
        } else if ((found = make_room(*head, run)) == BodyProgress::more) {
            memcpy(data() + got, buffer->buffer + at, static_cast<size_t>(run));
            got += static_cast<size_t>(run);
            chunks.take(run);
            at += static_cast<size_t>(run);
        }
    }
    if (found == BodyProgress::more && chunks.ended()) found = end_unannounced(head);
    const size_t rest = buffer->filled - at;
    if (rest && at != start) memmove(buffer->buffer + start, buffer->buffer + at, rest);
    buffer->filled = start + rest;
    return found;
}

// Has the kernel report the socket only when many bytes have arrived, unless little is missing or the peer is slow.
void IncomingBody::await_more(Transport *transport, size_t left) noexcept {
    if (slow || left < LOW_WATER_LEAST) {
        set_low_water(transport, 1);
        return;
    }
    set_low_water(transport, static_cast<int>(left < LOW_WATER_MOST ? left : LOW_WATER_MOST));
}

}  // namespace ksrv
