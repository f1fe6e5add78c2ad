// An outgoing HTTP/1.1 answer: its parts, how much of it was sent, and who owns its memory.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "memory/memory_budget.hpp"

namespace ksrv {

constexpr size_t ANSWER_HEAD = 768;  // bytes of a head that needs no allocation
constexpr int ANSWER_PARTS = 64;     // parts in a system call

// Python objects that own an answer's parts. A thread with the GIL releases them after the last byte was sent.
struct Owners {
    Owners *next = nullptr;
    void *object = nullptr;
    uint64_t counted = 0;  // bytes of the answer in the memory budget, which are given back with the object
    AnswerRoom room = AnswerRoom::none;

    // Must be called before `object` is released, because this structure may be a part of the object.
    void give_back() noexcept { process_budget().give_back_answer(counted, room); }
};

// The iovecs of a message, how much was sent, and the memory that must live until then.
struct Outgoing {
    iovec *parts = nullptr;
    int count = 0;
    int at = 0;                 // the first part that was not sent completely
    size_t head_bytes = 0;      // at the beginning of the first part
    iovec inline_parts[4];
    iovec *spilled = nullptr;   // allocated if there are more parts than fit inline
    char head[ANSWER_HEAD];
    char *long_head = nullptr;  // allocated if the head is longer than `head`
    Owners *owners = nullptr;
    uint64_t total = 0;
    // On this connection, over all answers, because the kernel's buffer may have bytes of earlier answers.
    uint64_t sent = 0;
    uint64_t taken = 0;         // how much of `sent` the peer had acknowledged at the last check

    // Continues after `count` bytes were sent.
    void advance(size_t count) noexcept {
        sent += count;
        while (count > 0) {
            iovec *part = parts + at;
            const size_t step = count < part->iov_len ? count : part->iov_len;
            part->iov_base = static_cast<char *>(part->iov_base) + step;
            part->iov_len -= step;
            count -= step;
            if (part->iov_len == 0) ++at;
        }
    }
};

// Prepares for the next answer. The owners are released elsewhere, by a thread with the GIL.
inline void forget_outgoing(Outgoing *out) noexcept {
    free(out->spilled);
    free(out->long_head);
    out->spilled = nullptr;
    out->long_head = nullptr;
    out->parts = out->inline_parts;
    out->count = 0;
    out->at = 0;
    out->head_bytes = 0;
    out->total = 0;
}

// Makes room for `count` parts after the head. False if memory is short.
inline bool reserve_parts(Outgoing *out, int count) noexcept {
    out->parts = out->inline_parts;
    if (count + 1 <= static_cast<int>(sizeof out->inline_parts / sizeof(iovec))) return true;
    out->spilled = static_cast<iovec *>(malloc(sizeof(iovec) * static_cast<size_t>(count + 1)));
    if (!out->spilled) return false;
    out->parts = out->spilled;
    return true;
}

inline void add_part(Outgoing *out, const void *data, size_t length) noexcept {
    if (length == 0) return;
    out->parts[out->count].iov_base = const_cast<void *>(data);
    out->parts[out->count].iov_len = length;
    ++out->count;
    out->total += length;
}

}  // namespace ksrv
