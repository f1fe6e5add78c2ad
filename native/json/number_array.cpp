#include "json/number_array.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "json/scanner.hpp"

namespace ksrv {

namespace {

constexpr std::uint64_t SMALL_POWERS[] = {1,      10,      100,      1000,     10000,
                                                 100'000, 1'000'000, 10'000'000, 100'000'000};

// The number written by eight digit values. The first digit is in the lowest byte. Joins pairs of digits, then
// multiplies the four pairs by 10^6, 10^4, 100 and 1 in two products.
std::uint32_t eight_digits(std::uint64_t values) noexcept {
    values = values * 10 + (values >> 8);
    return static_cast<std::uint32_t>(
        ((values & 0x000000FF000000FFULL) * 0x000F424000000064ULL +
         (values >> 16 & 0x000000FF000000FFULL) * 0x0000271000000001ULL) >>
        32);
}

// Appends digits to `*value`, which wraps silently, because the caller counts the digits. The byte at `end` is never
// read: the caller's last byte is a bracket, so that digits always end before it.
//
// Eight bytes are processed together. If the digits end among them, they are shifted to the end of the word, after
// zeros. So digits of any number cost the same, without branches to predict.
const char *gather_digits(const char *at, const char *end, std::uint64_t *value) noexcept {
    std::uint64_t sum = *value;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - at >= 8) {
        std::uint64_t values = json::load8(at) ^ json::repeat('0');
        // Marks bytes above 9, which are not digits: adding 0x76 to 10 or more sets the highest bit.
        const std::uint64_t other = ((values + json::repeat(0x76)) | values) & json::repeat(0x80);
        if (other != 0) {
            const int count = __builtin_ctzll(other) / 8;
            values = values << 8 * (7 - count) << 8;
            *value = sum * SMALL_POWERS[count] + eight_digits(values);
            return at + count;
        }
        sum = sum * 100'000'000 + eight_digits(values);
        at += 8;
    }
#endif
    while (json::is_digit(*at)) sum = sum * 10 + static_cast<std::uint64_t>(*at++ - '0');
    *value = sum;
    return at;
}

// 10^0 to 10^24. The last powers wrap around, as the digits that they multiply do.
struct Tens {
    std::uint64_t power[25] = {1};
    constexpr Tens() {
        for (int i = 1; i < 25; ++i) power[i] = power[i - 1] * 10;
    }
};

constexpr Tens TENS;

#if defined(__SSE2__)
// A mask of the 32 bytes at `at` that are not digits. The first byte is the lowest bit.
std::uint32_t others_of_32(const char *at) noexcept {
    const __m128i zero = _mm_set1_epi8('0'), nine = _mm_set1_epi8(9);
    const auto others_of_16 = [&](const char *from) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
        const __m128i values = _mm_sub_epi8(bytes, zero);
        const __m128i digits = _mm_cmpeq_epi8(_mm_min_epu8(values, nine), values);
        return static_cast<std::uint32_t>(_mm_movemask_epi8(digits)) ^ 0xFFFF;
    };
    return others_of_16(at) | others_of_16(at + 16) << 16;
}

// Appends `count` digits, at most 24, of the 24 bytes at `at` to `value`. All counts run the same instructions, because
// a branch on the length of a fraction would be mispredicted half of the time.
std::uint64_t append_digits(const char *at, int count, std::uint64_t value) noexcept {
    const int first = std::min(count, 8);
    const int second = std::min(std::max(count - 8, 0), 8);
    const int third = std::max(count - 16, 0);
    const auto part = [&](int word, int digits) {
        const std::uint64_t values = json::load8(at + 8 * word) ^ json::repeat('0');
        const int half = 4 * (8 - digits);  // a single shift by 64 would be undefined
        return std::uint64_t{eight_digits(values << half << half)};
    };
    std::uint64_t sum = part(0, first) * SMALL_POWERS[second] + part(1, second);
    sum = sum * SMALL_POWERS[third] + part(2, third);
    return value * TENS.power[count] + sum;
}
#endif

#ifdef __SIZEOF_INT128__
constexpr int MOST_POWER = 27;  // 5^27 is the last power of five below 2^63

// 10^n for n from -27 to 27 as mantissa * 2^exponent, with the mantissa's highest bit set and lower bits cut off.
struct PowersOfTen {
    std::uint64_t mantissa[2 * MOST_POWER + 1] = {};
    int exponent[2 * MOST_POWER + 1] = {};

