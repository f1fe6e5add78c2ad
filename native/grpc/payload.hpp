// An outgoing gRPC message: the prefix, and parts that are not copied before they are sent.
//
// A payload is one block of memory: the object, its table of parts (iovec), the prefix, and room for copied bytes. Its
// references are counted: by the call's `PayloadQueue`, and by the outgoing bytes until the socket has taken them.

#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>

#include "grpc/messages.hpp"
#include "http2/outgoing_bytes.hpp"
#include "memory/memory_budget.hpp"

namespace ksrv::grpc {

class Server;

class Payload final : public http2::Keeper {
  public:
    // Allocates memory for `parts` parts and `bytes` bytes. Null if memory is short.
    static Payload *make(Server *server, int parts, size_t bytes) noexcept {
        const size_t room = sizeof(Payload) + sizeof(iovec) * static_cast<size_t>(parts + 1) + PREFIX + bytes;
        void *memory = malloc(room);
        return memory ? new (memory) Payload(server, parts) : nullptr;
    }

    // The body of a plain HTTP answer, without a prefix. `text` must live as long as the server.
    static Payload *make_plain(Server *server, std::string_view text) noexcept {
        Payload *made = make(server, 1, 0);
        if (!made) return nullptr;
        made->size = 0;
        made->count_ = 0;
        made->add(text.data(), text.size());
        return made;
    }

    // Charges the bytes to the budget until `destroy`. False if it has no room for them; small messages are always
    // allowed.
    bool count(MemoryBudget *its) noexcept {
        if (size > SMALL) {
            room = its->reserve_answer(size);
        } else {
            room = AnswerRoom::shared;
            its->take(size);
        }
        if (room == AnswerRoom::none) return false;
        budget = its;
        counted = size;
        return true;
    }

    unsigned char *bytes() noexcept { return prefix() + PREFIX; }

    // Appends a copy of the bytes, in the memory that `make` allocated.
    void copy(const void *data, size_t length) noexcept {
        unsigned char *to = bytes() + (size - PREFIX);
        memcpy(to, data, length);
        add(to, length);
    }

    // Appends a part without a copy. The bytes must live as long as the payload: see `owner`.
    void add(const void *data, size_t length) noexcept {
        if (length == 0) return;
        parts()[count_].iov_base = const_cast<void *>(data);
        parts()[count_].iov_len = length;
        ++count_;
        size += length;
    }

    // Writes the prefix, after all parts were added.
    void close() noexcept {
        const size_t length = size - PREFIX;
        unsigned char *out = prefix();
        out[0] = 0;
        for (int i = 0; i < 4; ++i) out[1 + i] = static_cast<unsigned char>(length >> (24 - 8 * i));
    }

    // For several messages in one payload, after `close`: the parts are the first message, and all further messages
    // with their prefixes. `close` wrote the length of all of them; `made` is the prefix of the first message alone.
    void set_prefix(const char *made) noexcept { memcpy(prefix(), made, PREFIX); }

    // Appends the next `length` bytes to `out`. False if memory is short.
    bool take(size_t length, http2::OutgoingBytes *out) noexcept {
        try {
            while (length) {
                const iovec &part = parts()[at_];
                const size_t left = part.iov_len - skip_;
                const size_t now = left < length ? left : length;
                out->refer(static_cast<const unsigned char *>(part.iov_base) + skip_, now, this);
                length -= now;
                taken += now;
                skip_ += now;
                if (skip_ == part.iov_len) {
                    ++at_;
                    skip_ = 0;
                }
            }
        } catch (const std::bad_alloc &) {
            return false;
        }
        return true;
    }

    void retain() noexcept override { refs_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept override;

    void destroy() noexcept {
        if (budget) budget->give_back_answer(counted, room);
        this->~Payload();
        free(this);
    }

    Payload *next = nullptr;  // in the call's PayloadQueue, later in PendingDecrefs
    void *owner = nullptr;  // the Python object that owns the parts, or null
    MemoryBudget *budget = nullptr;      // set by `count`: it has `counted` bytes of this payload, counted as `room`
    uint64_t counted = 0;
    AnswerRoom room = AnswerRoom::none;
    size_t size = 0, taken = 0;  // all bytes, and the bytes that `take` has moved; including the prefix

  private:
    static constexpr size_t SMALL = 80u << 10;  // all answers of the fast path are smaller

    Payload(Server *server, int most) noexcept : server_(server), most_(most) { add(prefix(), PREFIX); }
    ~Payload() = default;

    iovec *parts() noexcept { return reinterpret_cast<iovec *>(this + 1); }
    unsigned char *prefix() noexcept { return reinterpret_cast<unsigned char *>(parts() + most_ + 1); }

    Server *server_;
    std::atomic<int> refs_{1};
    int most_, count_ = 0, at_ = 0;  // parts: room for, used, the first that is not completely taken
    size_t skip_ = 0;                // bytes of part `at_` that were taken
};

// Messages that wait to be sent, in order.
class PayloadQueue {
  public:
    bool empty() const noexcept { return first_ == nullptr; }
    size_t bytes() const noexcept { return bytes_; }

    // Takes over the caller's reference.
    void add(Payload *payload) noexcept {
        payload->next = nullptr;
        (last_ ? last_->next : first_) = payload;
        last_ = payload;
        bytes_ += payload->size;
    }

    // Appends the next `length` bytes to `out`. False if memory is short.
    bool take(size_t length, http2::OutgoingBytes *out) noexcept {
        bytes_ -= length;
        while (length) {
            const size_t some = std::min(length, first_->size - first_->taken);
            if (!first_->take(some, out)) return false;
            length -= some;
            if (first_->taken == first_->size) drop_first();
        }
        return true;
    }

    void clear() noexcept {
        while (first_) drop_first();
        bytes_ = 0;
    }

  private:
    void drop_first() noexcept {
        Payload *gone = first_;
        first_ = gone->next;
        if (!first_) last_ = nullptr;
        gone->release();
    }

    Payload *first_ = nullptr, *last_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace ksrv::grpc
