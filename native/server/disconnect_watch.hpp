// Cancels requests whose client has disconnected while they wait for their model, so that they leave the queue.
//
// Strategy: a connection whose request waits in a queue is not armed in epoll, so epoll does not report a disconnect.
// Ten times a second, the sweep asks the kernel about these connections. So a request that runs at once costs nothing.
// `Message::waiting` is a counted reference to the request. While the sweep asks the kernel, it stores LOOKING there
// instead, and a thread that answers waits until the request is back, so that it does not close the descriptor
// meanwhile.
//
// A peer that has reset the connection is gone. A peer that has shut down sending may be gone, or may still read: its
// data does not say. Therefore it gets an interim answer, which every HTTP/1.1 client skips (RFC 9110 15.2). If the
// client is gone, its system answers with a reset.
//
// HttpConnections has the only object. All data is atomic.

#pragma once

#include <atomic>
#include <cstdint>

#include "http/connection_table.hpp"

namespace ksrv {

class DisconnectWatch {
  public:
    // Watches a message's connection until it is answered or dropped. Must be called before the request is pushed, or
    // with the GIL if only threads with the GIL answer. No request of the connection may be watched already.
    void watch(Message *message, Request *request) noexcept;
    // Called by the thread that answers or drops. Waits for a look in progress.
    void unwatch(Message *message) noexcept;

    void look_at_all(Connections *connections) noexcept;  // cancels requests whose clients are gone

  private:
    void look(Connection *connection) noexcept;

    std::atomic<uint32_t> watched_{0};  // number of messages
};

}  // namespace ksrv