    constexpr PowersOfTen() {
        std::uint64_t five = 1;
        for (int n = 0; n <= MOST_POWER; ++n, five *= 5) {
            int bits = 0;
            while (bits < 64 && five >> bits != 0) ++bits;
            mantissa[MOST_POWER + n] = five << (64 - bits);
            exponent[MOST_POWER + n] = n + bits - 64;
            if (n == 0) continue;
            // 2^(63 + bits) / 5^n by long division. The quotient has 64 bits, because 5^n is not a power of 2.
            std::uint64_t quotient = 0;
            unsigned __int128 remainder = 1;
            for (int i = 0; i < 63 + bits; ++i) {
                remainder <<= 1;
                quotient <<= 1;
                if (remainder >= five) {
                    remainder -= five;
                    quotient |= 1;
                }
            }
            mantissa[MOST_POWER - n] = quotient;
            exponent[MOST_POWER - n] = -n - 63 - bits;
        }
    }
};
constexpr PowersOfTen POWERS_OF_TEN;

// digits * 10^exponent if that is certainly the nearest double, false if it may not be.
//
// The product of 64 bits of digits and 64 bits of the power is less than 3 units of its 64th bit below the true value.
// It is rounded to 53 bits, unless a midpoint is within these 3 units.
bool scale_fast(std::uint64_t digits, std::int64_t exponent, double *value) noexcept {
    if (exponent < -MOST_POWER || exponent > MOST_POWER) return false;
    if (digits == 0) {
        *value = 0;
        return true;
    }
    const int zeros = __builtin_clzll(digits);
    const auto product = static_cast<unsigned __int128>(digits << zeros) *
                         POWERS_OF_TEN.mantissa[MOST_POWER + exponent];
    const int top = static_cast<int>(product >> 127);
    const auto mantissa = static_cast<std::uint64_t>(product >> (63 + top));
    if (((mantissa + 3) & 0x7FF) - 0x400 <= 3) return false;
    // A carry out of the mantissa correctly raises the exponent.
    const std::uint64_t rounded = (mantissa >> 11) + (mantissa >> 10 & 1);
    const std::int64_t power = POWERS_OF_TEN.exponent[MOST_POWER + exponent] - zeros + 63 + top + 11;
    // The double's bias is 1023 + 52. One less, because the mantissa's highest bit is added to the exponent below.
    const auto biased = static_cast<std::uint64_t>(power + 1075 - 1);
    const std::uint64_t bits = (biased << 52) + rounded;
    std::memcpy(value, &bits, 8);
    return true;
}
#else
bool scale_fast(std::uint64_t, std::int64_t, double *) noexcept { return false; }
#endif

// `run` and `nested` read the brackets and commas, and call the `scalar` of the datatype for each value. Methods return
// false for a fault. It is then in the result, except for `nested`, whose caller needs no reason.
class NumberReader {
public:
    NumberReader(const char *data, std::size_t length, NumbersResult *result) noexcept
        : begin_(data), at_(data), end_(data + length), result_(*result) {}

    const char *at() const noexcept { return at_; }

    template <class T>
    bool nested(T *out, std::uint64_t capacity, NestedShape *shape) noexcept {
        std::uint64_t filled[MAX_RANK];  // of the open arrays
        std::uint64_t count = 0;
        std::size_t level = 0;
        const auto most_levels = [&]() { return shape->known ? shape->rank : std::size_t{MAX_RANK}; };
        for (;;) {
            if (!space()) return false;
            if (*at_ == '[') {
                if (level == most_levels()) return false;
                filled[level++] = 0;
                ++at_;
                continue;
            }
            const char *const start = at_;
            T value;
            if (!scalar(&value) || (*start == '-' && value == 0)) return false;
            if constexpr (std::is_floating_point_v<T>)
                if (!std::isfinite(value)) return false;
            if (!shape->known) shape->rank = level;
            shape->known = true;
            if (level != shape->rank) return false;
            if (count < capacity) out[count] = value;
            ++count;
            for (;;) {
                if (level == 0) return true;
                ++filled[level - 1];
                if (!space()) return false;
                if (*at_ == ',') break;
                if (*at_ != ']') return false;
                std::uint64_t &size = shape->sizes[--level];
                if (size == 0) size = filled[level];
                if (size != filled[level]) return false;
                ++at_;
            }
            ++at_;
        }
    }

