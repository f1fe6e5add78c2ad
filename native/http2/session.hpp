// One server's end of an HTTP/2 connection, without a socket: bytes in, events out, bytes out.
//
// Strategy: libnghttp2 knows the protocol; this adds what the oldest supported release lacks. Frames that make
// work without asking for any (SETTINGS, PING, PRIORITY, resets, streams above the limit, CONTINUATION, empty DATA,
// faults for which a stream is reset) take from an allowance that grows with time, and a peer that has used it up is
// sent away. So do fields beyond the limit of a header list, because one byte of HPACK can name a field of thousands. A PING is
// free behind a DATA frame of ours: clients measure by it. So is the reset of a stream that has lived, and for each stream that was
// answered or refused that of another one: clients cancel what takes too long, and what they asked for twice. Nothing is read while
// the answers wait for a peer that does not take them. A session is used by one thread at a time.

#pragma once

#include <algorithm>

#include "http2/library.hpp"
#include "http2/outgoing_bytes.hpp"

namespace ksrv::http2 {

inline Field field_of(const char *name, size_t name_length, const char *value, size_t value_length,
                      uint8_t flags) noexcept {
    return {reinterpret_cast<const uint8_t *>(name), reinterpret_cast<const uint8_t *>(value), name_length,
            value_length, flags};
}

struct SessionLimits {
    uint32_t streams = 128;
    uint32_t stream_window = 65535;
    uint32_t connection_window = 16u << 20;
    uint32_t frame_size = 1u << 20;
    uint32_t head = 16384;  // bytes of a header list
};

// What comes behind the bytes of an answer that are offered.
enum class Behind : uint8_t { more, trailers, end };

// What happens on the streams. A stream is the pointer that `opened` returned.
struct SessionEvents {
    virtual void *opened(int32_t stream_id) noexcept = 0;  // null refuses it
    virtual void field(void *stream, const char *name, size_t name_length, const char *value,
                       size_t value_length) noexcept = 0;
    // `whole`: the header list is within its limit, and so none was left out.
    virtual void fields_over(void *stream, bool whole) noexcept = 0;
    virtual void data(void *stream, const unsigned char *data, size_t length) noexcept = 0;
    virtual void peer_over(void *stream) noexcept = 0;  // the peer sends nothing more
    virtual void answer_over(void *stream) noexcept = 0;  // all of the answer is on its way
    virtual void closed(void *stream, uint32_t error) noexcept = 0;
    // Whether a stream has taken its place for so long that the peer may reset it, or its answer has begun.
    virtual bool has_lived(void *stream) noexcept = 0;
    // The bytes of the answer: up to `most` of them may be sent now. 0 with more behind: none yet.
    virtual size_t offer(void *stream, size_t most, Behind *behind) noexcept = 0;
    virtual bool take(void *stream, size_t length, OutgoingBytes *out) noexcept = 0;
    virtual void pinged() noexcept = 0;  // the peer has answered a ping

  protected:
    ~SessionEvents() = default;
};

class Session {
  public:
    Session(SessionEvents *events, OutgoingBytes *out) noexcept : events_(events), out_(out) {}
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    ~Session();

    bool open(const SessionLimits &limits) noexcept;

    // Takes bytes from the peer. False: the connection is to be closed once `produce` has said why.
    bool receive(const unsigned char *data, size_t length, uint64_t now) noexcept;

    // Makes bytes to be sent until `most` wait, or `most_copied` of those that are copied. False: the connection is broken.
    bool produce(size_t most, size_t most_copied) noexcept;

    // Whether there is anything to be read or sent any more.
    bool over() const noexcept { return !of_->want_read(session_) && !of_->want_write(session_); }

    // Frames that wait behind what `produce` has made.
    size_t queued() const noexcept { return of_->queued(session_); }

    // Where the next bytes of a DATA frame without padding go, and how many come; null between frames, and where that is
    // not known.
    void *stream_in_data(size_t *left) const noexcept {
        *left = data_left_;
        return data_left_ ? data_stream_ : nullptr;
    }

    // The open stream of the DATA frame that came last, and how many bytes the peer may still send on it.
    void *stream_of_last_data(size_t *window) const noexcept;

