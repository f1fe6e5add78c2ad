// The decoder of chunked bodies: bytes of the wire in, bytes of the body out, however they were split.
//
// Strategy: a state machine that keeps nothing but its state, so that a body of any length needs no more
// memory than its contents. It is as strict as gunicorn's reader and llhttp together: lines end with CR LF
// alone, sizes are hexadecimal digits, extensions and trailers are read over within limits, and the first
// byte that cannot be right ends the message.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// What is wrong with a body.
enum class ChunkFault : uint8_t {
    none,
    size,       // a line that should hold a size holds none
    size_bits,  // a size of more than 64 bits
    end,        // a chunk is not followed by CR LF
    count,      // more chunks than the limit
    length,     // the chunks announce more bytes than the limit
    trailer,    // a malformed or an endless trailer section
};

class ChunkDecoder {
  public:
    static constexpr size_t LINE_MOST = 8190;      // bytes of a line with a size, or of a trailer
    static constexpr size_t TRAILERS_MOST = 65536;  // bytes of the whole trailer section
    static constexpr size_t SHOWN = 24;

    // Begins a body of at most `most_chunks` chunks.
    void begin(size_t most_chunks) noexcept {
        *this = ChunkDecoder{};
        most_chunks_ = most_chunks;
    }

    // Reads framing up to the next byte of contents, the body's end, a fault, or the end of what has come.
    // Returns the bytes that it has read over.
    size_t read(const unsigned char *data, size_t length) noexcept;

    // Bytes of contents that come next on the wire, where framing was read up to them.
    uint64_t run() const noexcept { return state_ == State::contents ? left_ : 0; }

    // Notes that `count` bytes of them were taken.
    void take(uint64_t count) noexcept {
        left_ -= count;
        if (left_ == 0) state_ = State::contents_cr;
    }

    bool ended() const noexcept { return state_ == State::ended; }
    ChunkFault fault() const noexcept { return fault_; }
    // What all chunks together hold, as far as their sizes have come.
    uint64_t announced() const noexcept { return announced_; }
    // Notes what a body holds so far that comes without chunks.
    // The beginning of the line that is at fault.
    const unsigned char *shown() const noexcept { return shown_; }
    size_t shown_length() const noexcept { return shown_length_; }

    // The greatest sum of sizes; may change while the body comes.
    uint64_t most_bytes = UINT64_MAX;

  private:
    enum class State : uint8_t {
        size, name_start, name, value_start, value, quoted, escaped, quoted_end, blank, size_lf,
        contents, contents_cr, contents_lf, trailer, trailer_name, trailer_value, trailer_lf, end_lf,
        ended,
    };

    void step(unsigned char c) noexcept;
    void step_extension(unsigned char c) noexcept;
    void end_size() noexcept;
    void fail(ChunkFault fault) noexcept { fault_ = fault; }
    void begin_line() noexcept { line_ = shown_length_ = 0; }

    State state_ = State::size;
    ChunkFault fault_ = ChunkFault::none;
    bool any_digit_ = false;
    uint64_t left_ = 0;       // of the chunk
    uint64_t announced_ = 0;
    size_t chunks_ = 0, most_chunks_ = 0;
    size_t line_ = 0;         // bytes of the present line
    size_t trailers_ = 0;     // bytes of the trailer section
    bool named_ = false;      // the extension before a blank may still get a value
    unsigned char shown_[SHOWN];
    size_t shown_length_ = 0;
};

}  // namespace ksrv
