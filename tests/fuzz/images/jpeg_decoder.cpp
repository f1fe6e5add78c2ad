// libFuzzer target for native/images/decode/jpeg_decoder.hpp and native/images/resize/row_resize.hpp: for any file and
// any size from the header check, every row stays inside of the picture and of the
// window, a window is the same whether rows and columns outside of it are decoded or skipped, and a picture
// equals the library's, whichever code reads the Huffman codes.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "images/decode/jpeg_decoder.hpp"
#include "images/resize/row_resize.hpp"
#include "tensor/datatype.hpp"

namespace {

constexpr std::size_t SIDE_MOST = 512;  // so that a lie about the size does not cost the fuzzer its time

std::uint16_t number(const unsigned char *at) { return static_cast<std::uint16_t>(at[0] << 8 | at[1]); }

// The size in the first frame header of the file, so that most inputs get past that check.
bool told_size(const unsigned char *data, std::size_t size, ksrv::JpegJob *job) {
    for (std::size_t at = 0; at + 9 < size; ++at) {
        if (data[at] != 0xff || (data[at + 1] != 0xc0 && data[at + 1] != 0xc2)) continue;
        job->height = number(data + at + 5);
        job->width = number(data + at + 7);
        return job->height && job->width && job->height <= SIDE_MOST && job->width <= SIDE_MOST;
    }
    return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 4) return 0;
    const std::size_t out_height = 1 + data[0] % 40, out_width = 1 + data[1] % 40;
    const unsigned choice = data[2], lie = data[3];
    data += 4, size -= 4;
    // A copy of the exact size, so that the sanitizer sees a read of one byte too many.
    std::unique_ptr<unsigned char[]> file(new unsigned char[size]);
    if (size) std::memcpy(file.get(), data, size);
    ksrv::JpegJob job{};
    job.data = file.get();
    job.size = size;
    job.order = static_cast<ksrv::PixelOrder>(choice % 3);
    job.reduction = 1u << (choice / 3 % 4);
    if (!told_size(file.get(), size, &job)) return 0;
    job.height = (job.height + job.reduction - 1) / job.reduction + (lie == 1);
    job.width = (job.width + job.reduction - 1) / job.reduction + (lie == 2);
    const std::size_t channels = job.order == ksrv::PixelOrder::grey ? 1 : 3;

    const std::size_t row = job.width * channels;
    std::unique_ptr<std::uint8_t[]> picture(new std::uint8_t[row * job.height]);
    ksrv::WholePicture whole(picture.get(), static_cast<std::ptrdiff_t>(row));
    const ksrv::Decoded first = ksrv::decode_jpeg(job, whole);

    if (first == ksrv::Decoded::whole) {
        ksrv::JpegJob all_by_library = job;
        all_by_library.codes_by_library = true;
        std::unique_ptr<std::uint8_t[]> wanted(new std::uint8_t[row * job.height]);
        ksrv::WholePicture receiver(wanted.get(), static_cast<std::ptrdiff_t>(row));
        const ksrv::Decoded result = ksrv::decode_jpeg(all_by_library, receiver);
        if (result == ksrv::Decoded::no_memory) return 0;
        if (result != first || std::memcmp(picture.get(), wanted.get(), row * job.height) != 0) std::abort();
    }

    ksrv::ResizeWindow job_window{};
    job_window.height = job.height;
    job_window.width = job.width;
    job_window.channels = channels;
    job_window.full_height = out_height + choice % 5;
    job_window.full_width = out_width + choice % 7;
    job_window.top = choice % 5;
    job_window.left = choice % 7;
    job_window.out_height = out_height;
    job_window.out_width = out_width;
    // A crop of the picture as it is, if the picture is large enough.
    if (choice >= 128 && job.height >= job_window.full_height && job.width >= job_window.full_width) {
        job_window.full_height = job.height;
        job_window.full_width = job.width;
    }
    const auto kind = static_cast<ksrv::ResizeKind>(choice / 12 % 4);
    if (!ksrv::resizes_by_rows(kind, job_window)) return 0;
    const std::size_t values = out_height * out_width * channels;
    const auto resized = [&](float *window, bool decoding) {
        ksrv::PixelTarget target{};
        target.data = reinterpret_cast<unsigned char *>(window);
        target.datatype = ksrv::DT_FP32;
        target.channels = channels;
        for (std::size_t c = 0; c < channels; ++c) target.from[c] = static_cast<int>(channels - 1 - c);
        target.row_bytes = static_cast<std::ptrdiff_t>(out_width * channels * sizeof(float));
        const auto resize =
            ksrv::make_row_resize(kind, job_window, ksrv::PIXEL_U8, target, ksrv::Coefficients{});
        if (!resize || !resize->prepare()) return ksrv::Decoded::no_memory;
        if (decoding) return ksrv::decode_jpeg(job, *resize);
        for (std::uint32_t y = 0; y < job.height; ++y) resize->take(y, picture.get() + y * row);
        return ksrv::Decoded::whole;
    };
    std::unique_ptr<float[]> window(new float[values]), wanted(new float[values]);
    const ksrv::Decoded second = resized(window.get(), true);
    if (second == ksrv::Decoded::no_memory || first == ksrv::Decoded::no_memory) return 0;
    if (second != first) std::abort();
    if (first != ksrv::Decoded::whole) return 0;
    resized(wanted.get(), false);
    if (std::memcmp(window.get(), wanted.get(), values * sizeof(float)) != 0) std::abort();
    return 0;
}
