// The body of a message, as far as it has come: its block, what it counts in the memory budget, and how it is received.
//
// Strategy: a body is received into one block, and counted in steps before its bytes come, so that a client that announces much
// and sends little takes little. A body with a length goes from the socket straight into the block; chunks wait in the buffer
// behind the head until they are decoded, but for long ones.
//
// A message owns its body, and only the thread that owns the message's connection calls it: there is no lock. It reads from the
// transport and never arms, answers or closes it: each call tells by a `BodyProgress` what its caller does next.

#pragma once

#include <cstddef>
#include <cstdint>

#include "http/chunked_body.hpp"
#include "http/request_head.hpp"
#include "memory/buffer_pool.hpp"

namespace ksrv {

struct Transport;
struct ReceiveBuffer;

// What has become of a message's body when the app gets the message.
enum class BodyState : uint8_t {
    none,       // the message has none
    whole,
    unread,     // some of it, or nothing, has come, and no more was asked for
    cut_short,  // the peer ended before the body did
    too_long,   // its chunks announce more than is asked for
    malformed,  // its chunks are no chunks
};

enum class BodyProgress : uint8_t {
    comes,      // the socket is empty, or it is the others' turn
    ended,      // no more of it comes: `state` tells how it ended
    no_room,    // the budget has no room for the next bytes, now
    no_memory,
    broken,     // the connection
};

struct IncomingBody {
    Block *block = nullptr;
    size_t offset = 0;            // where it begins in the block
    size_t got = 0;
    uint64_t most = 0;            // contents that are received of a body whose length is not announced
    uint64_t counted = 0;         // bytes that the message holds of the budget
    ChunkDecoder chunks;          // of a chunked body, whose bytes wait in the buffer behind the head
    BodyState state = BodyState::none;
    bool asked = false;           // the app has asked for it
    bool prereserved = false;     // all of it is counted, for its block's pages are there
    bool large = false;           // the last body was larger than the buffer
    bool slow = false;            // it comes slowly

    unsigned char *data() noexcept { return block->data + offset; }

    // The bytes that it has, as far as its sender has announced them.
    uint64_t announced(const Head &head) const noexcept {
        return head.chunked ? chunks.announced() : head.content_length;
    }

    // For the next message of the connection.
    void reset() noexcept {
        state = BodyState::none;
        asked = false;
        got = offset = 0;
    }

    // Takes a block and moves what has come with the head into it, `*used` bytes of the buffer with the head; then it `comes`.
    // Where it has no_room it holds nothing, and may begin again.
    BodyProgress begin(Transport *transport, const ReceiveBuffer &buffer, const Head &head, const HeadLimits &limits,
                       size_t *used) noexcept;

    // Receives until it has ended, the socket is empty, or it is the others' turn. A whole one without an announced length gets its
    // length in the head.
    BodyProgress receive(Transport *transport, ReceiveBuffer *buffer, Head *head) noexcept;

    // Counts what has come, `more` bytes, and the next step. False: there is no room.
    bool count(const Head &head, uint64_t more) noexcept;
    // A body that was counted before it came does not come quickly: what is missing is neither counted nor kept in memory any longer.
    void uncount_missing() noexcept;
    // The bytes that it holds of the budget are the caller's to give back from here on.
    uint64_t take_counted() noexcept;
    void give_back() noexcept;  // to the budget
    void release() noexcept;    // the block as well

  private:
    enum class Decoded : uint8_t { all, end, beyond, fault, no_room, no_memory };
    BodyProgress receive_announced(Transport *transport, const Head &head) noexcept;
    BodyProgress receive_chunks(Transport *transport, ReceiveBuffer *buffer, Head *head) noexcept;
    BodyProgress end(BodyState how) noexcept;
    BodyProgress end_unannounced(Head *head) noexcept;
    Decoded make_room(const Head &head, uint64_t more) noexcept;
    Decoded decode_chunks(ReceiveBuffer *buffer, const Head &head) noexcept;
    void await_more(Transport *transport, size_t left) noexcept;
};

}  // namespace ksrv
