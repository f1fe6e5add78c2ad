// Writes the rows of fast-path requests into a batch: copies and pads tensors, and decodes JPEGs in place.
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

// The rows of each input are aligned to this number of bytes.
inline constexpr std::size_t ROWS_ALIGNMENT = 64;

// Computes the offset of each input's rows in one block. Returns the size of the block, or more than `most` if it would
// exceed `most`.
std::size_t place_inputs(const ModelSignature &signature, std::uint64_t rows, std::uint64_t row_length,
                         std::size_t most, std::size_t *starts) noexcept;

struct PictureSize {
    std::size_t input = 0;
    std::uint32_t height = 0, width = 0, channels = 0;
};

struct ImagePlace {
    std::size_t request = 0, input = 0, number = 0;  // the image is the `number`th of the request's input
    std::uint64_t row = 0;                           // the first request begins with row 0
};

// Writes the rows of some requests of one model.
class RowWriter {
  public:
    // Reads requests that join a batch whose rows had the length `row_length`. False if memory is short.
    bool read(Request *const *requests, std::size_t count, std::uint64_t row_length) noexcept;

    // Writes the requests after the `first` rows of each input in a block; see `place_inputs`. Afterwards images that
    // were not decoded are in `left`.
    void write(unsigned char *block, const std::size_t *starts, std::uint64_t first) noexcept;

    bool has_images() const noexcept { return !jobs_.empty() || !left.empty(); }

    std::uint64_t rows = 0, row_length = 0;  // row_length: of padded rows, including the rows of the batch
    std::uint64_t decode_ns = 0;             // of all images
    std::size_t copied = 0;                  // bytes of tensors
    std::vector<PictureSize> missing;        // sizes without a plan
    std::vector<ImagePlace> left;            // images that Python must decode, including images of a missing size

  private:
    void plan(const ImagePlace &where, const FastRequest &request);

    Request *const *requests_ = nullptr;
    std::size_t count_ = 0;
    std::vector<BatchedJpeg> jobs_;
    std::vector<ImagePlace> places_;  // of the jobs
    DecodePool *pool_ = nullptr;
};

}  // namespace ksrv
