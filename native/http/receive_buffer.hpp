// The received but unused bytes of a connection: heads, and the chunks that follow them.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace ksrv {

constexpr size_t HEAD_BUFFER = 16384;  // bytes; the size of the buffer except while it has a longer head

// Used only by the owner of the connection.
struct ReceiveBuffer {
    unsigned char *buffer = nullptr;  // HEAD_BUFFER bytes, more for a long head
    size_t capacity = 0;
    size_t filled = 0;
    size_t searched = 0;  // bytes in which the end of the head was searched

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

    // Frees memory beyond the size for heads.
    void shrink() noexcept {
        if (capacity <= HEAD_BUFFER || filled > HEAD_BUFFER) return;
        void *less = realloc(buffer, HEAD_BUFFER);
        if (!less) return;
        buffer = static_cast<unsigned char *>(less);
        capacity = HEAD_BUFFER;
    }

    // Empties the buffer for the next connection, and keeps only memory for heads.
    void discard() noexcept {
        filled = searched = 0;
        if (capacity <= HEAD_BUFFER) return;
        free(buffer);
        buffer = nullptr;
        capacity = 0;
    }

    // Removes the first `count` bytes: a finished message.
    void consume(size_t count) noexcept {
        filled -= count;
        if (filled) memmove(buffer, buffer + count, filled);
        searched = 0;
    }
};

}  // namespace ksrv
