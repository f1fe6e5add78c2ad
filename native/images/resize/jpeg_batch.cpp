#include "images/resize/jpeg_batch.hpp"

#include <algorithm>
#include <cstring>

namespace ksrv {
namespace {

struct Batch {
    JpegRow *jpegs;
    std::size_t count, chunks;
};

bool has_ended(const JpegRow &jpeg_row) noexcept {
    return jpeg_row.ended && jpeg_row.ended->load(std::memory_order_acquire) != 0;
}

// Fills a row with copies of a pixel. Each step doubles the filled part.
void fill_border(const JpegRow &jpeg_row) noexcept {
    std::size_t filled = std::min(jpeg_row.border_bytes, jpeg_row.row_bytes);
    std::memcpy(jpeg_row.row, jpeg_row.border, filled);
    while (filled < jpeg_row.row_bytes) {
        const std::size_t more = std::min(filled, jpeg_row.row_bytes - filled);
        std::memcpy(jpeg_row.row + filled, jpeg_row.row, more);
        filled += more;
    }
}

void decode_chunk(void *context, std::size_t chunk) {
    const Batch &batch = *static_cast<Batch *>(context);
    // If the count does not divide evenly, the last chunks are one longer.
    const std::size_t end = batch.count * (chunk + 1) / batch.chunks;
    for (std::size_t i = batch.count * chunk / batch.chunks; i < end; ++i) decode_jpeg_row(batch.jpegs[i]);
}

DecodeRoom take(DecodeMemory &memory, std::uint64_t nbytes, const JpegRow *jpegs, std::size_t count) noexcept {
    for (;;) {
        const DecodeRoom room = memory.take(nbytes);
        if (room != DecodeRoom::wait || std::all_of(jpegs, jpegs + count, has_ended)) return room;
    }
}

}  // namespace

void decode_jpeg_row(JpegRow &jpeg_row) noexcept {
    jpeg_row.result = Decoded::elsewhere;
    if (!has_ended(jpeg_row)) {
        jpeg_row.target.data = jpeg_row.row + jpeg_row.part_offset;
        if (jpeg_row.border_bytes != 0) fill_border(jpeg_row);
        const auto resize =
            make_row_resize(jpeg_row.kind, jpeg_row.window, PIXEL_U8, jpeg_row.target, *jpeg_row.coefficients);
        const bool ready = resize && resize->prepare();
        jpeg_row.result = ready ? decode_jpeg(jpeg_row.jpeg, *resize) : Decoded::no_memory;
    }
    if (jpeg_row.result != Decoded::whole) std::memset(jpeg_row.row, 0, jpeg_row.row_bytes);
}

void decode_jpegs(DecodePool &pool, DecodeMemory &memory, JpegRow *jpegs, std::size_t count) noexcept {
    std::uint64_t work_ns = 0, largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        work_ns += jpegs[i].decode_ns;
        largest = std::max(largest, jpegs[i].decoder_bytes);
    }
    Batch batch{jpegs, count, pool.chunks(count, work_ns)};
    std::size_t at_once = batch.chunks > 1 ? std::min(count, pool.threads()) : 1;
    DecodeRoom room = take(memory, at_once * largest, jpegs, count);
    if (at_once > 1 && (room == DecodeRoom::none || room == DecodeRoom::too_large)) {
        at_once = batch.chunks = 1;
        room = take(memory, largest, jpegs, count);
    }
    if (room == DecodeRoom::taken) {
        pool.run(batch.chunks, decode_chunk, &batch);
        memory.give_back(at_once * largest);
    } else {
        for (std::size_t i = 0; i < count; ++i) std::memset(jpegs[i].row, 0, jpegs[i].row_bytes);
    }
}

}  // namespace ksrv
