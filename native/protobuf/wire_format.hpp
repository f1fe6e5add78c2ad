// The protobuf wire format, without any message: cursors, varints, packed values and a writer.
//
// Everything here works on caller-owned bytes, never recurses, never throws and knows no Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace ksrv::protobuf {

constexpr std::size_t MAX_GROUPS = 100;  // nested unknown groups, protobuf's own bound

enum WireType : unsigned { VARINT = 0, FIXED64 = 1, BYTES = 2, GROUP = 3, END_GROUP = 4, FIXED32 = 5 };

// A stretch of the message, by offset from its beginning.
struct Span {
    std::size_t offset = 0;
    std::size_t length = 0;
};

// ---- reading ----

inline bool is_utf8(const unsigned char *p, std::size_t n) noexcept {
    std::size_t i = 0;
    while (i < n) {
        if (n - i >= 8) {
            std::uint64_t word;
            std::memcpy(&word, p + i, 8);
            if (!(word & 0x8080808080808080ull)) {
                i += 8;
                continue;
            }
        }
        const unsigned char c = p[i];
        if (c < 0x80) {
            ++i;
            continue;
        }
        std::size_t more;
        unsigned char low = 0x80, high = 0xBF;  // of the second byte
        if (c >= 0xC2 && c <= 0xDF) {
            more = 1;
        } else if (c >= 0xE0 && c <= 0xEF) {
            more = 2;
            if (c == 0xE0) low = 0xA0;   // no overlong form
            if (c == 0xED) high = 0x9F;  // no surrogate
        } else if (c >= 0xF0 && c <= 0xF4) {
            more = 3;
            if (c == 0xF0) low = 0x90;
            if (c == 0xF4) high = 0x8F;  // nothing above U+10FFFF
        } else {
            return false;
        }
        if (n - i <= more || p[i + 1] < low || p[i + 1] > high) return false;
        for (std::size_t k = 2; k <= more; ++k)
            if ((p[i + k] & 0xC0) != 0x80) return false;
        i += more + 1;
    }
    return true;
}

// Walks one (sub)message; offsets are those of the whole received message.
class Cursor {
  public:
    Cursor(const unsigned char *base, std::size_t begin, std::size_t end) noexcept
        : base_(base), at_(begin), end_(end) {}

    bool done() const noexcept { return at_ == end_; }
    std::size_t at() const noexcept { return at_; }

    // False where the bytes end within the varint or it has more than ten; `*length` is its size.
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

    // A field's number and wire type. `*odd` is set for a tag that no encoder writes like this.
    bool tag(std::uint64_t *field, unsigned *type, bool *odd) noexcept {
        std::uint64_t value;
        unsigned length;
        if (!varint(&value, &length)) return false;
        if (length > 1) *odd = true;  // every known field has a one-byte tag
        *field = value >> 3;
        *type = static_cast<unsigned>(value & 7);
        return true;
    }

    // A length-delimited field's bytes.
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

    // Steps over the value of a field that is not understood.
    bool skip(std::uint64_t field, unsigned type) noexcept {
        std::uint64_t open[MAX_GROUPS];
        std::size_t depth = 0;
        for (;;) {
            std::uint64_t value;
            unsigned length;
            Span ignored;
            bool odd;
            switch (type) {
            case VARINT:
                if (!varint(&value, &length)) return false;
                break;
            case FIXED64:
                if (!advance(8)) return false;
                break;
            case BYTES:
                if (!span(&ignored, &odd)) return false;
                break;
            case FIXED32:
                if (!advance(4)) return false;
                break;
            case GROUP:
                if (depth == MAX_GROUPS) return false;
                open[depth++] = field;
                break;
            case END_GROUP:
                if (depth == 0 || open[--depth] != field) return false;
                break;
            default:
                return false;
            }
            if (depth == 0) return true;
            if (!tag(&field, &type, &odd)) return false;
        }
    }

  private:
    const unsigned char *base_;
    std::size_t at_;
    std::size_t end_;
};

// Counts the varints in a packed field. False where the last one is cut or one has over ten bytes.
inline bool count_varints(const unsigned char *p, std::size_t n, std::uint64_t *count,
                          bool *odd) noexcept {
    if (n && (p[n - 1] & 0x80)) return false;
    std::uint64_t ends = 0;
    for (std::size_t i = 0; i < n; ++i) ends += !(p[i] & 0x80);
    *count = ends;
    if (ends == n) return true;
    unsigned run = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (!(p[i] & 0x80)) {
            if (run == 9 && p[i] > 1) *odd = true;  // bits beyond the 64th
            run = 0;
        } else if (++run == 10) {
            return false;
        }
    }
    return true;
}

// Decodes packed varints, counted before, into `out`. `Wire` is the field's own type (a varint is cut
// to its width, as protobuf does) and `Item` the tensor's. Returns `count`, or the index of the first
// value that `Item` cannot hold, which `*value` then receives.
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

inline std::size_t varint_size(std::uint64_t value) noexcept {
    std::size_t size = 1;
    while (value >= 0x80) {
        value >>= 7;
        ++size;
    }
    return size;
}

inline unsigned char *put_varint(unsigned char *out, std::uint64_t value) noexcept {
    while (value >= 0x80) {
        *out++ = static_cast<unsigned char>(value | 0x80);
        value >>= 7;
    }
    *out++ = static_cast<unsigned char>(value);
    return out;
}

// A growing buffer for the small fields of a response. `failed` stays set once memory ran out.
class Writer {
  public:
    Writer() noexcept = default;
    ~Writer() {
        if (data_ != inline_) std::free(data_);
    }
    Writer(const Writer &) = delete;
    Writer &operator=(const Writer &) = delete;

    const unsigned char *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    bool failed() const noexcept { return failed_; }
    void clear() noexcept { size_ = 0; }

    void varint(std::uint64_t value) noexcept {
        if (room(10)) size_ = static_cast<std::size_t>(put_varint(data_ + size_, value) - data_);
    }
    void tag(unsigned field, unsigned type) noexcept { varint(field << 3 | type); }
    void fixed64(std::uint64_t value) noexcept { raw(&value, 8); }
    void bytes(unsigned field, const void *from, std::size_t n) noexcept {
        tag(field, BYTES);
        varint(n);
        raw(from, n);
    }
    void raw(const void *from, std::size_t n) noexcept {
        if (n && room(n)) {
            std::memcpy(data_ + size_, from, n);
            size_ += n;
        }
    }

  private:
    bool room(std::size_t n) noexcept {
        if (failed_) return false;
        if (n <= capacity_ - size_) return true;
        std::size_t capacity = capacity_ * 2;
        if (capacity < size_ + n) capacity = size_ + n;
        auto *grown = static_cast<unsigned char *>(std::malloc(capacity));
        if (!grown) {
            failed_ = true;
            return false;
        }
        std::memcpy(grown, data_, size_);
        if (data_ != inline_) std::free(data_);
        data_ = grown;
        capacity_ = capacity;
        return true;
    }

    unsigned char inline_[512];
    unsigned char *data_ = inline_;
    std::size_t size_ = 0;
    std::size_t capacity_ = sizeof(inline_);
    bool failed_ = false;
};

}  // namespace ksrv::protobuf
