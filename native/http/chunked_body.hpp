// The chunks of a chunked body that lies whole in memory.
//
// Strategy: like the classifier of heads, this takes the plainest form alone: sizes of hexadecimal digits, no
// extensions, no trailers. Whatever else comes is gunicorn's to read or to refuse, with every byte that was
// received, so that there is one opinion on what is wrong with a message.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// How far a body has been looked at, from its first chunk's size on.
struct ChunkedBody {
    size_t at = 0;      // where the next chunk begins; behind the body once it is whole
    size_t decoded = 0; // bytes in the chunks before it
    size_t chunks = 0;
};

// `whole`: the body ends at `seen->at`; `gunicorn`: it is not of the plainest form.
enum class Chunks : uint8_t { incomplete, whole, gunicorn };

// Looks on in data[0, filled), the body as far as it has come. A body of more than `most_chunks` chunks, or
// of chunks that together hold more than `most_bytes`, is gunicorn's.
Chunks look_at_chunks(const unsigned char *data, size_t filled, size_t most_chunks, size_t most_bytes,
                      ChunkedBody *seen) noexcept;

// Copies the contents of a body that was found whole; `to` has room for what its chunks hold.
void copy_chunks(const unsigned char *data, unsigned char *to) noexcept;

}  // namespace ksrv
