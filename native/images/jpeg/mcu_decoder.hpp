// Decodes the Huffman codes of baseline JPEGs, instead of libjpeg-turbo's decoder.
//
// Strategy: two thirds of the time for a photograph are spent on its codes, because the library looks up a code and
// then reads its value. Here one lookup gives both in most cases (`HuffmanTable`), after the stuffed zeros were removed
// (`ScanBytes`). The library still turns the values into pixels, and calls this decoder once for each MCU (minimum
// coded unit: the blocks of all components for a small square): its structure for entropy decoders has a pointer to the
// function that decodes an MCU, and `take_over` replaces this pointer.
//
// Damaged codes are reported through the library's error handler.

#pragma once

#include <cstdint>

#include "images/jpeg/huffman_table.hpp"
#include "images/jpeg/scan_bytes.hpp"

struct jpeg_decompress_struct;

namespace ksrv {

class McuDecoder {
  public:
    // Takes over the codes of a picture that was started, before a row is read. This object must outlive the
    // library's decompressor, which keeps a pointer to it. False if the picture is not a baseline JPEG with a single
    // scan: the library then decodes its codes.
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
    // The tables of a block of the MCU, and the index of its component.
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
    unsigned blocks_ = 0;  // in an MCU
    std::uint64_t mcus_left_ = 0;
    unsigned restart_interval_ = 0, until_restart_ = 0;  // in MCUs; an interval of 0: no restart markers
    unsigned restarts_ = 0;                              // markers that were passed
    std::uint32_t dc_values_[COMPONENTS] = {};           // the previous DC value of each component
    Bits bits_{};
    ScanBytes bytes_;
};

}  // namespace ksrv
