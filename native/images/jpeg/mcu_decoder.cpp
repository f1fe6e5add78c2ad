#include "images/jpeg/mcu_decoder.hpp"

#if defined(KSRV_HAS_JPEG) && __has_include(<jpegint.h>)

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include <jpeglib.h>
#include <jerror.h>
extern "C" {
#include <jpegint.h>
}

#include "base/cpu_dispatch.hpp"

namespace ksrv {
namespace {

static_assert(std::is_same<JCOEF, std::int16_t>::value && DCTSIZE2 == 64 && D_MAX_BLOCKS_IN_MCU == 10,
              "the blocks are the library's");
// All versions of the library begin with these two fields.
static_assert(offsetof(jpeg_entropy_decoder, decode_mcu) == sizeof(void *),
              "the pointer to the decoder of MCUs has the expected offset");

// The position in a block of each coefficient, in the zigzag order of the codes.
constexpr std::uint8_t POSITIONS[64] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};
constexpr unsigned LAST = 63;  // the last coefficient of a block, in zigzag order

// Replaces the library's function of the same name. Null blocks: the MCU is skipped.
boolean decode_mcu(j_decompress_ptr state, JBLOCKROW *blocks) {
    static_cast<McuDecoder *>(state->client_data)->decode(state, blocks);
    return TRUE;
}

// Does not return: the library's error handler leaves the decoder.
void give_up(j_decompress_ptr state) {
    state->err->msg_code = JWRN_HUFF_BAD_CODE;
    state->err->error_exit(reinterpret_cast<j_common_ptr>(state));
}

// Whether a function is the library's. Otherwise the loaded library has another layout than the header, or is wrapped.
bool is_of_library(void *function) noexcept {
    Dl_info found, library;
    return function && dladdr(function, &found) != 0 &&
           dladdr(reinterpret_cast<void *>(&jpeg_read_header), &library) != 0 && found.dli_fbase == library.dli_fbase;
}

std::uint64_t big_endian_word(const std::uint8_t *at) noexcept {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

// Afterwards at least 56 bits are valid: enough for two short codes and one code with its value.
template <typename Bits>
KSRV_INLINE void read_ahead(Bits &bits) noexcept {
    bits.ahead |= big_endian_word(bits.next) >> bits.count;
    bits.next += (63 - bits.count) >> 3;
    bits.count |= 56;
}

template <typename Bits>
KSRV_INLINE void consume(Bits &bits, unsigned count) noexcept {
    bits.ahead <<= count;
    bits.count -= count;
}

// The value that follows a code whose symbol has its length.
template <typename Bits>
KSRV_INLINE int read_value(Bits &bits, unsigned length) noexcept {
    const int value = extended(static_cast<unsigned>(bits.ahead >> (64 - length)), length);
    consume(bits, length);
    return value;
}

// Decodes a symbol for which `entry` had no value.
template <typename Bits>
KSRV_INLINE bool read_symbol(const HuffmanTable &table, HuffmanTable::Entry entry, Bits &bits,
                             unsigned *symbol) noexcept {
    HuffmanTable::Code code{static_cast<unsigned>(entry.value), entry.bits};
    if (entry.bits == 0) code = table.long_code(bits.ahead);
    consume(bits, code.bits);
    *symbol = code.symbol;
    return code.bits != 0;
}

}  // namespace

// Decodes the coefficients of one block. `dc` is the component's previous DC value. False if the codes are invalid.
KSRV_INLINE bool McuDecoder::fill_block(const BlockTables &tables, Bits &bits, std::uint32_t &dc,
                                        std::int16_t *block) noexcept {
    unsigned symbol;
    read_ahead(bits);
    HuffmanTable::Entry entry = tables.dc->entry(bits.ahead);
    int difference = entry.value;
    if (entry.step != 0) {
        consume(bits, entry.bits);
    } else {
        if (!read_symbol(*tables.dc, entry, bits, &symbol)) return false;
        difference = symbol ? read_value(bits, symbol) : 0;
    }
    dc += static_cast<std::uint32_t>(difference);
    block[0] = static_cast<std::int16_t>(dc);
    for (unsigned at = 0; at < LAST;) {
        read_ahead(bits);
        // At most two codes that the table decodes, of 10 bits each, precede a code that it does not decode. The other
        // 36 bits are enough for a code of 16 bits with a value of 15 bits.
        for (int i = 0; i < 3; ++i) {
            entry = tables.ac->entry(bits.ahead);
            if (entry.step == 0) break;
            consume(bits, entry.bits);
            at += entry.step;
            if (at >= LAST) break;
            block[POSITIONS[at]] = entry.value;
        }
        if (at >= LAST) {  // after the last coefficient only zeros are valid: BLOCK_END, or a run of zeros
            if (at == LAST) block[LAST] = entry.value;
            return at == LAST || entry.value == 0;
        }
        if (entry.step != 0) continue;
        if (!read_symbol(*tables.ac, entry, bits, &symbol)) return false;
        const unsigned run = symbol >> 4, length = symbol & 15;
        if (length == 0 && run != 15) return true;
        at += run + 1;
        if (length == 0) continue;
        const int value = read_value(bits, length);
        if (at > LAST) return false;
        block[POSITIONS[at]] = static_cast<std::int16_t>(value);
    }
    return true;
}

KSRV_CLONES bool McuDecoder::fill_blocks(Bits &bits, Block **blocks) noexcept {
    Bits local = bits;  // a copy, which the compiler can keep in registers
    Block skipped;
    for (unsigned i = 0; i < blocks_; ++i) {
        std::int16_t *const block = blocks ? *blocks[i] : skipped;
        if (!fill_block(tables_[i], local, dc_values_[tables_[i].component], block)) return false;
    }
    bits = local;
    return true;
}

// Negative if more bits were read than exist. Requires that the window has the segment's last byte.
std::int64_t McuDecoder::unread_bits() const noexcept {
    return (bytes_.end() - bits_.next) * 8 + static_cast<std::int64_t>(bits_.count);
}

// Whether the codes end with the segment, except for padding bits in its last byte.
bool McuDecoder::is_at_end() noexcept {
    bits_.next = bytes_.refill(bits_.next);
    return bytes_.is_whole() && unread_bits() >= 0 && unread_bits() < 8;
}

void McuDecoder::start_segment(const unsigned char *at, const unsigned char *end) noexcept {
    bytes_.start(at, end);
    bits_ = {0, bytes_.begin(), 0};
    std::memset(dc_values_, 0, sizeof dc_values_);
    until_restart_ = restart_interval_;
}

bool McuDecoder::pass_restart(const unsigned char *file_end) noexcept {
    if (!is_at_end()) return false;
    const unsigned char *const marker = bytes_.file();
    const unsigned expected = 0xD0 + (restarts_++ & 7);
    if (file_end - marker < 2 || marker[0] != 0xFF || marker[1] != expected) return false;
    start_segment(marker + 2, file_end);
    return true;
}

void McuDecoder::decode(jpeg_decompress_struct *state, Block **blocks) {
    const unsigned char *const file_end = state->src->next_input_byte + state->src->bytes_in_buffer;
    if (mcus_left_ == 0) give_up(state);
    if (restart_interval_ != 0 && until_restart_-- == 0) {
        if (!pass_restart(file_end)) give_up(state);
        --until_restart_;
    }
    bits_.next = bytes_.ahead(bits_.next);
    if (!fill_blocks(bits_, blocks)) give_up(state);
    if (bytes_.is_whole() && unread_bits() < 0) give_up(state);
    if (--mcus_left_ != 0) return;
    if (!is_at_end()) give_up(state);
    state->src->next_input_byte = bytes_.file();
    state->src->bytes_in_buffer = static_cast<std::size_t>(file_end - bytes_.file());
}

bool McuDecoder::take_over(jpeg_decompress_struct *state) noexcept {
    const bool is_baseline = !state->progressive_mode && !state->arith_code && !jpeg_has_multiple_scans(state) &&
                             state->Ss == 0 && state->Se == DCTSIZE2 - 1 && state->Ah == 0 && state->Al == 0;
    // Checked for the process's first picture only: all of the library's decoders are in one library.
    static const bool is_known = is_of_library(reinterpret_cast<void *>(state->entropy->decode_mcu));
    if (!is_known) return false;
    if (!is_baseline || state->blocks_in_MCU < 1 || state->blocks_in_MCU > D_MAX_BLOCKS_IN_MCU) return false;
    blocks_ = static_cast<unsigned>(state->blocks_in_MCU);
    for (unsigned i = 0; i < blocks_; ++i) {
        const unsigned component = static_cast<unsigned>(state->MCU_membership[i]);
        const jpeg_component_info *const info = state->cur_comp_info[component];
        const unsigned dc = static_cast<unsigned>(info->dc_tbl_no), ac = static_cast<unsigned>(info->ac_tbl_no);
        if (dc >= TABLES || ac >= TABLES) return false;
        const JHUFF_TBL *const dc_table = state->dc_huff_tbl_ptrs[dc], *const ac_table = state->ac_huff_tbl_ptrs[ac];
        if (!dc_table || !ac_table ||
            !dc_[dc].assign(dc_table->bits, dc_table->huffval, HuffmanTable::Kind::dc) ||
            !ac_[ac].assign(ac_table->bits, ac_table->huffval, HuffmanTable::Kind::ac))
            return false;
        tables_[i] = {&dc_[dc], &ac_[ac], component};
    }
    mcus_left_ = std::uint64_t{state->MCUs_per_row} * state->MCU_rows_in_scan;
    restart_interval_ = state->restart_interval;
    restarts_ = 0;
    const unsigned char *const begin = state->src->next_input_byte;
    start_segment(begin, begin + state->src->bytes_in_buffer);
    state->client_data = this;
    state->entropy->decode_mcu = decode_mcu;
    return true;
}

}  // namespace ksrv

#else  // without the library, or without the header that declares the MCU decoder

namespace ksrv {

bool McuDecoder::take_over(jpeg_decompress_struct *) noexcept { return false; }

void McuDecoder::decode(jpeg_decompress_struct *, Block **) {}

}  // namespace ksrv

#endif
