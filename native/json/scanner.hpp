// Functions to read and skip JSON values (RFC 8259), which all native readers of JSON share.
//
// Strategy: a cursor over received bytes that never reads beyond their end and never recurses. Skipped values are still
// checked, with one bit of memory for each level. The exception is `skip_array`, which finds the end of a tensor's data
// at memory speed and leaves checking to the reader of the data. Nothing here allocates, throws or uses Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/utf8.hpp"

namespace ksrv::json {

enum Fault : int {
    OK = 0,
    END,        // the bytes end within a value
    SYNTAX,     // an unexpected byte
    DEPTH,      // nested deeper than allowed
    CONTROL,    // a control character within a string
    ESCAPE,     // an unknown or incomplete escape, or half of a surrogate pair
    UTF8,       // bytes that are not UTF-8
};

inline constexpr unsigned DEEPEST = 512;

struct Cursor {
    const char *at;
    const char *end;
};

inline bool is_digit(char c) noexcept { return static_cast<unsigned char>(c - '0') <= 9; }

inline void skip_space(Cursor &c) noexcept {
    while (c.at != c.end && (*c.at == ' ' || *c.at == '\n' || *c.at == '\r' || *c.at == '\t')) ++c.at;
}

// Reads a number of ASCII digits without a sign, with at most `most_digits` digits and a value of at most `limit`.
// Moves the cursor past the digits. On failure the cursor stays at the number, and `*too_large` is set if it had
// digits. All unsigned numbers from clients are read here.
inline bool parse_digits(Cursor &c, unsigned most_digits, std::uint64_t limit, std::uint64_t *value,
                         bool *too_large) noexcept {
    *too_large = false;
    const char *start = c.at;
    std::uint64_t result = 0;
    while (c.at != c.end && is_digit(*c.at)) {
        if (static_cast<std::size_t>(c.at - start) >= most_digits ||
            __builtin_mul_overflow(result, std::uint64_t{10}, &result) ||
            __builtin_add_overflow(result, static_cast<std::uint64_t>(*c.at - '0'), &result) ||
            result > limit) {
            c.at = start;
            *too_large = true;
            return false;
        }
        ++c.at;
    }
    *value = result;
    return c.at != start;
}

inline std::uint64_t load8(const char *at) noexcept {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
}

// Sets the high bit of each zero byte of `word`, exactly.
inline std::uint64_t zero_bytes(std::uint64_t word) noexcept {
    constexpr std::uint64_t LOW7 = 0x7F7F7F7F7F7F7F7FULL;
    return ~(((word & LOW7) + LOW7) | word | LOW7);
}

inline constexpr std::uint64_t repeat(unsigned char byte) noexcept {
    return 0x0101010101010101ULL * byte;
}

// The code point of the \u escape (or surrogate pair) whose `u` is at `*at`. Moves `*at` past it. -1 for invalid digits
// or half of a pair.
long unicode_escape(const char **at, const char *end) noexcept;

// Checks a string whose opening quote is at the cursor. Moves the cursor past the closing quote.
inline Fault skip_string(Cursor &c, bool *escaped) noexcept {
    *escaped = false;
    ++c.at;
    while (c.at != c.end) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        if (c.end - c.at >= 8) {
            // Marks quotes, backslashes, control characters and bytes above ASCII. Borrows disturb only bytes after the
            // first marked byte.
            const std::uint64_t word = load8(c.at);
            const std::uint64_t quote = word ^ repeat('"'), backslash = word ^ repeat('\\');
            const std::uint64_t marks =
                (((quote - repeat(1)) & ~quote) | ((backslash - repeat(1)) & ~backslash) |
                 ((word - repeat(0x20)) & ~word) | word) & repeat(0x80);
            if (marks == 0) {
                c.at += 8;
                continue;
            }
            c.at += __builtin_ctzll(marks) / 8;
        }
#endif
        const auto byte = static_cast<unsigned char>(*c.at);
        if (byte == '"') {
            ++c.at;
            return OK;
        }
        if (byte < 0x20) return CONTROL;
        if (byte == '\\') {
            *escaped = true;
            if (c.end - c.at < 2) return END;
            const char kind = c.at[1];
            if (kind == 'u') {
                const char *at = c.at + 1;
                if (unicode_escape(&at, c.end) < 0) return ESCAPE;
                c.at = at;
            } else if (std::memchr("\"\\/bfnrt", kind, 8) != nullptr) {
                c.at += 2;
            } else {
                return ESCAPE;
            }
        } else if (byte < 0x80) {
            ++c.at;
        } else {
            const std::size_t length = utf8_sequence(
                reinterpret_cast<const unsigned char *>(c.at), static_cast<std::size_t>(c.end - c.at));
            if (length == 0) return UTF8;
            c.at += length;
        }
    }
    return END;
}

// Decodes the inside of a checked string to `out`. Returns the length, which never exceeds the encoded length.
std::size_t decode_string(const char *at, const char *end, char *out) noexcept;

// Checks a number's grammar. `*integral` is set if it has neither a fraction nor an exponent.
inline Fault skip_number(Cursor &c, bool *integral) noexcept {
    *integral = true;
    if (c.at != c.end && *c.at == '-') ++c.at;
    const auto digits = [&c]() {
        const char *start = c.at;
        while (c.at != c.end && is_digit(*c.at)) ++c.at;
        return c.at != start;
    };
    if (c.at != c.end && *c.at == '0') {
        ++c.at;
        if (c.at != c.end && is_digit(*c.at)) return SYNTAX;
    } else if (!digits()) {
        return c.at == c.end ? END : SYNTAX;
    }
    if (c.at != c.end && *c.at == '.') {
        *integral = false;
        ++c.at;
        if (!digits()) return c.at == c.end ? END : SYNTAX;
    }
    if (c.at != c.end && (*c.at | 0x20) == 'e') {
        *integral = false;
        ++c.at;
        if (c.at != c.end && (*c.at == '+' || *c.at == '-')) ++c.at;
        if (!digits()) return c.at == c.end ? END : SYNTAX;
    }
    return OK;
}

// Whether a number that no double can represent is too close to 0. If not, it is too large.
bool underflows(const char *at, const char *end) noexcept;

// Reads `word` (true, false, null) at the cursor.
inline Fault skip_word(Cursor &c, const char *word, std::size_t length) noexcept {
    for (std::size_t i = 0; i < length; ++i) {
        if (c.at == c.end) return END;
        if (*c.at != word[i]) return SYNTAX;
        ++c.at;
    }
    return OK;
}

// Moves past a value of any kind and checks it, without recursion. `depth`: the open levels around the value.
// `deepest`: the most levels.
Fault skip_value(Cursor &c, unsigned depth, unsigned deepest) noexcept;

// Moves past the array whose bracket is at the cursor, looking only at brackets, braces and quotes.
//
// Text between them is checked later by the reader of the data; objects are checked here. Brackets and braces are the
// bytes that become 0x7F when 0x26 is set in them. So do 'Y', '_', 'y' and DEL, which are skipped.
Fault skip_array(Cursor &c, unsigned depth, unsigned deepest) noexcept;

}  // namespace ksrv::json
