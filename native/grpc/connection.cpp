#include "grpc/connection.hpp"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/per_thread.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t READ_BYTES = 256u << 10;   // read at once
constexpr uint64_t TURN_NS = 100'000;       // of reading, before it is the turn of other connections
constexpr size_t SLICE = 1024;              // bytes of small frames between two checks of the clock
constexpr size_t DIRECT_BYTES = 16384;      // from this size on, the rest of a message is read into its block
constexpr size_t RECORD = 16384;            // the most bytes of a TLS record
constexpr size_t SENT_AHEAD = 1u << 20;     // answers are made ahead of the socket up to this size,
constexpr size_t COPIED_AHEAD = 64u << 10;  // and small frames, which are copied, up to this size
constexpr int LINGER_READS = 4;             // reads per turn
constexpr uint64_t LINGER_NS = 2'000'000'000u;  // how long the peer may take to receive the last frames
// Piece size for large messages that arrive fast, because each piece costs an event.
constexpr int LARGE_PIECE_BYTES = 256 << 10;
constexpr int SMALL_PIECE_BYTES = 64 << 10;   // piece size near the end of a large message; smaller rests do not wait
constexpr uint64_t SLOW_NS = 100'000'000u;    // how long a slow peer is read without large pieces
constexpr size_t UNREAD_FRAMES = 256;       // reading pauses while this many frames wait for the peer

struct ReadBuffer {
    unsigned char bytes[READ_BYTES];
};

// The calling thread's buffer; null if memory is short.
unsigned char *read_buffer() noexcept {
    static PerThread<ReadBuffer> buffers;
    ReadBuffer *const own = buffers.get();
    return own ? own->bytes : nullptr;
}

}  // namespace

Connection::Connection(Server *server, int fd, uint32_t its_slot, uint32_t its_generation,
                       uint64_t now) noexcept
    : slot(its_slot), generation(its_generation), server_(server), fd_(fd), session_(this, &out_),
      opened_ns_(now), ends_ns_(server->config.end(now, server->tag_of(its_slot, its_generation))),
      requests_left_(server->config.most_requests()), received_ns_(now), now_(now) {
    idle_since_ns.store(now, std::memory_order_relaxed);
}

Connection::~Connection() {
    tls_.end();
    take_early();
    if (fd_ >= 0) ::close(fd_);
}

void Connection::release() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Connection::look_by(uint64_t when) noexcept { server_->timers.lower(slot, when); }

MemoryBudget *Connection::budget() const noexcept { return server_->budget; }

bool Connection::open() noexcept {
    http2::SessionLimits limits;
    limits.streams = server_->config.streams;
    limits.head = server_->config.head;
    // Before Python has checked a token, a caller may send no more than a small message.
    limits.stream_window = server_->config.checks_callers ? 65535 : 1u << 20;
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (!server_->tls) agreed_ = true;
    return session_.open(limits);
}

void Connection::post(uint32_t events) noexcept {
    if (events) note(events);
    if (work_.fetch_add(1, std::memory_order_acq_rel) == 0) own();
}

void Connection::begin(bool opened, uint32_t events) noexcept {
    retain();  // closing releases the server's reference
    if (!opened) close_now();
    note(events);
    own();
    release();
}

// Works until `work_` is 0. The caller has made the first increment of `work_`.
void Connection::own() noexcept {
    retain();
    uint32_t seen;
    do {
        seen = work_.load(std::memory_order_acquire);
        run_owned(events_.exchange(0, std::memory_order_acq_rel));
    } while (work_.fetch_sub(seen, std::memory_order_acq_rel) != seen);
    release();
}

void Connection::mail(Call *call) noexcept {
    if (call->mailed.exchange(true, std::memory_order_acq_rel)) {
        // `work_` makes the changes of this thread visible to the owner, which then reads the mailbox.
        server_->send_later(this);
        return;
    }
    call->retain();
    Call *seen = mailbox_.load(std::memory_order_relaxed);
    do {
        call->mail_next = seen;
    } while (!mailbox_.compare_exchange_weak(seen, call, std::memory_order_release));
    server_->send_later(this);
}

void Connection::drain_mailbox() noexcept {
    Call *taken = mailbox_.exchange(nullptr, std::memory_order_acquire), *first = nullptr;
    while (taken) {  // the oldest first
        Call *following = taken->mail_next;
        taken->mail_next = first;
        first = taken;
        taken = following;
    }
    while (first) {
        Call *call = first;
        first = call->mail_next;
        call->mailed.store(false, std::memory_order_release);
        if (!closed_ && call->stream > 0) {
            answer(call);
            if (call->stream > 0) open_window(call);
        }
        call->release();
    }
}

