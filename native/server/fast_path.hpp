// Fast-path requests: from the socket into the model's queue without Python, and their end at the deadline.
//
// Strategy: on a route with a model signature, a message that infer/fast_request.hpp reads becomes a request of
// the queue. Where handlers are not run on I/O threads the request is pushed at once; else it goes to the run
// queue, and the thread with the GIL pushes it with the others that came meanwhile. It owns the message's
// block and a copy of its head, for the connection may be at its next message while a handler still reads
// them.

#pragma once

#include "infer/fast_request.hpp"
#include "queue/request.hpp"
#include "server/answer_sender.hpp"

namespace ksrv {

struct FastRequest;
struct ReplyPart;

// How a request is answered that did not come over HTTP. Each of them may be called by any thread.
struct FastAnswers {
    // Whether an answer with these rows can be written without Python.
    bool (*fits)(const FastRequest &request, const ReplyPart *parts, int part_count, std::int64_t row) noexcept;
    void (*send)(FastRequest *request, const ReplyPart *parts, int part_count, std::int64_t row,
                 bool alone) noexcept;
    void (*fail)(FastRequest *request) noexcept;   // without saying why
    void (*ended)(FastRequest *request) noexcept;  // it expired, or was cancelled
    void (*freed)(FastRequest *request) noexcept;  // its last reference is gone
};

struct FastRequest : Request {
    const FastAnswers *answers = nullptr;  // null: it came over HTTP
    void *call = nullptr;                  // theirs
    ModelSignature *signature = nullptr;                // held
    AnswerSender *sender = nullptr;      // of one that came over HTTP
    Turn turn;                           // of the message
    Block *block = nullptr;              // held: the body, and copied inputs behind it
    std::size_t body_offset = 0;         // in the block
    std::size_t body_length = 0, json_length = 0;
    std::size_t head_length = 0;         // bytes behind this struct
    std::int64_t client_deadline_ns = NEVER;  // the one that it asks for; deadline_ns may be earlier
    FastRequestLayout layout;

    char *head() noexcept { return reinterpret_cast<char *>(this + 1); }
    const unsigned char *body() const noexcept { return block->data + body_offset; }
};

// A request to a model with room for its head, without its message; null when there is no memory.
FastRequest *new_fast_request(ModelSignature *signature, std::size_t head_length) noexcept;

// Gives a body of a fast-path request the longer block that `layout` asks for, with copied inputs behind it. False, and
// nothing has changed: the body is too long to be copied, there is no memory, or numbers in the JSON are not what the
// model's inputs ask for.
//
// Args:
//     block: The body's, which is released.
//     offset: Of the body in either block.
//     length: Of the body.
//     counted: Bytes that the process's budget holds for the body.
bool extend_body(const ModelSignature &signature, const FastRequestLayout &layout, std::size_t offset,
                 std::size_t length, Block **block, std::uint64_t *counted) noexcept;

// Gives a request the earlier of its model's deadline and one that it asks for; 0 asks for none.
void set_deadline(FastRequest *request, std::uint64_t now, std::uint64_t wanted_ns) noexcept;

// Makes a fast-path request of a complete message, which loses its block to it; null where the message is
// not of that kind.
FastRequest *make_fast_request(Connection *connection, ModelSignature *signature, AnswerSender *sender,
                               std::uint64_t now) noexcept;

// Gives the message its block back, for the general way to answer it.
Turn undo_fast_request(FastRequest *request) noexcept;

void fail_fast_request(FastRequest *request) noexcept;

// Whether a request of a queue is one.
bool is_fast_request(const Request *request) noexcept;

}  // namespace ksrv
