// Decodes the Huffman codes of baseline JPEGs, instead of libjpeg-turbo's decoder.
//
// Strategy: codes take two thirds of the time of a photograph, because the library looks up a code and then reads its
// value. Here one lookup gives both in most cases (`HuffmanTable`), after the stuffed zeros were removed (`ScanBytes`).
// The library still turns values into pixels. Its structure for entropy decoders allows replacing the function that
// decodes an MCU.
//
// Anything that an undamaged file does not have is reported through the library's error handler.

#pragma once

#include <cstdint>

#include "images/jpeg/huffman_table.hpp"
#include "images/jpeg/scan_bytes.hpp"

struct jpeg_decompress_struct;

namespace ksrv {

class McuDecoder {
  public:
    // Takes over decoding the codes of a picture that was started and of which no row was read. The library's
    // decompressor must outlive this object. False if the picture is of another kind: the library then decodes all of
    // it.
    bool take_over(jpeg_decompress_struct *state) noexcept;

    using Block = std::int16_t[64];

    // Fills the zeroed blocks of the next MCU. Null skips the MCU.
    void decode(jpeg_decompress_struct *state, Block **blocks);

  private:
    static constexpr unsigned BLOCKS = 10, TABLES = 4, COMPONENTS = 4;

    // Bits that were read ahead, left-aligned. The first `count` bits are valid.
    struct Bits {
        std::uint64_t ahead;
        const std::uint8_t *next;
        unsigned count;
    };
    struct BlockTables {
        const HuffmanTable *dc, *ac;
        unsigned component;
    };

    static bool fill_block(const BlockTables &tables, Bits &bits, std::uint32_t &dc, std::int16_t *block) noexcept;
    bool fill_blocks(Bits &bits, Block **blocks) noexcept;
    bool is_at_end() noexcept;
    bool pass_restart(const unsigned char *file_end) noexcept;
    std::int64_t unread_bits() const noexcept;
    void start_segment(const unsigned char *at, const unsigned char *end) noexcept;

    HuffmanTable dc_[TABLES], ac_[TABLES];
    BlockTables tables_[BLOCKS];
    unsigned blocks_ = 0;
    std::uint64_t mcus_left_ = 0;
    unsigned restart_interval_ = 0, until_restart_ = 0, restarts_ = 0;
    std::uint32_t dc_values_[COMPONENTS] = {};
    Bits bits_{};
    ScanBytes bytes_;
};

}  // namespace ksrv
