#include "resize/jpeg_batch.hpp"

namespace ksrv {
namespace {

struct Share {
    BatchedJpeg *jpegs;
    std::size_t count, chunks;
};

void decode_one(BatchedJpeg &one) noexcept {
    if (one.ended && one.ended->load(std::memory_order_acquire) != 0) {
        one.passed_over = true;
        return;
    }
    const auto resize =
        make_row_resize(one.kind, one.window, PIXEL_U8, one.target, *one.coefficients);
    const bool ready = resize && resize->prepare();
    one.result = ready ? decode_jpeg(one.jpeg, *resize) : Decoded::no_memory;
}

void decode_chunk(void *context, std::size_t chunk) {
    const Share &share = *static_cast<Share *>(context);
    // The last chunks are one longer when the count does not divide evenly.
    const std::size_t end = share.count * (chunk + 1) / share.chunks;
    for (std::size_t i = share.count * chunk / share.chunks; i < end; ++i) decode_one(share.jpegs[i]);
}

}  // namespace

void decode_jpegs(DecodePool &pool, BatchedJpeg *jpegs, std::size_t count, std::size_t chunks) noexcept {
    Share share{jpegs, count, chunks};
    pool.run(chunks, decode_chunk, &share);
}

}  // namespace ksrv
