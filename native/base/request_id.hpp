// The id of a request: the client's id if it is safe in logs and headers, otherwise a generated id.
//
// A client sends the id in `X-Request-ID`. Without this header, the trace id of `traceparent` is used. An id that is
// longer than REQUEST_ID_BYTES, that occurs twice, or that has other characters than letters, digits and - . _ ~ : / +
// = @ is replaced by a UUID of version 4.

#pragma once

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

// The trace id in a W3C `traceparent`, or null if the value is malformed.
inline const char *trace_id_of(const char *text, size_t length) noexcept {
    constexpr size_t VERSION_0 = 55, TRACE = 3, TRACE_BYTES = 32;
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
inline uint64_t next_random() noexcept {
    thread_local uint64_t state[2] = {0, 0};
    if (!(state[0] | state[1])) {
        if (getrandom(state, sizeof state, 0) != static_cast<ssize_t>(sizeof state))
            state[0] = reinterpret_cast<uintptr_t>(&state);
        state[1] |= 1;
    }
    uint64_t a = state[0];
    const uint64_t b = state[1];
    state[0] = b;
    a ^= a << 23;
    state[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
    return state[1] + b;
}

inline void make_request_id(RequestId *id) noexcept {
    static constexpr char digits[] = "0123456789abcdef";
    uint64_t random[2] = {next_random(), next_random()};
    random[0] = (random[0] & ~uint64_t(0xf000)) | 0x4000;
    random[1] = (random[1] & ~(uint64_t(3) << 62)) | (uint64_t(1) << 63);
    char *at = id->text;
    const auto put = [&at](uint64_t bits, int count) {
        for (int i = count; i-- > 0;) *at++ = digits[bits >> (4 * i) & 15];
    };
    put(random[0] >> 32, 8);
    *at++ = '-';
    put(random[0] >> 16, 4);
    *at++ = '-';
    put(random[0], 4);
    *at++ = '-';
    put(random[1] >> 48, 4);
    *at++ = '-';
    put(random[1], 12);
    id->length = static_cast<uint8_t>(at - id->text);
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

// Bytes of a head after the id was added as the last X-Request-ID, which is the value that counts.
inline size_t identified_head_bytes(size_t head_length, const RequestId &id) noexcept {
    return id.given ? head_length : head_length + id.length + 16;
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
