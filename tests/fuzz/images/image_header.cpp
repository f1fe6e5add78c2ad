// libFuzzer target for native/images/image_header.hpp: for any bytes, the reader stays inside of
// them, and a header that it accepts holds values that its callers count on.

#include <cstdint>
#include <cstring>
#include <memory>

#include "images/image_header.hpp"
#include "../require.hpp"

namespace {

void check(const unsigned char *data, std::size_t size) {
    // A copy of the exact size, so that the sanitizer sees a read of one byte too many.
    std::unique_ptr<unsigned char[]> file(new unsigned char[size]);
    if (size != 0) std::memcpy(file.get(), data, size);
    ksrv::ImageHeader header;
    const ksrv::ImageFault error = ksrv::read_image_header(file.get(), size, &header);
    require(header.format >= ksrv::IMAGE_UNKNOWN && header.format <= ksrv::IMAGE_HEIF);
    require(header.orientation >= 1 && header.orientation <= 8);
    const bool is_decoded = header.format != ksrv::IMAGE_UNKNOWN && header.format <= ksrv::IMAGE_GIF;
    require(is_decoded == (error != ksrv::ImageFault::unknown_format));
    if (error == ksrv::ImageFault::chunk)  // its length and checksum do not fit into what is left
        require(header.chunk + 8 + header.left == size && header.announced + 4 > header.left);
    if (error != ksrv::ImageFault::none) return;
    require(header.scans <= size / 2);  // each has a marker
    require(header.pixel_bytes >= (header.channels == 0 ? 8 : header.channels) &&
            header.pixel_bytes <= 64);
    require((header.components != 0) == (header.format == ksrv::IMAGE_JPEG));
    require(header.bit_depth == 8 || header.bit_depth == 16);
    require(header.channels == 0 || header.channels == 1 || header.channels == 3 ||
            header.channels == 4);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static constexpr struct {
        const char *bytes;
        std::size_t size;
    } STARTS[] = {
        {"\xff\xd8\xff", 3},           {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16},
        {"RIFF\0\0\0\0WEBP", 12},      {"GIF89a", 6},
        {"II*\0\x08\0\0\0", 8},        {"MM\0*\0\0\0\x08", 8},
        {"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0", 16},
        {"RIFF\0\x10\0\0WEBPVP8X\x0a\0\0\0\x08\0\0\0\x07\0\0\x07\0\0EXIF", 34},
        {"BM", 2},                     {"\xff\xd8\xff\xe1\0\x40" "Exif\0\0II*\0\x08\0\0\0", 20},
        // Whole headers, so that the walks over chunks and scans are what follows.
        {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x08\0\0\0\x08\x08\x02\0\0\0\0\0\0\0", 33},
        {"\xff\xd8\xff\xc2\0\x0b\x08\0\x08\0\x08\x01\x01\x11\0\xff\xda", 17},
        {"\xff\xd8\xff\xc0\0\x0e\x08\0\x08\0\x08\x02\x01\x11\0\x02\x11\0", 18},
    };
    check(data, size);
    if (size == 0 || size > 4096) return 0;
    // The same bytes after a known beginning, so that the fuzzer need not guess signatures.
    const auto &start = STARTS[data[0] % (sizeof STARTS / sizeof *STARTS)];
    unsigned char file[4096 + 64];
    std::memcpy(file, start.bytes, start.size);
    std::memcpy(file + start.size, data + 1, size - 1);
    check(file, start.size + size - 1);
    return 0;
}
