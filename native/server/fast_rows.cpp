#include "server/fast_rows.hpp"

#include <algorithm>
#include <new>

#include "memory/buffer_pool.hpp"

namespace ksrv {

namespace {

const FastRequest &as_fast(const Request *request) noexcept { return *static_cast<const FastRequest *>(request); }

}  // namespace

std::size_t place_inputs(const ModelSignature &signature, std::uint64_t rows, std::uint64_t row_length,
                         std::size_t most, std::size_t *starts) noexcept {
    std::size_t total = 0;
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
        const InputSignature &input = signature.inputs[i];
        if (input.padded && row_length > most) return SIZE_MAX;
        const std::uint64_t row_bytes = input.bytes_of_row(row_length);
        if (row_bytes != 0 && rows > most / row_bytes) return SIZE_MAX;
        starts[i] = total;
        total += (rows * row_bytes + ROWS_ALIGNMENT - 1) & ~(ROWS_ALIGNMENT - 1);
        if (total > most) return SIZE_MAX;
    }
    return total;
}

void RowWriter::plan(const ImagePlace &where, const FastRequest &request) {
    const EncodedImage &image = request.layout.images[where.input][where.number];
    const ImageRules &rules = request.signature->inputs[where.input].images;
    BatchedJpeg job;
    if (!rules.plans->find(image.height, image.width, image.channels, &job))
        missing.push_back({where.input, image.height, image.width, image.channels});
    if (job.coefficients == nullptr) {
        left.push_back(where);
        return;
    }
    job.jpeg.data = request.body() + image.offset;
    job.jpeg.size = image.length;
    job.decode_ns = image.decode_ns;
    job.decoder_bytes = image.decoder_bytes;
    job.orientation = image.orientation;
    job.ended = &request.done;
    jobs_.push_back(job);
    places_.push_back(where);
    pool_ = rules.pool;
}

bool RowWriter::read(Request *const *requests, std::size_t count, std::uint64_t batch_length) noexcept try {
    requests_ = requests;
    count_ = count;
    rows = decode_ns = copied = 0;
    row_length = batch_length;
    missing.clear();
    left.clear();
    jobs_.clear();
    places_.clear();
    for (std::size_t i = 0; i < count; ++i) {
        const FastRequestLayout &layout = as_fast(requests[i]).layout;
        rows += layout.rows;
        decode_ns += layout.decode_ns;
        row_length = std::max(row_length, layout.row_length);
    }
    const ModelSignature &signature = *as_fast(requests[0]).signature;
    if (signature.lengths) row_length = signature.lengths->padded(row_length);
    for (std::size_t input = 0; input < signature.inputs.size(); ++input) {
        ImagePlace where{0, input, 0, 0};
        for (; where.request < count; ++where.request) {
            const FastRequest &request = as_fast(requests[where.request]);
            if (!request.layout.images[input]) {
                copied += request.rows * signature.inputs[input].bytes_of_row(row_length);
                where.row += request.rows;
                continue;
            }
            for (where.number = 0; where.number < request.rows; ++where.number, ++where.row) plan(where, request);
        }
    }
    if (!jobs_.empty()) left.reserve(left.size() + jobs_.size());
    return true;
} catch (const std::bad_alloc &) {
    return false;
}

void RowWriter::write(unsigned char *block, const std::size_t *starts, std::uint64_t first) noexcept {
    const ModelSignature &signature = *as_fast(requests_[0]).signature;
    for (std::size_t input = 0; input < signature.inputs.size(); ++input) {
        const std::uint64_t row_bytes = signature.inputs[input].bytes_of_row(row_length);
        unsigned char *row = block + starts[input] + first * row_bytes;
        for (std::size_t i = 0; i < count_; ++i) {
            const FastRequest &request = as_fast(requests_[i]);
            if (!request.layout.images[input])
                copy_rows(signature.inputs[input], request.layout, request.body(), input, row_length, row);
            row += request.rows * row_bytes;
        }
    }
    count_copy(copied);
    if (jobs_.empty()) return;
    for (std::size_t i = 0; i < jobs_.size(); ++i)
        jobs_[i].row = block + starts[places_[i].input] + (first + places_[i].row) * jobs_[i].row_bytes;
    decode_jpegs(*pool_, process_decode_memory(), jobs_.data(), jobs_.size());
    for (std::size_t i = 0; i < jobs_.size(); ++i)
        if (jobs_[i].passed_over || jobs_[i].result != Decoded::whole) left.push_back(places_[i]);
}

}  // namespace ksrv
