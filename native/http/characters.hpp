// The sets of characters that HTTP/1.1 allows in the parts of a message.

#pragma once

#include <cstdint>

namespace ksrv {

// The sets that a byte may belong to: NAME, the characters of a model's name; FIELD, of usual header names; TOKEN, of
// all header names and methods; VALUE, of header values; TARGET; HOST; HEX; DIGIT.
enum CharacterSet : uint8_t { NAME = 1, FIELD = 2, VALUE = 4, DIGIT = 8, TARGET = 16, HOST = 32, HEX = 64, TOKEN = 128 };

struct CharacterTable {
    uint8_t of[256] = {};
    constexpr CharacterTable() {
        for (int c = 0x20; c <= 0x7e; ++c) of[c] |= VALUE;
        for (int c = 0x21; c <= 0x7e; ++c) of[c] |= TARGET;
        of[static_cast<int>('\t')] |= VALUE;
        for (int c = '0'; c <= '9'; ++c) of[c] |= NAME | FIELD | DIGIT | HOST | HEX;
        for (int c = 'a'; c <= 'z'; ++c) of[c] |= NAME | FIELD | HOST;
        for (int c = 'A'; c <= 'Z'; ++c) of[c] |= NAME | FIELD | HOST;
        for (const char *c = "abcdefABCDEF"; *c; ++c) of[static_cast<int>(*c)] |= HEX;
        // No comma, although RFC 3986 allows it in names, because a list of hosts is invalid (RFC 9110 7.2).
        for (const char *c = "-._~!$&'()*+;="; *c; ++c) of[static_cast<int>(*c)] |= HOST;
        for (int c = 0; c < 256; ++c)
            if (of[c] & FIELD) of[c] |= TOKEN;
        for (const char *c = "!#$%&'*+-.^_`|~"; *c; ++c) of[static_cast<int>(*c)] |= TOKEN;  // RFC 9110 5.6.2
        of[static_cast<int>('-')] |= NAME | FIELD;
        of[static_cast<int>('.')] |= NAME;
        of[static_cast<int>('_')] |= NAME;
    }
};

inline constexpr CharacterTable CHARACTERS{};

inline bool is(unsigned char c, uint8_t kind) noexcept { return (CHARACTERS.of[c] & kind) != 0; }

}  // namespace ksrv
