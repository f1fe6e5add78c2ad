// The way of a message over HTTP/2: its head is there when it begins, its body comes, and its answer goes, over one stream.
//
// It behaves as a socket does that does not block, so that a request that came over HTTP/2 meets the same code,
// and the same limits, as one of HTTP/1.1. Its functions may be called on any thread, but only by the owner of
// the message.

#pragma once

#include <sys/epoll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "base/small_vector.hpp"
#include "http/request_head.hpp"

namespace ksrv {

enum class Unread : uint8_t;

// A head that HTTP/2 has told: as text, which the app and the access log read, and what was found in it.
struct StreamHead {
    SmallVector<unsigned char, 1024> text;
    Head head;
    Verdict verdict = Verdict::incomplete;
};

class ByteStream {
  public:
    // As recv(), of the body: the bytes, 0 at its end, or -1 with errno, which is EAGAIN where the call would wait.
    virtual ssize_t receive(void *data, size_t room) noexcept = 0;
    // Has what comes put where the next `receive` wants it, which is called with the same memory and room: it moves no
    // bytes then, and EPOLLIN holds once the room is full, or nothing more comes. `close` ends it as well.
    virtual void receive_ahead(void *data, size_t room) noexcept = 0;
    virtual size_t waiting() noexcept = 0;  // bytes of the body that have come and were not received

    virtual bool send_continue() noexcept = 0;
    // The head of the answer as HTTP/1.1 writes it, empty line and all; false without memory.
    virtual bool send_head(const char *text, size_t length) noexcept = 0;
    // As sendmsg(), of the answer's body, which is over once all of the `last` parts are taken.
    virtual ssize_t send(const iovec *parts, int count, bool last) noexcept = 0;

    virtual Unread unread() noexcept = 0;
    virtual uint64_t unsent() noexcept = 0;  // bytes that were sent and are here still
    virtual bool is_cut() noexcept = 0;      // the peer wants no answer any more
    virtual void close() noexcept = 0;  // the last call: the peer sees a broken answer unless the last part was sent

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