void Connection::run_owned(uint32_t events) noexcept {
    now_ = unsigned_now_ns();
    if (closed_) {
        drain_mailbox();
        return;
    }
    if (events & EVENT_READABLE) readable_ = true;
    if (events & EVENT_HUNG_UP) hung_up_ = true;
    drain_mailbox();
    if (lingers_until_ns_) {
        events & (EVENT_CLOSE | EVENT_RECYCLE) || now_ >= lingers_until_ns_ ? close_now() : drain_lingering();
        return;
    }
    if (events & EVENT_GOODBYE) say_goodbye();
    if (events & EVENT_MAKE_ROOM) make_room();
    if (events & (EVENT_END_OVERDUE | EVENT_END_UNTAKEN)) end_untaken(events & EVENT_END_UNTAKEN);
    if (events & EVENT_TICK) tick(now_);
    if (!closed_ && events & EVENT_RECYCLE) recycle();
    if (closed_) return;
    if (!agreed_ && events & EVENT_CLOSE) {
        close_now();
        return;
    }
    if (!agreed_ && !shake_hands(events & EVENT_HANDSHAKE)) return;
    if (events & EVENT_WRITABLE && tls_.wants_write) readable_ = true;
    if (events & EVENT_GATHERED) end_gathering();
    if (readable_ && may_read()) read_some();
    flush();
    if (!closed_ && readable_ && may_read()) server_->read_again(this);
    if (closed_) return;
    if (events & EVENT_CLOSE) {
        close_now();
    } else if ((broken_ || session_.over()) && out_.empty()) {
        linger();
    }
}

void Connection::say_goodbye() noexcept {
    if (said_goodbye_) return;
    said_goodbye_ = speaks_ = true;
    goodbye_ns_ = now_;
    session_.say_goodbye();
    session_.ping();
    look_by(now_ + GOODBYE_NS);
}

// All frames are sent. Closing while the peer still sends would reset the connection, and the peer might lose GOAWAY.
void Connection::linger() noexcept {
    if (hung_up_ || ended_) {
        close_now();
        return;
    }
    if (tls_) {
        tls_.say_farewell();
        tls_.end();
    }
    shutdown(fd_, SHUT_WR);
    while (calls_) closed(calls_, http2::CANCEL);
    lingers_until_ns_ = now_ + LINGER_NS;
    look_by(lingers_until_ns_);
    drain_lingering();
}

// Discards data until the peer closes or the time is up.
void Connection::drain_lingering() noexcept {
    unsigned char *buffer = read_buffer();
    for (int turns = 0; buffer && turns < LINGER_READS; ++turns) {
        // MSG_TRUNC: TCP discards the bytes without copying them.
        const ssize_t got = recv(fd_, buffer, READ_BYTES, MSG_DONTWAIT | MSG_TRUNC);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (got <= 0) {
            close_now();
            return;
        }
    }
    readable_ = true;
    server_->read_again(this);
}

// Stops reading from a peer that does not read the answers to its frames (resets, acknowledgements, refusals).
bool Connection::may_read() const noexcept { return session_.queued() <= UNREAD_FRAMES; }

void Connection::read_some() noexcept {
    turn_ends_ns_ = now_ + TURN_NS;
    bool more = true;
    while (more && !broken_) {
        if (!may_read()) return;
        if (!read_once(&more)) {
            broken_ = true;
            break;
        }
        if (more && unsigned_now_ns() >= turn_ends_ns_) return;
    }
    readable_ = false;
    await_large_piece();
}

// Sets SO_RCVLOWAT: the kernel reports fewer bytes only at the end of the connection.
void Connection::set_low_water(int bytes) noexcept {
    if (low_water_ == bytes || setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) != 0) return;
    low_water_ = bytes;
}

// An event for each frame of a large message would cost more than handling its bytes. Therefore the rest of the last
// message is awaited in large pieces. Other frames of the peer then wait a millisecond, too.
void Connection::await_large_piece() noexcept {
    size_t left = 0;
    const Call *call = static_cast<const Call *>(session_.stream_of_last_data(&left));
    const bool receives = call && !call->discard_body && call->incoming.block;
    left = receives ? std::min(left, call->incoming.length - call->got) : 0;
    if (tls_ || broken_ || hung_up_ || now_ < slow_until_ns_ || left < SMALL_PIECE_BYTES) {
        set_low_water(1);
        return;
    }
    set_low_water(left < LARGE_PIECE_BYTES ? SMALL_PIECE_BYTES : LARGE_PIECE_BYTES);
    if (low_water_ > 1 && server_->read_soon(this)) gathered_bytes_ = received_bytes_;
}

