// One message and its answer: the parser of HTTP/1.1 fills it; the routes, the fast path and the app read it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/request_id.hpp"
#include "http/incoming_body.hpp"
#include "http/outgoing.hpp"
#include "http/request_head.hpp"
#include "memory/memory_budget.hpp"

namespace ksrv {

// Of an answer that is sent in pieces: whether the thread that makes them waits for the peer.
enum class StreamState : uint8_t { none, waiting, taken };

struct Request;
struct FastRequest;
struct Connection;

// The right to answer one message, once. A thread that answers a message of the engine takes the message's
// turn first, and finds it gone where it was answered before: the connection may be at another message
// by then, or another client's.
struct Turn {
    Connection *connection = nullptr;
    uint64_t number = 0;

    // The connection, for the caller to answer or drop. Null where the message was answered before.
    Connection *take() const noexcept;
};

struct Message {
    std::atomic<uint64_t> turn{0};  // odd while the message waits for its answer; never the same again

    Head head;
    Verdict verdict = Verdict::incomplete;  // on its head
    RequestId request_id;         // chosen when its head is complete
    size_t message_end = 0;       // bytes of the buffer up to which the message goes
    IncomingBody body;

    bool checking = false;        // in the run queue: whether its caller may send a body
    bool admitted = false;        // and Python has admitted its caller
    FastRequest *fast_request = nullptr;  // in the run queue, and not in its model's queue yet
    bool sampled = false;         // it left the fast path, because Python shall record it
    // The request that waits for its model, while its client is watched; see disconnect_watch.hpp.
    std::atomic<Request *> waiting{nullptr};
    bool probed = false;          // a client that may be gone has been sent an interim answer

    Outgoing out;
    std::atomic<StreamState> stream{StreamState::none};
    uint64_t answered_bytes = 0;
    uint64_t answer_counted = 0;  // bytes that its answer holds of the budget
    AnswerRoom answer_room = AnswerRoom::none;
    uint16_t status = 0;
    bool close_after = false;     // the answer says Connection: close

    uint64_t message_ns = 0;      // when the message's first byte was seen
    uint64_t stage_ns = 0;        // when head, body or answer began: what deadlines count from
    uint64_t memory_wait_ns = 0;  // when it began to wait for memory
    bool looked_late = false;     // its bytes were read when its deadline had passed

    void reset() noexcept {
        head = Head{};
        verdict = Verdict::incomplete;
        request_id.length = 0;
        body.reset();
        admitted = looked_late = sampled = false;
        message_end = 0;
        status = 0;
        answered_bytes = 0;
    }

    // Chooses its id once, by its head in `text`.
    void identify(const char *text) noexcept {
        if (request_id.length) return;
        choose_request_id(&request_id, text + head.request_id.offset, head.request_id.length,
                          text + head.traceparent.offset, head.traceparent.length);
    }
};

}  // namespace ksrv
