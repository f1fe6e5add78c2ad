#include "json/scanner.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace ksrv::json {

namespace {

int hex_value(char c) noexcept {
    if (is_digit(c)) return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Reads the four digits of a \u escape. -1 if they are invalid.
long hex4(const char *at, const char *end) noexcept {
    if (end - at < 4) return -1;
    long value = 0;
    for (int i = 0; i < 4; ++i) {
        const int digit = hex_value(at[i]);
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

// The number of marked bytes in a word in which only high bits are set.
unsigned count_marks(std::uint64_t marks) noexcept {
    return static_cast<unsigned>((marks >> 7) * repeat(1) >> 56);
}

}  // namespace

long unicode_escape(const char **at, const char *end) noexcept {
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

std::size_t decode_string(const char *at, const char *end, char *out) noexcept {
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

bool underflows(const char *at, const char *end) noexcept {
    std::int64_t magnitude = 0;  // the number without its exponent is 0.d... * 10^magnitude, with d != 0
    bool leading = true, fraction = false;
    for (; at != end && (*at | 0x20) != 'e'; ++at) {
        if (*at == '.') fraction = true;
        if (!is_digit(*at)) continue;
        leading = leading && *at == '0';
        if (!fraction && !leading) ++magnitude;
        if (fraction && leading) --magnitude;
    }
    std::int64_t power = 0;
    for (const char *digit = at; digit != end; ++digit)
        if (is_digit(*digit) && power < 1'000'000'000'000) power = power * 10 + (*digit - '0');
    return magnitude + (at != end && at[1] == '-' ? -power : power) < 0;
}

namespace {

// Moves past a string, number, true, false or null, and checks it.
Fault skip_scalar(Cursor &c) noexcept {
    bool escaped = false, integral = false;
    switch (*c.at) {
        case '"': return skip_string(c, &escaped);
        case 't': return skip_word(c, "true", 4);
        case 'f': return skip_word(c, "false", 5);
        case 'n': return skip_word(c, "null", 4);
        default: return skip_number(c, &integral);
    }
}

// Moves past the key of a member and its colon.
Fault skip_key(Cursor &c) noexcept {
    bool escaped = false;
    skip_space(c);
    if (c.at == c.end) return END;
    if (*c.at != '"') return SYNTAX;
    if (const Fault fault = skip_string(c, &escaped)) return fault;
    skip_space(c);
    if (c.at == c.end) return END;
    if (*c.at != ':') return SYNTAX;
    ++c.at;
    return OK;
}

}  // namespace

Fault skip_value(Cursor &c, unsigned depth, unsigned deepest) noexcept {
    std::uint64_t objects[DEEPEST / 64] = {};  // a bit for each open level: set for an object, not for an array
    if (deepest > DEEPEST) deepest = DEEPEST;
    unsigned open = 0;  // objects and arrays of the value that are open
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
                if (first == '{' && (fault = skip_key(c))) return fault;
                continue;
            }
            ++c.at;
            --open;
        } else if ((fault = skip_scalar(c))) {
            return fault;
        }
        for (;;) {  // after a value: closes levels until another value follows
            if (open == 0) return OK;
            const bool object = objects[(open - 1) / 64] >> ((open - 1) % 64) & 1;
            skip_space(c);
            if (c.at == c.end) return END;
            const char next = *c.at;
            if (next == ',') {
                ++c.at;
                if (object && (fault = skip_key(c))) return fault;
                break;
            }
            if (next != (object ? '}' : ']')) return SYNTAX;
            ++c.at;
            --open;
        }
    }
}

namespace {

// Whether the 32 bytes at `at` have neither brackets, braces nor quotes, nor bytes that the mask mistakes for them
// ('Y', '_', 'y' and DEL).
bool none_marked(const char *at) noexcept {
#if defined(__SSE2__)
    const __m128i bits = _mm_set1_epi8(0x26), bracket = _mm_set1_epi8(0x7F), quote = _mm_set1_epi8('"');
    const auto marks = [&](const char *from) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        return _mm_or_si128(_mm_cmpeq_epi8(_mm_or_si128(bytes, bits), bracket), _mm_cmpeq_epi8(bytes, quote));
    };
    return _mm_movemask_epi8(_mm_or_si128(marks(at), marks(at + 16))) == 0;
#else
    (void)at;
    return false;
#endif
}

}  // namespace

Fault skip_array(Cursor &c, unsigned depth, unsigned deepest) noexcept {
    unsigned open = 0;
    const char *at = c.at, *end = c.end;
    while (at != end) {
        if (end - at >= 8) {
            const std::uint64_t word = load8(at);
            const std::uint64_t marks = zero_bytes((word | repeat(0x26)) ^ repeat(0x7F)) |
                                        zero_bytes(word ^ repeat('"'));
            if (marks == 0) {
                at += 8;
                while (end - at >= 32 && none_marked(at)) at += 32;
                continue;
            }
            // If only brackets are marked, and in no order of these brackets the array could end or exceed the depth
            // limit, it suffices to count them.
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
                c.at = at;
                if (const Fault fault = skip_value(c, depth + open, deepest)) return fault;
                at = c.at;
                continue;
            case '}':
                c.at = at;
                return SYNTAX;
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
