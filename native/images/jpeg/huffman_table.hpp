// A JPEG's Huffman table, read by the next bits of the file.
//
// Strategy: an entry for each value of the next ten bits has what they say: most codes are short enough for
// the bits of the value behind them to be among the ten, and one look-up then gives the value and how many
// coefficients it moves on. For other codes it gives the symbol, and the longest are compared length by length.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

class HuffmanTable {
  public:
    enum class Kind { dc, ac };

    // What the next bits say; `bits` are consumed with it.
    struct Entry {
        std::int16_t value;  // a coefficient, or the symbol where `step` is 0
        std::uint8_t step;   // how many coefficients it moves on; BLOCK_END at the end of the block
        std::uint8_t bits;   // 0: a longer code than the table has entries for, or none
    };
    struct Code {
        unsigned symbol, bits;  // 0 bits: no code
    };

    static constexpr unsigned BLOCK_END = 64;

    // Becomes the table with `counts[n]` codes of n bits, from 1 to 16, and their symbols in order. A table that is
    // so already is kept. False: there is no such table.
    bool become(const std::uint8_t counts[17], const std::uint8_t symbols[256], Kind kind) noexcept;

    // Both take the next bits of the file from the top.
    Entry entry(std::uint64_t ahead) const noexcept { return entries_[ahead >> (64 - LOOKED_AT)]; }
    Code long_code(std::uint64_t ahead) const noexcept;

  private:
    static constexpr unsigned LOOKED_AT = 10, LONGEST = 16;

    bool build() noexcept;
    void enter(unsigned code, unsigned length, unsigned symbol) noexcept;

    bool is_built_ = false;
    Kind kind_ = Kind::dc;
    std::uint8_t counts_[LONGEST + 1] = {};
    std::uint8_t symbols_[256] = {};
    // By the length of codes: the first one that is too large, from the top of 16 bits, and what leads from a
    // code to the place of its symbol.
    std::uint32_t behind_[LONGEST + 1] = {};
    int symbol_place_[LONGEST + 1] = {};
    Entry entries_[1u << LOOKED_AT] = {};
};

// The number that `bits` bits, from 1 to 16, stand for behind a symbol: those with a leading 0 are negative.
inline int extended(unsigned value, unsigned bits) noexcept {
    const int number = static_cast<int>(value);
    return value >> (bits - 1) ? number : number - static_cast<int>(1u << bits) + 1;
}

}  // namespace ksrv
