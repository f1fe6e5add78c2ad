#include "images/resize/byte_rows.hpp"

#include "tensor/datatype.hpp"

namespace ksrv {

ByteRows::ByteRows(const PixelTarget &target, const Coefficients &coefficients, std::size_t height,
                   std::size_t width, std::size_t channels) noexcept
    : target_(target), coefficients_(coefficients), height_(height), width_(width),
      channels_(channels), row_bytes_(width * channels) {
    direct_ = target.datatype == DT_UINT8 && coefficients.arithmetic == ARITHMETIC_NONE &&
              keeps_order(target, channels);
}

void ByteRows::convert(std::size_t end) noexcept {
    PixelSource source{};
    source.data = rows_;
    source.type = PIXEL_U8;
    source.height = end - first_;
    source.width = width_;
    source.channels = channels_;
    source.row_bytes = static_cast<std::ptrdiff_t>(row_bytes_);
    PixelTarget target = target_;
    target.data += static_cast<std::ptrdiff_t>(first_) * target_.row_bytes;
    convert_pixels(source, target, coefficients_);
    first_ = end;
}

}  // namespace ksrv
