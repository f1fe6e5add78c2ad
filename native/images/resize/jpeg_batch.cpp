#include "images/resize/jpeg_batch.hpp"

#include <algorithm>
#include <cstring>

namespace ksrv {
namespace {

struct Share {
    JpegRow *jpegs;
    std::size_t count, chunks;
};

bool has_ended(const JpegRow &one) noexcept {
    return one.ended && one.ended->load(std::memory_order_acquire) != 0;
}

// Fills a row with copies of a pixel. Each step doubles the filled part.
void fill_border(const JpegRow &one) noexcept {
    std::size_t filled = std::min(one.border_bytes, one.row_bytes);
    std::memcpy(one.row, one.border, filled);
    while (filled < one.row_bytes) {
        const std::size_t more = std::min(filled, one.row_bytes - filled);
        std::memcpy(one.row + filled, one.row, more);
        filled += more;
    }
}

void decode_chunk(void *context, std::size_t chunk) {
    const Share &share = *static_cast<Share *>(context);
    // If the count does not divide evenly, the last chunks are one longer.
    const std::size_t end = share.count * (chunk + 1) / share.chunks;
    for (std::size_t i = share.count * chunk / share.chunks; i < end; ++i) decode_jpeg_row(share.jpegs[i]);
}

DecodeRoom take(DecodeMemory &memory, std::uint64_t nbytes, const JpegRow *jpegs,
                std::size_t count) noexcept {
    for (;;) {
        const DecodeRoom room = memory.take(nbytes);
        if (room != DecodeRoom::wait || std::all_of(jpegs, jpegs + count, has_ended)) return room;
    }
}

}  // namespace

void decode_jpeg_row(JpegRow &one) noexcept {
    one.result = Decoded::elsewhere;
    if (!has_ended(one)) {
        one.target.data = one.row + one.part_offset;
        if (one.border_bytes != 0) fill_border(one);
        const auto resize =
            make_row_resize(one.kind, one.window, PIXEL_U8, one.target, *one.coefficients);
        const bool ready = resize && resize->prepare();
        one.result = ready ? decode_jpeg(one.jpeg, *resize) : Decoded::no_memory;
    }
    if (one.result != Decoded::whole) std::memset(one.row, 0, one.row_bytes);
}

void decode_jpegs(DecodePool &pool, DecodeMemory &memory, JpegRow *jpegs, std::size_t count) noexcept {
    std::uint64_t work_ns = 0, largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        work_ns += jpegs[i].decode_ns;
        largest = std::max(largest, jpegs[i].decoder_bytes);
    }
    Share share{jpegs, count, pool.chunks(count, work_ns)};
    std::size_t at_once = share.chunks > 1 ? std::min(count, pool.threads()) : 1;
    DecodeRoom room = take(memory, at_once * largest, jpegs, count);
    if (at_once > 1 && (room == DecodeRoom::none || room == DecodeRoom::too_large)) {
        at_once = share.chunks = 1;
        room = take(memory, largest, jpegs, count);
    }
    if (room == DecodeRoom::taken) {
        pool.run(share.chunks, decode_chunk, &share);
        memory.give_back(at_once * largest);
    } else {
        for (std::size_t i = 0; i < count; ++i) std::memset(jpegs[i].row, 0, jpegs[i].row_bytes);
    }
}

}  // namespace ksrv
