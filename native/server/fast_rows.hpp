// Writes the rows of requests into a batch: copies and pads tensors, and decodes JPEGs in place.
//
// Strategy: Python plans once per picture size how pictures become rows, see `RowPlans`. Pictures that cannot be
// decoded row by row, or that the decoder rejects, are left to Python.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "images/resize/jpeg_batch.hpp"
#include "server/fast_path.hpp"

namespace ksrv {

// A size of pictures without a resize plan, and the input that needs the plan.
struct PictureSize {
    std::size_t input = 0;
    std::uint32_t height = 0, width = 0, channels = 0;
};

// Which image of a batch, and the row of the batch that it fills.
struct ImagePlace {
    std::size_t request = 0, input = 0, number = 0;  // the image is the `number`th of the request's input
    std::uint64_t row = 0;                           // of the batch
};

// Writes the rows of some requests of one model: `begin`, `add` for each request, `plan` and then `write`. `read` does
// the first three for fast-path requests. Used by one thread at a time.
class RowWriter {
  public:
    // Begins with no request. `inputs` are kept alive by the caller.
    void begin(const std::vector<InputSignature> &inputs) noexcept;

    // Adds a request; throws std::bad_alloc. The first form returns the sources of its inputs, which the caller fills.
    RowSource *add(const Request &request, std::uint64_t request_rows);
    void add(const FastRequest &request);

    // Plans the rows of the added requests, padded to `row_length`; throws std::bad_alloc.
    void plan(std::uint64_t padded_length);

    // Begins, adds and plans fast-path requests. False if memory is short.
    bool read(Request *const *requests, std::size_t count) noexcept;

    // Writes the requests; `to` has the first row for each input. Afterwards images that were not decoded are in
    // `left`.
    void write(unsigned char *const *to) noexcept;

    bool has_images() const noexcept { return !jobs_.empty() || !left.empty(); }

    std::uint64_t rows = 0, row_length = 0;  // row_length: of the longest row, then of the padded rows
    std::uint64_t decode_ns = 0;             // of the images of fast-path requests
    std::size_t copied = 0;                  // bytes of tensors
    std::vector<PictureSize> missing;        // sizes without a plan
    std::vector<ImagePlace> left;            // images that Python must decode, including images of a missing size

  private:
    void plan_image(const ImagePlace &where);
    RowSource &source(std::size_t request, std::size_t input) noexcept {
        return sources_[request * inputs_->size() + input];
    }

    const std::vector<InputSignature> *inputs_ = nullptr;
    std::vector<const Request *> requests_;
    std::vector<RowSource> sources_;  // of the inputs of each request
    std::vector<JpegRow> jobs_;
    std::vector<ImagePlace> places_;  // of the jobs
    DecodePool *pool_ = nullptr;
};

}  // namespace ksrv
