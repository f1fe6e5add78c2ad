// Lookup table for a JPEG's Huffman codes.
//
// A code encodes a symbol: a run of zero coefficients, and the number of bits of the value that follows the code
// (ITU-T T.81 F.1.2).
//
// Strategy: the table is indexed by the next ten bits. Usually both the code and its value are within these ten bits:
// then a single lookup gives the value and the number of coefficients to move on. If only the code is, the lookup gives
// the symbol. Codes of more than ten bits are compared length by length.

#pragma once

#include <cstdint>

namespace ksrv {

class HuffmanTable {
  public:
    enum class Kind { dc, ac };

    // The meaning of the next bits; `bits` of them are consumed.
    struct Entry {
        std::int16_t value;  // a coefficient, or the symbol if `step` is 0
        std::uint8_t step;   // how many coefficients to move on; BLOCK_END at the end of the block
        std::uint8_t bits;   // 0: the code is longer than the index, or invalid
    };
    struct Code {
        unsigned symbol, bits;  // 0 bits: invalid code
    };

    static constexpr unsigned BLOCK_END = 64;

    // Builds the table from `counts[n]` codes of n bits, for n from 1 to 16, and their symbols in order. Does nothing
    // if the table is already built from the same codes. False if the codes are invalid.
    bool assign(const std::uint8_t counts[17], const std::uint8_t symbols[256], Kind kind) noexcept;

    // `ahead`: the next bits of the file, in the highest bits.
    Entry entry(std::uint64_t ahead) const noexcept { return entries_[ahead >> (64 - INDEX_BITS)]; }
    Code long_code(std::uint64_t ahead) const noexcept;

  private:
    static constexpr unsigned INDEX_BITS = 10, LONGEST_CODE = 16;

    bool build() noexcept;
    void fill_entries(unsigned code, unsigned length, unsigned symbol) noexcept;

    bool is_built_ = false;
    Kind kind_ = Kind::dc;
    std::uint8_t counts_[LONGEST_CODE + 1] = {};
    std::uint8_t symbols_[256] = {};
    // By code length: the first value (in 16 bits, left-aligned) that is too large for a code of this length, and the
    // offset from a code to the index of its symbol.
    std::uint32_t code_end_[LONGEST_CODE + 1] = {};
    int symbol_offset_[LONGEST_CODE + 1] = {};
    Entry entries_[1u << INDEX_BITS] = {};
};

// Decodes the `bits` extra bits (1 to 16) after a symbol. Values with a leading 0 are negative (ITU-T T.81 F.2.2.1).
inline int extended(unsigned value, unsigned bits) noexcept {
    const int number = static_cast<int>(value);
    return value >> (bits - 1) ? number : number - static_cast<int>(1u << bits) + 1;
}

}  // namespace ksrv
