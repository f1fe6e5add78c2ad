// The way of a connection's bytes where no socket of its own carries them: one stream of an HTTP/2 connection.
//
// It behaves as a socket does that does not block, so that a request that came over HTTP/2 meets the same code,
// and the same limits, as one of HTTP/1.1. Its functions may be called on any thread, but only by the owner of
// the connection.

#pragma once

#include <sys/epoll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace ksrv {

enum class Unread : uint8_t;

class ByteStream {
  public:
    // As recv() and sendmsg(): the bytes, 0 at the end, or -1 with errno, which is EAGAIN where the call would wait.
    virtual ssize_t receive(void *data, size_t room) noexcept = 0;
    // Has what comes put where the next `receive` wants it, which is called with the same memory and room: it moves no
    // bytes then, and EPOLLIN holds once the room is full, or nothing more comes. `close` ends it as well.
    virtual void receive_ahead(void *data, size_t room) noexcept = 0;
    virtual ssize_t send(const iovec *parts, int count) noexcept = 0;
    virtual Unread unread() noexcept = 0;
    virtual uint64_t unsent() noexcept = 0;  // bytes that were sent and are here still
    virtual bool is_cut() noexcept = 0;      // the peer wants no answer any more
    virtual void end_sending() noexcept = 0;
    virtual void close() noexcept = 0;  // the last call: without `end_sending` the peer sees a broken answer

    // Has `ready` called once with `tag` when EPOLLIN or EPOLLOUT of `events` holds, which may be at once.
    virtual void arm(uint32_t events) noexcept = 0;

    void (*ready)(void *owner, uint64_t tag) = nullptr;
    // Called once the peer wants no answer any more, which `ready` tells only who has armed it.
    void (*cut)(void *owner, uint64_t tag) = nullptr;
    void *owner = nullptr;
    uint64_t tag = 0;

  protected:
    ~ByteStream() = default;
};

}  // namespace ksrv
