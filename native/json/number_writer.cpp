#include "json/number_writer.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

namespace ksrv {

namespace {

// The most digits before the point of a number without an exponent. 0 and negative values count zeros after the point.
template <class T> struct Plain;
template <> struct Plain<float> {
    static constexpr int most = 13, least = -6;
};
template <> struct Plain<double> {
    static constexpr int most = 16, least = -5;
};

char *put_text(char *at, const char *text, std::size_t length) noexcept {
    std::memcpy(at, text, length);
    return at + length;
}

char *put_zeros(char *at, int count) noexcept {
    std::memset(at, '0', static_cast<std::size_t>(count));
    return at + count;
}

// Writes 0.ddd * 10^leading.
template <class T> char *lay_out(char *at, const char *digits, int count, int leading) noexcept {
    const auto size = [](int length) { return static_cast<std::size_t>(length); };
    if (leading > Plain<T>::most || leading <= Plain<T>::least) {
        *at++ = digits[0];
        if (count > 1) *at++ = '.';
        at = put_text(at, digits + 1, size(count - 1));
        *at++ = 'e';
        if (leading > 0) *at++ = '+';
        return std::to_chars(at, at + 5, leading - 1).ptr;
    }
    if (leading <= 0) return put_text(put_zeros(put_text(at, "0.", 2), -leading), digits, size(count));
    if (count <= leading) {
        at = put_zeros(put_text(at, digits, size(count)), leading - count);
        return put_text(at, ".0", 2);
    }
    at = put_text(at, digits, size(leading));
    *at++ = '.';
    return put_text(at, digits + leading, size(count - leading));
}

constexpr int LEAST_TEN = -31;
constexpr double TENS[] = {
    1e-31, 1e-30, 1e-29, 1e-28, 1e-27, 1e-26, 1e-25, 1e-24, 1e-23, 1e-22, 1e-21, 1e-20, 1e-19, 1e-18, 1e-17,
    1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1,
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35,
    1e36, 1e37, 1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45,
};

// The shortest decimal that reads back as `value` (positive), and the closest such decimal: *digits * 10^*power. False
// if doubles may be too coarse to decide.
//
// The value is scaled so that the numbers that read back as it are within an interval shorter than ten. If the interval
// has a multiple of ten, that is the shortest, otherwise the closest integer. With the 24 bits of a float, scaled
// numbers are below 2^28, and their errors below 2^-23.
bool find_shortest(float value, std::uint32_t *digits, int *power) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFF) == 0) return false;  // a power of two has a closer lower neighbour
    const int biased = static_cast<int>(bits >> 23);
    const int exponent = (biased != 0 ? biased : 1) - 150;  // of the distance between neighbours
    *power = (exponent * 78913) >> 18;                      // floor(log10) of that distance
    const double scale = TENS[-*power - LEAST_TEN];
    const std::uint64_t half_bits = static_cast<std::uint64_t>(exponent - 1 + 1023) << 52;
    double half;
    std::memcpy(&half, &half_bits, sizeof half);
    const double scaled = static_cast<double>(value) * scale;
    const double low = scaled - half * scale, high = scaled + half * scale;
    constexpr double near = 1e-6;
    // 0: neither reads back as `value`; -1: too close to decide
    const auto pick = [&](std::uint32_t below, std::uint32_t step) {
        const double down = below, up = down + step;
        if (std::fabs(down - low) < near || std::fabs(up - high) < near) return -1;
        if (down <= low && up >= high) return 0;
        const double beyond_middle = scaled - down - step / 2.0;
        if (down > low && up < high && std::fabs(beyond_middle) < near) return -1;
        *digits = up < high && (down <= low || beyond_middle > 0) ? below + step : below;
        return 1;
    };
    const auto whole = static_cast<std::uint32_t>(scaled);
    int picked = pick(whole / 10 * 10, 10);
    if (picked == 0) picked = pick(whole, 1);
    if (picked != 1 || *digits == 0) return false;
    for (; *digits % 10 == 0; *digits /= 10) ++*power;
    return true;
}

bool find_shortest(double, std::uint32_t *, int *) noexcept { return false; }

template <class T> char *put_exactly(char *at, T value) noexcept {
    char text[32];  // d.ddde-XX
    const char *end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
    const char *e = end;
    while (*--e != 'e') {
    }
    int power = 0;
    for (const char *digit = e + 2; digit != end; ++digit) power = power * 10 + (*digit - '0');
    const int count = e - text > 2 ? static_cast<int>(e - text) - 1 : 1;
    if (count > 1) text[1] = text[0];
    return lay_out<T>(at, count > 1 ? text + 1 : text, count, (e[1] == '-' ? -power : power) + 1);
}

template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
char *put_value(char *at, T value) noexcept {
    if (!std::isfinite(value)) return put_text(at, "null", 4);
    if (std::signbit(value)) {
        *at++ = '-';
        value = -value;
    }
    // Below the precision of the type, the digits of an integer are the shortest.
    constexpr auto whole = static_cast<T>(std::uint64_t{1} << std::numeric_limits<T>::digits);
    if (value < whole) {
        const auto number = static_cast<std::uint64_t>(value);
        if (static_cast<T>(number) == value)
            return put_text(std::to_chars(at, at + 20, number).ptr, ".0", 2);
    }
    std::uint32_t digits;
    int power;
    if (!find_shortest(value, &digits, &power)) return put_exactly(at, value);
    char text[10];
    const int count = static_cast<int>(std::to_chars(text, text + sizeof text, digits).ptr - text);
    return lay_out<T>(at, text, count, count + power);
}

char *put_value(char *at, bool value) noexcept {
    return value ? put_text(at, "true", 4) : put_text(at, "false", 5);
}

template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
char *put_value(char *at, T value) noexcept {
    return std::to_chars(at, at + 20, value).ptr;
}

// Values in the rows of a batch may be unaligned.
template <class T> T value_at(const unsigned char *data, std::uint64_t index) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
        return data[index] != 0;
    } else {
        T value;
        std::memcpy(&value, data + index * sizeof(T), sizeof(T));
        return value;
    }
}

// The most bytes of a value and its comma.
template <class T> constexpr std::size_t most_bytes() noexcept {
    if (std::is_same_v<T, bool>) return sizeof "false,"  - 1;
    if (std::is_same_v<T, float>) return sizeof "-0.00000123456789," - 1;
    if (std::is_same_v<T, double>) return sizeof "-0.000012345678901234567," - 1;
    return std::numeric_limits<T>::digits10 + 1 + std::is_signed_v<T> + 1;
}

}  // namespace

std::size_t json_value_bytes(Datatype datatype) noexcept {
    std::size_t most = 0;
    with_number(datatype, [&](auto zero) { most = most_bytes<decltype(zero)>(); });
    return most;
}

void put_numbers(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    with_number(datatype, [&](auto zero) {
        using Number = decltype(zero);
        out.put("[");
        for (std::uint64_t i = 0; i < count && !out.full(); ++i) {
            out.write(most_bytes<Number>(), [&](char *at) {
                if (i != 0) *at++ = ',';
                return put_value(at, value_at<Number>(data, i));
            });
        }
        out.put("]");
    });
}

bool all_finite(Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    bool all = true;
    with_number(datatype, [&](auto zero) {
        using Number = decltype(zero);
        if constexpr (std::is_floating_point_v<Number>)
            for (std::uint64_t i = 0; i < count && all; ++i) all = std::isfinite(value_at<Number>(data, i));
    });
    return all;
}

}  // namespace ksrv