    void answer(int32_t stream_id, const Field *fields, size_t count, bool has_body) noexcept;
    void trailers(int32_t stream_id, const Field *fields, size_t count) noexcept;
    void reset(int32_t stream_id, uint32_t error) noexcept;
    void resume(int32_t stream_id) noexcept { note(of_->resume_data(session_, stream_id)); }
    // The peer may send as many bytes more on a stream, and on the connection.
    void consume(int32_t stream_id, size_t length) noexcept;
    void consume_connection(size_t length) noexcept { note(of_->consume_connection(session_, length)); }
    void widen(int32_t stream_id, size_t window) noexcept;
    void ping() noexcept;
    void say_goodbye() noexcept { note(of_->submit_shutdown_notice(session_)); }
    void go_away(uint32_t error, const char *why = nullptr) noexcept;
    void forgive_resets(uint32_t count) noexcept { free_resets_ = std::min(MOST_FREE, free_resets_ + count); }
    bool flooded() const noexcept { return flooded_; }

  private:
    static constexpr uint64_t ALLOWANCE = 4000, A_SECOND = 1000;
    static constexpr uint64_t REFUSED_STREAM_COST = 10, EARLY_RESET_COST = 10;
    static constexpr size_t FIELD_BYTES = 32;  // that each field counts beside its own (RFC 9113 6.5.2)
    static constexpr size_t BYTES_OF_UNIT = 64;  // of a header list above its limit, for one unit of the allowance
    // A header list of so many times its limit ends its stream, and a block of so many encoded bytes its connection: no code of
    // HPACK is longer than 30 bits, so no list within the limit is encoded in so many.
    static constexpr size_t MOST_LISTS = 4;
    static constexpr uint32_t MOST_FREE = 1000;

    static int on_begin_headers(NgSession *, const FrameHead *, void *);
    static int on_header(NgSession *, const FrameHead *, const uint8_t *, size_t, const uint8_t *, size_t,
                         uint8_t, void *);
    static int on_begin_frame(NgSession *, const FrameHead *, void *);
    static int on_frame(NgSession *, const FrameHead *, void *);
    static int on_sent(NgSession *, const FrameHead *, void *);
    static int on_data(NgSession *, uint8_t, int32_t, const uint8_t *, size_t, void *);
    static int on_close(NgSession *, int32_t, uint32_t, void *);
    static int on_send_data(NgSession *, const FrameHead *, const uint8_t *, size_t, DataSource *, void *);
    static ssize_t read_length(NgSession *, uint8_t, int32_t, int32_t, int32_t, uint32_t, void *);
    static ssize_t read_data(NgSession *, int32_t, uint8_t *, size_t, uint32_t *, DataSource *, void *);
    static const NgCallbacks *callbacks(const Library *of) noexcept;
    static const NgOption *options(const Library *of) noexcept;
    void *stream_of(int32_t stream_id) noexcept;
    // A frame for which there was no memory is not made again, and its stream would wait for ever: the connection ends.
    void note(int result) noexcept { failed_ = failed_ || result == RESULT_NO_MEMORY; }
    bool spend(uint64_t cost) noexcept;
    bool take_block(size_t length) noexcept;

    SessionEvents *const events_;
    OutgoingBytes *const out_;
    const Library *of_ = nullptr;
    NgSession *session_ = nullptr;
    void *data_stream_ = nullptr;
    int32_t data_stream_id_ = 0;
    size_t data_left_ = 0;
    bool data_came_ = false;  // bytes of the present frame, in the present call
    int32_t seen_id_ = 0;
    void *seen_ = nullptr;  // its stream
    uint64_t allowance_ = ALLOWANCE, allowed_at_ = 0, now_ = 0;
    size_t most_list_ = 0;              // bytes of a header list
    size_t list_bytes_ = 0;             // of the present one
    size_t block_bytes_ = 0;            // the same, encoded
    const char *fault_ = "too many frames that ask for nothing";  // for which a flood's connection ends
    uint32_t free_pings_ = 0, free_resets_ = 0;  // one for each DATA frame that was sent, and each stream ended here
    bool flooded_ = false;
    bool failed_ = false;  // there was no memory for a frame
};

}  // namespace ksrv::http2
