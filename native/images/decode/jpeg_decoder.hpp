// Decodes a JPEG with libjpeg-turbo and passes its rows on during decoding.
//
// Strategy: only the few rows that the decoder makes at a time are in memory. A whole picture is in memory only if the
// receiver stores it. Pixels equal cv2's, because cv2 uses the same library with the same settings. Every file that is
// not an undamaged 8-bit picture in grey or YCbCr is refused with `Decoded::elsewhere`. Python then decodes it with
// cv2, so that only cv2 decides which files are valid.

#pragma once

#include <cstddef>
#include <cstdint>

#include "images/decode/row_receiver.hpp"

namespace ksrv {

enum class PixelOrder : int { grey = 0, bgr, rgb };

enum class Decoded : int {
    whole,      // all rows were passed on
    elsewhere,  // another decoder must read this file; some rows may have been passed on
    no_memory,
};

struct JpegJob {
    const unsigned char *data;
    std::size_t size;
    PixelOrder order;
    unsigned reduction;            // 1, 2, 4 or 8: the decoder scales down by this factor
    std::uint32_t height, width;   // from the header, divided by `reduction`
    bool codes_by_library = false;    // let the library decode Huffman codes, to compare both implementations
};

// Stores the whole picture in the caller's memory, into which the decoder writes each row.
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

// The library's version, such as "2.1.5"; empty without the library.
const char *jpeg_decoder_version() noexcept;

Decoded decode_jpeg(const JpegJob &job, RowReceiver &receiver) noexcept;

}  // namespace ksrv
