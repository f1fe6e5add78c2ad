// The calls of a connection. The session reports the events of HTTP/2 streams; each stream is a call.
//
// The functions are in four files, by subject; see the private section.

#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "grpc/call.hpp"
#include "grpc/session.hpp"

namespace ksrv::grpc {

class Server;

// Counts of a connection's calls, which any thread reads.
struct CallCounts {
    std::atomic<uint32_t> open{0};
    std::atomic<uint32_t> unfinished{0};   // calls whose first message is incomplete
    std::atomic<uint32_t> undelivered{0};  // calls whose complete answer waits for the client
    std::atomic<uint64_t> idle_since_ns{0};  // when the last open call ended, or the connection began
};

// The rest of an answer after the offered bytes: more bytes, the trailers, or nothing.
enum class Following : uint8_t { more, trailers, end };

// Used only by the connection's owner.
class Streams final {
  public:
    Streams(Connection *connection, http2::OutgoingBytes *out, uint64_t now) noexcept;

    // Passes what was added to a call's answer to the session.
    void answer(Call *call) noexcept;
    // Enforces the time limits of all calls.
    void look_at_calls() noexcept;
    // If the server has too many undelivered answers: drops half of this connection's, the oldest first.
    void end_undelivered() noexcept;
    // If too many calls of the server wait for their message: ends half of this connection's, the oldest first.
    void end_unfinished() noexcept;
    void close_all() noexcept;
    // The place of the next bytes of a DATA frame in the block of their message, and how many follow. Null unless they
    // may be received there directly.
    unsigned char *place_of_data(size_t *length) noexcept;
    // Lets the peer send more on a stream, unless its messages must wait.
    void open_window(Call *call) noexcept;
    // Notes that bytes have arrived.
    void note_received() noexcept;
    // When bytes arrived last.
    uint64_t received_ns() const noexcept { return received_ns_; }
    // False if the peer does not read the answers to its frames (resets, acknowledgements, refusals).
    bool may_read() const noexcept { return session.queued() <= UNREAD_FRAMES; }

    CallCounts counts;
    Session session;
    bool had_call = false;  // a complete head has arrived

  private:
    friend class Session;  // which reports events

    static constexpr size_t UNREAD_FRAMES = 256;  // reading pauses while this many frames wait for the peer

    // ---- streams.cpp: receives calls ----
    Call *opened(int32_t stream_id) noexcept;  // null refuses the stream
    void field(Call *call, std::string_view name, std::string_view value) noexcept;
    // `whole`: the header list is within its limit, so that no field was dropped.
    void fields_over(Call *call, bool whole) noexcept;
    void data(Call *call, const unsigned char *data, size_t length) noexcept;
    void peer_over(Call *call) noexcept;  // the peer sends nothing more
    void closed(Call *call, uint32_t error) noexcept;
    const Fault *fault_of_head(const Call &call, bool whole) const noexcept;
    bool is_admitted(const Call &call) const noexcept;
    bool begin_message(Call *call) noexcept;
    bool place_message(Call *call, const unsigned char *first, size_t length) noexcept;
    void end_message(Call *call) noexcept;
    bool submit_fast(Call *call) noexcept;
    void record(Call *call) noexcept;  // for the access log
    void enter(Call *call, Receiving next) noexcept;
    void stop_receiving(Call *call) noexcept;
    // Ends a call with a fault. The numbers are the arguments of the fault's text.
    void refuse(Call *call, const Fault &fault, double first = 0, double second = 0, double third = 0) noexcept;

    // ---- flow_control.cpp ----
    bool count(Call *call, size_t more) noexcept;  // in the memory budget
    // Whether the answer has begun, or the stream is old enough that the peer may reset it.
    bool has_lived(const Call &call) const noexcept;

    // ---- answer_call.cpp ----
    // How many bytes of the answer, at most `most`, can be sent now. 0 with Following::more: none yet.
    size_t offer(Call *call, size_t most, Following *following) noexcept;
    // Moves bytes that `offer` promised to the outgoing bytes.
    bool take(Call *call, size_t length, http2::OutgoingBytes *out) noexcept;
    void answer_over(Call *call) noexcept;  // all of the answer was passed to the socket
    void begin_answer(Call *call, bool empty) noexcept;
    void reset(Call *call, uint32_t error) noexcept;
    void note_undelivered(Call *call) noexcept;
    void note_delivered(Call *call) noexcept;
    void drop_answer(Call *call) noexcept;

    // ---- deadlines.cpp ----
    void look_at_call(Call *call) noexcept;
    bool keeps_up(Call *call, bool has_unread, uint64_t answer_bytes) noexcept;
    Call *oldest() const noexcept;

    Connection &connection_;
    Server &server_;
    const http2::OutgoingBytes &out_;
    Call *newest_ = nullptr;  // the list of calls, from the newest to the oldest
    const Method *last_method_ = nullptr;
    uint64_t requests_left_, received_ns_;
};

}  // namespace ksrv::grpc
