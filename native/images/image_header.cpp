#include "images/image_header.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ksrv {

namespace {

// A bounded view of the file. Reads outside of it return 0, so callers check `has` first.
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
    std::uint64_t le64(std::size_t at) const noexcept {
        return std::uint64_t{le32(at + 4)} << 32 | le32(at);
    }
    std::uint64_t be64(std::size_t at) const noexcept {
        return std::uint64_t{be32(at)} << 32 | be32(at + 4);
    }
    bool is(std::size_t at, const char *text, std::size_t length) const noexcept {
        return has(at, length) && std::memcmp(data + at, text, length) == 0;
    }
    ByteView from(std::size_t at, std::size_t count) const noexcept {
        if (at > size) return {data, 0};
        return {data + at, count < size - at ? count : size - at};
    }
};

// ---- TIFF directories, which EXIF also uses -------------------------------------------------

// The first directory of a TIFF or BigTIFF file.
class TiffDirectory {
  public:
    explicit TiffDirectory(ByteView bytes) noexcept : bytes_(bytes) {
        little_ = bytes.is(0, "II", 2);
        big_ = bytes.is(0, "II+\0", 4) || bytes.is(0, "MM\0+", 4);
        if (!big_ && !bytes.is(0, "II*\0", 4) && !bytes.is(0, "MM\0*", 4)) return;
        const std::uint64_t at = big_ ? u64(8) : u32(4);
        const std::size_t count_bytes = big_ ? 8 : 2;
        if (at > bytes.size || !bytes.has(at, count_bytes)) return;
        count_ = big_ ? u64(at) : u16(at);
        first_ = at + count_bytes;
    }

    // Whether the file has all entries. Otherwise no decoder reads the TIFF.
    bool is_whole() const noexcept {
        return first_ != 0 && count_ <= (bytes_.size - first_) / entry_bytes();
    }

    // The first number in the first entry of a tag, read as libtiff does: all integer types are interchangeable.
    // Returns 0 if the entry has no number.
    std::uint32_t number(std::uint32_t tag, std::uint32_t without_entry) const noexcept {
        std::size_t entry = first_;
        for (std::uint64_t i = 0; i < count_ && bytes_.has(entry, entry_bytes()); ++i) {
            if (u16(entry) == tag) return first_number(entry);
            entry += entry_bytes();
        }
        return without_entry;
    }

  private:
    std::size_t entry_bytes() const noexcept { return big_ ? 20 : 12; }
    std::uint32_t u16(std::size_t at) const noexcept {
        return little_ ? bytes_.le16(at) : bytes_.be16(at);
    }
    std::uint32_t u32(std::size_t at) const noexcept {
        return little_ ? bytes_.le32(at) : bytes_.be32(at);
    }
    std::uint64_t u64(std::size_t at) const noexcept {
        return little_ ? bytes_.le64(at) : bytes_.be64(at);
    }
    std::uint32_t first_number(std::size_t entry) const noexcept {
        // By type: BYTE, SHORT, LONG, SBYTE, SSHORT, SLONG, LONG8, SLONG8.
        static constexpr unsigned char BYTES[] = {0, 1, 0, 2, 4, 0, 1, 0, 2, 4, 0, 0, 0, 0, 0, 0, 8, 8};
        const std::uint32_t type = u16(entry + 2);
        const std::uint64_t count = big_ ? u64(entry + 4) : u32(entry + 4);
        const unsigned bytes = type < sizeof BYTES ? BYTES[type] : 0;
        if (bytes == 0 || count == 0) return 0;
        std::size_t at = entry + (big_ ? 12 : 8);
        if (count > (big_ ? 8u : 4u) / bytes) at = big_ ? u64(at) : u32(at);
        switch (bytes) {
            case 1: return bytes_.u8(at);
            case 2: return u16(at);
            case 4: return u32(at);
            default: return u64(at) >> 32 ? 0xFFFFFFFFu : static_cast<std::uint32_t>(u64(at));
        }
    }

    ByteView bytes_;
    bool little_, big_;
    std::size_t first_ = 0;
    std::uint64_t count_ = 0;
};

constexpr std::uint32_t TIFF_ORIENTATION = 0x0112;

// The orientation in EXIF data (with or without JPEG's prefix) or in a TIFF file; 0 if it is missing.
int orientation(ByteView exif) noexcept {
    const std::size_t name = exif.is(0, "Exif\0\0", 6) ? 6 : 0;
    const std::uint32_t found = TiffDirectory(exif.from(name, exif.size)).number(TIFF_ORIENTATION, 0);
    return found <= 8 ? static_cast<int>(found) : 1;
}

