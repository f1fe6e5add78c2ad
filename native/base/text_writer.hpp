// Writes text into a buffer of fixed size, without a library call for each number.
//
// Strategy: text that does not fit is dropped and sets `full`, which the caller checks once at the end.

#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ksrv {

class TextWriter {
  public:
    TextWriter(char *room, std::size_t size) noexcept : begin_(room), at_(room), end_(room + size) {}

    void put(const char *text, std::size_t length) noexcept {
        if (length > static_cast<std::size_t>(end_ - at_)) {
            full_ = true;
            return;
        }
        std::memcpy(at_, text, length);
        at_ += length;
    }

    template <std::size_t N> void put(const char (&text)[N]) noexcept { put(text, N - 1); }

    // Calls `fill` with a position; it may write up to `most` bytes there. `fill` returns the end of the written bytes.
    template <class Fill> void write(std::size_t most, Fill &&fill) noexcept {
        if (most > static_cast<std::size_t>(end_ - at_)) {
            full_ = true;
            return;
        }
        at_ = fill(at_);
    }

    void number(std::int64_t value) noexcept {
        if (value >= 0 && value < 10 && at_ < end_) {
            *at_++ = static_cast<char>('0' + value);
            return;
        }
        const std::to_chars_result done = std::to_chars(at_, end_, value);
        full_ |= done.ec != std::errc();
        if (done.ec == std::errc()) at_ = done.ptr;
    }

    // Nanoseconds as milliseconds with three decimals.
    void milliseconds(std::uint64_t nanoseconds) noexcept {
        const std::uint64_t micros = (nanoseconds + 500) / 1000;
        const std::uint64_t places = micros % 1000;
        number(static_cast<std::int64_t>(micros / 1000));
        const char text[4] = {'.', static_cast<char>('0' + places / 100),
                              static_cast<char>('0' + places / 10 % 10),
                              static_cast<char>('0' + places % 10)};
        put(text, 4);
    }

    // Whether a text needs no escapes in a JSON string.
    static bool is_plain(const char *text, std::size_t length) noexcept {
        for (std::size_t i = 0; i < length; ++i) {
            const unsigned char c = static_cast<unsigned char>(text[i]);
            if (c < 0x20 || c == '"' || c == '\\') return false;
        }
        return true;
    }

    // A JSON string. False, and nothing is written, if the text needs escapes.
    bool quoted(const char *text, std::size_t length) noexcept {
        if (!is_plain(text, length)) return false;
        put("\"");
        put(text, length);
        put("\"");
        return true;
    }

    const char *text() const noexcept { return begin_; }
    std::size_t length() const noexcept { return static_cast<std::size_t>(at_ - begin_); }
    bool full() const noexcept { return full_; }

  private:
    char *begin_, *at_, *end_;
    bool full_ = false;
};

// A writer that contains its buffer.
template <std::size_t Size> class TextRoom : public TextWriter {
  public:
    TextRoom() noexcept : TextWriter(room_, Size) {}
    TextRoom(const TextRoom &) = delete;
    TextRoom &operator=(const TextRoom &) = delete;

  private:
    char room_[Size];
};

}  // namespace ksrv