// If the peer is too slow for large pieces, its bytes are read as they arrive.
void Connection::end_gathering() noexcept {
    if (low_water_ == 1) return;
    readable_ = true;
    if (received_bytes_ - gathered_bytes_ < static_cast<uint64_t>(SMALL_PIECE_BYTES)) slow_until_ns_ = now_ + SLOW_NS;
}

// Reads once; bytes of a large message go directly into its block. False if the connection has ended.
bool Connection::read_once(bool *more) noexcept {
    unsigned char *buffer = read_buffer();
    if (!buffer) return false;
    if (!early_.empty()) {
        const std::string bytes = take_early();
        received_ns_ = now_;  // so that the time for late reading is forgiven only once
        return take_bytes(reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size()) || ended();
    }
    iovec parts[2];
    int count = 0;
    size_t direct = 0, left = 0;
    Call *call = static_cast<Call *>(session_.stream_in_data(&left));
    if (call && !call->discard_body && call->incoming.block) {
        direct = std::min(left, call->incoming.length - call->got);
        if (direct < DIRECT_BYTES || !count_message(call, direct)) direct = 0;
    }
    if (direct) {
        parts[count++] = {call->incoming.block->data + call->incoming.offset + call->got, direct};
    }
    parts[count++] = {buffer, READ_BYTES};
    const ssize_t got = receive_into(parts, count);
    if (got < 0 && errno == EINTR) return true;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        *more = tls_.unread;  // its turn is over, and the socket may have more
        return true;
    }
    if (got <= 0) {
        if (tls_.flooded) server_->count(ServerCounter::flood);
        out_.clear();
        ended_ = true;
        return false;
    }
    note_received(static_cast<size_t>(got));
    size_t whole = static_cast<size_t>(got);
    // A short read has emptied the socket, and an event will report more bytes. But the event of the end may have
    // arrived with these bytes. Under TLS a short read may be the rest of a record, or come from the library's buffer.
    *more = hung_up_ || (tls_ ? tls_.unread || tls_.socket_unread || whole >= DIRECT_BYTES / 2 : whole >= DIRECT_BYTES);
    const size_t first = std::min(direct, whole);
    if (first && !session_.receive(static_cast<unsigned char *>(parts[0].iov_base), first, now_)) return ended();
    whole -= first;
    if (whole && !take_bytes(buffer, whole)) return ended();
    *more = *more || !early_.empty();
    return true;
}

// Compares the first bytes with HTTP/2's preface (RFC 9113 3.4). If they differ, the client probably speaks HTTP/1.1,
// so it gets an HTTP/1.1 error, and the result is false. No frame is sent before the preface, because such a client
// would take it for an answer.
bool Connection::find_preface(const unsigned char *data, size_t length) noexcept {
    const size_t some = std::min(length, HTTP2_PREFACE_BYTES - preface_bytes_);
    if (memcmp(data, HTTP2_PREFACE + preface_bytes_, some) == 0) {
        preface_bytes_ += some;
        speaks_ = preface_bytes_ == HTTP2_PREFACE_BYTES;
        return true;
    }
    const std::string &body = server_->misdirected_body;
    char head[160];
    const int length_of_head = snprintf(head, sizeof head,
                                        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                                        "Connection: close\r\nContent-Length: %zu\r\n\r\n",
                                        body.size());
    try {
        out_.copy(head, static_cast<size_t>(length_of_head));
        out_.copy(body.data(), body.size());
    } catch (const std::bad_alloc &) {
        // The connection is closed without an answer.
    }
    return false;
}

// Passes bytes to the session, as many as its turn allows, because a read may have thousands of small frames. False if
// the session has ended.
bool Connection::take_bytes(const unsigned char *data, size_t length) noexcept {
    if (!speaks_ && !find_preface(data, length)) return false;
    while (length) {
        size_t some = 0;  // the rest of a DATA frame is cheap, however long
        session_.stream_in_data(&some);
        some = std::min(length, some + SLICE);
        if (!session_.receive(data, some, now_)) return false;
        data += some;
        length -= some;
        if (!length || unsigned_now_ns() < turn_ends_ns_) continue;
        return keep_early(data, length) || session_.receive(data, length, now_);
    }
    return true;
}

// Keeps bytes for the connection's next turn. False if the budget does not allow it.
bool Connection::keep_early(const unsigned char *data, size_t length) noexcept {
    if (!budget()->reserve(length, true)) return false;
    try {
        early_.assign(reinterpret_cast<const char *>(data), length);
    } catch (const std::bad_alloc &) {
        budget()->give_back(length);
        return false;
    }
    return true;
}

std::string Connection::take_early() noexcept {
    std::string bytes;
    bytes.swap(early_);
    budget()->give_back(bytes.size());
    return bytes;
}