    template <class T>
    bool run(T *out, std::uint64_t capacity) noexcept {
        // The last byte must be a bracket, so that no token exceeds the end.
        if (begin_ == end_ || *at_ != '[') return fail(NUMBERS_SYNTAX);
        if (end_[-1] != ']') {
            at_ = end_;
            return fail(NUMBERS_END);
        }
        std::uint64_t count = 0;
        unsigned level = 0;
        bool opened = false;  // immediately after an opening bracket
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
                if (at_ != end_ && *at_ == ',') {  // the usual case, without white space
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

    // Fails with NUMBERS_KIND if the value at the cursor has another JSON type, and with NUMBERS_SYNTAX if it has none.
    bool other_kind() noexcept {
        const char c = *at_;
        const bool value = c == '"' || c == '{' || c == 'n' || c == 't' || c == 'f' || c == '-' ||
                           json::is_digit(c);
        return fail(value ? NUMBERS_KIND : NUMBERS_SYNTAX);
    }

    bool word(const char *text, std::size_t length) noexcept {
        json::Cursor cursor{at_, end_};
        if (json::skip_word(cursor, text, length) != json::OK) return false;
        at_ = cursor.at;
        return true;
    }

    [[gnu::always_inline]] bool scalar(bool *value) noexcept {
        if (*at_ == 't' && word("true", 4)) return *value = true;
        if (*at_ == 'f' && word("false", 5)) {
            *value = false;
            return true;
        }
        return other_kind();
    }

    template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
    [[gnu::always_inline]] bool scalar(T *value) noexcept {
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

    // Reads digits that may exceed 64 bits. False if they do.
    static bool twenty_digits(const char *first, std::size_t count, std::uint64_t *digits) noexcept {
        json::Cursor cursor{first, first + count};
        bool too_large = false;
        return json::parse_digits(cursor, 20, UINT64_MAX, digits, &too_large);
    }

    NumbersFault kind_at(const char *at) noexcept {
        return *at == '"' || *at == '{' || *at == 'n' || *at == 't' || *at == 'f' ? NUMBERS_KIND
                                                                                 : NUMBERS_SYNTAX;
    }

    // A number in the usual form: an optional sign, one digit, a point and up to 24 digits. It is parsed from a single
    // load of 32 bytes. For other forms returns false, with the cursor unchanged.
    bool common_real(std::uint64_t *digits, int *fraction) noexcept {
#if defined(__SSE2__)
        if (end_ - at_ < 32) return false;
        const std::uint32_t others = others_of_32(at_);
        const int sign = *at_ == '-';
        const char *first = at_ + sign;
        if (!json::is_digit(first[0]) || first[1] != '.') return false;
        // Bit 29 ends the count if all are digits.
        const int count = __builtin_ctz(others >> (sign + 2) | std::uint32_t{1} << 29);
        if (count == 0 || count > 24) return false;
        *digits = append_digits(first + 2, count, static_cast<std::uint64_t>(*first - '0'));
        *fraction = count;
        at_ = first + 2 + count;
        return true;
#else
        (void)digits, (void)fraction;
        return false;
#endif
    }

    template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
    [[gnu::always_inline]] bool scalar(T *value) noexcept {
        const char *start = at_;
        double result = 0;
        const bool negative = *at_ == '-';
        const char *first = at_ + negative;
        std::uint64_t digits = 0;
        std::int64_t exponent = 0;
        std::ptrdiff_t count;  // significant digits: `digits` is exact if there are at most 19
        int fraction_digits;
        if (common_real(&digits, &fraction_digits)) {
            exponent = -fraction_digits;
            count = 1 + fraction_digits;
            if (count > 19 && *first == '0') count = significant(first + 2);
        } else {
            at_ = first;
            if (!json::is_digit(*at_)) return special_real(start, negative, value);
            at_ = gather_digits(at_, end_, &digits);
            if (*first == '0' && at_ - first > 1) return fail(NUMBERS_SYNTAX, start);
            count = at_ - first;
            if (*at_ == '.') {
                const char *fraction = ++at_;
                at_ = gather_digits(at_, end_, &digits);
                if (at_ == fraction) return fail(NUMBERS_SYNTAX);
                exponent = fraction - at_;
                count -= exponent;
                if (count > 19 && *first == '0') count = significant(fraction);
            }
        }
        if ((*at_ | 0x20) == 'e') {
            std::int64_t power = 0;
            if (!exponent_part(&power)) return false;
            exponent += power;
        }
        if (count > 19 || !scale_fast(digits, exponent, &result)) {
            if (!scale_exactly(first, &result)) return fail(NUMBERS_RANGE, start);
        }
        static constexpr double SIGNS[] = {1.0, -1.0};  // a lookup, because a branch would be mispredicted
        *value = static_cast<T>(result * SIGNS[negative]);
        // A double above FP32's range would become infinite.
        if (!std::isfinite(*value)) return fail(NUMBERS_RANGE, start);
        return true;
    }

    // Reads Infinity, -Infinity or NaN, after the sign.
    template <class T> bool special_real(const char *start, bool negative, T *value) noexcept {
        if (*at_ == 'I' && word("Infinity", 8)) {
            *value = std::numeric_limits<T>::infinity();
        } else if (!negative && *at_ == 'N' && word("NaN", 3)) {
            *value = std::numeric_limits<T>::quiet_NaN();
        } else {
            return fail(negative ? NUMBERS_SYNTAX : kind_at(start), start);
        }
        if (negative) *value = -*value;
        return true;
    }

    // Reads the exponent of a number, whose 'e' is at the cursor. Exponents above 100,000 need not be exact.
    bool exponent_part(std::int64_t *power) noexcept {
        ++at_;
        const bool minus = *at_ == '-';
        at_ += minus || *at_ == '+';
        if (!json::is_digit(*at_)) return fail(NUMBERS_SYNTAX);
        for (; json::is_digit(*at_); ++at_)
            if (*power < 100'000) *power = *power * 10 + (*at_ - '0');
        if (minus) *power = -*power;
        return true;
    }

    // How many digits of the fraction before the cursor are significant: leading zeros are not.
    std::ptrdiff_t significant(const char *fraction) const noexcept {
        while (*fraction == '0') ++fraction;
        return at_ - fraction;
    }

    // The nearest double of the token that ends at the cursor. False if it is infinite.
    bool scale_exactly(const char *first, double *result) noexcept {
        const std::from_chars_result parsed = std::from_chars(first, at_, *result);
        if (parsed.ec == std::errc()) return std::isfinite(*result);
        *result = 0;
        return json::underflows(first, at_);
    }

    const char *begin_;
    const char *at_;
    const char *end_;
    NumbersResult &result_;
};

}  // namespace

NumbersFault read_numbers(const char *data, std::size_t length, Datatype datatype, void *out,
                          std::uint64_t capacity, NumbersResult *result) noexcept {
    NumberReader reader(data, length, result);
    const bool is_number = with_number(datatype, [&](auto zero) {
        reader.run(static_cast<decltype(zero) *>(out), capacity);
    });
    if (!is_number) result->error = NUMBERS_DATATYPE;
    return result->error;
}

const char *read_nested(const char *at, const char *end, Datatype datatype, void *out, std::uint64_t capacity,
                        NestedShape *shape) noexcept {
    NumbersResult result;
    NumberReader reader(at, static_cast<std::size_t>(end - at), &result);
    bool read = false;
    with_number(datatype, [&](auto zero) {
        read = reader.nested(static_cast<decltype(zero) *>(out), capacity, shape);
    });
    return read ? reader.at() : nullptr;
}

}  // namespace ksrv
