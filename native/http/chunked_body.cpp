#include "http/chunked_body.hpp"

#include <cstring>

namespace ksrv {

namespace {

constexpr size_t SIZE_DIGITS = 8;

int hexadecimal(unsigned char c) noexcept {
    if (c >= '0' && c <= '9') return c - '0';
    const unsigned char lower = static_cast<unsigned char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// What is known of the line end at `at`.
Chunks line_end(const unsigned char *data, size_t at, size_t filled) noexcept {
    if (at < filled && data[at] != '\r') return Chunks::gunicorn;
    if (at + 1 < filled && data[at + 1] != '\n') return Chunks::gunicorn;
    return at + 2 <= filled ? Chunks::whole : Chunks::incomplete;
}

// Reads a line with a chunk's size; `*at` is behind it where it is whole.
Chunks read_size(const unsigned char *data, size_t *at, size_t filled, size_t *size) noexcept {
    size_t digits = 0;
    *size = 0;
    for (int digit; *at < filled && (digit = hexadecimal(data[*at])) >= 0; ++*at) {
        if (++digits > SIZE_DIGITS) return Chunks::gunicorn;
        *size = *size * 16 + static_cast<size_t>(digit);
    }
    if (digits == 0) return *at < filled ? Chunks::gunicorn : Chunks::incomplete;
    const Chunks found = line_end(data, *at, filled);
    if (found == Chunks::whole) *at += 2;
    return found;
}

}  // namespace

Chunks look_at_chunks(const unsigned char *data, size_t filled, size_t most_chunks, size_t most_bytes,
                      ChunkedBody *seen) noexcept {
    for (;;) {
        size_t at = seen->at, size = 0;
        Chunks found = read_size(data, &at, filled, &size);
        if (found != Chunks::whole) return found;
        if (size == 0) {
            found = line_end(data, at, filled);
            if (found == Chunks::whole) seen->at = at + 2;
            return found;
        }
        if (seen->chunks == most_chunks || size > most_bytes - seen->decoded) return Chunks::gunicorn;
        if (size > filled - at) return Chunks::incomplete;
        at += size;
        found = line_end(data, at, filled);
        if (found != Chunks::whole) return found;
        seen->at = at + 2;
        seen->decoded += size;
        ++seen->chunks;
    }
}

void copy_chunks(const unsigned char *data, unsigned char *to) noexcept {
    for (size_t at = 0;;) {
        size_t size = 0;
        read_size(data, &at, static_cast<size_t>(-1), &size);
        if (size == 0) return;
        memcpy(to, data + at, size);
        to += size;
        at += size + 2;
    }
}

}  // namespace ksrv
