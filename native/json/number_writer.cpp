#include "json/number_writer.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

namespace ksrv {

namespace {

// Decimal places up to which a number is written without an exponent. `leading` is the number of digits in
// front of the point; 0 and below counts the zeros behind it.
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

// What std::to_chars wrote as d.ddde-XX, laid out anew.
char *lay_out(char *at, const char *text, const char *end, int most, int least) noexcept {
    const char *e = end;
    while (*--e != 'e') {
    }
    int power = 0;
    for (const char *digit = e + 2; digit != end; ++digit) power = power * 10 + (*digit - '0');
    const int leading = (e[1] == '-' ? -power : power) + 1;
    const char *fraction = text + 2;  // behind the point, where there is one
    const int digits = e - text > 2 ? static_cast<int>(e - fraction) : 0;
    if (leading > most || leading <= least) {
        at = put_text(at, text, static_cast<std::size_t>(e - text));
        *at++ = 'e';
        *at++ = e[1];
        const char *exponent = e + 2;  // two digits at least; here without a zero in front
        if (*exponent == '0') ++exponent;
        return put_text(at, exponent, static_cast<std::size_t>(end - exponent));
    }
    if (leading <= 0) {
        at = put_zeros(put_text(at, "0.", 2), -leading);
        *at++ = text[0];
        return put_text(at, fraction, static_cast<std::size_t>(digits));
    }
    *at++ = text[0];
    if (digits < leading) {
        at = put_zeros(put_text(at, fraction, static_cast<std::size_t>(digits)), leading - 1 - digits);
        return put_text(at, ".0", 2);
    }
    at = put_text(at, fraction, static_cast<std::size_t>(leading - 1));
    *at++ = '.';
    return put_text(at, fraction + leading - 1, static_cast<std::size_t>(digits - leading + 1));
}

template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
char *put_value(char *at, T value) noexcept {
    if (!std::isfinite(value)) return put_text(at, "null", 4);
    if (std::signbit(value)) {
        *at++ = '-';
        value = -value;
    }
    // Below the precision of the type a whole number's own digits are the shortest.
    constexpr auto whole = static_cast<T>(std::uint64_t{1} << std::numeric_limits<T>::digits);
    if (value < whole) {
        const auto number = static_cast<std::uint64_t>(value);
        if (static_cast<T>(number) == value)
            return put_text(std::to_chars(at, at + 20, number).ptr, ".0", 2);
    }
    char text[32];
    const std::to_chars_result made = std::to_chars(text, text + sizeof text, value, std::chars_format::scientific);
    return lay_out(at, text, made.ptr, Plain<T>::most, Plain<T>::least);
}

char *put_value(char *at, bool value) noexcept {
    return value ? put_text(at, "true", 4) : put_text(at, "false", 5);
}

template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
char *put_value(char *at, T value) noexcept {
    return std::to_chars(at, at + 20, value).ptr;
}

// Values need not be aligned in the rows of a batch.
template <class T> T value_at(const unsigned char *data, std::uint64_t index) noexcept {
    if constexpr (std::is_same_v<T, bool>) {
        return data[index] != 0;
    } else {
        T value;
        std::memcpy(&value, data + index * sizeof(T), sizeof(T));
        return value;
    }
}

template <class T>
void put_all(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    const std::size_t most = json_value_bytes(datatype);
    out.put("[");
    for (std::uint64_t i = 0; i < count && !out.full(); ++i) {
        out.write(most, [&](char *at) {
            if (i != 0) *at++ = ',';
            return put_value(at, value_at<T>(data, i));
        });
    }
    out.put("]");
}

template <class T> bool finite(const unsigned char *data, std::uint64_t count) noexcept {
    for (std::uint64_t i = 0; i < count; ++i)
        if (!std::isfinite(value_at<T>(data, i))) return false;
    return true;
}

}  // namespace

std::size_t json_value_bytes(Datatype datatype) noexcept {
    switch (datatype) {
        case DT_BOOL: return 6;
        case DT_UINT8: return 4;
        case DT_INT8: return 5;
        case DT_UINT16: return 6;
        case DT_INT16: return 7;
        case DT_UINT32: return 11;
        case DT_INT32: return 12;
        case DT_UINT64: return 21;
        case DT_INT64: return 21;
        case DT_FP32: return 18;  // -0.00000123456789 and its comma
        case DT_FP64: return 25;  // -0.000012345678901234567
        default: return 0;
    }
}

void put_numbers(TextWriter &out, Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    switch (datatype) {
        case DT_BOOL: return put_all<bool>(out, datatype, data, count);
        case DT_UINT8: return put_all<std::uint8_t>(out, datatype, data, count);
        case DT_INT8: return put_all<std::int8_t>(out, datatype, data, count);
        case DT_UINT16: return put_all<std::uint16_t>(out, datatype, data, count);
        case DT_INT16: return put_all<std::int16_t>(out, datatype, data, count);
        case DT_UINT32: return put_all<std::uint32_t>(out, datatype, data, count);
        case DT_INT32: return put_all<std::int32_t>(out, datatype, data, count);
        case DT_UINT64: return put_all<std::uint64_t>(out, datatype, data, count);
        case DT_INT64: return put_all<std::int64_t>(out, datatype, data, count);
        case DT_FP32: return put_all<float>(out, datatype, data, count);
        case DT_FP64: return put_all<double>(out, datatype, data, count);
        default: return;
    }
}

bool all_finite(Datatype datatype, const unsigned char *data, std::uint64_t count) noexcept {
    if (datatype == DT_FP32) return finite<float>(data, count);
    if (datatype == DT_FP64) return finite<double>(data, count);
    return true;
}

}  // namespace ksrv