// ---- readers for each format ----------------------------------------------------------------

// `pixel_bytes` bounds the peak memory of cv2, which tests/unit/native/images/test_image_header.py measures. It is a
// number of samples per pixel (4, if the header does not determine the channels) times the bytes of a sample, times the
// copies that exist at once. A JPEG with several scans has its coefficients, of 2 bytes, instead of a second copy.

// JPEG markers (ITU-T T.81 table B.1).
constexpr std::uint32_t JPEG_LS = 0xF7, START_OF_SCAN = 0xDA, END_OF_IMAGE = 0xD9, APP1_EXIF = 0xE1;

bool jpeg_marker_is_frame(std::uint32_t marker) noexcept {
    return marker == JPEG_LS ||
           (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC);
}

// Whether a segment with a length follows the marker. Not after a stuffed zero, a restart marker or an unknown marker,
// which are two bytes long.
bool jpeg_marker_has_length(std::uint32_t marker) noexcept {
    return (marker >= 0xC0 && marker <= 0xCF) || (marker >= 0xDA && marker <= 0xEF) ||
           marker == JPEG_LS || marker == 0xFE;
}

// Moves past the next marker and returns it; 0 at the end. As libjpeg's next_marker, skips all bytes before the marker,
// including stuffed zeros and fill bytes.
std::uint32_t next_jpeg_marker(ByteView file, std::size_t *at) noexcept {
    while (*at < file.size) {
        const void *found = std::memchr(file.data + *at, 0xFF, file.size - *at);
        if (found == nullptr) return 0;
        *at = static_cast<std::size_t>(static_cast<const unsigned char *>(found) - file.data) + 1;
        const std::uint32_t marker = file.u8(*at);
        if (marker == 0xFF) continue;
        ++*at;
        if (marker != 0) return marker;
    }
    return 0;
}

// Reads a frame header. The segment begins with its length.
ImageFault read_jpeg_frame(ByteView file, std::size_t at, ImageHeader *header) noexcept {
    if (!file.has(at, 8)) return ImageFault::truncated;
    header->stored_bits = static_cast<int>(file.u8(at + 2));
    header->bit_depth = header->stored_bits > 8 ? 16 : 8;
    header->height = file.be16(at + 3);
    header->width = file.be16(at + 5);
    header->components = static_cast<int>(file.u8(at + 7));
    if (header->components < 1 || header->components > 4) return ImageFault::damaged;
    header->channels = header->components == 1 ? 1 : 3;
    return ImageFault::none;
}

// Follows the segments as libjpeg does (jdmarker.c). If a JPEG is not progressive and its first scan has all
// components, the decoder reads only that scan, so the walk ends there. Otherwise each scan is a pass over all pixels,
// and the walk counts them to the end of the file.
ImageFault read_jpeg(ByteView file, ImageHeader *header) noexcept {
    std::size_t at = 2;
    int sample_bytes = 0;
    bool progressive = false;
    while (const std::uint32_t marker = next_jpeg_marker(file, &at)) {
        if (marker == END_OF_IMAGE) return header->components ? ImageFault::none : ImageFault::damaged;
        if (!jpeg_marker_has_length(marker)) continue;
        const std::size_t length = file.be16(at);
        if (header->components == 0 && jpeg_marker_is_frame(marker)) {
            const ImageFault error = read_jpeg_frame(file, at, header);
            if (error != ImageFault::none) return error;
            header->coding = static_cast<int>(marker);
            progressive = (marker & 3) == 2;  // SOF2, SOF6, SOF10, SOF14
            sample_bytes = header->channels * (header->bit_depth / 8);
            header->pixel_bytes = progressive ? sample_bytes + 2 * header->components : 2 * sample_bytes;
        } else if (marker == APP1_EXIF && header->scans == 0 && header->orientation == 0) {
            const ByteView segment = file.from(at + 2, length < 2 ? 0 : length - 2);
            if (segment.is(0, "Exif\0\0", 6)) header->orientation = orientation(segment);
        } else if (marker == START_OF_SCAN) {
            if (header->components == 0) return ImageFault::damaged;
            ++header->scans;
            if (!progressive && file.u8(at + 2) >= static_cast<std::uint32_t>(header->components)) break;
            header->pixel_bytes = sample_bytes + 2 * header->components;
        }
        at += length < 2 ? 2 : length;
    }
    return header->components ? ImageFault::none : ImageFault::truncated;
}

