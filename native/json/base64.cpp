#include "json/base64.hpp"

#include <array>
#include <cstdint>

namespace ksrv {
namespace {

constexpr std::uint32_t INVALID = 1u << 31;  // of a character that is not in the alphabet
constexpr unsigned char ALPHABET[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

using Table = std::array<std::uint32_t, 256>;

constexpr Table table_of(int shift) {
    Table table{};
    for (std::uint32_t &entry : table) entry = INVALID;
    for (std::uint32_t value = 0; value < 64; ++value) table[ALPHABET[value]] = value << shift;
    return table;
}

constexpr Table PLACES[4] = {table_of(18), table_of(12), table_of(6), table_of(0)};

// The 24 bits of four characters.
std::uint32_t group(const unsigned char *text) noexcept {
    return PLACES[0][text[0]] | PLACES[1][text[1]] | PLACES[2][text[2]] | PLACES[3][text[3]];
}

void store(std::uint32_t bits, unsigned char *out) noexcept {
    out[0] = static_cast<unsigned char>(bits >> 16);
    out[1] = static_cast<unsigned char>(bits >> 8);
    out[2] = static_cast<unsigned char>(bits);
}

std::size_t padding(const unsigned char *text, std::size_t length) noexcept {
    if (text[length - 1] != '=') return 0;
    return text[length - 2] == '=' ? 2 : 1;
}

}  // namespace

bool base64_decoded_size(const unsigned char *text, std::size_t length, std::size_t *size) noexcept {
    *size = 0;
    if (length % 4 != 0) return false;
    if (length != 0) *size = length / 4 * 3 - padding(text, length);
    return true;
}

std::size_t decode_base64(const unsigned char *text, std::size_t length, unsigned char *out) noexcept {
    if (length == 0) return 0;
    const std::size_t padded = padding(text, length);
    const std::size_t whole = length - (padded ? 4 : 0);
    std::size_t at = 0;
    for (; at + 16 <= whole; at += 16, out += 12) {
        const std::uint32_t a = group(text + at), b = group(text + at + 4), c = group(text + at + 8),
                            d = group(text + at + 12);
        if ((a | b | c | d) & INVALID) break;  // the loop below finds the invalid group
        store(a, out), store(b, out + 3), store(c, out + 6), store(d, out + 9);
    }
    for (; at < whole; at += 4, out += 3) {
        const std::uint32_t bits = group(text + at);
        if (bits & INVALID) return at;
        store(bits, out);
    }
    if (!padded) return length;
    const std::uint32_t bits = PLACES[0][text[at]] | PLACES[1][text[at + 1]] |
                               (padded == 1 ? PLACES[2][text[at + 2]] : 0);
    const std::uint32_t unused = padded == 1 ? 0xff : 0xffff;
    if (bits & (INVALID | unused)) return at;
    out[0] = static_cast<unsigned char>(bits >> 16);
    if (padded == 1) out[1] = static_cast<unsigned char>(bits >> 8);
    return length;
}

}  // namespace ksrv
