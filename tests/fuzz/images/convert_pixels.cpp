// libFuzzer target for native/images/convert_pixels.hpp and native/images/resize/pillow: any sizes, types and windows that
// the callers allow keep to the memory that they were given, down to the byte.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "images/convert_pixels.hpp"
#include "images/resize/row_resize.hpp"
#include "tensor/datatype.hpp"

namespace {

class Bytes {
  public:
    Bytes(const std::uint8_t *data, std::size_t size) : data_(data), size_(size) {}
    // A number from 1 to `most`.
    std::size_t upto(std::size_t most) {
        const std::size_t value = size_ > 0 ? data_[0] : 0;
        if (size_ > 0) ++data_, --size_;
        return 1 + value % most;
    }

  private:
    const std::uint8_t *data_;
    std::size_t size_;
};

std::unique_ptr<unsigned char[]> filled(std::size_t size) {
    std::unique_ptr<unsigned char[]> memory(new unsigned char[size]);
    for (std::size_t i = 0; i < size; ++i) memory[i] = static_cast<unsigned char>(i * 37 + i / 91);
    return memory;
}

void resample(Bytes &bytes) {
    ksrv::ResizeWindow job{};
    job.height = bytes.upto(70);
    job.width = bytes.upto(70);
    job.channels = bytes.upto(4);
    job.full_height = bytes.upto(70);
    job.full_width = bytes.upto(70);
    job.top = bytes.upto(job.full_height) - 1;
    job.left = bytes.upto(job.full_width) - 1;
    job.out_height = bytes.upto(job.full_height - job.top);
    job.out_width = bytes.upto(job.full_width - job.left);
    const std::size_t row = job.width * job.channels, out_row = job.out_width * job.channels;
    const auto source = filled(job.height * row);
    const auto target = filled(job.out_height * out_row);
    ksrv::PixelTarget to{target.get(), ksrv::DT_UINT8, job.channels, {0, 1, 2, 3}, static_cast<std::ptrdiff_t>(out_row)};
    const auto resize = ksrv::make_row_resize(ksrv::ResizeKind::pillow, job, ksrv::PIXEL_U8, to, ksrv::Coefficients());
    if (!resize || !resize->prepare()) std::abort();
    for (std::uint32_t y = 0; y < job.height; ++y) resize->take(y, source.get() + y * row);
}

void convert(Bytes &bytes) {
    static constexpr std::size_t ITEMS[] = {1, 2, 2, 4, 8};
    static constexpr int TARGETS[] = {
        ksrv::DT_FP32, ksrv::DT_FP64,  ksrv::DT_FP16,  ksrv::DT_BF16, ksrv::DT_UINT8,
        ksrv::DT_INT8, ksrv::DT_INT16, ksrv::DT_INT32, ksrv::DT_UINT16};
    ksrv::PixelSource source;
    ksrv::PixelTarget target;
    ksrv::Coefficients coefficients;
    source.type = static_cast<int>(bytes.upto(5)) - 1;
    source.height = bytes.upto(12);
    source.width = bytes.upto(250);
    source.channels = bytes.upto(4);
    target.datatype = TARGETS[bytes.upto(9) - 1];
    target.channels = bytes.upto(4);
    for (std::size_t i = 0; i < target.channels; ++i)
        target.from[i] = static_cast<int>(bytes.upto(source.channels)) - 1;
    coefficients.arithmetic = static_cast<int>(bytes.upto(3)) - 1;
    coefficients.scale = static_cast<double>(bytes.upto(255));
    const std::size_t item = ksrv::item_size_of(static_cast<ksrv::Datatype>(target.datatype));
    const std::size_t in_row = source.width * source.channels * ITEMS[source.type];
    const std::size_t out_row = source.width * item * target.channels;
    const auto in = filled(source.height * in_row);
    const auto out = filled(source.height * source.width * target.channels * item);
    source.data = in.get();
    source.row_bytes = static_cast<std::ptrdiff_t>(in_row);
    target.data = out.get();
    target.row_bytes = static_cast<std::ptrdiff_t>(out_row);
    ksrv::convert_pixels(source, target, coefficients);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    Bytes bytes(data, size);
    if (bytes.upto(2) == 1)
        resample(bytes);
    else
        convert(bytes);
    return 0;
}
