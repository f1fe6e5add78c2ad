// How much a peer may send: the windows of its streams, the bytes of messages in the memory budget, and its resets.

#pragma once

#include <cstdint>

#include "grpc/call.hpp"
#include "http2/session.hpp"

namespace ksrv::grpc {

struct ServerConfig;

// Used only by the connection's owner.
class FlowControl {
  public:
    FlowControl(http2::Session *session, const ServerConfig *config, MemoryBudget *budget, uint64_t now) noexcept
        : session_(session), config_(config), budget_(budget), received_ns_(now) {}

    // Lets the peer send more on a stream if it is wanted.
    void open_window(Call *call) noexcept;
    // Counts bytes of a message before memory is allocated for them. Returns how many the budget lacks room for, or 0.
    size_t count(Call *call, size_t more) noexcept;
    // Called when bytes arrive, while `open` streams are open.
    void note_received(uint64_t now, uint32_t open) noexcept;
    // Whether the peer may reset a stream without a cost.
    static bool has_lived(const Call &call, uint64_t now) noexcept;
    // False if the peer does not read the answers to its frames (resets, acknowledgements, refusals).
    bool may_read() const noexcept { return session_->queued() <= UNREAD_FRAMES; }
    uint64_t received_ns() const noexcept { return received_ns_; }

  private:
    static constexpr size_t UNREAD_FRAMES = 256;  // reading pauses while this many frames wait for the peer

    http2::Session *const session_;
    const ServerConfig *const config_;
    MemoryBudget *const budget_;
    uint64_t received_ns_;  // when bytes arrived last
};

}  // namespace ksrv::grpc
