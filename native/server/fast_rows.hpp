// The rows of fast-path requests on their way into a batch: tensors are copied and padded, JPEGs are decoded right
// where they belong.
//
// Strategy: Python says once for each size of pictures how they become rows, see `RowPlans`. A picture that is not
// decoded row by row, or whose decoder leaves it, is Python's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "images/resize/jpeg_batch.hpp"
#include "server/fast_path.hpp"

namespace ksrv {

// Rows of each input begin at a multiple of it.
inline constexpr std::size_t ROWS_ALIGNMENT = 64;

// Says where the rows of each input lie in one block. Returns the bytes of the block; more than `most` where it has
// more than that.
std::size_t place_inputs(const ModelSignature &signature, std::uint64_t rows, std::uint64_t row_length,
                         std::size_t most, std::size_t *starts) noexcept;

struct PictureSize {
    std::size_t input = 0;
    std::uint32_t height = 0, width = 0, channels = 0;
};

struct ImagePlace {
    std::size_t request = 0, input = 0, number = 0;  // the image is the request's `number`th of the input
    std::uint64_t row = 0;                           // the first request begins with row 0
};

// Writes the rows of some requests of one model.
class RowWriter {
  public:
    // Looks at requests that join a batch whose rows had the length `row_length`. False: there is no memory for that.
    bool read(Request *const *requests, std::size_t count, std::uint64_t row_length) noexcept;

    // Writes what was read behind the `first` rows that each input has in a block; see `place_inputs`. Images that
    // are not decoded are in `left` then.
    void write(unsigned char *block, const std::size_t *starts, std::uint64_t first) noexcept;

    bool has_images() const noexcept { return !jobs_.empty() || !left.empty(); }

    std::uint64_t rows = 0, row_length = 0;  // row_length: of padded rows, with that of the batch
    std::uint64_t decode_ns = 0;             // of all images
    std::size_t copied = 0;                  // bytes of tensors
    std::vector<PictureSize> missing;        // sizes that have no plan yet
    std::vector<ImagePlace> left;            // images that Python decodes; those of a missing size are among them

  private:
    void plan(const ImagePlace &where, const FastRequest &request);

    Request *const *requests_ = nullptr;
    std::size_t count_ = 0;
    std::vector<BatchedJpeg> jobs_;
    std::vector<ImagePlace> places_;  // of the jobs
    DecodePool *pool_ = nullptr;
};

}  // namespace ksrv
