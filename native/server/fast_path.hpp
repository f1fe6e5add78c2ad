// Plain requests: from the socket into the model's queue without Python, and their end at the deadline.
//
// Strategy: a route that has a signature makes an entry of each plain request (v2/fast_request.hpp). Where
// handlers are not run on I/O threads it is pushed at once; else it goes to the run queue, and whoever has
// the GIL pushes it with the others that came meanwhile. The entry takes the message's block and a copy of its
// head along, for the connection may be at its next message while a handler still looks at them.

#pragma once

#include "server/server.hpp"
#include "v2/fast_request.hpp"

namespace ksrv {

struct PlainEntry : Entry {
    ModelSignature *signature = nullptr;                // held
    HttpServer *server = nullptr;
    Turn turn;                           // of the message
    Block *block = nullptr;              // held
    std::size_t body_offset = 0;         // in the block
    std::size_t body_length = 0, json_length = 0;
    std::size_t head_length = 0;         // bytes behind this struct
    PlainRequest request;

    char *head() noexcept { return reinterpret_cast<char *>(this + 1); }
    const unsigned char *body() const noexcept { return block->data + body_offset; }
};

}  // namespace ksrv
