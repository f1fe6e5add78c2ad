// The bytes that a connection has received and not used up: heads, and chunks behind them.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace ksrv {

constexpr size_t HEAD_BUFFER = 16384;

// Only the owner of the connection calls it.
struct ReceiveBuffer {
    unsigned char *buffer = nullptr;  // HEAD_BUFFER bytes, more for a long head
    size_t capacity = 0;
    size_t filled = 0;
    size_t searched = 0;  // bytes that the search for a head's end has looked at

    ReceiveBuffer() = default;
    ReceiveBuffer(const ReceiveBuffer &) = delete;
    ReceiveBuffer &operator=(const ReceiveBuffer &) = delete;
    ~ReceiveBuffer() { free(buffer); }

    bool reserve(size_t nbytes) noexcept {
        if (nbytes <= capacity) return true;
        void *grown = realloc(buffer, nbytes);
        if (!grown) return false;
        buffer = static_cast<unsigned char *>(grown);
        capacity = nbytes;
        return true;
    }

    // Gives back what the buffer has beyond the room for heads.
    void shrink() noexcept {
        if (capacity <= HEAD_BUFFER || filled > HEAD_BUFFER) return;
        void *less = realloc(buffer, HEAD_BUFFER);
        if (!less) return;
        buffer = static_cast<unsigned char *>(less);
        capacity = HEAD_BUFFER;
    }

    // Keeps no more than the room for heads, for the next connection.
    void discard() noexcept {
        filled = searched = 0;
        if (capacity <= HEAD_BUFFER) return;
        free(buffer);
        buffer = nullptr;
        capacity = 0;
    }

    // Throws away the first `count` bytes: a message that is done with.
    void consume(size_t count) noexcept {
        filled -= count;
        if (filled) memmove(buffer, buffer + count, filled);
        searched = 0;
    }
};

}  // namespace ksrv