// Walks over the chunks that follow IHDR. cv2 reads them all, except those after the first frame of an animation, and
// allocates as much memory as a chunk announces.
ImageFault read_png_chunks(ByteView file, ImageHeader *header, bool *transparent, bool *animated) noexcept {
    bool before_pixels = true, in_frame = false;
    int texts = 0;
    // The first chunk, IHDR, follows the signature of 8 bytes: length and name (8), data (13), checksum (4).
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
            if (++texts > MOST_COMPRESSED_TEXTS) return ImageFault::texts;
        } else if (is("IDAT")) {
            before_pixels = false;
        } else if (before_pixels && is("acTL")) {
            *animated = file.be32(at + 8) > 1;
        } else if (is("fcTL")) {
            if (*animated && in_frame && !before_pixels) break;
            in_frame = true;
        } else if (before_pixels && is("tRNS")) {
            *transparent = true;
        } else if (is("eXIf") && header->orientation == 0) {
            header->orientation = orientation(file.from(at + 8, length));
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
        case 0: header->channels = 1; break;  // cv2 ignores transparency of grey pictures
        case 2:
        case 3: header->channels = transparent ? 4 : 3; break;
        case 4:
        case 6: header->channels = 4; break;
        default: return ImageFault::damaged;
    }
    header->pixel_bytes = header->channels * (header->bit_depth / 8) * (animated ? 4 : 2);
    return ImageFault::none;
}

// The orientation in the first EXIF chunk, within the length that RIFF announces.
int webp_orientation(ByteView file) noexcept {
    const ByteView riff = file.from(0, std::size_t{8} + file.le32(4));
    for (std::size_t at = 12; riff.has(at, 8);) {
        const std::size_t length = riff.le32(at + 4);
        if (riff.is(at, "EXIF", 4)) return orientation(riff.from(at + 8, length));
        at += 8 + length + length % 2;
    }
    return 0;
}

ImageFault read_webp(ByteView file, ImageHeader *header) noexcept {
    if (!file.has(12, 18)) return ImageFault::truncated;
    header->bit_depth = 8;
    header->pixel_bytes = 4 * 2;
    const std::size_t body = 20;
    if (file.is(12, "VP8X", 4)) {
        header->width = file.le24(body + 4) + 1;
        header->height = file.le24(body + 7) + 1;
        if (file.u8(body) & 0x08) header->orientation = webp_orientation(file);
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

// Width and height are of the decoded picture: cv2 always turns a TIFF by its orientation.
ImageFault read_tiff(ByteView file, ImageHeader *header) noexcept {
    const TiffDirectory tiff(file);
    if (!tiff.is_whole()) return ImageFault::truncated;
    header->width = tiff.number(256, 0);   // ImageWidth
    header->height = tiff.number(257, 0);  // ImageLength
    if (orientation(file) >= 5) std::swap(header->width, header->height);
    const std::uint32_t bits = tiff.number(258, 1);  // BitsPerSample
    header->stored_bits = static_cast<int>(std::min(bits, 64u));
    header->bit_depth = bits > 8 ? 16 : 8;
    header->coding = static_cast<int>(tiff.number(259, 1));  // Compression
    header->separate = tiff.number(284, 1) == 2;             // PlanarConfiguration
    header->pixel_bytes = 4 * 2 * (bits <= 8 ? 1 : bits <= 16 ? 2 : bits <= 32 ? 4 : 8);
    // TileWidth and TileLength: the decoder allocates a whole tile, which may be larger than the picture.
    constexpr std::uint64_t margin = 4096;
    const std::uint64_t most = std::max(header->width, header->height) + margin;
    const bool sane = tiff.number(322, 0) <= most && tiff.number(323, 0) <= most;
    return sane ? ImageFault::none : ImageFault::damaged;
}

ImageFault read_known_header(ByteView file, ImageHeader *header) noexcept {
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

}  // namespace

ImageFault read_image_header(const unsigned char *data, std::size_t size, ImageHeader *header) noexcept {
    *header = ImageHeader{};
    header->format = image_signature(data, size);
    const ImageFault error = read_known_header({data, size}, header);
    if (header->orientation == 0) header->orientation = 1;
    return error;
}

}  // namespace ksrv
