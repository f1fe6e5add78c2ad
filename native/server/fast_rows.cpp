#include "server/fast_rows.hpp"

#include <algorithm>
#include <new>

#include "memory/buffer_pool.hpp"

namespace ksrv {

void RowWriter::begin(const std::vector<InputSignature> &inputs) noexcept {
    inputs_ = &inputs;
    rows = row_length = decode_ns = 0;
    requests_.clear();
    sources_.clear();
}

RowSource *RowWriter::add(const Request &request, std::uint64_t request_rows) {
    requests_.push_back(&request);
    sources_.resize(sources_.size() + inputs_->size());
    rows += request_rows;
    return &source(requests_.size() - 1, 0);
}

void RowWriter::add(const FastRequest &request) {
    RowSource *sources = add(request, request.rows);
    for (std::size_t i = 0; i < inputs_->size(); ++i) sources[i] = source_of(request.layout, request.body(), i);
    decode_ns += request.layout.decode_ns;
    row_length = std::max(row_length, request.layout.row_length);
}

// Adds a job for an image whose size has a plan with coefficients. Otherwise Python must decode the image. An image
// that EXIF's orientation turns has no plan, because turning needs the whole picture.
void RowWriter::plan_image(const ImagePlace &where) {
    const RowSource &from = source(where.request, where.input);
    const EncodedImage &image = from.images[where.number];
    const ImageRules &rules = (*inputs_)[where.input].images;
    JpegRow job;
    if (!image.turned && !rules.plans->find(image.height, image.width, image.channels, &job))
        missing.push_back({where.input, image.height, image.width, image.channels});
    if (job.coefficients == nullptr) {
        left.push_back(where);
        return;
    }
    job.jpeg.data = from.data + image.offset;
    job.jpeg.size = image.length;
    job.decode_ns = image.decode_ns;
    job.decoder_bytes = image.decoder_bytes;
    job.ended = &requests_[where.request]->done;
    jobs_.push_back(job);
    places_.push_back(where);
    pool_ = rules.pool;
}

void RowWriter::plan(std::uint64_t padded_length) {
    row_length = padded_length;
    copied = 0;
    missing.clear();
    left.clear();
    jobs_.clear();
    places_.clear();
    for (std::size_t input = 0; input < inputs_->size(); ++input) {
        ImagePlace where{0, input, 0, 0};
        for (; where.request < requests_.size(); ++where.request) {
            const RowSource &from = source(where.request, input);
            if (!from.images) {
                if (!from.reserved_only) copied += from.rows * (*inputs_)[input].bytes_of_row(row_length);
                where.row += from.rows;
                continue;
            }
            for (where.number = 0; where.number < from.rows; ++where.number, ++where.row) plan_image(where);
        }
    }
    if (!jobs_.empty()) left.reserve(left.size() + jobs_.size());  // `write` must not allocate
}

bool RowWriter::read(Request *const *requests, std::size_t count) noexcept try {
    const ModelSignature &signature = *static_cast<const FastRequest *>(requests[0])->signature;
    begin(signature.inputs);
    for (std::size_t i = 0; i < count; ++i) add(*static_cast<const FastRequest *>(requests[i]));
    plan(signature.lengths ? signature.lengths->padded(row_length) : 0);
    return true;
} catch (const std::bad_alloc &) {
    return false;
}

void RowWriter::write(unsigned char *const *to) noexcept {
    for (std::size_t input = 0; input < inputs_->size(); ++input) {
        const InputSignature &declared = (*inputs_)[input];
        unsigned char *row = to[input];
        for (std::size_t i = 0; i < requests_.size(); ++i) {
            const RowSource &from = source(i, input);
            if (!from.images && !from.reserved_only) copy_rows(declared, from, row_length, row);
            row += from.rows * declared.bytes_of_row(row_length);
        }
    }
    count_copy(copied);
    if (jobs_.empty()) return;
    for (std::size_t i = 0; i < jobs_.size(); ++i)
        jobs_[i].row = to[places_[i].input] + places_[i].row * jobs_[i].row_bytes;
    decode_jpegs(*pool_, process_decode_memory(), jobs_.data(), jobs_.size());
    for (std::size_t i = 0; i < jobs_.size(); ++i)
        if (jobs_[i].result != Decoded::whole) left.push_back(places_[i]);
}

}  // namespace ksrv
