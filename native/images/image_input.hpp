// Decides whether an encoded image of a request can be decoded without Python: a JPEG within the input's rules.
//
// Strategy: when a request was received, the header of each of its images is read and compared with the input's rules.
// For an accepted image the reader records the position in the body, the size and the cost of decoding. Images in other
// formats, images that exceed a limit or must be read completely first, and invalid images are left to Python, which
// reports errors.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

class DecodePool;
class RowPlans;

// The images that an input accepts. By default none.
struct ImageRules {
    bool accepted = false;
    bool strict = true;    // the image must have the input's number of channels
    bool upright = false;  // apply EXIF's orientation
    bool resized = true;   // images may have another size than the input
    int channels = 3;
    std::uint32_t height = 0, width = 0;  // of the input
    std::uint64_t image_pixels = 0, request_pixels = 0;
    std::uint32_t scans = 0, scans_per_component = 0;
    RowPlans *plans = nullptr;   // how images become rows; lives as long as the model's endpoint
    DecodePool *pool = nullptr;
};

struct EncodedImage {
    std::size_t offset, length;  // in the body
    std::uint32_t width, height;  // after EXIF's orientation
    std::uint32_t channels;
    bool turned;  // EXIF's orientation is applied, which needs the whole picture
    std::uint64_t decode_ns, decoder_bytes;
};

// The most images of an input that need no Python. More are rare.
inline constexpr std::size_t FAST_IMAGES = 256;

// Reads the images of one input in order.
class ImageInputReader {
  public:
    ImageInputReader(const ImageRules &rules, const unsigned char *body) noexcept
        : rules_(rules), body_(body) {}

    // False if Python must handle the image, and with it the request.
    bool read(std::size_t offset, std::size_t length, EncodedImage *out) noexcept;

    // About how long one thread takes to decode all images.
    std::uint64_t total_ns() const noexcept { return total_ns_; }

  private:
    // The most bytes of files with several scans that are walked on an I/O thread.
    static constexpr std::size_t WALKED = 1u << 18;

    const ImageRules &rules_;
    const unsigned char *body_;
    std::uint64_t pixels_ = 0, total_ns_ = 0;
    std::size_t walked_ = 0;
};

}  // namespace ksrv