// The session has ended: its last frames (GOAWAY) are sent before the connection closes.
bool Connection::ended() noexcept {
    if (session_.flooded()) server_->count(ServerCounter::flood);
    return false;
}

// False if the handshake is not finished, or the connection is closed.
bool Connection::shake_hands(bool in_turn) noexcept {
    if (in_turn) shakes_ = false;
    if (!readable_) return false;  // a silent client must not cost memory
    if (!in_turn) {
        if (!shakes_) server_->queue_handshake(*this);
        shakes_ = true;
        return false;
    }
    if (!tls_ && !tls_.begin(*server_->tls, fd_)) {
        close_now();
        return false;
    }
    switch (tls_.shake_hands()) {
    case Handshake::done:
        agreed_ = readable_ = true;
        return true;
    case Handshake::waits:
        return false;
    default:
        close_now();
        return false;
    }
}

ssize_t Connection::receive_into(iovec *parts, int count) noexcept {
    return tls_ ? tls_.receive(parts[0].iov_base, parts[0].iov_len) : readv(fd_, parts, count);
}

// Sends what the socket takes now. Under TLS small parts are sent in one record, and after EAGAIN the next call starts
// with the same bytes.
ssize_t Connection::send_some() noexcept {
    iovec parts[http2::OutgoingBytes::PARTS];
    const int count = out_.parts(parts);
    if (!tls_) {
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = static_cast<size_t>(count);
        return sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (parts[0].iov_len >= RECORD || count == 1) return tls_.send(parts[0].iov_base, parts[0].iov_len);
    unsigned char gathered[RECORD];
    size_t length = 0;
    for (int i = 0; i < count && length < RECORD; ++i) {
        const size_t some = std::min(parts[i].iov_len, RECORD - length);
        memcpy(gathered + length, parts[i].iov_base, some);
        length += some;
    }
    return tls_.send(gathered, length);
}

void Connection::flush() noexcept {
    for (;;) {
        if (speaks_ && !session_.produce(SENT_AHEAD, COPIED_AHEAD)) {
            close_now();
            return;
        }
        if (out_.empty()) {
            blocked_ns_ = 0;
            count_copied();
            return;
        }
        const ssize_t sent = send_some();
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!blocked_ns_) {
                blocked_ns_ = now_;
                blocked_sent_ = sent_bytes_;
                look_by(now_ + server_->config.grace_ns);
            }
            count_copied();
            return;
        }
        if (sent < 0) {
            close_now();
            return;
        }
        out_.drop_sent(static_cast<size_t>(sent));
        sent_bytes_ += static_cast<uint64_t>(sent);
    }
}

// Counts small frames that wait for the peer in the budget. Frames that the socket takes at once are never counted.
void Connection::count_copied() noexcept {
    const size_t copied = out_.copied();
    if (copied > counted_copied_) budget()->take(copied - counted_copied_);
    if (copied < counted_copied_) budget()->give_back(counted_copied_ - copied);
    counted_copied_ = copied;
}

Call *Connection::oldest_call() const noexcept {
    Call *oldest = calls_;
    while (oldest && oldest->next) oldest = oldest->next;
    return oldest;
}

void Connection::make_room() noexcept {
    uint32_t most = (unfinished.load(std::memory_order_relaxed) + 1) / 2;
    char text[160];
    snprintf(text, sizeof text,
             "%u calls wait for their messages, which is the limit, and this connection has the most of them; "
             "send fewer calls at a time",
             server_->config.calls);
    for (Call *call = oldest_call(); call && most; call = call->previous)
        if (call->waits_for_first && !call->discard_body) {
            server_->count(ServerCounter::calls);
            refuse(call, RESOURCE_EXHAUSTED, text, RETRY_SECONDS);
            --most;
        }
}

// Closes an idle connection to make room for another client, unless the next call is arriving.
void Connection::recycle() noexcept {
    unsigned char next;
    if (!is_idle() || !agreed_ || !early_.empty() || tls_.unread || recv(fd_, &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
        return;
    server_->count(ServerCounter::recycled);
    speaks_ = true;
    session_.go_away(http2::NO_ERROR, "the connection was idle, and another client waits");
    flush();
    close_now();
}

void Connection::close_now() noexcept {
    if (closed_) return;
    closed_ = true;
    if (tls_ && agreed_) tls_.say_farewell();
    tls_.end();
    shutdown(fd_, SHUT_WR);
    server_->forget(this);
    while (calls_) closed(calls_, http2::CANCEL);
    out_.clear();
    count_copied();
    take_early();
    ::close(fd_);
    fd_ = -1;
    drain_mailbox();
    release();  // the server's reference
}

}  // namespace ksrv::grpc
