// The state machine of chunked bodies: `read` passes each byte of framing to `step`, and stops where contents begin.

#include "http/chunked_body.hpp"

#include "http/characters.hpp"

namespace ksrv {

namespace {

int hexadecimal(unsigned char c) noexcept {
    if (c >= '0' && c <= '9') return c - '0';
    const unsigned char lower = static_cast<unsigned char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Blanks, visible characters and bytes above ASCII.
bool is_text(unsigned char c) noexcept { return c == '\t' || (c >= 0x20 && c != 0x7f); }

}  // namespace

size_t ChunkDecoder::read(const unsigned char *data, size_t length) noexcept {
    size_t at = 0;
    while (at < length && state_ != State::contents && state_ != State::ended &&
           fault_ == ChunkFault::none) {
        if (shown_length_ < SHOWN) shown_[shown_length_++] = data[at];
        if (++line_ > LINE_MOST) {
            fail(state_ >= State::trailer ? ChunkFault::trailer : ChunkFault::size);
        } else if (state_ >= State::trailer && ++trailers_ > TRAILERS_MOST) {
            fail(ChunkFault::trailer);
        } else {
            step(data[at]);
        }
        ++at;
    }
    return at;
}

void ChunkDecoder::step(unsigned char c) noexcept {
    switch (state_) {
    case State::size: {
        const int digit = hexadecimal(c);
        if (digit >= 0) {
            if (left_ >> 60) return fail(ChunkFault::size_bits);  // one more digit would exceed 64 bits
            left_ = left_ * 16 + static_cast<uint64_t>(digit);
            any_digit_ = true;
            return;
        }
        if (!any_digit_) return fail(ChunkFault::size);
        named_ = false;
        return step_extension(c);
    }
    case State::size_lf:
        return c == '\n' ? end_size() : fail(ChunkFault::size);
    case State::contents_cr:
        if (c != '\r') return fail(ChunkFault::end);
        state_ = State::contents_lf;
        return;
    case State::contents_lf:
        if (c != '\n') return fail(ChunkFault::end);
        state_ = State::size;
        left_ = 0;
        any_digit_ = false;
        begin_line();
        return;
    case State::trailer:
        if (c != '\r' && !is(c, TOKEN)) return fail(ChunkFault::trailer);
        state_ = c == '\r' ? State::end_lf : State::trailer_name;
        return;
    case State::trailer_name:
        if (c != ':' && !is(c, TOKEN)) return fail(ChunkFault::trailer);
        if (c == ':') state_ = State::trailer_value;
        return;
    case State::trailer_value:
        if (c != '\r' && !is_text(c)) return fail(ChunkFault::trailer);
        if (c == '\r') state_ = State::trailer_lf;
        return;
    case State::trailer_lf:
        if (c != '\n') return fail(ChunkFault::trailer);
        state_ = State::trailer;
        begin_line();
        return;
    case State::end_lf:
        if (c != '\n') return fail(ChunkFault::trailer);
        state_ = State::ended;
        return;
    case State::contents:
    case State::ended:
        return;  // not reached from `read`
    default:
        return step_extension(c);
    }
}

// After a size: `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted ) ] )` and the line's end (RFC 9112 7.1.1). Bad
// white space is skipped where the grammar allows it, as gunicorn does.
void ChunkDecoder::step_extension(unsigned char c) noexcept {
    const bool blank = c == ' ' || c == '\t';
    switch (state_) {
    case State::quoted:
        if (c == '"') {
            state_ = State::quoted_end;
        } else if (c == '\\') {
            state_ = State::escaped;
        } else if (!is_text(c)) {
            return fail(ChunkFault::size);
        }
        return;
    case State::escaped:
        if (!is_text(c)) return fail(ChunkFault::size);
        state_ = State::quoted;
        return;
    case State::name_start:
    case State::value_start:
        if (blank) return;
        if (c == '"' && state_ == State::value_start) {
            state_ = State::quoted;
            return;
        }
        if (!is(c, TOKEN)) return fail(ChunkFault::size);
        named_ = state_ == State::name_start;
        state_ = named_ ? State::name : State::value;
        return;
    default:
        break;
    }
    if (is(c, TOKEN) && (state_ == State::name || state_ == State::value)) return;
    if (blank) {
        state_ = State::blank;
    } else if (c == ';') {
        state_ = State::name_start;
    } else if (c == '=' && named_) {
        state_ = State::value_start;
        named_ = false;
    } else if (c == '\r' && state_ != State::blank) {
        state_ = State::size_lf;
    } else {
        fail(ChunkFault::size);
    }
}

// The line with a size is complete.
void ChunkDecoder::end_size() noexcept {
    begin_line();
    if (left_ == 0) {
        state_ = State::trailer;
        return;
    }
    if (chunks_ == most_chunks_) return fail(ChunkFault::count);
    ++chunks_;
    announced_ = left_ > UINT64_MAX - announced_ ? UINT64_MAX : announced_ + left_;
    if (announced_ > most_bytes) return fail(ChunkFault::length);
    state_ = State::contents;
}

}  // namespace ksrv
