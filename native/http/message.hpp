// An HTTP/1.1 request and its answer: the part of a connection that belongs to the current message. The connection's
// owner fills it; the routes, the fast path and the app read it.

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

struct Request;
struct FastRequest;
struct Connection;

// The right to answer a message, once. A thread that answers a message of the engine must take the turn first. This
// fails if the message was answered before: the connection may then have another message, or another client.
struct Turn {
    Connection *connection = nullptr;
    uint64_t number = 0;

    // The connection, for the caller to answer or drop. Null if the message was answered before.
    Connection *take() const noexcept;
};

struct Message {
    std::atomic<uint64_t> turn{0};  // odd while the message waits for its answer; a number is never reused

    Head head;
    Verdict verdict = Verdict::incomplete;  // on the head
    RequestId request_id;         // chosen when the head is complete
    size_t message_end = 0;       // offset of the message's end in the buffer
    IncomingBody body;

    bool checking = false;        // in the run queue, to check whether its caller may send a body
    bool admitted = false;        // Python has permitted the caller
    FastRequest *fast_request = nullptr;  // in the run queue, but not yet in its model's queue
    bool sampled = false;         // left the fast path, because Python records it
    // The request in its model's queue while its client is watched; see disconnect_watch.hpp.
    std::atomic<Request *> waiting{nullptr};
    bool probed = false;          // an interim answer was sent to a client that may be gone

    Outgoing out;
    uint64_t answered_bytes = 0;
    uint64_t answer_counted = 0;  // bytes that the answer counts in the budget
    AnswerRoom answer_room = AnswerRoom::none;
    uint16_t status = 0;
    bool close_after = false;     // the answer says Connection: close

    uint64_t message_ns = 0;      // when the first byte of the message was seen
    uint64_t stage_ns = 0;        // when head, body or answer began, which deadlines are relative to
    uint64_t memory_wait_ns = 0;  // when the wait for memory began
    bool looked_late = false;     // its bytes were read after its deadline

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

    // Chooses the id once, by the head in `text`.
    void identify(const char *text) noexcept {
        if (request_id.length) return;
        choose_request_id(&request_id, text + head.request_id.offset, head.request_id.length,
                          text + head.traceparent.offset, head.traceparent.length);
    }
};

}  // namespace ksrv
