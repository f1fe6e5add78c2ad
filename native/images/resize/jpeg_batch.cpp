#include "images/resize/jpeg_batch.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "images/resize/upright_lines.hpp"

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

// Other resizes read all pixels of a picture, which takes less time after cv2 has turned it.
bool may_be_turned(ResizeKind kind) noexcept {
    return kind == ResizeKind::linear_floats || kind == ResizeKind::linear_bytes;
}

std::uint64_t peak_bytes(const JpegRow &one) noexcept {
    return one.decoder_bytes + (one.orientation == 1 ? 0 : UprightLines::nbytes(one.window));
}

Decoded decode_turned(const JpegRow &one, RowReceiver &resize) noexcept {
    UprightLines upright(one.orientation, one.window);
    if (!upright.prepare()) return Decoded::no_memory;
    JpegJob stored = one.jpeg;
    if (is_stored_transposed(one.orientation)) std::swap(stored.height, stored.width);
    const Decoded result = decode_jpeg(stored, upright);
    if (result == Decoded::whole) upright.hand_on(resize);
    return result;
}

void decode_one(JpegRow &one) noexcept {
    one.passed_over = has_ended(one);
    const bool is_turned = one.orientation != 1;
    if (!one.passed_over && (!is_turned || may_be_turned(one.kind))) {
        one.target.data = one.row + one.part_offset;
        if (one.border_bytes != 0) fill_border(one);
        const auto resize =
            make_row_resize(one.kind, one.window, PIXEL_U8, one.target, *one.coefficients);
        const bool ready = resize && resize->prepare();
        one.result = !ready      ? Decoded::no_memory
                     : is_turned ? decode_turned(one, *resize)
                                 : decode_jpeg(one.jpeg, *resize);
    }
    if (one.passed_over || one.result != Decoded::whole) std::memset(one.row, 0, one.row_bytes);
}

void decode_chunk(void *context, std::size_t chunk) {
    const Share &share = *static_cast<Share *>(context);
    // If the count does not divide evenly, the last chunks are one longer.
    const std::size_t end = share.count * (chunk + 1) / share.chunks;
    for (std::size_t i = share.count * chunk / share.chunks; i < end; ++i) decode_one(share.jpegs[i]);
}

void pass_over(JpegRow *jpegs, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        jpegs[i].passed_over = true;
        std::memset(jpegs[i].row, 0, jpegs[i].row_bytes);
    }
}

DecodeRoom take(DecodeMemory &memory, std::uint64_t nbytes, const JpegRow *jpegs,
                std::size_t count) noexcept {
    for (;;) {
        const DecodeRoom room = memory.take(nbytes);
        if (room != DecodeRoom::wait || std::all_of(jpegs, jpegs + count, has_ended)) return room;
    }
}

}  // namespace

void decode_jpegs(DecodePool &pool, DecodeMemory &memory, JpegRow *jpegs, std::size_t count) noexcept {
    std::uint64_t work_ns = 0, largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        work_ns += jpegs[i].decode_ns;
        largest = std::max(largest, peak_bytes(jpegs[i]));
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
    } else if (room == DecodeRoom::wait) {
        pass_over(jpegs, count);
    } else {
        for (std::size_t i = 0; i < count; ++i) std::memset(jpegs[i].row, 0, jpegs[i].row_bytes);
    }
}

}  // namespace ksrv
