// Which encoded images of a request need no Python: JPEGs about which nothing is left to decide.
//
// Strategy: the header of every image is read where the request was received, and compared with what the input
// takes. Images of other formats, those that break a limit or need a look at their whole file first, and wrong
// ones are left to the general way, which says what is wrong. What is noted of an image is its place in the
// body, its size, and what decoding it costs.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

class DecodePool;
class RowPlans;

// What an input takes. Its defaults take nothing.
struct ImageRules {
    bool accepted = false;
    bool strict = true;    // an image must have the input's channels
    bool upright = false;  // EXIF's orientation is applied
    bool resized = true;   // images may have another size than the input
    int channels = 3;
    std::uint32_t height = 0, width = 0;  // the input's
    std::uint64_t image_pixels = 0, request_pixels = 0;
    std::uint32_t scans = 0, scans_per_component = 0;
    RowPlans *plans = nullptr;   // how they become rows; as long as the model's endpoint
    DecodePool *pool = nullptr;
};

struct EncodedImage {
    std::size_t offset, length;  // in the body
    std::uint32_t width, height;  // as it is seen
    std::uint32_t channels;
    int orientation;  // EXIF's, where that is applied; else 1
    std::uint64_t decode_ns, decoder_bytes;
};

// Images of one input that need no Python; a request with more of them is rare.
inline constexpr std::size_t FAST_IMAGES = 256;

// Reads the images of one input, one after the other.
class ImageInputReader {
  public:
    ImageInputReader(const ImageRules &rules, const unsigned char *body) noexcept
        : rules_(rules), body_(body) {}

    // False: the image is left to the general way, and the request with it.
    bool read(std::size_t offset, std::size_t length, EncodedImage *out) noexcept;

    // About how long one thread takes to decode them.
    std::uint64_t total_ns() const noexcept { return total_ns_; }

  private:
    // Bytes of files with several scans that are walked through on the thread that owns the sockets.
    static constexpr std::size_t WALKED = 1u << 18;

    const ImageRules &rules_;
    const unsigned char *body_;
    std::uint64_t pixels_ = 0, total_ns_ = 0;
    std::size_t walked_ = 0;
};

}  // namespace ksrv
