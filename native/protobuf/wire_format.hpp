// The protobuf wire format: cursors, varints, packed values and a writer, independent of any message type.
//
// Everything here works on bytes of the caller, never recurses, never throws and uses no Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/small_vector.hpp"

namespace ksrv::protobuf {

constexpr std::size_t MAX_GROUPS = 100;  // nested unknown groups, the recursion limit of protobuf libraries

enum WireType : unsigned { VARINT = 0, FIXED64 = 1, BYTES = 2, GROUP = 3, END_GROUP = 4, FIXED32 = 5 };

// A range of the message, by offset from its beginning.
struct Span {
    std::size_t offset = 0;
    std::size_t length = 0;
};

// ---- reading ----

// Walks a message or submessage. Offsets are relative to the whole received message.
class Cursor {
  public:
    Cursor(const unsigned char *base, std::size_t begin, std::size_t end) noexcept
        : base_(base), at_(begin), end_(end) {}

    bool done() const noexcept { return at_ == end_; }
    std::size_t at() const noexcept { return at_; }

    // Reads a varint. False if the bytes end within it, or it has more than ten bytes. `*length` is its size in bytes.
    bool varint(std::uint64_t *value, unsigned *length) noexcept {
        std::uint64_t result = 0;
        for (unsigned i = 0; i < 10; ++i) {
            if (at_ + i >= end_) return false;
            const std::uint64_t byte = base_[at_ + i];
            result |= (byte & 0x7F) << (7 * i);
            if (!(byte & 0x80)) {
                at_ += i + 1;
                *value = result;
                *length = i + 1;
                return true;
            }
        }
        return false;
    }

    // Reads a field's number and wire type. Sets `*odd` if the field is unknown to the messages here, or if no encoder
    // writes it in this form.
    bool tag(std::uint64_t *field, unsigned *type, bool *odd) noexcept {
        std::uint64_t value;
        unsigned length;
        if (!varint(&value, &length)) return false;
        if (length > 1) *odd = true;  // every known field has a one-byte tag
        *field = value >> 3;
        *type = static_cast<unsigned>(value & 7);
        return true;
    }

    // Reads the bytes of a length-delimited field. Sets `*odd` if the length is written with more bytes than it needs.
    bool span(Span *found, bool *odd) noexcept {
        std::uint64_t value;
        unsigned length;
        if (!varint(&value, &length)) return false;
        if (length > 1 && value < (std::uint64_t(1) << (7 * (length - 1)))) *odd = true;
        if (value > end_ - at_) return false;
        found->offset = at_;
        found->length = static_cast<std::size_t>(value);
        at_ += found->length;
        return true;
    }

    bool advance(std::size_t n) noexcept {
        if (n > end_ - at_) return false;
        at_ += n;
        return true;
    }

    const unsigned char *here() const noexcept { return base_ + at_; }

    // Skips the value of an unknown field.
    bool skip(std::uint64_t field, unsigned type) noexcept;

  private:
    const unsigned char *base_;
    std::size_t at_;
    std::size_t end_;
};

// Counts the varints in a packed field. False if the last is cut off, or if a varint has more than ten bytes. Sets
// `*odd` if a value exceeds 64 bits.
bool count_varints(const unsigned char *p, std::size_t n, std::uint64_t *count, bool *odd) noexcept;

// Decodes packed varints, which were counted before, into `out`. `Wire` is the field's type (a varint is truncated to
// its width, as protobuf does) and `Item` the tensor's type. Returns `count`, or the index of the first value that
// exceeds `Item`, which is stored in `*value`.
template <typename Wire, typename Item>
inline std::size_t decode_varints(const unsigned char *p, std::size_t count, Item *out,
                                  std::int64_t *value) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t bits = *p++;
        if (bits & 0x80) {
            bits &= 0x7F;
            unsigned shift = 7;
            std::uint64_t byte;
            do {
                byte = *p++;
                bits |= (byte & 0x7F) << shift;
                shift += 7;
            } while (byte & 0x80);
        }
        if constexpr (std::is_same_v<Wire, bool>) {
            out[i] = bits != 0;
        } else {
            const Wire wire = static_cast<Wire>(bits);
            const Item item = static_cast<Item>(wire);
            if (static_cast<Wire>(item) != wire) {
                *value = static_cast<std::int64_t>(wire);
                return i;
            }
            out[i] = item;
        }
    }
    return count;
}

// ---- writing ----

// A growing buffer for the small fields of a response. `failed` is set, and stays set, if memory runs out.
class Writer {
  public:
    const unsigned char *data() const noexcept { return bytes_.data(); }
    std::size_t size() const noexcept { return bytes_.size(); }
    bool failed() const noexcept { return failed_; }

    void varint(std::uint64_t value) noexcept {
        unsigned char encoded[10];
        std::size_t size = 0;
        for (; value >= 0x80; value >>= 7) encoded[size++] = static_cast<unsigned char>(value | 0x80);
        encoded[size++] = static_cast<unsigned char>(value);
        raw(encoded, size);
    }
    void tag(unsigned field, unsigned type) noexcept { varint(field << 3 | type); }
    void bytes(unsigned field, const void *from, std::size_t n) noexcept {
        tag(field, BYTES);
        varint(n);
        raw(from, n);
    }
    void raw(const void *from, std::size_t n) noexcept {
        if (n == 0 || failed_) return;
        unsigned char *room = bytes_.extend(n);
        failed_ = room == nullptr;
        if (room) std::memcpy(room, from, n);
    }

  private:
    SmallVector<unsigned char, 512> bytes_;
    bool failed_ = false;
};

}  // namespace ksrv::protobuf
