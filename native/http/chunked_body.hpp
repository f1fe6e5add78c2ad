// Decodes chunked bodies: bytes of the wire in, bytes of the body out, however reads split them.
//
// Strategy: a state machine of constant size, so that a body needs no more memory than its contents. It is as strict as
// gunicorn's reader and llhttp together: lines end only with CR LF, sizes are hexadecimal digits, extensions and
// trailers are skipped within limits, and the first invalid byte ends the message.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// The fault in a body.
enum class ChunkFault : uint8_t {
    none,
    size,       // the line has no valid size
    size_bits,  // the size has more than 64 bits
    end,        // a chunk is not followed by CR LF
    count,      // more chunks than the limit
    length,     // the chunks announce more bytes than the limit
    trailer,    // the trailer section is malformed or too long
};

class ChunkDecoder {
  public:
    static constexpr size_t LINE_MOST = 8190;      // limit for a line with a size, or a trailer
    static constexpr size_t TRAILERS_MOST = 65536;  // limit for the whole trailer section
    static constexpr size_t SHOWN = 24;            // bytes of a faulty line that the error shows

    // Begins a body with at most `most_chunks` chunks.
    void begin(size_t most_chunks) noexcept {
        *this = ChunkDecoder{};
        most_chunks_ = most_chunks;
    }

    // Reads framing up to the next byte of contents, the end of the body, a fault, or the end of the data. Returns the
    // number of bytes read.
    size_t read(const unsigned char *data, size_t length) noexcept;

    // How many bytes of contents are next on the wire, after framing was read.
    uint64_t run() const noexcept { return state_ == State::contents ? left_ : 0; }

    // Consumes `count` bytes of contents.
    void take(uint64_t count) noexcept {
        left_ -= count;
        if (left_ == 0) state_ = State::contents_cr;
    }

    bool ended() const noexcept { return state_ == State::ended; }
    ChunkFault fault() const noexcept { return fault_; }
    // The sum of the chunk sizes read so far.
    uint64_t announced() const noexcept { return announced_; }
    // The beginning of the faulty line.
    const unsigned char *shown() const noexcept { return shown_; }
    size_t shown_length() const noexcept { return shown_length_; }

    // The largest accepted sum of sizes. May change while the body is received.
    uint64_t most_bytes = UINT64_MAX;

  private:
    // From `trailer` on, a byte counts for the trailer section, except in `ended`. States from `name_start` to `blank`
    // are of extensions (`step_extension`).
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
    size_t line_ = 0;         // bytes of the current line, which may be the CR LF after a chunk
    size_t trailers_ = 0;     // bytes of the trailer section
    bool named_ = false;      // the extension before a blank may still get a value
    unsigned char shown_[SHOWN];
    size_t shown_length_ = 0;
};

}  // namespace ksrv
