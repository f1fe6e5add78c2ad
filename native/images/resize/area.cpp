#include "images/resize/area.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/cpu_dispatch.hpp"
#include "images/decode/row_memory.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define KSRV_SSE41 __attribute__((target("sse4.1")))
#endif

namespace ksrv {
namespace {

using Share = AreaResize::Share;

constexpr double SMALLEST_PART = 1e-3;  // OpenCV ignores smaller parts of a pixel

double scale_of(std::size_t from, std::size_t to) noexcept {
    // OpenCV divides twice; `from / to` could differ in the last bit.
    return 1.0 / (static_cast<double>(to) / static_cast<double>(from));
}

// An upper bound for the number of shares of `count` results. Each result covers whole pixels and a part of a pixel at
// each end.
std::size_t most_shares(std::size_t from, std::size_t to, std::size_t count) noexcept {
    return count * (static_cast<std::size_t>(scale_of(from, to)) + 3);
}

// Computes the shares with OpenCV's steps and precision: for each result a part of the first pixel, whole pixels, and a
// part of the last pixel. Returns the number of shares.
std::size_t make_shares(std::size_t from, std::size_t to, std::size_t start, std::size_t count,
                        Share *shares) noexcept {
    const double scale = scale_of(from, to), size = static_cast<double>(from);
    std::size_t made = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const double first = static_cast<double>(start + i) * scale, end = first + scale;
        const double cell = std::min(scale, size - first);
        const auto last_whole = std::min(static_cast<std::size_t>(std::floor(end)), from - 1);
        const auto first_whole = std::min(static_cast<std::size_t>(std::ceil(first)), last_whole);
        const auto put = [&](std::size_t source, double part) {
            shares[made++] = {static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(i),
                              static_cast<float>(part)};
        };
        const double before = static_cast<double>(first_whole) - first;
        const double rest = end - static_cast<double>(last_whole);
        if (before > SMALLEST_PART) put(first_whole - 1, before / cell);
        for (std::size_t at = first_whole; at < last_whole; ++at) put(at, 1.0 / cell);
        if (rest > SMALLEST_PART) put(last_whole, std::min(std::min(rest, 1.0), cell) / cell);
    }
    return made;
}

void sum_shares(const std::uint8_t *pixels, std::size_t channels, const Share *shares,
                std::size_t count, float *row) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint8_t *const from = pixels + shares[i].source * channels;
        float *const to = row + shares[i].result * channels;
        for (std::size_t c = 0; c < channels; ++c)
            to[c] += static_cast<float>(from[c]) * shares[i].part;
    }
}

#ifdef KSRV_SSE41
// Reads four bytes for each pixel of three channels. Therefore none of the `count` shares may be of the row's last
// pixel.
KSRV_SSE41 void sum_shares_rgb(const std::uint8_t *pixels, const Share *shares, std::size_t count,
                               float *row) noexcept {
    for (std::size_t i = 0; i < count;) {
        const std::uint32_t result = shares[i].result;
        __m128 sum = _mm_setzero_ps();
        for (; i < count && shares[i].result == result; ++i) {
            std::int32_t bytes;
            std::memcpy(&bytes, pixels + 3 * shares[i].source, 4);
            const __m128 values = _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes)));
            sum = _mm_add_ps(sum, _mm_mul_ps(values, _mm_set1_ps(shares[i].part)));
        }
        float *const to = row + 3 * result;
        _mm_storel_pi(reinterpret_cast<__m64 *>(to), sum);
        _mm_store_ss(to + 2, _mm_movehl_ps(sum, sum));
    }
}

bool has_sse41() noexcept {
    static const bool found = __builtin_cpu_supports("sse4.1");
    return found;
}
#endif

KSRV_CLONES void begin_sum(const float *__restrict row, float part, std::size_t count,
                           float *__restrict sum) noexcept {
    for (std::size_t i = 0; i < count; ++i) sum[i] = part * row[i];
}

KSRV_CLONES void add_to_sum(const float *__restrict row, float part, std::size_t count,
                            float *__restrict sum) noexcept {
    for (std::size_t i = 0; i < count; ++i) sum[i] += part * row[i];
}

