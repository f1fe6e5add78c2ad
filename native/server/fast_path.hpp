// Fast-path requests: from the socket into the model's queue without Python, and their end at the deadline.
//
// Strategy: if a model has a signature, a message that infer/fast_request.hpp can read becomes a request. If handlers
// do not run on I/O threads, the I/O thread pushes the request to the model's queue at once. Otherwise it adds the
// message to the run queue, and the thread with the GIL pushes the request together with requests that arrived
// meanwhile. The request owns the message's block and a copy of its head, because the connection may have its next
// message while a handler still reads them.

#pragma once

#include "infer/plain_request.hpp"
#include "queue/request.hpp"
#include "server/answer_sender.hpp"

namespace ksrv {

struct FastRequest;
struct ReplyPart;

// How to answer a request that did not arrive over HTTP/1.1, but over gRPC. Called by any thread.
struct FastAnswers {
    // Whether an answer with these rows can be written without Python.
    bool (*fits)(const FastRequest &request, const ReplyPart *parts, int part_count, std::int64_t row) noexcept;
    // Sends the rows that begin at `row`. `alone`: the outputs have only this request's rows, and keep their shapes.
    void (*send)(FastRequest *request, const ReplyPart *parts, int part_count, std::int64_t row, bool alone) noexcept;
    void (*fail)(FastRequest *request) noexcept;   // without a reason
    void (*ended)(FastRequest *request) noexcept;  // it expired or was cancelled
    void (*freed)(FastRequest *request) noexcept;  // its last reference was released
};

struct FastRequest : Request {
    const FastAnswers *answers = nullptr;  // null for HTTP requests
    void *call = nullptr;                  // passed to `answers`
    void *reader = nullptr;                // for gRPC requests: see grpc::Method
    ModelSignature *signature = nullptr;                // a counted reference
    AnswerSender *sender = nullptr;      // for HTTP requests
    Turn turn;                           // of the message
    Block *block = nullptr;              // a counted reference: the body, and the copied inputs after it
    std::size_t body_offset = 0;         // in the block
    std::size_t body_length = 0, json_length = 0;
    std::size_t head_length = 0;         // bytes after this struct
    std::int64_t client_deadline_ns = NEVER;  // the deadline that the client asked for; deadline_ns may be earlier
    FastRequestLayout layout;

    char *head() noexcept { return reinterpret_cast<char *>(this + 1); }
    const unsigned char *body() const noexcept { return block->data + body_offset; }
};

// A request to a model, with memory for its head but without its message. Null if memory is short.
FastRequest *new_fast_request(ModelSignature *signature, std::size_t head_length) noexcept;

// Replaces the block of a fast-path request by the longer block that `layout` needs, with copied inputs after the body.
// False, without a change, if the body is too long to be copied, memory is short, or the numbers in the JSON do not
// match the model's inputs.
//
// Args:
// block: The block of the body, which is released, and then the new block.
// offset: The offset of the body in either block.
// length: The length of the body.
// counted: How many bytes the body counts in the memory budget.
bool extend_body(const ModelSignature &signature, const FastRequestLayout &layout, std::size_t offset,
                 std::size_t length, Block **block, std::uint64_t *counted) noexcept;

// Sets the earlier of the model's deadline and the client's deadline. 0: the client has none.
void set_deadline(FastRequest *request, std::uint64_t now, std::uint64_t wanted_ns) noexcept;

// Makes a fast-path request of a complete message, and takes over the message's block. Null if the message must be left
// to Python. `plain`: the form of a body in plain JSON, or null.
FastRequest *make_fast_request(Connection *connection, ModelSignature *signature, const PlainForm *plain,
                               AnswerSender *sender, std::uint64_t now) noexcept;

// Frees the request, and returns its block to the message, which is then left to Python. Returns the message's turn:
// a caller in Python passes the message on with it; an I/O thread ignores it, and queues the message with a new turn.
Turn undo_fast_request(FastRequest *request) noexcept;

// Answers 500, unless the request was answered before.
void fail_fast_request(FastRequest *request) noexcept;

// Writes the sentence for a request whose deadline has passed. Returns its length.
constexpr std::size_t LATE_BYTES = 2048;
std::size_t put_late_text(const FastRequest &request, char (&text)[LATE_BYTES]) noexcept;

// Whether a queued request is a FastRequest.
bool is_fast_request(const Request *request) noexcept;

}  // namespace ksrv
