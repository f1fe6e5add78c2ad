// Fast-path requests: from the socket into the model's queue without Python, and their end at the deadline.
//
// Strategy: on a route with a model signature, a message that v2/fast_request.hpp reads becomes a request of
// the queue. Where handlers are not run on I/O threads the request is pushed at once; else it goes to the run
// queue, and the thread with the GIL pushes it with the others that came meanwhile. It owns the message's
// block and a copy of its head, for the connection may be at its next message while a handler still reads
// them.

#pragma once

#include "server/server.hpp"
#include "v2/fast_request.hpp"

namespace ksrv {

struct FastRequest : Request {
    ModelSignature *signature = nullptr;                // held
    HttpServer *server = nullptr;
    Turn turn;                           // of the message
    Block *block = nullptr;              // held: the body, and the numbers of its JSON behind it
    std::size_t body_offset = 0;         // in the block
    std::size_t body_length = 0, json_length = 0;
    std::size_t head_length = 0;         // bytes behind this struct
    FastRequestLayout layout;

    char *head() noexcept { return reinterpret_cast<char *>(this + 1); }
    const unsigned char *body() const noexcept { return block->data + body_offset; }
    const unsigned char *input(std::size_t place) const noexcept { return body() + layout.offsets[place]; }
};

// Whether a request of a queue is one.
bool is_fast_request(const Request *request) noexcept;

}  // namespace ksrv
