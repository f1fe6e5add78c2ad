// The server's end of an HTTP/2 connection, without a socket: bytes in, events out, bytes out.
//
// Strategy: libnghttp2 implements the protocol. `Streams` gets the events, and `Connection` decides which thread uses
// the session: one at a time.
//
// This class adds protection against floods that the oldest supported release of the library lacks. Each peer has an
// allowance, which grows with time. Frames that cause work without a request reduce it: SETTINGS, PING, PRIORITY,
// resets, streams above the limit, CONTINUATION, empty DATA, and faults for which a stream is reset. When a peer has
// used up its allowance, the connection is closed. Fields beyond the limit of a header list reduce it, too, because one
// byte of HPACK can refer to a field of thousands of bytes. Some frames are free, because clients send them normally: a
// PING after a DATA frame of this side (clients measure bandwidth with it), the reset of a stream that has lived
// (`has_lived`), and one further reset for each stream that this side answered or refused (clients cancel slow calls
// and duplicates). Nothing is read while the peer does not read the answers to its frames.

#pragma once

#include <algorithm>

#include "http2/library.hpp"
#include "http2/outgoing_bytes.hpp"

namespace ksrv::grpc {

class Call;
class Streams;
struct ServerConfig;

using namespace http2;

inline Field field_of(const char *name, size_t name_length, const char *value, size_t value_length,
                      uint8_t flags) noexcept {
    return {reinterpret_cast<const uint8_t *>(name), reinterpret_cast<const uint8_t *>(value), name_length,
            value_length, flags};
}

class Session {
  public:
    Session(Streams *streams, OutgoingBytes *out) noexcept : streams_(streams), out_(out) {}
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    ~Session();

    bool open(const ServerConfig &config) noexcept;

    // Takes bytes from the peer. False if the connection must be closed, after `produce` has made the last frames.
    bool receive(const unsigned char *data, size_t length, uint64_t now) noexcept;

    // Makes bytes to send until `most` bytes wait, or `most_copied` copied bytes. False if the connection is broken.
    bool produce(size_t most, size_t most_copied) noexcept;

    // Whether nothing remains to be read or sent.
    bool over() const noexcept { return !nghttp2.session_want_read(session_) && !nghttp2.session_want_write(session_); }

    // The number of frames that are queued after the bytes that `produce` has made.
    size_t queued() const noexcept { return nghttp2.session_get_outbound_queue_size(session_); }

    // The stream of the next bytes of a DATA frame without padding, and how many bytes follow. Null between frames, and
    // if that is unknown.
    Call *stream_in_data(size_t *left) const noexcept {
        *left = data_left_;
        return data_left_ ? data_stream_ : nullptr;
    }

    void answer(int32_t stream_id, const Field *fields, size_t count, bool has_body) noexcept;
    void trailers(int32_t stream_id, const Field *fields, size_t count) noexcept;
    void reset(int32_t stream_id, uint32_t error) noexcept;
    void resume(int32_t stream_id) noexcept { note(nghttp2.session_resume_data(session_, stream_id)); }
    // Allows the peer to send `length` more bytes on a stream and on the connection.
    void consume(int32_t stream_id, size_t length) noexcept;
    void consume_connection(size_t length) noexcept { note(nghttp2.session_consume_connection(session_, length)); }
    void widen(int32_t stream_id, size_t window) noexcept;  // raises a stream's window to `window` bytes
    void ping() noexcept;
    // GOAWAY with the highest possible stream id: calls that are on their way are still accepted.
    void say_goodbye() noexcept { note(nghttp2.submit_shutdown_notice(session_)); }
    void go_away(uint32_t error, const char *why = "") noexcept;
    void forgive_resets(uint32_t count) noexcept { free_resets_ = std::min(MOST_FREE, free_resets_ + count); }
    bool flooded() const noexcept { return flooded_; }

  private:
    static constexpr uint64_t ALLOWANCE = 4000, A_SECOND = 1000;  // units: the most, and how many are added per second
    static constexpr uint64_t REFUSED_STREAM_COST = 10, EARLY_RESET_COST = 10, SETTINGS_COST = 20,
                              CONTINUATION_COST = 50;
    static constexpr size_t FIELD_BYTES = 32;  // added for each field (RFC 9113 6.5.2)
    // One unit of the allowance per this many bytes of a header list above its limit.
    static constexpr size_t BYTES_OF_UNIT = 64;
    // A header list of this many times its limit ends its stream. A block of this many encoded bytes ends its
    // connection: no HPACK code is longer than 30 bits, so that no list within the limit has so many encoded bytes.
    static constexpr size_t MOST_LISTS = 4;
    static constexpr uint32_t MOST_FREE = 1000;  // free pings, and free resets, that a peer can have saved

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
    static bool make_shared() noexcept;
    Call *stream_of(int32_t stream_id) noexcept;
    // If memory is short for a frame, the frame is lost and its stream would wait for ever. Therefore the connection
    // ends.
    void note(int result) noexcept { failed_ = failed_ || result == RESULT_NO_MEMORY; }
    bool spend(uint64_t cost) noexcept;
    bool take_block(size_t length) noexcept;

    inline static NgCallbacks *callbacks_ = nullptr;
    inline static NgOption *options_ = nullptr;
    Streams *const streams_;
    OutgoingBytes *const out_;
    NgSession *session_ = nullptr;
    Call *data_stream_ = nullptr;  // the stream of the current DATA frame, and how many of its bytes are missing
    size_t data_left_ = 0;
    bool got_data_ = false;  // bytes of the current frame arrived in the current call
    int32_t last_id_ = 0;
    Call *last_stream_ = nullptr;  // the stream of `last_id_`
    uint64_t allowance_ = ALLOWANCE, allowed_at_ = 0, now_ = 0;
    size_t most_list_ = 0;              // limit for a header list, in bytes
    size_t list_bytes_ = 0;             // of the current header list
    size_t block_bytes_ = 0;            // of the current header list, encoded
    const char *fault_ = "too many frames that ask for nothing";  // reason for ending a flooded connection
    // Frames that cost nothing: a ping for each sent DATA frame, a reset for each stream that this side ended.
    uint32_t free_pings_ = 0, free_resets_ = 0;
    bool flooded_ = false;
    bool failed_ = false;  // memory was short for a frame
};

}  // namespace ksrv::grpc