// Rounds to nearest even: adding 2^23 drops the fraction of smaller values.
KSRV_CLONES void store_sum(const float *__restrict sum, std::size_t count, std::uint8_t *__restrict out) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        const float value = sum[i] < 255.0f ? sum[i] : 255.0f;
        out[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>((value + 8388608.0f) - 8388608.0f));
    }
}

}  // namespace

AreaResize::AreaResize(const ResizeWindow &window, const PixelTarget &target,
                       const Coefficients &coefficients) noexcept
    : window_(window), values_(window.out_width * window.channels),
      rows_out_(window, PIXEL_U8, target, coefficients) {
    // The source rows or columns that the results [start, start + count) cover, and at most one more.
    const auto reach = [](std::size_t start, std::size_t count, std::size_t from, std::size_t to) {
        const double scale = scale_of(from, to);
        const auto first = static_cast<std::size_t>(static_cast<double>(start) * scale);
        const auto end = static_cast<std::size_t>(static_cast<double>(start + count) * scale) + 1;
        return Lines{first, std::min(end, from) - first};
    };
    const Lines rows = reach(window.top, window.out_height, window.height, window.full_height);
    const Lines columns = reach(window.left, window.out_width, window.width, window.full_width);
    box_ = {static_cast<std::uint32_t>(rows.first), static_cast<std::uint32_t>(columns.first),
            static_cast<std::uint32_t>(rows.count), static_cast<std::uint32_t>(columns.count)};
}

bool AreaResize::prepare() noexcept {
    const std::size_t row = values_ * sizeof(float);
    const std::size_t most_columns = most_shares(window_.width, window_.full_width, window_.out_width);
    const std::size_t most_rows = most_shares(window_.height, window_.full_height, window_.out_height);
    const std::size_t shares = (most_columns + most_rows) * sizeof(Share);
    std::uint8_t *const start = reserve_rows<AreaResize>(shares + 2 * row + rows_out_.nbytes());
    if (!start) return false;
    row_ = reinterpret_cast<float *>(start + shares);
    sum_ = row_ + values_;
    rows_out_.use(reinterpret_cast<std::uint8_t *>(sum_ + values_));
    Share *const columns = reinterpret_cast<Share *>(start), *const rows = columns + most_columns;
    columns_ = columns;
    column_count_ = make_shares(window_.width, window_.full_width, window_.left, window_.out_width, columns);
    rows_ = rows;
    row_count_ = make_shares(window_.height, window_.full_height, window_.top, window_.out_height, rows);
    return true;
}

void AreaResize::take(std::uint32_t row, const std::uint8_t *pixels) noexcept {
    if (next_share_ == row_count_ || rows_[next_share_].source != row) return;
    std::size_t quick = 0;
#ifdef KSRV_SSE41
    if (window_.channels == 3 && has_sse41()) {
        quick = column_count_;
        // The last result may include the row's last pixel, so its shares are left to `sum_shares`, which reads no byte
        // after the row.
        const std::uint32_t last = columns_[quick - 1].result;
        while (quick && columns_[quick - 1].result == last) --quick;
        sum_shares_rgb(pixels, columns_, quick, row_);
    }
#endif
    const std::size_t done = quick ? (columns_[quick - 1].result + 1) * window_.channels : 0;
    std::fill(row_ + done, row_ + values_, 0.0f);  // `sum_shares` adds to these.
    sum_shares(pixels, window_.channels, columns_ + quick, column_count_ - quick, row_);
    for (; next_share_ < row_count_ && rows_[next_share_].source == row; ++next_share_) {
        const Share &share = rows_[next_share_];
        if (next_share_ == 0 || rows_[next_share_ - 1].result != share.result)
            begin_sum(row_, share.part, values_, sum_);
        else
            add_to_sum(row_, share.part, values_, sum_);
        if (next_share_ + 1 == row_count_ || rows_[next_share_ + 1].result != share.result) {
            store_sum(sum_, values_, rows_out_.place(next_));
            rows_out_.done(next_++);
        }
    }
}

}  // namespace ksrv
