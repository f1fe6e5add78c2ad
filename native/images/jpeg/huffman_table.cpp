#include "images/jpeg/huffman_table.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace ksrv {
namespace {

constexpr unsigned ZERO_RUN = 0xF0;  // run/size symbol for sixteen zero coefficients

}  // namespace

bool HuffmanTable::assign(const std::uint8_t counts[17], const std::uint8_t symbols[256], Kind kind) noexcept {
    const bool is_same = is_built_ && kind == kind_ && std::memcmp(counts + 1, counts_ + 1, LONGEST_CODE) == 0 &&
                         std::memcmp(symbols, symbols_, sizeof symbols_) == 0;
    if (is_same) return true;
    std::memcpy(counts_, counts, sizeof counts_);
    std::memcpy(symbols_, symbols, sizeof symbols_);
    kind_ = kind;
    is_built_ = build();
    return is_built_;
}

bool HuffmanTable::build() noexcept {
    std::fill(std::begin(entries_), std::end(entries_), Entry{0, 0, 0});
    unsigned code = 0, index = 0;
    for (unsigned length = 1; length <= LONGEST_CODE; ++length, code <<= 1) {
        symbol_offset_[length] = static_cast<int>(index) - static_cast<int>(code);
        if (index + counts_[length] > sizeof symbols_ || code + counts_[length] > 1u << length) return false;
        for (unsigned i = 0; i < counts_[length]; ++i, ++code, ++index) {
            const unsigned symbol = symbols_[index];
            if (kind_ == Kind::dc && symbol > 15) return false;
            if (length <= INDEX_BITS) fill_entries(code, length, symbol);
        }
        code_end_[length] = code << (LONGEST_CODE - length);
    }
    return true;
}

// Fills the entries of all indexes that begin with the code.
void HuffmanTable::fill_entries(unsigned code, unsigned length, unsigned symbol) noexcept {
    const unsigned free_bits = INDEX_BITS - length;
    Entry *const first = entries_ + (code << free_bits);
    const unsigned run = kind_ == Kind::ac ? symbol >> 4 : 0, bits = symbol & 15;
    Entry entry{static_cast<std::int16_t>(symbol), 0, static_cast<std::uint8_t>(length)};
    if (bits == 0) {
        const unsigned step = kind_ == Kind::dc ? 1 : symbol == ZERO_RUN ? 16 : BLOCK_END;
        entry = {0, static_cast<std::uint8_t>(step), static_cast<std::uint8_t>(length)};
    }
    for (unsigned rest = 0; rest < 1u << free_bits; ++rest) {
        if (bits != 0 && bits <= free_bits) {
            const int value = extended(rest >> (free_bits - bits), bits);
            entry = {static_cast<std::int16_t>(value), static_cast<std::uint8_t>(run + 1),
                     static_cast<std::uint8_t>(length + bits)};
        }
        first[rest] = entry;
    }
}

HuffmanTable::Code HuffmanTable::long_code(std::uint64_t ahead) const noexcept {
    const std::uint32_t top = static_cast<std::uint32_t>(ahead >> (64 - LONGEST_CODE));
    for (unsigned length = INDEX_BITS + 1; length <= LONGEST_CODE; ++length) {
        if (top >= code_end_[length]) continue;
        const int code = static_cast<int>(top >> (LONGEST_CODE - length));
        return {symbols_[code + symbol_offset_[length]], length};
    }
    return {0, 0};
}

}  // namespace ksrv
