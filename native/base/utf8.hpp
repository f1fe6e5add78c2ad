// UTF-8 as RFC 3629 defines it: no overlong form, no surrogate, nothing above U+10FFFF.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ksrv {

// The length of the UTF-8 sequence at `s`, or 0 if the sequence is invalid.
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

inline bool is_utf8(const unsigned char *s, std::size_t length) noexcept {
    for (std::size_t i = 0; i < length;) {
        if (length - i >= 8) {  // eight ASCII bytes at once
            std::uint64_t word;
            std::memcpy(&word, s + i, 8);
            if (!(word & 0x8080808080808080ull)) {
                i += 8;
                continue;
            }
        }
        const std::size_t step = utf8_sequence(s + i, length - i);
        if (step == 0) return false;
        i += step;
    }
    return true;
}

}  // namespace ksrv
