#include "process/batch_rows.hpp"

#include <algorithm>
#include <new>

#include "process/batch_ring.hpp"
#include "memory/buffer_pool.hpp"

namespace ksrv {

namespace {

FastRequest *fast(Request *request) noexcept { return static_cast<FastRequest *>(request); }

// Pictures of the fast path have fewer pixels than that in each direction.
std::uint64_t key_of(std::size_t input, std::uint32_t height, std::uint32_t width,
                     std::uint32_t channels) noexcept {
    return static_cast<std::uint64_t>(height) << 36 | static_cast<std::uint64_t>(width) << 8 | input << 4 |
           channels;
}

}  // namespace

std::uint64_t BatchRows::key(std::size_t input, const EncodedImage &image) noexcept {
    return key_of(input, image.height, image.width, image.channels);
}

const ImagePlan *BatchRows::find(std::size_t input, const EncodedImage &image) const noexcept {
    const auto found = plans_.find(key(input, image));
    return found == plans_.end() ? nullptr : &found->second;
}

RowsNeeded BatchRows::needed(Request *const *requests, std::size_t count, std::size_t most) noexcept {
    RowsNeeded made;
    missing.clear();
    for (std::size_t i = 0; i < count; ++i) {
        made.rows += requests[i]->rows;
        made.row_length = std::max(made.row_length, fast(requests[i])->layout.row_length);
    }
    const ModelSignature &signature = *fast(requests[0])->signature;
    if (signature.lengths) made.row_length = signature.lengths->padded(made.row_length);
    for (const InputSignature &input : signature.inputs) {
        if (input.padded && made.row_length > most) made.python = true;
        const std::uint64_t row_bytes = input.bytes_of_row(made.row_length);
        if (row_bytes != 0 && made.rows > most / row_bytes) made.python = true;
        if (made.python) return made;
        made.nbytes += ring_aligned(made.rows * row_bytes);
        made.python = made.nbytes > most;
    }
    for (std::size_t i = 0; i < count && !made.python; ++i) {
        const FastRequestLayout &layout = fast(requests[i])->layout;
        if (!layout.has_images()) continue;
        made.images = true;
        made.decode_ns += layout.decode_ns;
        for (std::size_t input = 0; input < signature.inputs.size(); ++input) {
            const EncodedImage *images = layout.images[input].get();
            for (std::size_t k = 0; images != nullptr && k < layout.rows; ++k) {
                const ImagePlan *plan = find(input, images[k]);
                if (plan != nullptr) {
                    made.python = made.python || !plan->by_rows;
                    continue;
                }
                made.plans = true;
                try {
                    missing.push_back({input, images[k].height, images[k].width, images[k].channels});
                } catch (const std::bad_alloc &) {
                    made.python = true;
                }
            }
        }
    }
    return made;
}

bool BatchRows::write(Request *const *requests, std::size_t count, std::uint64_t row_length,
                      unsigned char *to) noexcept {
    const ModelSignature &signature = *fast(requests[0])->signature;
    std::size_t copied = 0;
    jpegs_.clear();
    for (std::size_t input = 0; input < signature.inputs.size(); ++input) {
        const std::uint64_t row_bytes = signature.inputs[input].bytes_of_row(row_length);
        unsigned char *row = to;
        for (std::size_t i = 0; i < count; ++i) {
            FastRequest *request = fast(requests[i]);
            const std::size_t nbytes = request->rows * row_bytes;
            const EncodedImage *images = request->layout.images[input].get();
            if (images == nullptr) {
                copy_rows(signature.inputs[input], request->layout, request->body(), input, row_length, row);
                copied += nbytes;
            }
            for (std::size_t k = 0; images != nullptr && k < request->rows; ++k) {
                const ImagePlan *plan = find(input, images[k]);
                if (plan == nullptr || plan->job.row_bytes != row_bytes) return false;
                try {
                    jpegs_.push_back(plan->job);
                } catch (const std::bad_alloc &) {
                    return false;
                }
                BatchedJpeg &job = jpegs_.back();
                job.jpeg.data = request->body() + images[k].offset;
                job.jpeg.size = images[k].length;
                job.row = row + k * row_bytes;
                job.target.data = job.row + plan->offset;
                job.decode_ns = images[k].decode_ns;
                job.decoder_bytes = images[k].decoder_bytes;
                job.orientation = images[k].orientation;
                job.ended = &request->done;
            }
            row += nbytes;
        }
        to += ring_aligned(static_cast<std::size_t>(row - to));
    }
    count_copy(copied);
    if (jpegs_.empty()) return true;
    decode_jpegs(*pool_, process_decode_memory(), jpegs_.data(), jpegs_.size());
    return std::none_of(jpegs_.begin(), jpegs_.end(), [](const BatchedJpeg &one) {
        return one.passed_over || one.result != Decoded::whole;
    });
}

void BatchRows::keep(const PictureSize &size, const ImagePlan &plan, DecodePool *pool) noexcept {
    pool_ = pool;
    try {
        plans_[key_of(size.input, size.height, size.width, size.channels)] = plan;
    } catch (const std::bad_alloc &) {  // it stays unknown, and Python decodes such pictures
    }
}

}  // namespace ksrv
