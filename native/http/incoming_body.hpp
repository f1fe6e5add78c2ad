// The body of a message while it is received: its block, and the bytes that it counts in the memory budget.
//
// Strategy: a body is received into one block, and counted in steps before its bytes arrive, so that a client that
// announces much and sends little uses little. A body with a length is received directly into the block. Chunks are
// decoded from the buffer, after the head; only long chunks are received directly.
//
// A message owns its body. Only the thread that owns the message's connection calls it, without a lock. It reads from
// the transport, but never arms, answers or closes it: each call returns a `BodyProgress`, from which the caller
// decides what to do next.

#pragma once

#include <cstddef>
#include <cstdint>

#include "http/chunked_body.hpp"
#include "http/request_head.hpp"
#include "memory/buffer_pool.hpp"

namespace ksrv {

struct Transport;
struct ReceiveBuffer;

// The state of a message's body when the app gets the message.
enum class BodyState : uint8_t {
    none,       // the message has no body
    whole,
    unread,     // it is incomplete, and no more was requested
    cut_short,  // the peer closed before the end of the body
    too_long,   // its chunks exceed the requested size
    malformed,  // its chunks are malformed
};

enum class BodyProgress : uint8_t {
    more,       // the socket is empty, or the turn is over
    ended,      // nothing more will be received; `state` says how the body ended
    no_room,    // the next bytes exceed the budget now
    no_memory,
    broken,     // the connection is broken
};

struct IncomingBody {
    Block *block = nullptr;
    size_t offset = 0;            // of the body in the block
    size_t got = 0;               // received bytes
    uint64_t most = 0;            // limit for the contents of a body of unknown length
    uint64_t counted = 0;         // bytes that are counted in the budget
    ChunkDecoder chunks;          // decodes a chunked body from the buffer
    BodyState state = BodyState::none;
    bool asked = false;           // the app has requested the body
    // The whole Content-Length is charged to the memory budget already, because the block was reused and its pages
    // exist.
    bool prereserved = false;
    bool large = false;           // the last body was larger than the buffer
    bool slow = false;            // the body arrives slowly

    unsigned char *data() noexcept { return block->data + offset; }

    // The size of the body, as known from its length or from the chunks read so far.
    uint64_t announced(const Head &head) const noexcept {
        return head.chunked ? chunks.announced() : head.content_length;
    }

    // Prepares for the next message of the connection.
    void reset() noexcept {
        state = BodyState::none;
        asked = false;
        got = offset = 0;
    }

    // Allocates a block and moves the part that came with the head into it. `*used` is the number of buffer bytes used,
    // including the head. With BodyProgress::no_room nothing was allocated, and the call may be repeated.
    BodyProgress begin(Transport *transport, const ReceiveBuffer &buffer, const Head &head, const HeadLimits &limits,
                       size_t *used) noexcept;

    // Receives until the body has ended, the socket is empty, or the turn is over. For a complete body of unknown
    // length, sets the length in the head.
    BodyProgress receive(Transport *transport, ReceiveBuffer *buffer, Head *head) noexcept;

    // Counts `more` received bytes and the next step. False if the budget does not allow it.
    bool count(const Head &head, uint64_t more) noexcept;
    // For a prereserved body that does not arrive quickly: gives back the memory and the budget of the missing part.
    void uncount_missing() noexcept;
    // From now on the caller must give back the bytes that the body counts in the budget.
    uint64_t take_counted() noexcept;
    void give_back() noexcept;  // to the budget
    void release() noexcept;    // also releases the block

  private:
    BodyProgress receive_announced(Transport *transport, const Head &head) noexcept;
    BodyProgress receive_chunks(Transport *transport, ReceiveBuffer *buffer, Head *head) noexcept;
    BodyProgress end(BodyState how) noexcept;
    BodyProgress end_unannounced(Head *head) noexcept;
    BodyProgress make_room(const Head &head, uint64_t more) noexcept;
    BodyProgress decode_chunks(ReceiveBuffer *buffer, Head *head) noexcept;
    void await_more(Transport *transport, size_t left) noexcept;
};

}  // namespace ksrv
