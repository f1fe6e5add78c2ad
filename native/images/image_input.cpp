#include "images/image_input.hpp"

#include <algorithm>

#include "images/decode/cost.hpp"

namespace ksrv {

bool ImageInputReader::read(std::size_t offset, std::size_t length, EncodedImage *out) noexcept {
    ImageHeader header;
    const unsigned char *file = body_ + offset;
    const std::size_t visible = std::min(length, WALKED - walked_);
    if (read_image_header(file, visible, &header) != ImageFault::none || header.format != IMAGE_JPEG) return false;
    if (!has_one_scan(header)) {  // only scans in the first `visible` bytes were counted
        if (visible < length) return false;
        walked_ += length;
    }
    const int orientation = rules_.upright ? header.orientation : 1;
    const std::uint32_t upright_width = orientation >= 5 ? header.height : header.width;
    const std::uint32_t upright_height = orientation >= 5 ? header.width : header.height;
    const bool is_plain = header.bit_depth == 8 && (header.components == 1 || header.components == 3) &&
                          header.width != 0 && header.height != 0 && header.scans != 0;
    if (!is_plain || (rules_.strict && header.channels != rules_.channels) ||
        (!rules_.resized && (upright_width != rules_.width || upright_height != rules_.height)))
        return false;
    const std::uint64_t pixels = std::uint64_t{header.width} * header.height;
    const std::uint64_t most_scans =
        rules_.scans + std::uint64_t{rules_.scans_per_component} * static_cast<std::uint64_t>(header.components);
    if (pixels > rules_.image_pixels || pixels > rules_.request_pixels - pixels_ || header.scans > most_scans)
        return false;
    pixels_ += pixels;
    total_ns_ += decode_ns(header);
    *out = {offset, length, upright_width, upright_height, static_cast<std::uint32_t>(header.channels),
            orientation != 1, decode_ns(header), row_decoder_bytes(header)};
    return true;
}

}  // namespace ksrv
