// The Huffman codes of a baseline JPEG, in the place of libjpeg-turbo's decoder for them.
//
// Strategy: codes are two thirds of what a photograph costs, and the library looks up a code and then reads its
// value. Here a look-up mostly gives both (`HuffmanTable`), with the stuffed zeros taken out before
// (`ScanBytes`). The library decodes what comes behind: values to pixels. It lets itself be told how an MCU is
// decoded, which its own kinds of codes rely on.
//
// At the first thing that an undamaged file does not have, the library's way for errors is taken.

#pragma once

#include <cstdint>

#include "images/jpeg/huffman_table.hpp"
#include "images/jpeg/scan_bytes.hpp"

struct jpeg_decompress_struct;

namespace ksrv {

class McuDecoder {
  public:
    // Takes over the codes of a picture whose decoding was started and of which no row was read; the decoder must
    // outlive it. False: the picture is of another kind, and the library decodes all of it.
    bool take_over(jpeg_decompress_struct *state) noexcept;

    using Block = std::int16_t[64];

    // Fills the zeroed blocks of the next MCU; null skips it.
    void decode(jpeg_decompress_struct *state, Block **blocks);

  private:
    static constexpr unsigned BLOCKS = 10, TABLES = 4, COMPONENTS = 4;

    // Bits that were read ahead, from the top; `count` of them are sure.
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
