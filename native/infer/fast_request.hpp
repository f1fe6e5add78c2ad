// Decides which infer requests take the fast path, which reads and queues them without Python.
//
// Strategy: the header is read by the reader that all routes share, and compared with the model's signature. The fast
// path takes a request only if nothing remains to be decided: inputs with the declared names, datatypes and shapes, in
// binary or as JSON numbers; outputs that the model has, in either form; only parameters of the protocol. All other
// requests, and above all invalid requests, are left to Python, which reports errors.
//
// JSON numbers, and binary values that are not aligned to their item size, are copied to memory after the body, in the
// same block. So every input of a fast-path request is aligned, and is found at an offset from the body. Encoded images
// are not copied: the layout has their positions and the contents of their headers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "images/decode/cost.hpp"
#include "infer/model_signature.hpp"

namespace ksrv {

constexpr int FAST_INPUTS = 4;
constexpr int FAST_OUTPUTS = 8;

// The source, as offsets into the body, of an input that is copied to memory after the body.
struct CopiedValues {
    std::size_t begin = 0, end = 0;  // equal: the input is not copied
    bool numbers = false;            // between the brackets of `data` in the JSON; otherwise binary values
};

struct PlainForm;

struct FastRequestLayout {
    std::size_t id_offset = 0, id_length = 0;  // in the body
    std::uint32_t rows = 0;
    std::uint64_t row_length = 0;             // unpadded, if the model's rows are padded; else 0
    bool given[FAST_INPUTS] = {};             // whether the request has the declared input
    std::size_t offsets[FAST_INPUTS] = {};    // of the declared inputs, from the body's first byte
    CopiedValues copied[FAST_INPUTS];         // of the declared inputs
    // Of the declared inputs: an image per row, or null if the input has no encoded images.
    std::unique_ptr<EncodedImage[]> images[FAST_INPUTS];
    std::uint64_t decode_ns = 0;              // of all images
    std::size_t length = 0;                   // of the body, including the memory of copied inputs after it
    const PlainForm *plain = nullptr;         // the form of a body in plain JSON; null: KServe v2
    std::size_t plain_length = 0;             // of such a body
    bool has_rows = false;                    // an object of inputs, whose values have a dimension of rows
    std::uint64_t timeout_us = 0;
    std::uint32_t priority = 0;
    std::uint8_t wanted_count = 0;            // 0: all outputs
    std::uint8_t wanted[FAST_OUTPUTS] = {};   // their indexes in ModelSignature::outputs
    bool binary[FAST_OUTPUTS] = {};           // for each of them, or of the model's outputs: send it in binary

    bool has_images() const noexcept {
        for (const auto &image : images)
            if (image) return true;
        return false;
    }

    const EncodedImage &image(std::size_t input, std::size_t number) const noexcept { return images[input][number]; }

    // Whether an I/O thread may decode the images.
    bool decodes_quickly() const noexcept { return decode_ns <= 1'000'000; }

    // Which of the handler's outputs is an output of the answer.
    int handler_output(int output) const noexcept { return wanted_count ? wanted[output] : output; }
};

// Whether the fast path takes the body. If so, fills `layout`. `body` must have the alignment of the memory that inputs
// are copied to.
bool read_fast_request(const ModelSignature &signature, const unsigned char *body, std::size_t body_length,
                       std::size_t json_length, FastRequestLayout *layout) noexcept;

// The values of declared input `index` are the bytes from `offset`. Reserves memory for a copy if they are not aligned.
void place_binary(const unsigned char *body, std::size_t offset, std::size_t length, std::size_t item,
                  std::size_t index, FastRequestLayout *layout) noexcept;

// Reserves memory after the body for an input that must be copied.
void reserve_copy(const unsigned char *body, std::size_t index, const CopiedValues &values, std::size_t nbytes,
                  FastRequestLayout *layout) noexcept;

// Records the shape of an input. False if it does not match the declaration, or its row length differs from another
// input's.
bool take_shape(const InputSignature &declared, std::size_t index, const std::int64_t *shape, std::size_t rank,
                FastRequestLayout *layout) noexcept;

// Whether a request has all inputs. Masks may be missing, because they are generated.
bool has_inputs(const ModelSignature &signature, const FastRequestLayout &layout) noexcept;

// The batch key of a request.
std::uint64_t batch_key_of(const ModelSignature &signature, const FastRequestLayout &layout) noexcept;

// Whether a batch of only this request would differ from the received tensors.
bool needs_padding(const ModelSignature &signature, const FastRequestLayout &layout) noexcept;

// One input of one request, for a batch.
struct RowSource {
    const unsigned char *data = nullptr;     // null: a mask, which is generated
    const EncodedImage *images = nullptr;    // one per row, at offsets from `data`; null: `data` has the rows
    const std::int64_t *tail = nullptr;      // the dimensions after the first; null: the declared dimensions
    std::uint64_t rows = 0, row_length = 0;  // row_length: unpadded
    bool reserved_only = false;              // `RowWriter` leaves room for the rows, and the caller writes them
};

// An input of a fast-path request, whose body is at `body`.
RowSource source_of(const FastRequestLayout &layout, const unsigned char *body, std::size_t index) noexcept;

// Copies rows to a batch with the row length `row_length`.
void copy_rows(const InputSignature &declared, const RowSource &source, std::uint64_t row_length,
               unsigned char *to) noexcept;

// Takes the images of one input. `next(i, &offset, &length)` finds the i-th image, or returns false to stop. False if
// Python must handle an image.
template <class Next>
bool take_images(const ModelSignature &signature, const unsigned char *body, std::size_t index, std::int64_t count,
                 FastRequestLayout *layout, Next next) noexcept {
    const bool fits = !signature.max_rows || static_cast<std::uint64_t>(count) <= signature.max_rows;
    if (count < 1 || !fits || static_cast<std::uint64_t>(count) > FAST_IMAGES) return false;
    const auto total = static_cast<std::size_t>(count);
    std::unique_ptr<EncodedImage[]> images(new (std::nothrow) EncodedImage[total]);
    if (!images) return false;
    ImageInputReader reader(signature.inputs[index].images, body);
    for (std::size_t i = 0; i < total; ++i) {
        std::size_t offset = 0, length = 0;
        if (!next(i, &offset, &length) || !reader.read(offset, length, &images[i])) return false;
    }
    layout->decode_ns += reader.total_ns();
    layout->images[index] = std::move(images);
    return layout->decode_ns < SLOW_DECODE_NS;
}

// Takes images that are the elements of a BYTES tensor: bare elements if `sizes` is given, otherwise elements with
// length prefixes, or a single image that is the whole tensor.
bool take_image_elements(const ModelSignature &signature, const unsigned char *body, std::size_t index,
                         std::size_t offset, std::size_t length, std::int64_t count, const std::uint64_t *sizes,
                         FastRequestLayout *layout) noexcept;

// Copies inputs to the memory after the body. False if the numbers in the JSON do not match datatype and shape.
bool copy_inputs(const ModelSignature &signature, const FastRequestLayout &layout, unsigned char *body) noexcept;

}  // namespace ksrv
