// The numbers of a JSON tensor, flat or nested, straight into typed memory.
//
// Strategy: one pass, no recursion; brackets only raise and lower a level, so ragged nesting is
// judged by the count alone, as everywhere in the protocol's family. Digits are gathered eight at a
// time. A real number of at most 19 digits is scaled by an exact power of ten in extended precision
// and rounded once; where that rounding could differ from the correct one, and for everything else,
// std::from_chars decides. Integers are exact over their whole range and range-checked. NaN,
// Infinity and -Infinity are accepted for real datatypes, a number that no finite value is near
// (1e400) never becomes one of them.
//
// Nothing here allocates, throws or knows Python.

#pragma once

#include <cfloat>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>

#include "datatype.hpp"
#include "json.hpp"

namespace ksrv {

enum NumbersFault : int {
    NUMBERS_OK = 0,
    NUMBERS_SYNTAX,
    NUMBERS_END,
    NUMBERS_KIND,      // a value of another kind: null, a string, true where a number belongs
    NUMBERS_FRACTION,  // a fraction or exponent where an integer belongs
    NUMBERS_RANGE,     // outside the datatype's range
    NUMBERS_DATATYPE,  // not a datatype that JSON can carry
};

struct NumbersResult {
    NumbersFault error = NUMBERS_OK;
    std::size_t offset = 0;   // of the fault
    std::uint64_t count = 0;  // values read, and so the index of the value at fault
};

namespace detail {

inline constexpr std::uint64_t SMALL_POWERS[] = {1,      10,      100,      1000,     10000,
                                                 100000, 1000000, 10000000, 100000000};

// The number that eight digit values write, the first of them in the lowest byte.
inline std::uint32_t eight_digits(std::uint64_t values) noexcept {
    values = values * 10 + (values >> 8);
    return static_cast<std::uint32_t>(
        ((values & 0x000000FF000000FFULL) * 0x000F424000000064ULL +
         (values >> 16 & 0x000000FF000000FFULL) * 0x0000271000000001ULL) >>
        32);
}

// Appends digits to `*value`, which wraps silently: the caller counts the digits. The byte at `end`
// is never read; the caller's last byte is a bracket, so that a run always stops before it.
//
// Eight bytes are looked at together. Where the run ends among them its digits are shifted to the
// end of the word, behind zeros, so that runs of any length cost the same and nothing is guessed.
inline const char *gather_digits(const char *at, const char *end, std::uint64_t *value) noexcept {
    std::uint64_t sum = *value;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - at >= 8) {
        std::uint64_t values = json::load8(at) ^ json::repeat('0');
        // A carry out of a byte above 0x89 only disturbs later bytes, behind the run's end.
        const std::uint64_t other = ((values + json::repeat(0x76)) | values) & json::repeat(0x80);
        if (other != 0) {
            const int count = __builtin_ctzll(other) / 8;
            values = values << 8 * (7 - count) << 8;
            *value = sum * SMALL_POWERS[count] + eight_digits(values);
            return at + count;
        }
        sum = sum * 100000000 + eight_digits(values);
        at += 8;
    }
#endif
    while (json::is_digit(*at)) sum = sum * 10 + static_cast<std::uint64_t>(*at++ - '0');
    *value = sum;
    return at;
}

inline constexpr double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

#if LDBL_MANT_DIG == 64
// Powers of ten that 64 bits of mantissa hold exactly.
inline constexpr long double LONG_POWERS[] = {
    1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
    1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
#endif

// digits * 10^exponent where that is certainly the nearest double; false where it may not be.
inline bool scale_fast(std::uint64_t digits, std::int64_t exponent, double *value) noexcept {
    if (digits <= (std::uint64_t{1} << 53) && exponent >= -22 && exponent <= 22) {
        const auto exact = static_cast<double>(digits);  // both operands exact: rounded once
        *value = exponent < 0 ? exact / POWERS[-exponent] : exact * POWERS[exponent];
        return true;
    }
#if LDBL_MANT_DIG == 64
    if (digits != 0 && exponent >= -27 && exponent <= 27) {
        const auto exact = static_cast<long double>(digits);
        const long double scaled =
            exponent < 0 ? exact / LONG_POWERS[-exponent] : exact * LONG_POWERS[exponent];
        // Rounding twice, to 64 bits and then to 53, goes wrong only at the midpoint of two doubles.
        std::uint64_t mantissa;
        std::memcpy(&mantissa, &scaled, 8);
        if (((mantissa & 0x7FF) + 1 - 0x400) > 2) {
            *value = static_cast<double>(scaled);
            return true;
        }
    }
#endif
    return false;
}

class NumberReader {
public:
    NumberReader(const char *data, std::size_t length, NumbersResult *result) noexcept
        : begin_(data), at_(data), end_(data + length), result_(*result) {}

    template <class T>
    bool run(T *out, std::uint64_t capacity) noexcept {
        // The last byte is a bracket, so no token can run into the end.
        if (begin_ == end_ || *at_ != '[') return fail(NUMBERS_SYNTAX);
        if (end_[-1] != ']') {
            at_ = end_;
            return fail(NUMBERS_END);
        }
        std::uint64_t count = 0;
        unsigned level = 0;
        bool opened = false;  // directly behind an opening bracket
        for (;;) {
            if (!space()) return stop(NUMBERS_END, count);
            if (*at_ == '[') {
                ++level;
                ++at_;
                opened = true;
                continue;
            }
            if (*at_ != ']' || !opened) {
                T value;
                if (!scalar(&value)) return stop(result_.error, count);
                if (count < capacity) out[count] = value;
                ++count;
                if (at_ != end_ && *at_ == ',') {  // the common case, without white space
                    ++at_;
                    opened = false;
                    continue;
                }
                if (!space()) return stop(NUMBERS_END, count);
            }
            while (*at_ == ']') {
                ++at_;
                if (--level == 0) {
                    result_.count = count;
                    return at_ == end_ || stop(NUMBERS_SYNTAX, count);
                }
                if (!space()) return stop(NUMBERS_END, count);
            }
            if (*at_ != ',') return stop(NUMBERS_SYNTAX, count);
            ++at_;
            opened = false;
        }
    }

private:
    bool fail(NumbersFault error) noexcept {
        result_.error = error;
        result_.offset = static_cast<std::size_t>(at_ - begin_);
        return false;
    }

    bool fail(NumbersFault error, const char *at) noexcept {
        at_ = at;
        return fail(error);
    }

    bool stop(NumbersFault error, std::uint64_t count) noexcept {
        result_.count = count;
        return fail(error);
    }

    bool space() noexcept {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
        return at_ != end_;
    }

    bool other_kind() noexcept {
        const char c = *at_;
        const bool value = c == '"' || c == 'n' || c == 't' || c == 'f' || c == '-' || json::is_digit(c);
        return fail(value ? NUMBERS_KIND : NUMBERS_SYNTAX);
    }

    bool word(const char *text, std::size_t length) noexcept {
        json::Cursor cursor{at_, end_};
        if (json::skip_word(cursor, text, length) != json::OK) return false;
        at_ = cursor.at;
        return true;
    }

    bool scalar(bool *value) noexcept {
        if (*at_ == 't' && word("true", 4)) return *value = true;
        if (*at_ == 'f' && word("false", 5)) {
            *value = false;
            return true;
        }
        return other_kind();
    }

    template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
    bool scalar(T *value) noexcept {
        const char *start = at_;
        const bool negative = *at_ == '-';
        at_ += negative;
        if (!json::is_digit(*at_)) return fail(negative ? NUMBERS_SYNTAX : kind_at(start), start);
        const char *first = at_;
        std::uint64_t digits = 0;
        at_ = gather_digits(at_, end_, &digits);
        const auto count = static_cast<std::size_t>(at_ - first);
        if (*first == '0' && count > 1) return fail(NUMBERS_SYNTAX, start);
        if (*at_ == '.' || (*at_ | 0x20) == 'e') return fail(NUMBERS_FRACTION, start);
        if (count > 19 && !twenty_digits(first, count, &digits)) return fail(NUMBERS_RANGE, start);
        constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
        if (!negative) {
            if (digits > most) return fail(NUMBERS_RANGE, start);
            *value = static_cast<T>(digits);
            return true;
        }
        if (digits > (std::is_signed_v<T> ? most + 1 : 0)) return fail(NUMBERS_RANGE, start);
        *value = static_cast<T>(std::uint64_t{0} - digits);
        return true;
    }

    static bool twenty_digits(const char *first, std::size_t count, std::uint64_t *digits) noexcept {
        json::Cursor cursor{first, first + count};
        bool too_large = false;
        return json::parse_digits(cursor, 20, UINT64_MAX, digits, &too_large);
    }

    NumbersFault kind_at(const char *at) noexcept {
        return *at == '"' || *at == 'n' || *at == 't' || *at == 'f' ? NUMBERS_KIND : NUMBERS_SYNTAX;
    }

    template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
    bool scalar(T *value) noexcept {
        const char *start = at_;
        double result = 0;
        const bool negative = *at_ == '-';
        at_ += negative;
        if (!json::is_digit(*at_)) {
            if (*at_ == 'I' && word("Infinity", 8)) {
                result = std::numeric_limits<double>::infinity();
            } else if (!negative && *at_ == 'N' && word("NaN", 3)) {
                result = std::numeric_limits<double>::quiet_NaN();
            } else {
                return fail(negative ? NUMBERS_SYNTAX : kind_at(start), start);
            }
            *value = static_cast<T>(negative ? -result : result);
            return true;
        }
        const char *first = at_;
        std::uint64_t digits = 0;
        std::int64_t exponent = 0;
        digits = static_cast<std::uint64_t>(*at_++ - '0');  // most often the only one before the point
        if (json::is_digit(*at_)) at_ = gather_digits(at_, end_, &digits);
        if (*first == '0' && at_ - first > 1) return fail(NUMBERS_SYNTAX, start);
        std::ptrdiff_t count = at_ - first;
        if (*at_ == '.') {
            const char *fraction = ++at_;
            at_ = gather_digits(at_, end_, &digits);
            if (at_ == fraction) return fail(NUMBERS_SYNTAX);
            exponent = fraction - at_;
            count -= exponent;
            if (count > 19 && *first == '0') {  // zeros in front are no digits
                const char *significant = fraction;
                while (*significant == '0') ++significant;
                count = at_ - significant;
            }
        }
        if ((*at_ | 0x20) == 'e') {
            ++at_;
            const bool minus = *at_ == '-';
            at_ += minus || *at_ == '+';
            if (!json::is_digit(*at_)) return fail(NUMBERS_SYNTAX);
            std::int64_t power = 0;
            for (; json::is_digit(*at_); ++at_)
                if (power < 100000) power = power * 10 + (*at_ - '0');
            exponent += minus ? -power : power;
        }
        if (count > 19 || !scale_fast(digits, exponent, &result)) {
            if (!scale_exactly(first, &result)) return fail(NUMBERS_RANGE, start);
        }
        result = std::copysign(result, negative ? -1.0 : 1.0);
        *value = static_cast<T>(result);
        // A double beyond FP32's range would become infinite.
        if (!std::isfinite(*value)) return fail(NUMBERS_RANGE, start);
        return true;
    }

    // The nearest double of the token that ends at the cursor; false where it is infinite.
    bool scale_exactly(const char *first, double *result) noexcept {
        const std::from_chars_result parsed = std::from_chars(first, at_, *result);
        if (parsed.ec == std::errc()) return std::isfinite(*result);
        // Out of range: too large, or so small that it is zero. A zero with any exponent is zero.
        const char *e = first;
        bool zero = true, leading = true;
        std::int64_t magnitude = 0;  // of the first digit that is not zero, as a power of ten
        bool fraction = false;
        for (; e != at_ && (*e | 0x20) != 'e'; ++e) {
            if (*e == '.') {
                fraction = true;
                continue;
            }
            if (*e != '0') {
                zero = false;
                leading = false;
            }
            if (!fraction && !leading) ++magnitude;
            if (fraction && leading) --magnitude;
        }
        std::int64_t power = 0;
        if (e != at_) {
            const bool minus = e[1] == '-';
            for (const char *p = e + 1; p != at_; ++p)
                if (json::is_digit(*p) && power < 1000000000000) power = power * 10 + (*p - '0');
            if (minus) power = -power;
        }
        *result = 0;
        return zero || magnitude + power < 0;
    }

    const char *begin_;
    const char *at_;
    const char *end_;
    NumbersResult &result_;
};

}  // namespace detail

// Reads the JSON array `data[0:length]` into at most `capacity` values at `out`. All values are
// counted and checked, also those beyond the capacity.
inline NumbersFault read_numbers(const char *data, std::size_t length, Datatype datatype, void *out,
                                 std::uint64_t capacity, NumbersResult *result) noexcept {
    detail::NumberReader reader(data, length, result);
    switch (datatype) {
        case DT_BOOL: reader.run(static_cast<bool *>(out), capacity); break;
        case DT_UINT8: reader.run(static_cast<std::uint8_t *>(out), capacity); break;
        case DT_UINT16: reader.run(static_cast<std::uint16_t *>(out), capacity); break;
        case DT_UINT32: reader.run(static_cast<std::uint32_t *>(out), capacity); break;
        case DT_UINT64: reader.run(static_cast<std::uint64_t *>(out), capacity); break;
        case DT_INT8: reader.run(static_cast<std::int8_t *>(out), capacity); break;
        case DT_INT16: reader.run(static_cast<std::int16_t *>(out), capacity); break;
        case DT_INT32: reader.run(static_cast<std::int32_t *>(out), capacity); break;
        case DT_INT64: reader.run(static_cast<std::int64_t *>(out), capacity); break;
        case DT_FP32: reader.run(static_cast<float *>(out), capacity); break;
        case DT_FP64: reader.run(static_cast<double *>(out), capacity); break;
        default: result->error = NUMBERS_DATATYPE;
    }
    return result->error;
}

}  // namespace ksrv
