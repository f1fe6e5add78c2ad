// The lexical level of JSON (RFC 8259) for the native readers: strings, digits, numbers, skipping.
//
// Strategy: a cursor over received bytes that never reads beyond their end and never recurses; a
// value that nobody asked for is still checked, with one bit of memory for each level. The one
// liberty is `skip_array`, which finds the end of a tensor's data at memory speed and leaves the
// checking to the reader of the data. Nothing here allocates, throws or knows Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ksrv::json {

enum Fault : int {
    OK = 0,
    END,        // the bytes end inside a value
    SYNTAX,     // a byte that cannot stand here
    DEPTH,      // nested deeper than allowed
    CONTROL,    // a control character inside a string
    ESCAPE,     // an unknown or incomplete escape, or half of a surrogate pair
    UTF8,       // bytes that are not UTF-8
    DATA_TYPE,  // an object inside a tensor's data
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

// The one parser for a client's numbers that are digits: ASCII digits only, no sign, at most
// `most_digits` of them and at most `limit`. Moves the cursor behind them; false leaves it where
// the fault is, and `*too_large` tells a number beyond the bounds from no number at all.
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

// One high bit for each zero byte of `word`, exactly.
inline std::uint64_t zero_bytes(std::uint64_t word) noexcept {
    constexpr std::uint64_t LOW7 = 0x7F7F7F7F7F7F7F7FULL;
    return ~(((word & LOW7) + LOW7) | word | LOW7);
}

inline constexpr std::uint64_t repeat(unsigned char byte) noexcept {
    return 0x0101010101010101ULL * byte;
}

// The length of the UTF-8 sequence at `s`, or 0 when it is not a valid one.
inline std::size_t utf8_sequence(const unsigned char *s, std::size_t left) noexcept {
    const auto tail = [&](std::size_t i) { return (s[i] & 0xC0) == 0x80; };
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2) return 0;
    if (s[0] < 0xE0) return left >= 2 && tail(1) ? 2 : 0;
    if (s[0] < 0xF0) {
        if (left < 3 || !tail(1) || !tail(2)) return 0;
        if (s[0] == 0xE0 && s[1] < 0xA0) return 0;  // overlong
        if (s[0] == 0xED && s[1] > 0x9F) return 0;  // surrogates
        return 3;
    }
    if (s[0] > 0xF4 || left < 4 || !tail(1) || !tail(2) || !tail(3)) return 0;
    if (s[0] == 0xF0 && s[1] < 0x90) return 0;  // overlong
    if (s[0] == 0xF4 && s[1] > 0x8F) return 0;  // above U+10FFFF
    return 4;
}

