// A request over HTTP/2 that is not gRPC's: its stream, which carries the body of a message of the HTTP server and its answer.
//
// Strategy: the stream holds few bytes either way: the window of the peer opens as the server reads, and the server waits
// for room as it does for a socket's. A large body is put where the server wants it, which is woken when it is whole.
//
// The connection's owner calls the session's side, the I/O threads of the HTTP server call `ByteStream`'s;
// what both touch lies under the call's mutex.

#pragma once

#include <string>

#include "base/small_vector.hpp"
#include "http/byte_stream.hpp"
#include "http2/session.hpp"

namespace ksrv::grpc {

struct Call;

class RestStream final : public ByteStream {
  public:
    // Bytes of a body that may be under way once its beginning was read; the budget has them by then.
    static constexpr size_t WINDOW = 1u << 20;
    static constexpr size_t ROOM = 128u << 10;  // for bytes of an answer that the session has not taken

    RestStream(Call *call, const Head &head) noexcept
        : call_(call), missing_body_(head.chunked ? UINT64_MAX : head.content_length) {}
    RestStream(const RestStream &) = delete;
    RestStream &operator=(const RestStream &) = delete;
    ~RestStream();

    // The head of a call's message. False: it has characters that a head may not hold. May throw std::bad_alloc.
    static bool read_head(const Call &call, bool has_body, const HeadLimits &limits, StreamHead *out);
    // The first line of a head for the access log; characters that no request line may hold are left out.
    static std::string first_line(const Call &call);

    // ---- the session's side ----
    bool put(const unsigned char *data, size_t length) noexcept;  // false: there is no memory
    void put_end() noexcept;  // the peer sends no more
    void closed() noexcept;   // the stream is

    struct Answer {
        bool interim = false;  // 100 is to be sent
        bool head = false;     // the fields are there, and do not change any more
        bool alone = false;    // and nothing comes behind them
        bool broken = false;   // it will never be whole
        bool whole = false;    // the server has written all of it
        bool full = false;     // the server waits until its client takes some of it
    };
    Answer answer() noexcept;
    // The fields of the answer; their texts live as long as this. May throw std::bad_alloc.
    void fields(SmallVector<http2::Field, 16> *out);
    void tell_server() noexcept;   // of what it waits for, if that holds by now; under the mutex
    // Whether every byte that content-length announces has come, so that only the end of the stream is missing.
    bool body_complete() const noexcept { return missing_body_ == 0; }
    bool awaits_body() noexcept;   // whether the server has read all that came, and waits for more
    bool awaits_room() noexcept;   // whether it waits until some of the answer is taken
    bool takes_window() noexcept;  // whether the window of the peer is to grow, once
    size_t take_read() noexcept;  // bytes of DATA that the server has read since the last call
    size_t missing() noexcept;    // bytes that have a place in the server's memory and have not come

    // ---- the HTTP server's side ----
    ssize_t receive(void *data, size_t room) noexcept override;
    void receive_ahead(void *data, size_t room) noexcept override;
    size_t waiting() noexcept override;
    bool send_continue() noexcept override;
    bool send_head(const char *text, size_t length) noexcept override;
    ssize_t send(const iovec *parts, int count, bool last) noexcept override;
    Unread unread() noexcept override;
    uint64_t unsent() noexcept override;
    bool is_cut() noexcept override;
    void close() noexcept override;
    void arm(uint32_t events) noexcept override;

  private:
    uint32_t events() const noexcept;
    void read_more() noexcept;
    size_t put_ahead(const unsigned char *data, size_t length) noexcept;
    size_t left() const noexcept { return in_.size() - in_at_; }

    Call *const call_;  // which owns this, and the answer's body
    uint64_t missing_body_;  // bytes; the session's side alone. Without content-length it never gets to 0.
    uint32_t wanted_ = 0;  // what the server waits for

    SmallVector<unsigned char, 1024> in_;  // of the body, from `in_at_` on
    size_t in_at_ = 0;
    size_t in_data_ = 0, in_read_ = 0;  // bytes that the peer may not send again yet, and that it may
    size_t in_total_ = 0;               // bytes that the server has read
    unsigned char *ahead_ = nullptr;    // the server's memory for what comes, while nothing lies in `in_`
    size_t ahead_room_ = 0, ahead_got_ = 0;
    bool wide_ = false, widens_ = false;
    bool in_over_ = false, cut_ = false, closed_ = false;

    SmallVector<char, 512> head_;  // of the answer
    bool interim_ = false;
};

}  // namespace ksrv::grpc
