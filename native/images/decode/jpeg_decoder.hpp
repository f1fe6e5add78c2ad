// A JPEG's rows by libjpeg-turbo, handed on while it decodes them.
//
// Strategy: a thread keeps the few rows that the decoder gives at a time, and nothing of the pictures
// before; a whole picture is only in memory where the receiver keeps it. Pixels are those of cv2, which uses
// the same library with the same settings. Whatever is not an undamaged 8-bit picture in grey or YCbCr is
// refused with `Decoded::elsewhere`: cv2 decides then, so that there is one opinion about every file.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/decode/row_receiver.hpp"

namespace ksrv {

enum class PixelOrder : int { grey = 0, bgr, rgb };

enum class Decoded : int {
    whole,      // every row was handed on
    elsewhere,  // another decoder must look at this file; rows may have been handed on before
    no_memory,
};

struct JpegJob {
    const unsigned char *data;
    std::size_t size;
    PixelOrder order;
    unsigned reduction;            // 1, 2, 4 or 8: the decoder scales down by it
    std::uint32_t height, width;   // what the header check saw, reduced
    bool codes_by_library = false;    // leaves Huffman codes to the library, to compare the two
};

// Keeps the picture.
class WholePicture final : public RowReceiver {
  public:
    WholePicture(std::uint8_t *pixels, std::ptrdiff_t row_bytes) noexcept
        : pixels_(pixels), row_bytes_(row_bytes) {}
    void take(std::uint32_t, const std::uint8_t *) noexcept override {}
    std::uint8_t *place(std::uint32_t row) noexcept override {
        return pixels_ + static_cast<std::ptrdiff_t>(row) * row_bytes_;
    }

  private:
    std::uint8_t *pixels_;
    std::ptrdiff_t row_bytes_;
};

// Whether this build has the library.
bool has_jpeg_decoder() noexcept;

// The library's version, such as "2.1.5"; empty without one.
const char *jpeg_decoder_version() noexcept;

Decoded decode_jpeg(const JpegJob &job, RowReceiver &receiver) noexcept;

}  // namespace ksrv
