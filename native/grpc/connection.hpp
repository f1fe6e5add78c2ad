// An HTTP/2 connection: its owner, and its stages from the handshake to the end.
//
// Strategy: a thread that has work for a connection (an I/O thread an event, any thread an answer) increments `work_`.
// The thread whose increment is the first becomes the owner, and works until `work_` is 0. So one thread at a time uses
// the session, no thread waits for another, and the owner also does work that arrives meanwhile. Answers are passed
// through a mailbox: many threads push, and the owner takes all. The thread that creates a connection owns it until
// `begin`, because the server lists the connection before it is open, and a drain may come at once.

#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>

#include "base/assertions.hpp"
#include "grpc/call.hpp"
#include "grpc/session_socket.hpp"
#include "grpc/streams.hpp"

namespace ksrv::grpc {

class Server;
class Connection;

enum ConnectionEvent : uint32_t {
    EVENT_READABLE = 1,
    EVENT_WRITABLE = 2,
    EVENT_TICK = 4,  // the timer has expired: check the time limits
    EVENT_GOODBYE = 8,  // notify the peer that the server stops
    EVENT_CLOSE = 16,
    EVENT_MAKE_ROOM = 32,  // end calls whose message does not arrive
    EVENT_HUNG_UP = 64,  // the peer will send no more than it has sent
    EVENT_HANDSHAKE = 128,  // the TLS handshake may run a step
    EVENT_END_UNDELIVERED = 256,  // drop answers that clients do not read
    EVENT_RECYCLE = 512,  // close if idle, because another client waits
};

class Connection final {
  public:
    Connection(Server *server, int fd, uint32_t slot, uint32_t generation, uint64_t now) noexcept;
    Connection(const Connection &) = delete;
    Connection &operator=(const Connection &) = delete;

    // Opens the session, and ends the ownership of the creating thread, with the first events. Closes the connection
    // if it cannot be opened, or `watched` is false.
    void begin(bool watched, uint32_t events) noexcept;
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
    const CallCounts &counts() const noexcept { return streams_.counts; }
    bool is_idle() const noexcept { return counts().open.load(std::memory_order_relaxed) == 0; }

    // ---- for its parts, which the owner uses ----
    uint64_t now() const noexcept { return now_; }
    void look_by(uint64_t when) noexcept;  // has the timer post EVENT_TICK at this time at the latest
    bool is_gone() const noexcept { return stage_ >= Stage::gone; }
    void say_goodbye() noexcept;

    const uint32_t slot, generation;
    sockaddr_storage address{};
    std::atomic<bool> deferred{false};  // in the server's list of this name
    Connection *next_deferred = nullptr;
    std::atomic<bool> unread{false};      // in the server's queue of this name
    Connection *next_unread = nullptr;
    OwnerThread owner;

  private:
    static constexpr uint64_t GOODBYE_NS = 100'000'000u;  // between the first GOAWAY and the second; also the tick

    // In order: a connection never returns to an earlier stage.
    enum class Stage : uint8_t {
        serving,
        leaving,    // the peer was notified that the connection will end
        gone,       // GOAWAY was sent: no further call is taken
        ending,     // nothing is read; it closes once everything is sent
        lingering,  // everything was sent, and further bytes are discarded
        closed,
    };

    ~Connection() = default;

    void own() noexcept;  // as the owner, works until no work is left
    void run_owned(uint32_t events) noexcept;
    void drain_mailbox() noexcept;
    void tick() noexcept;
    bool answers_pings() noexcept;
    void end_after(const char *why) noexcept;
    void reach(Stage next) noexcept { stage_ = std::max(stage_, next); }
    void recycle() noexcept;
    void linger() noexcept;
    void close_now() noexcept;

    Server *const server_;
    std::atomic<int> refs_{1};
    std::atomic<uint32_t> work_{1}, events_{0};
    std::atomic<Call *> mailbox_{nullptr};

    // ---- used only by the owner ----
    uint64_t now_;
    Stage stage_ = Stage::serving;
    uint64_t opened_ns_, ends_ns_, goodbye_ns_ = 0, lingers_until_ns_ = 0, ping_sent_ns_ = 0;
    Streams streams_;
    SessionSocket socket_;
};

}  // namespace ksrv::grpc
