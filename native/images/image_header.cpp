#include "images/image_header.hpp"

#include <cstring>

namespace ksrv {

namespace {

// Steps that a walk may take before the header counts as damaged. Real files have a few dozen.
constexpr int HEADER_STEPS = 1024;

// A bounded view of the file; reads outside of it give 0, so callers check `has` first.
struct ByteView {
    const unsigned char *data;
    std::size_t size;

    bool has(std::size_t at, std::size_t count) const noexcept {
        return at <= size && count <= size - at;
    }
    std::uint32_t u8(std::size_t at) const noexcept { return has(at, 1) ? data[at] : 0u; }
    std::uint32_t be16(std::size_t at) const noexcept { return u8(at) << 8 | u8(at + 1); }
    std::uint32_t le16(std::size_t at) const noexcept { return u8(at + 1) << 8 | u8(at); }
    std::uint32_t le24(std::size_t at) const noexcept { return u8(at + 2) << 16 | le16(at); }
    std::uint32_t be32(std::size_t at) const noexcept { return be16(at) << 16 | be16(at + 2); }
    std::uint32_t le32(std::size_t at) const noexcept { return le16(at + 2) << 16 | le16(at); }
    bool is(std::size_t at, const char *text, std::size_t length) const noexcept {
        return has(at, length) && std::memcmp(data + at, text, length) == 0;
    }
    ByteView from(std::size_t at, std::size_t count) const noexcept {
        if (at > size) return {data, 0};
        return {data + at, count < size - at ? count : size - at};
    }
};

// The formats that a header is read of.
ImageFormat known_format(ByteView file) noexcept {
    const ImageFormat format = image_signature(file.data, file.size);
    if (format == IMAGE_GIF)
        return file.is(4, "7a", 2) || file.is(4, "9a", 2) ? IMAGE_GIF : IMAGE_UNKNOWN;
    return format <= IMAGE_GIF ? format : IMAGE_UNKNOWN;
}

// ---- TIFF structure, which EXIF uses too ----------------------------------------------------

struct TiffView {
    ByteView bytes;
    bool little;
    std::uint32_t u16(std::size_t at) const noexcept {
        return little ? bytes.le16(at) : bytes.be16(at);
    }
    std::uint32_t u32(std::size_t at) const noexcept {
        return little ? bytes.le32(at) : bytes.be32(at);
    }
    // The first value of an entry of type SHORT or LONG; 0 for any other type or none.
    std::uint32_t value(std::size_t entry) const noexcept {
        const std::uint32_t type = u16(entry + 2), count = u32(entry + 4);
        if (type == 3 && count >= 1) return count <= 2 ? u16(entry + 8) : u16(u32(entry + 8));
        if (type == 4 && count >= 1) return count == 1 ? u32(entry + 8) : u32(u32(entry + 8));
        return 0;
    }
};

template <typename Visit>
inline bool visit_first_directory(ByteView bytes, Visit visit) noexcept {
    if (!bytes.is(0, "II*\0", 4) && !bytes.is(0, "MM\0*", 4)) return false;
    const TiffView tiff{bytes, bytes.data[0] == 'I'};
    const std::size_t directory = tiff.u32(4);
    if (!bytes.has(directory, 2)) return false;
    const std::uint32_t entries = tiff.u16(directory);
    if (entries > HEADER_STEPS) return false;
    for (std::uint32_t i = 0; i < entries; ++i) {
        const std::size_t entry = directory + 2 + std::size_t{12} * i;
        if (!bytes.has(entry, 12)) return false;
        visit(tiff, tiff.u16(entry), entry);
    }
    return true;
}

int exif_orientation(ByteView exif) noexcept {
    std::uint32_t found = 1;
    visit_first_directory(exif, [&](const TiffView &tiff, std::uint32_t tag, std::size_t entry) {
        if (tag == 0x0112) found = tiff.value(entry);
    });
    return found >= 1 && found <= 8 ? static_cast<int>(found) : 1;
}

// ---- one reader for each format -------------------------------------------------------------

bool jpeg_marker_is_frame(std::uint32_t marker) noexcept {
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

// Whether a segment with a length follows: not behind a stuffed zero, a restart or an unknown marker,
// which decoders pass over by their two bytes.
bool jpeg_marker_has_length(std::uint32_t marker) noexcept {
    return (marker >= 0xC0 && marker <= 0xCF) || (marker >= 0xDA && marker <= 0xEF) ||
           marker == 0xFE;
}

// Counts the scans behind the frame. A JPEG that is neither progressive nor without components in its
// first scan is read in that scan alone, so that the count ends there.
void count_scans(ByteView file, std::size_t at, bool progressive,
                 ImageHeader *header) noexcept {
    const int samples = header->channels * (header->bit_depth / 8);
    header->pixel_bytes = 2 * samples;
    const int whole = samples + 2 * header->components;
    if (progressive) header->pixel_bytes = whole;
    while (at < file.size) {
        const void *found = std::memchr(file.data + at, 0xFF, file.size - at);
        if (found == nullptr) return;
        at = static_cast<std::size_t>(static_cast<const unsigned char *>(found) - file.data);
        if (!file.has(at, 2)) return;
        const std::uint32_t marker = file.data[at + 1];
        if (marker == 0xFF) {  // a fill byte
            ++at;
            continue;
        }
        at += 2;
        if (marker == 0xD9) return;
        if (!jpeg_marker_has_length(marker)) continue;
        if (marker == 0xDA) {
            ++header->scans;
            if (!progressive && file.u8(at + 2) >= static_cast<std::uint32_t>(header->components))
                return;
            header->pixel_bytes = whole;
        }
        const std::size_t length = file.be16(at);
        at += length < 2 ? 2 : length;
    }
}

ImageFault read_jpeg(ByteView file, ImageHeader *header) noexcept {
    std::size_t at = 2;
    bool has_exif = false;
    for (int step = 0; step < HEADER_STEPS; ++step) {
        if (!file.has(at, 2)) return ImageFault::truncated;
        if (file.data[at] != 0xFF) return ImageFault::damaged;
        std::uint32_t marker = file.data[at + 1];
        if (marker == 0xFF) {  // a fill byte
            ++at;
            continue;
        }
        at += 2;
        if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;  // no parameters
        if (marker == 0x00 || marker == 0xD8 || marker == 0xD9 || marker == 0xDA)
            return ImageFault::damaged;  // the frame must come before the scan and the end
        if (!file.has(at, 2)) return ImageFault::truncated;
        const std::size_t length = file.be16(at);
        if (length < 2) return ImageFault::damaged;
        if (!file.has(at, length)) return ImageFault::truncated;
        if (marker == 0xE1 && !has_exif && length >= 8 && file.is(at + 2, "Exif\0\0", 6)) {
            header->orientation = exif_orientation(file.from(at + 8, length - 8));
            has_exif = true;
        }
        if (jpeg_marker_is_frame(marker)) {
            const std::uint32_t components = file.u8(at + 7);
            if (length < 8 || length != 8 + 3 * static_cast<std::size_t>(components))
                return ImageFault::damaged;
            header->bit_depth = file.u8(at + 2) > 8 ? 16 : 8;
            header->height = file.be16(at + 3);
            header->width = file.be16(at + 5);
            header->channels = components == 1 ? 1 : 3;
            if (components < 1 || components > 4) return ImageFault::damaged;
            header->components = static_cast<int>(components);
            count_scans(file, at + length, (marker & 3) == 2, header);
            return ImageFault::none;
        }
        at += length;
    }
    return ImageFault::damaged;
}

// Walks over all chunks behind the first: the decoder allocates what any of them announces. What stands
// behind the first pixels changes nothing in the header.
ImageFault read_png_chunks(ByteView file, ImageHeader *header, bool *transparent,
                            bool *animated) noexcept {
    bool before_pixels = true;
    int texts = 0;
    for (std::size_t at = 8 + 8 + 13 + 4; file.has(at, 8);) {
        const std::size_t length = file.be32(at);
        if (!file.has(at, 12 + length)) {
            header->chunk = at;
            header->announced = length;
            header->left = file.size - at - 8;
            return ImageFault::chunk;
        }
        const auto is = [&](const char *name) { return file.is(at + 4, name, 4); };
        if (is("IEND")) break;
        if (is("zTXt") || is("iTXt")) {
            if (++texts > COMPRESSED_TEXTS) return ImageFault::texts;
        } else if (is("IDAT")) {
            before_pixels = false;
        } else if (is("acTL")) {
            *animated = true;
        } else if (before_pixels && is("tRNS")) {
            *transparent = true;
        } else if (before_pixels && is("eXIf")) {
            header->orientation = exif_orientation(file.from(at + 8, length));
        }
        at += 12 + length;
    }
    return ImageFault::none;
}

ImageFault read_png(ByteView file, ImageHeader *header) noexcept {
    if (!file.has(8, 8 + 13 + 4)) return ImageFault::truncated;
    if (file.be32(8) != 13 || !file.is(12, "IHDR", 4)) return ImageFault::damaged;
    header->width = file.be32(16);
    header->height = file.be32(20);
    if (header->width > 0x7FFFFFFFu || header->height > 0x7FFFFFFFu) return ImageFault::damaged;
    const std::uint32_t depth = file.u8(24), color = file.u8(25);
    if (depth != 1 && depth != 2 && depth != 4 && depth != 8 && depth != 16) return ImageFault::damaged;
    header->bit_depth = depth == 16 ? 16 : 8;
    bool transparent = false, animated = false;
    const ImageFault error = read_png_chunks(file, header, &transparent, &animated);
    if (error != ImageFault::none) return error;
    switch (color) {
        case 0: header->channels = 1; break;  // cv2 drops the transparent grey
        case 2:
        case 3: header->channels = transparent ? 4 : 3; break;
        case 4:
        case 6: header->channels = 4; break;
        default: return ImageFault::damaged;
    }
    header->pixel_bytes = header->channels * (header->bit_depth / 8) * (animated ? 4 : 2);
    return ImageFault::none;
}

ImageFault read_webp(ByteView file, ImageHeader *header) noexcept {
    if (!file.has(12, 18)) return ImageFault::truncated;
    header->bit_depth = 8;
    header->pixel_bytes = 4 * 2;
    const std::size_t body = 20;
    if (file.is(12, "VP8X", 4)) {
        header->width = file.le24(body + 4) + 1;
        header->height = file.le24(body + 7) + 1;
        return ImageFault::none;
    }
    if (file.is(12, "VP8L", 4)) {
        if (file.u8(body) != 0x2F) return ImageFault::damaged;
        const std::uint32_t bits = file.le32(body + 1);
        header->width = (bits & 0x3FFF) + 1;
        header->height = (bits >> 14 & 0x3FFF) + 1;
        return ImageFault::none;
    }
    if (!file.is(12, "VP8 ", 4) || !file.is(body + 3, "\x9d\x01\x2a", 3)) return ImageFault::damaged;
    header->width = file.le16(body + 6) & 0x3FFF;
    header->height = file.le16(body + 8) & 0x3FFF;
    return ImageFault::none;
}

ImageFault read_bmp(ByteView file, ImageHeader *header) noexcept {
    if (!file.has(14, 16)) return ImageFault::truncated;
    header->bit_depth = 8;
    header->pixel_bytes = 4 * 2;
    if (file.le32(14) == 12) {
        header->width = file.le16(18);
        header->height = file.le16(20);
        return ImageFault::none;
    }
    const std::uint32_t width = file.le32(18), height = file.le32(22);
    header->width = width;
    header->height = height > 0x7FFFFFFFu ? 0u - height : height;
    return width > 0x7FFFFFFFu ? ImageFault::damaged : ImageFault::none;
}

ImageFault read_gif(ByteView file, ImageHeader *header) noexcept {
    if (!file.has(6, 4)) return ImageFault::truncated;
    header->bit_depth = 8;
    header->pixel_bytes = 4 * 3;
    header->width = file.le16(6);
    header->height = file.le16(8);
    return ImageFault::none;
}

ImageFault read_tiff(ByteView file, ImageHeader *header) noexcept {
    std::uint32_t bits = 8, tile_width = 0, tile_height = 0;
    const bool whole = visit_first_directory(
        file, [&](const TiffView &tiff, std::uint32_t tag, std::size_t entry) {
            const std::uint32_t value = tiff.value(entry);
            if (tag == 256) header->width = value;
            if (tag == 257) header->height = value;
            if (tag == 258) bits = value;
            if (tag == 274 && value >= 1 && value <= 8)
                header->orientation = static_cast<int>(value);
            if (tag == 322) tile_width = value;
            if (tag == 323) tile_height = value;
        });
    if (!whole) return ImageFault::truncated;
    header->bit_depth = bits > 8 ? 16 : 8;
    header->pixel_bytes = 4 * 2 * (bits <= 8 ? 1 : bits <= 16 ? 2 : bits <= 32 ? 4 : 8);
    constexpr std::uint32_t margin = 4096;
    const bool sane = tile_width <= header->width + std::uint64_t{margin} &&
                      tile_height <= header->height + std::uint64_t{margin};
    return sane ? ImageFault::none : ImageFault::damaged;
}

}  // namespace

ImageFault read_image_header(const unsigned char *data, std::size_t size,
                              ImageHeader *header) noexcept {
    const ByteView file{data, size};
    *header = ImageHeader{};
    header->format = known_format(file);
    switch (header->format) {
        case IMAGE_JPEG: return read_jpeg(file, header);
        case IMAGE_PNG: return read_png(file, header);
        case IMAGE_WEBP: return read_webp(file, header);
        case IMAGE_BMP: return read_bmp(file, header);
        case IMAGE_TIFF: return read_tiff(file, header);
        case IMAGE_GIF: return read_gif(file, header);
        default: return ImageFault::unknown_format;
    }
}

}  // namespace ksrv
