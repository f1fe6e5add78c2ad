// An HTTP/2 connection: its socket, its session and its calls.
//
// Strategy: a thread that has work for a connection (the event loop an event, another thread an answer) increments
// `work_`. The thread whose increment is the first becomes the owner, and works until `work_` is 0. So one thread at a
// time uses the session, no thread waits for another, and the owner also does work that arrives meanwhile. Answers are
// passed through a mailbox: many threads push, and the owner takes all. The thread that creates a connection owns it
// until `begin`, because the server lists the connection before it is open, and a drain may come at once.

#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "grpc/call.hpp"
#include "http2/session.hpp"
#include "tls/tls_session.hpp"

namespace ksrv::grpc {

class Server;
class Connection;

// A connection's link in a list to which any thread adds, and which one thread empties.
struct ListPlace {
    std::atomic<bool> listed{false};
    Connection *next = nullptr;
};

enum ConnectionEvent : uint32_t {
    EVENT_READABLE = 1,
    EVENT_WRITABLE = 2,
    EVENT_TICK = 4,
    EVENT_GOODBYE = 8,  // notify the peer that the server stops
    EVENT_CLOSE = 16,
    EVENT_MAKE_ROOM = 32,  // end calls whose message does not arrive
    EVENT_HUNG_UP = 64,  // the peer will send no more than it has sent
    EVENT_GATHERED = 128,  // stop waiting for a large piece
    EVENT_HANDSHAKE = 256,  // the TLS handshake may run a step
    EVENT_END_OVERDUE = 512,  // drop answers that clients have not read for long,
    EVENT_END_UNTAKEN = 1024,  // or drop any unread answers
    EVENT_RECYCLE = 2048,  // close if idle, because another client waits
};

class Connection final : public http2::SessionEvents {
  public:
    Connection(Server *server, int fd, uint32_t slot, uint32_t generation, uint64_t now) noexcept;
    Connection(const Connection &) = delete;
    Connection &operator=(const Connection &) = delete;

    bool open() noexcept;
    // Ends the ownership of the creating thread, with the first events. Closes the connection if it was not opened.
    void begin(bool opened, uint32_t events) noexcept;
    void retain() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;

    // Adds events for the owner. Without an owner, this thread becomes the owner.
    void post(uint32_t events) noexcept;
    // Adds events, which the next owner handles.
    void note(uint32_t events) noexcept { events_.fetch_or(events, std::memory_order_acq_rel); }
    // Adds a call that has something to send.
    void mail(Call *call) noexcept;

    MemoryBudget *budget() const noexcept;
    Server *server() const noexcept { return server_; }
    bool is_idle() const noexcept { return open_calls.load(std::memory_order_relaxed) == 0; }

    const uint32_t slot, generation;
    size_t place = 0;  // index in the list of open connections; guarded by the server's mutex
    sockaddr_storage address{};
    socklen_t address_length = 0;
    ListPlace deferred, gathering;  // links in the server's lists of these names
    std::atomic<bool> unread{false};      // in the server's queue of this name
    Connection *next_unread = nullptr;
    std::atomic<uint32_t> open_calls{0};
    std::atomic<uint32_t> unfinished{0};  // open calls whose message is incomplete
    std::atomic<uint32_t> untaken{0};     // calls whose complete answer waits for the client
    std::atomic<uint32_t> overdue{0};     // calls whose complete answer has waited for too long
    std::atomic<uint64_t> idle_since_ns{0};

  private:
    static constexpr unsigned RETRY_SECONDS = 1;  // after which a refused call may be retried
    static constexpr uint64_t GOODBYE_NS = 100'000'000u;  // between the notice of the end and the end

    ~Connection();

    // ---- connection.cpp ----
    void look_by(uint64_t when) noexcept;
    void own() noexcept;
    void run_owned(uint32_t events) noexcept;
    bool shake_hands(bool in_turn) noexcept;
    ssize_t receive_into(iovec *parts, int count) noexcept;
    ssize_t send_some() noexcept;
    bool may_read() const noexcept;
    void read_some() noexcept;
    bool read_once(bool *more) noexcept;
    bool find_preface(const unsigned char *data, size_t length) noexcept;
    bool take_bytes(const unsigned char *data, size_t length) noexcept;
    bool keep_early(const unsigned char *data, size_t length) noexcept;
    std::string take_early() noexcept;
    void set_low_water(int bytes) noexcept;
    void await_large_piece() noexcept;
    void end_gathering() noexcept;
    bool ended() noexcept;
    void flush() noexcept;
    void count_copied() noexcept;
    void drain_mailbox() noexcept;
    void make_room() noexcept;
    void recycle() noexcept;
    void end_untaken(bool of_all) noexcept;
    // How long a client may leave an answer unread, whatever the number of others.
    uint64_t overdue_ns() const noexcept;
    Call *oldest_call() const noexcept;
    void say_goodbye() noexcept;
    void linger() noexcept;
    void drain_lingering() noexcept;
    void close_now() noexcept;

