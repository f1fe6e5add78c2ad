#include "images/resize/result_rows.hpp"

#include "tensor/datatype.hpp"

namespace ksrv {

ResultRows::ResultRows(const ResizeWindow &window, PixelType type, const PixelTarget &target,
                       const Coefficients &coefficients) noexcept
    : target_(target), coefficients_(coefficients), type_(type), height_(window.out_height),
      width_(window.out_width), channels_(window.channels),
      row_bytes_(width_ * channels_ * (type == PIXEL_U8 ? 1 : sizeof(float))) {
    direct_ = target.datatype == (type == PIXEL_U8 ? DT_UINT8 : DT_FP32) &&
              coefficients.arithmetic == ARITHMETIC_NONE && keeps_order(target, channels_);
}

void ResultRows::convert(std::size_t end) noexcept {
    PixelSource source{};
    source.data = rows_;
    source.type = type_;
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
