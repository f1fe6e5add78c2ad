// The messages that a call receives: complete (`Message`), and arriving (`IncomingMessage`).

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "memory/buffer_pool.hpp"
#include "memory/memory_budget.hpp"

namespace ksrv::grpc {

constexpr size_t PREFIX = 5;  // bytes before a message: the compressed flag, and the length in 4 bytes, big-endian

struct Message {
    Block *block = nullptr;  // null for an empty message
    size_t offset = 0, length = 0;
    bool compressed = false;
    uint64_t counted = 0;  // bytes that the message counts in the memory budget
};

inline void free_message(Message *message, MemoryBudget *budget) noexcept {
    if (message->block) process_pool().release(message->block);
    budget->give_back(message->counted);
    *message = Message{};
}

// The message that arrives: its prefix, then its bytes. Used only by the connection's owner.
struct IncomingMessage {
    explicit IncomingMessage(uint64_t now) noexcept : since_ns(now) {}

    bool has_begun() const noexcept { return prefix_got != 0; }
    bool has_prefix() const noexcept { return prefix_got == PREFIX; }
    size_t left() const noexcept { return message.length - got; }
    unsigned char *end() const noexcept { return message.block->data + message.offset + got; }

    // Takes bytes of the prefix. Returns how many.
    size_t take_prefix(const unsigned char *data, size_t length) noexcept {
        const size_t some = std::min(length, PREFIX - prefix_got);
        memcpy(prefix + prefix_got, data, some);
        prefix_got += some;
        return some;
    }
    // Begins the message that the complete prefix announces.
    void begin() noexcept {
        message = Message{};
        message.length = static_cast<size_t>(prefix[1]) << 24 | static_cast<size_t>(prefix[2]) << 16 |
                         static_cast<size_t>(prefix[3]) << 8 | prefix[4];
        message.compressed = prefix[0] == 1;
        got = 0;
    }
    // Begins the wait for the next prefix, after the message was moved out.
    void await_next(uint64_t now) noexcept {
        message = Message{};
        prefix_got = got = 0;
        since_ns = now;
    }

    unsigned char prefix[PREFIX];
    size_t prefix_got = 0, got = 0;
    Message message;
    size_t unconsumed = 0;     // received bytes for which the peer's window was not opened again
    uint64_t since_ns;         // when the wait for the message began
    uint64_t progress_ns = 0;  // when the last bytes arrived
};

}  // namespace ksrv::grpc