    // ---- receive_call.cpp ----
    void *opened(int32_t stream_id) noexcept override;
    void field(void *stream, const char *name, size_t name_length, const char *value,
               size_t value_length) noexcept override;
    void fields_over(void *stream, bool whole) noexcept override;
    void data(void *stream, const unsigned char *data, size_t length) noexcept override;
    void peer_over(void *stream) noexcept override;
    void closed(void *stream, uint32_t error) noexcept override;
    bool has_lived(void *stream) noexcept override;
    void note_received(size_t length) noexcept;
    void pinged() noexcept override { ping_sent_ns_ = 0; }
    bool begin_message(Call *call) noexcept;
    bool place_message(Call *call, const unsigned char *first, size_t length) noexcept;
    bool count_message(Call *call, size_t more) noexcept;
    void end_message(Call *call) noexcept;
    bool submit_fast(Call *call) noexcept;
    void open_window(Call *call) noexcept;
    // `retry_seconds`: when the call may be retried; 0 for no hint.
    void refuse(Call *call, int status, const char *text, unsigned retry_seconds = 0) noexcept;
    void refuse_second(Call *call) noexcept;
    void refuse_http(Call *call, const char *http_status, std::string_view body = {}) noexcept;
    void stop_receiving(Call *call) noexcept;
    void note_first(Call *call) noexcept;
    const Method *method_of(const Call &call) noexcept;
    bool has_own_host(const Call &call) const noexcept;

    // ---- answer_call.cpp ----
    size_t offer(void *stream, size_t most, http2::Behind *behind) noexcept override;
    bool take(void *stream, size_t length, http2::OutgoingBytes *out) noexcept override;
    void answer_over(void *stream) noexcept override;
    void answer(Call *call) noexcept;
    void note_untaken(Call *call) noexcept;
    void note_taken(Call *call) noexcept;
    void drop_answer(Call *call) noexcept;
    void send_trailers(Call *call) noexcept;

    // ---- deadlines.cpp ----
    void tick(uint64_t now) noexcept;
    void look_at_call(Call *call, uint64_t now) noexcept;

    Server *const server_;
    int fd_;
    std::atomic<int> refs_{1};
    std::atomic<uint32_t> work_{1}, events_{0};
    std::atomic<Call *> mailbox_{nullptr};

    // ---- used only by the owner ----
    TlsSession tls_;
    std::string early_;          // bytes that were read in an earlier turn; counted in the budget
    bool agreed_ = false;  // the TLS handshake is finished, or not needed
    bool shakes_ = false;  // the TLS handshake waits for a turn
    bool speaks_ = false;  // frames may be sent: the preface has arrived, or the connection ends
    size_t preface_bytes_ = 0;  // bytes of the preface that have arrived
    http2::OutgoingBytes out_;
    size_t counted_copied_ = 0;  // copied bytes that are counted in the budget
    http2::Session session_;
    Call *calls_ = nullptr;
    bool hung_up_ = false;
    bool ended_ = false;  // the peer has sent its last byte, or is gone
    std::atomic<bool> closed_{false};
    bool broken_ = false, readable_ = false, said_goodbye_ = false, went_away_ = false;
    uint64_t lingers_until_ns_ = 0;  // data from the peer is discarded until then
    uint64_t opened_ns_, ends_ns_, requests_left_, received_ns_, ping_sent_ns_ = 0, blocked_ns_ = 0, blocked_sent_ = 0, goodbye_ns_ = 0;
    uint64_t turn_ends_ns_ = 0;
    uint64_t now_ = 0, received_bytes_ = 0, sent_bytes_ = 0;
    int low_water_ = 1;  // the socket's SO_RCVLOWAT
    uint64_t gathered_bytes_ = 0;      // received bytes when the wait for the last large piece began
    uint64_t slow_until_ns_ = 0;  // large pieces did not arrive in time, so that they are not awaited before this time
    bool spoke_ = false;  // a complete call has arrived
    const Method *called_last_ = nullptr;
};

}  // namespace ksrv::grpc
