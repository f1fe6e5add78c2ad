// Which infer requests need no Python before their handler.
//
// Strategy: the header is read by the one reader that every route has, and what was read is compared
// with the model's signature. The fast path takes a request when nothing about it is left to decide: inputs
// of the declared names, datatypes and shapes, either binary or as numbers in the JSON; outputs
// that the model has, in either form; no parameters but those of the protocol. Everything else, wrong requests
// above all, is left to the general way, which says what is wrong with them.
//
// Numbers in the JSON, and binary values that do not lie aligned to their item size, get memory behind the body, in
// one block with it: so every input of a fast-path request lies aligned at an offset from its body, whatever it was
// sent as. Encoded images stay where they are; the layout notes where each of them lies and what its header says.

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

// Where the values of an input lie that get memory behind the body, as offsets into the body.
struct CopiedValues {
    std::size_t begin = 0, end = 0;  // equal: the input stays where it is
    bool numbers = false;            // the brackets of `data` in the JSON; else binary values
};

struct FastRequestLayout {
    std::size_t id_offset = 0, id_length = 0;  // in the body
    std::uint32_t rows = 0;
    std::uint64_t row_length = 0;             // where the model's rows are padded; else 0
    bool given[FAST_INPUTS] = {};             // which of the declared inputs the request has
    std::size_t offsets[FAST_INPUTS] = {};    // of the declared inputs, from the body's first byte on
    CopiedValues copied[FAST_INPUTS];         // of the declared inputs
    // Of the declared inputs, one for each row; null where an input has no encoded images.
    std::unique_ptr<EncodedImage[]> images[FAST_INPUTS];
    std::uint64_t decode_ns = 0;              // of all images
    std::size_t length = 0;                   // of the body with the memory of copied inputs behind it
    std::uint64_t timeout_us = 0;
    std::uint32_t priority = 0;
    std::uint8_t wanted_count = 0;            // 0: all outputs
    std::uint8_t wanted[FAST_OUTPUTS] = {};   // their places in ModelSignature::outputs
    bool binary[FAST_OUTPUTS] = {};           // whether each of them, or output of the model, is binary

    bool has_images() const noexcept {
        for (const auto &one : images)
            if (one) return true;
        return false;
    }

    // Whether a thread that owns sockets may decode its images.
    bool decodes_quickly() const noexcept { return decode_ns <= 1000000; }

    // The place of an answer's output among the outputs of the handler.
    int place_of(int output) const noexcept { return wanted_count ? wanted[output] : output; }
};

// Whether the fast path takes the body; then `layout` says where its parts are. `body` is as aligned as
// the memory will be that inputs are copied into.
bool read_fast_request(const ModelSignature &signature, const unsigned char *body, std::size_t body_length,
                std::size_t json_length, FastRequestLayout *layout) noexcept;

// Notes that an input's binary values are at `offset`, and sets memory aside for them where that is not aligned.
void place_binary(const unsigned char *body, std::size_t offset, std::size_t length, std::size_t item,
                  std::size_t place, FastRequestLayout *layout) noexcept;

// Notes that a request has an input of the shape; false where it is not declared so, or its rows have not the length
// of those of another input.
bool take_shape(const InputSignature &declared, std::size_t place, const std::int64_t *shape, std::size_t rank,
                FastRequestLayout *layout) noexcept;

// Whether a request has all inputs but for masks, which are made.
bool has_inputs(const ModelSignature &signature, const FastRequestLayout &layout) noexcept;

// The batch key of a request.
std::uint64_t batch_key_of(const ModelSignature &signature, const FastRequestLayout &layout) noexcept;

// Whether a batch of this request alone differs from what was received.
bool needs_padding(const ModelSignature &signature, const FastRequestLayout &layout) noexcept;

// Copies the rows of one input into those of a batch whose rows have the length `row_length`.
void copy_rows(const InputSignature &declared, const FastRequestLayout &layout, const unsigned char *body,
               std::size_t place, std::uint64_t row_length, unsigned char *to) noexcept;

// Takes the images of one input, of which `next(i, &offset, &length)` tells the i-th; false ends that. False
// where an image is left to the general way.
template <class Next>
bool take_images(const ModelSignature &signature, const unsigned char *body, std::size_t place, std::int64_t count,
                 FastRequestLayout *layout, Next next) noexcept {
    const bool fits = !signature.max_rows || static_cast<std::uint64_t>(count) <= signature.max_rows;
    if (count < 1 || !fits || static_cast<std::uint64_t>(count) > FAST_IMAGES) return false;
    const auto total = static_cast<std::size_t>(count);
    std::unique_ptr<EncodedImage[]> images(new (std::nothrow) EncodedImage[total]);
    if (!images) return false;
    ImageInputReader reader(signature.inputs[place].images, body);
    for (std::size_t i = 0; i < total; ++i) {
        std::size_t offset = 0, length = 0;
        if (!next(i, &offset, &length) || !reader.read(offset, length, &images[i])) return false;
    }
    layout->decode_ns += reader.total_ns();
    layout->images[place] = std::move(images);
    return layout->decode_ns < DECODED_APART_NS;
}

// The same for images that are the elements of a BYTES tensor: with `sizes` bare ones, else behind their lengths
// or, where it is only one, as the whole tensor.
bool take_image_elements(const ModelSignature &signature, const unsigned char *body, std::size_t place,
                         std::size_t offset, std::size_t length, std::int64_t count, const std::uint64_t *sizes,
                         FastRequestLayout *layout) noexcept;

// Copies inputs into the memory behind the body. False: the numbers of the JSON are not those that datatype and
// shape ask for.
bool copy_inputs(const ModelSignature &signature, const FastRequestLayout &layout, unsigned char *body) noexcept;

}  // namespace ksrv
