// The id of a request: the client's id if it is safe in logs and headers, otherwise a generated id.
//
// A client sends the id in `X-Request-ID`. Without this header, the trace id of `traceparent` is used. An id that is
// longer than REQUEST_ID_BYTES, that occurs twice, or that has other characters than letters, digits and - . _ ~ : / +
// = @ is replaced by a UUID of version 4.

#pragma once

#include <endian.h>
#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ksrv {

constexpr size_t REQUEST_ID_BYTES = 128;

struct RequestId {
    uint8_t length = 0;  // 0 before an id was chosen
    bool given = false;  // the id was the only X-Request-ID of the request
    char text[REQUEST_ID_BYTES];

    void set(const char *from, size_t count, bool is_given) noexcept {
        memcpy(text, from, count);
        length = static_cast<uint8_t>(count);
        given = is_given;
    }
};

inline bool is_request_id(const char *text, size_t length) noexcept {
    if (length == 0 || length > REQUEST_ID_BYTES) return false;
    for (size_t i = 0; i < length; ++i) {
        const char c = text[i];
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '-' && c <= ':');
        if (!plain && c != '_' && c != '~' && c != '+' && c != '=' && c != '@') return false;
    }
    return true;
}

// The trace id in a W3C `traceparent` (version-trace-span-flags), or null if the value is malformed. Later versions may
// be longer than version 00. Ids of zeros only are not valid.
inline const char *trace_id_of(const char *text, size_t length) noexcept {
    constexpr size_t VERSION_0 = 55, TRACE = 3, TRACE_BYTES = 32;  // length of version 00; where the trace id is
    if (length < VERSION_0 || memcmp(text, "ff", 2) == 0) return nullptr;
    if (length > VERSION_0 && (memcmp(text, "00", 2) == 0 || text[VERSION_0] != '-')) return nullptr;
    bool trace = false, span = false;
    for (size_t i = 0; i < VERSION_0; ++i) {
        const char c = text[i];
        if (i == 2 || i == 35 || i == 52) {
            if (c != '-') return nullptr;
            continue;
        }
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return nullptr;
        if (i >= TRACE && i < TRACE + TRACE_BYTES && c != '0') trace = true;
        if (i > 35 && i < 52 && c != '0') span = true;
    }
    return trace && span ? text + TRACE : nullptr;
}

// xorshift128+ for each thread, seeded by the kernel. Ids must be unique, but need not be unpredictable.
inline void next_random(uint64_t (&out)[2]) noexcept {
    thread_local uint64_t states[2] = {0, 0};
    uint64_t (&state)[2] = states;
    if (!(state[0] | state[1])) {
        if (getrandom(state, sizeof state, 0) != static_cast<ssize_t>(sizeof state))
            state[0] = reinterpret_cast<uintptr_t>(&state);
        state[1] |= 1;
    }
    for (uint64_t &made : out) {
        uint64_t a = state[0];
        const uint64_t b = state[1];
        state[0] = b;
        a ^= a << 23;
        state[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
        made = state[1] + b;
    }
}

// The eight hexadecimal digits of a number as ASCII, in the order of memory. Spreads the eight digits over the eight
// bytes of a word, and adds '0' to each, or for ten and more the distance to 'a'.
inline uint64_t hex_digits(uint32_t number) noexcept {
    constexpr uint64_t EACH = 0x0101010101010101;
    uint64_t digits = number;
    digits = (digits & 0xffff0000) << 16 | (digits & 0xffff);
    digits = (digits & 0xff000000ff00) << 8 | (digits & 0xff000000ff);
    digits = (digits & 0xf000f000f000f0) << 4 | (digits & 0xf000f000f000f);
    const uint64_t letters = (digits + 6 * EACH) >> 4 & EACH;
    return htobe64(digits + '0' * EACH + letters * ('a' - '0' - 10));
}

inline void make_request_id(RequestId *id) noexcept {
    uint64_t random[2];
    next_random(random);
    // The version and the variant (RFC 9562 5.4).
    random[0] = (random[0] & ~uint64_t(0xf000)) | 0x4000;
    random[1] = (random[1] & ~(uint64_t(3) << 62)) | (uint64_t(1) << 63);
    uint64_t digits[4];
    for (int i = 0; i < 4; ++i) digits[i] = hex_digits(static_cast<uint32_t>(random[i / 2] >> (i % 2 ? 0 : 32)));
    const char *const from = reinterpret_cast<const char *>(digits);
    char *const at = id->text;
    memcpy(at, from, 8);
    memcpy(at + 9, from + 8, 4);
    memcpy(at + 14, from + 12, 4);
    memcpy(at + 19, from + 16, 4);
    memcpy(at + 24, from + 20, 12);
    at[8] = at[13] = at[18] = at[23] = '-';
    id->length = 36;
    id->given = false;
}

// Chooses the id of a request. Pass length 0 for a field that is missing or repeated.
inline void choose_request_id(RequestId *id, const char *given, size_t length, const char *trace,
                              size_t trace_length) noexcept {
    constexpr size_t TRACE_BYTES = 32;
    if (is_request_id(given, length)) {
        id->set(given, length, true);
    } else if (const char *found = trace_id_of(trace, trace_length)) {
        id->set(found, TRACE_BYTES, false);
    } else {
        make_request_id(id);
    }
}

// Bytes of a head with the id added as the last X-Request-ID field. Readers of repeated fields use the last value.
inline size_t identified_head_bytes(size_t head_length, const RequestId &id) noexcept {
    return id.given ? head_length : head_length + id.length + 16;  // "x-request-id: " and CRLF
}

inline void put_identified_head(char *to, const unsigned char *head, size_t length, const RequestId &id) noexcept {
    memcpy(to, head, length);
    if (id.given) return;
    to += length - 2;  // overwrites the empty line
    memcpy(to, "x-request-id: ", 14);
    memcpy(to + 14, id.text, id.length);
    memcpy(to + 14 + id.length, "\r\n\r\n", 4);
}

}  // namespace ksrv
