#include "json/number_writer.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

namespace ksrv {

namespace {

// How large and how small a number may be to be written without an exponent: as the position of its first digit,
// counted from the point. 1 is the last digit before the point; 0 and negative positions are after it. The bounds are
// orjson's.
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

// Writes 0.ddd * 10^leading, where ddd are the `count` digits.
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

// Writes the shortest decimal that reads back as `value`, which is positive.
template <class T> char *put_shortest(char *at, T value) noexcept {
    char text[32];  // d.ddde-XX
    const char *end = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr;
    const char *e = end;
    while (*--e != 'e') {
    }
    int power = 0;
    for (const char *digit = e + 2; digit != end; ++digit) power = power * 10 + (*digit - '0');
    const int count = e - text > 2 ? static_cast<int>(e - text) - 1 : 1;
    if (count > 1) text[1] = text[0];  // moves the first digit over the point, so that all digits are contiguous
    return lay_out<T>(at, count > 1 ? text + 1 : text, count, (e[1] == '-' ? -power : power) + 1);
}

template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
char *put_value(char *at, T value) noexcept {
    if (!std::isfinite(value)) return put_text(at, "null", 4);
    if (std::signbit(value)) {
        *at++ = '-';
        value = -value;
    }
    // Integral values that the type represents exactly, up to 2^24 or 2^53.
    constexpr auto whole = static_cast<T>(std::uint64_t{1} << std::numeric_limits<T>::digits);
    if (value < whole) {
        const auto number = static_cast<std::uint64_t>(value);
        if (static_cast<T>(number) == value)
            return put_text(std::to_chars(at, at + 20, number).ptr, ".0", 2);
    }
    return put_shortest(at, value);
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

namespace {

// Values without brackets. All callers share the code, because the compiler inlines `put_value` into one function only.
void put_values(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    with_number(datatype, [&](auto zero) {
        using Number = decltype(zero);
        for (std::uint64_t i = 0; i < count && !out.full(); ++i) {
            out.write(most_bytes<Number>(), [&](char *at) {
                if (i != 0) *at++ = ',';
                return put_value(at, value_at<Number>(data, i));
            });
        }
    });
}

}  // namespace

void put_numbers(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    out.put("[");
    put_values(out, datatype, data, count);
    out.put("]");
}

void put_nested(TextWriter &out, Datatype datatype, const unsigned char *data, const std::ptrdiff_t *shape, int rank,
                std::int64_t first) noexcept {
    if (rank == 0) return put_values(out, datatype, data, 1);
    const std::int64_t count = first < 0 ? shape[0] : first;
    if (rank == 1) return put_numbers(out, datatype, data, static_cast<std::uint64_t>(count));
    std::size_t step = item_size_of(datatype);
    for (int i = 1; i < rank; ++i) step *= static_cast<std::size_t>(shape[i]);
    out.put("[");
    for (std::int64_t i = 0; i < count && !out.full(); ++i, data += step) {
        if (i != 0) out.put(",");
        put_nested(out, datatype, data, shape + 1, rank - 1);
    }
    out.put("]");
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