inline int hex_value(char c) noexcept {
    if (is_digit(c)) return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Reads the four digits of a \u escape; -1 when they are not there.
inline long hex4(const char *at, const char *end) noexcept {
    if (end - at < 4) return -1;
    long value = 0;
    for (int i = 0; i < 4; ++i) {
        const int digit = hex_value(at[i]);
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

// The code point of the \u escape (or pair) whose `u` is at `*at`, which is moved behind it; -1 for
// bad digits or half a pair.
inline long unicode_escape(const char **at, const char *end) noexcept {
    const long high = hex4(*at + 1, end);
    if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF)) return -1;
    *at += 5;
    if (high < 0xD800 || high > 0xDBFF) return high;
    if (end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return -1;
    const long low = hex4(*at + 2, end);
    if (low < 0xDC00 || low > 0xDFFF) return -1;
    *at += 6;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

// Checks a string whose opening quote is at the cursor, which moves behind the closing one.
inline Fault skip_string(Cursor &c, bool *escaped) noexcept {
    *escaped = false;
    ++c.at;
    while (c.at != c.end) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        if (c.end - c.at >= 8) {
            // Quotes, backslashes, control characters and what is not ASCII; borrows disturb only
            // bytes behind the first one that is marked.
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

// Writes the decoded form of a checked string's inside to `out`; it is never longer than its raw
// form. Returns the number of bytes written.
inline std::size_t decode_string(const char *at, const char *end, char *out) noexcept {
    char *start = out;
    while (at != end) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        ++at;
        if (*at != 'u') {
            switch (*at) {
                case 'b': *out++ = '\b'; break;
                case 'f': *out++ = '\f'; break;
                case 'n': *out++ = '\n'; break;
                case 'r': *out++ = '\r'; break;
                case 't': *out++ = '\t'; break;
                default: *out++ = *at;
            }
            ++at;
            continue;
        }
        const long code = unicode_escape(&at, end);
        if (code < 0x80) {
            *out++ = static_cast<char>(code);
        } else if (code < 0x800) {
            *out++ = static_cast<char>(0xC0 | code >> 6);
            *out++ = static_cast<char>(0x80 | (code & 0x3F));
        } else if (code < 0x10000) {
            *out++ = static_cast<char>(0xE0 | code >> 12);
            *out++ = static_cast<char>(0x80 | (code >> 6 & 0x3F));
            *out++ = static_cast<char>(0x80 | (code & 0x3F));
        } else {
            *out++ = static_cast<char>(0xF0 | code >> 18);
            *out++ = static_cast<char>(0x80 | (code >> 12 & 0x3F));
            *out++ = static_cast<char>(0x80 | (code >> 6 & 0x3F));
            *out++ = static_cast<char>(0x80 | (code & 0x3F));
        }
    }
    return static_cast<std::size_t>(out - start);
}

// Checks a number's grammar; `*integral` tells whether it has neither fraction nor exponent.
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

// Reads `word` (true, false, null) at the cursor.
inline Fault skip_word(Cursor &c, const char *word, std::size_t length) noexcept {
    for (std::size_t i = 0; i < length; ++i) {
        if (c.at == c.end) return END;
        if (*c.at != word[i]) return SYNTAX;
        ++c.at;
    }
    return OK;
}

// Checks one value of any kind without recursion. `depth` is how deep the cursor already is.
inline Fault skip_value(Cursor &c, unsigned depth, unsigned deepest) noexcept {
    std::uint64_t objects[DEEPEST / 64] = {};  // one bit for each open level: is it an object?
    if (deepest > DEEPEST) deepest = DEEPEST;
    unsigned open = 0;
    bool escaped = false, integral = false;
    const auto key = [&]() -> Fault {
        skip_space(c);
        if (c.at == c.end) return END;
        if (*c.at != '"') return SYNTAX;
        if (const Fault fault = skip_string(c, &escaped)) return fault;
        skip_space(c);
        if (c.at == c.end) return END;
        if (*c.at != ':') return SYNTAX;
        ++c.at;
        return OK;
    };
    for (;;) {
        skip_space(c);
        if (c.at == c.end) return END;
        Fault fault = OK;
        const char first = *c.at;
        if (first == '{' || first == '[') {
            if (depth + open >= deepest) return DEPTH;
            const std::uint64_t bit = std::uint64_t{1} << (open % 64);
            if (first == '{')
                objects[open / 64] |= bit;
            else
                objects[open / 64] &= ~bit;
            ++open;
            ++c.at;
            skip_space(c);
            if (c.at == c.end) return END;
            if (*c.at != (first == '{' ? '}' : ']')) {
                if (first == '{' && (fault = key())) return fault;
                continue;
            }
            ++c.at;
            --open;
        } else if (first == '"') {
            fault = skip_string(c, &escaped);
        } else if (first == 't') {
            fault = skip_word(c, "true", 4);
        } else if (first == 'f') {
            fault = skip_word(c, "false", 5);
        } else if (first == 'n') {
            fault = skip_word(c, "null", 4);
        } else {
            fault = skip_number(c, &integral);
        }
        if (fault) return fault;
        for (;;) {  // behind a value
            if (open == 0) return OK;
            const bool object = objects[(open - 1) / 64] >> ((open - 1) % 64) & 1;
            skip_space(c);
            if (c.at == c.end) return END;
            const char next = *c.at;
            if (next == ',') {
                ++c.at;
                if (object && (fault = key())) return fault;
                break;
            }
            if (next != (object ? '}' : ']')) return SYNTAX;
            ++c.at;
            --open;
        }
    }
}

// How many bytes are marked in a word that has nothing but high bits set.
inline unsigned count_marks(std::uint64_t marks) noexcept {
    return static_cast<unsigned>((marks >> 7) * repeat(1) >> 56);
}

// Moves behind the array whose bracket is at the cursor, looking only at brackets and quotes.
//
// What lies between them is checked by whoever reads the data. Brackets and braces are the bytes
// that become 0x7F when 0x26 is set in them, with 'Y', '_', 'y' and DEL, which are passed over.
inline Fault skip_array(Cursor &c, unsigned depth, unsigned deepest) noexcept {
    unsigned open = 0;
    const char *at = c.at, *end = c.end;
    while (at != end) {
        if (end - at >= 8) {
            const std::uint64_t word = load8(at);
            const std::uint64_t marks = zero_bytes((word | repeat(0x26)) ^ repeat(0x7F)) |
                                        zero_bytes(word ^ repeat('"'));
            if (marks == 0) {
                at += 8;
                continue;
            }
            // Where nothing but brackets is marked, and they neither end the array nor reach the
            // limit whatever their order, their numbers are enough.
            const std::uint64_t opening = zero_bytes(word ^ repeat('['));
            const std::uint64_t closing = zero_bytes(word ^ repeat(']'));
            if (marks == (opening | closing) && count_marks(closing) < open &&
                depth + open + count_marks(opening) <= deepest) {
                open += count_marks(opening) - count_marks(closing);
                at += 8;
                continue;
            }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            at += __builtin_ctzll(marks) / 8;
#endif
        }
        switch (*at) {
            case '[':
                if (depth + ++open > deepest) {
                    c.at = at;
                    return DEPTH;
                }
                break;
            case ']':
                if (--open == 0) {
                    c.at = at + 1;
                    return OK;
                }
                break;
            case '{':
            case '}':
                c.at = at;
                return DATA_TYPE;
            case '"':
                for (++at;; ++at) {
                    while (end - at >= 8 && (zero_bytes(load8(at) ^ repeat('"')) |
                                             zero_bytes(load8(at) ^ repeat('\\'))) == 0)
                        at += 8;
                    if (at >= end) break;
                    if (*at == '"') break;
                    if (*at == '\\' && ++at >= end) break;
                }
                if (at >= end) {
                    c.at = end;
                    return END;
                }
                break;
            default:
                break;
        }
        ++at;
    }
    c.at = end;
    return END;
}

}  // namespace ksrv::json
