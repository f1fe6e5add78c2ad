// Requests whose client went away while they wait for their model: they are cancelled, and their place
// is free.
//
// Strategy: a connection whose request is with the engine is not armed, so that epoll does not report
// its end. The sweep asks the kernel about waiting connections, ten times a second; a request that is run at
// once costs nothing. `waiting` is the request, held. The sweep puts LOOKING there while it
// looks, and the answering thread waits for that, so that the descriptor is the connection's all the while.
//
// A peer that has reset the connection is gone. A peer that has closed its own direction may be gone as
// well, or may read on: its bytes do not tell. So it is sent an interim answer, which every client of
// HTTP/1.1 skips; the system of a client that is gone answers that with a reset.
//
// The watch is the HTTP server's connections'. There is no lock.

#pragma once

#include <atomic>
#include <cstdint>

#include "http/connection_table.hpp"

namespace ksrv {

class DisconnectWatch {
  public:
    // Has a message's connection watched until it is answered or dropped. Before the request is pushed, or with the GIL where only
    // a thread with the GIL answers. Only while none of its requests is watched.
    void watch(Message *message, Request *request) noexcept;
    // By the thread that answers or drops; waits while a look is under way.
    void unwatch(Message *message) noexcept;

    void look_at_all(Connections *connections) noexcept;  // cancels the requests whose clients are gone

  private:
    void look(Connection *connection) noexcept;

    std::atomic<uint32_t> watched_{0};  // messages
};

}  // namespace ksrv
