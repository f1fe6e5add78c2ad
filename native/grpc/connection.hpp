// One HTTP/2 connection: its socket, its session and its calls.
//
// Strategy: whoever has something for a connection (the event loop an event, another thread an answer) counts it in
// `work_`; who counts the first one is the owner and works until nothing is left. So a session is used by
// one thread at a time, nobody waits for another thread, and what comes meanwhile is taken along. Answers wait
// in a mailbox: many threads push, the owner takes all. The thread that makes a connection owns it until `begin`: the
// server lists it before it is open, and a drain may come at once.

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

// A connection's place in a list that any thread adds to, and one thread empties.
struct ListPlace {
    std::atomic<bool> listed{false};
    Connection *next = nullptr;
};

enum ConnectionEvent : uint32_t {
    EVENT_READABLE = 1,
    EVENT_WRITABLE = 2,
    EVENT_TICK = 4,
    EVENT_GOODBYE = 8,  // tell the peer that the server stops
    EVENT_CLOSE = 16,
    EVENT_MAKE_ROOM = 32,  // end calls whose message does not come
    EVENT_HUNG_UP = 64,  // the peer sends no more than what is there
    EVENT_GATHERED = 128,  // the time for a large piece is over
    EVENT_HANDSHAKE = 256,  // the TLS handshake may take a step
    EVENT_END_OVERDUE = 512,  // end calls whose answers are not taken for long,
    EVENT_END_UNTAKEN = 1024,  // or not taken yet
    EVENT_RECYCLE = 2048,  // close if it is idle: another client waits
};

class Connection final : public http2::SessionEvents {
  public:
    Connection(Server *server, int fd, uint32_t slot, uint32_t generation, uint64_t now) noexcept;
    Connection(const Connection &) = delete;
    Connection &operator=(const Connection &) = delete;

    bool open() noexcept;
    // Ends the ownership of the thread that has made it, with the first events; what was not opened is closed.
    void begin(bool opened, uint32_t events) noexcept;
    void retain() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;

    // Has the owner look at events; this thread becomes the owner where there is none.
    void post(uint32_t events) noexcept;
    // The same for a call that has something to send.
    void mail(Call *call) noexcept;

    MemoryBudget *budget() const noexcept;
    Server *server() const noexcept { return server_; }
    bool is_idle() const noexcept { return open_calls.load(std::memory_order_relaxed) == 0; }

    const uint32_t slot, generation;
    size_t place = 0;  // among the open connections; the server's, under its mutex
    sockaddr_storage address{};
    socklen_t address_length = 0;
    ListPlace deferred, unread, gathering;  // in the server's lists of these names
    std::atomic<uint32_t> open_calls{0};
    std::atomic<uint32_t> unfinished{0};  // of these, calls whose message is not there
    std::atomic<uint32_t> untaken{0};     // calls whose whole answer waits for the client,
    std::atomic<uint32_t> overdue{0};     // and those of them for which it has waited long
    std::atomic<uint64_t> idle_since_ns{0};

  private:
    static constexpr unsigned RETRY_SECONDS = 1;  // until there may be room for a call that was refused
    static constexpr uint64_t GOODBYE_NS = 100000000u;  // between the word that the end comes and the end

    ~Connection();

    // connection.cpp
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
    uint64_t overdue_ns() const noexcept;  // that a client may leave its answer, however many others wait
    Call *oldest_call() const noexcept;
    void say_goodbye() noexcept;
    void linger() noexcept;
    void drain_lingering() noexcept;
    void close_now() noexcept;

    // receive_call.cpp
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
    // With `retry_seconds`, after which the call may be made again.
    void refuse(Call *call, int status, const char *text, unsigned retry_seconds = 0) noexcept;
    void refuse_second(Call *call) noexcept;
    void refuse_http(Call *call, const char *http_status, std::string_view body = {}) noexcept;
    void stop_receiving(Call *call) noexcept;
    void note_first(Call *call) noexcept;
    const Method *method_of(const Call &call) noexcept;
    bool has_own_host(const Call &call) const noexcept;

    // answer_call.cpp
    size_t offer(void *stream, size_t most, http2::Behind *behind) noexcept override;
    bool take(void *stream, size_t length, http2::OutgoingBytes *out) noexcept override;
    void answer_over(void *stream) noexcept override;
    void answer(Call *call) noexcept;
    void note_untaken(Call *call) noexcept;
    void note_taken(Call *call) noexcept;
    void drop_answer(Call *call) noexcept;
    void send_trailers(Call *call) noexcept;

    // deadlines.cpp
    void tick(uint64_t now) noexcept;
    void look_at_call(Call *call, uint64_t now) noexcept;

    Server *const server_;
    int fd_;
    std::atomic<int> refs_{1};
    std::atomic<uint32_t> work_{1}, events_{0};
    std::atomic<Call *> mailbox_{nullptr};

    // The owner's.
    TlsSession tls_;
    std::string early_;          // bytes that were read in an earlier turn; in the budget
    bool agreed_ = false;  // on the keys, or on none
    bool shakes_ = false;  // its handshake waits for a turn
    bool speaks_ = false;  // frames may be sent: the client's preface has come, or the connection ends
    size_t preface_bytes_ = 0;  // that have come
    http2::OutgoingBytes out_;
    size_t counted_copied_ = 0;  // of its copied bytes, those that the budget has
    http2::Session session_;
    Call *calls_ = nullptr;
    bool hung_up_ = false;
    bool ended_ = false;  // the peer has sent its last byte, or is gone
    std::atomic<bool> closed_{false};
    bool broken_ = false, readable_ = false, said_goodbye_ = false, went_away_ = false;
    uint64_t lingers_until_ns_ = 0;  // what the peer still sends is thrown away until then
    uint64_t opened_ns_, ends_ns_, requests_left_, received_ns_, ping_sent_ns_ = 0, blocked_ns_ = 0, blocked_sent_ = 0, goodbye_ns_ = 0;
    uint64_t turn_ends_ns_ = 0;
    uint64_t now_ = 0, received_bytes_ = 0, sent_bytes_ = 0;
    int low_water_ = 1;  // the socket's SO_RCVLOWAT
    uint64_t gathered_bytes_ = 0;      // received when the last large piece began to be waited for
    uint64_t slow_until_ns_ = 0;       // large pieces did not come
    bool spoke_ = false;  // whether a complete call has come
    const Method *called_last_ = nullptr;
};

}  // namespace ksrv::grpc
