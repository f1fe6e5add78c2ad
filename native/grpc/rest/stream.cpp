#include "grpc/rest/stream.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "grpc/call.hpp"
#include "grpc/connection.hpp"
#include "http/transport.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t CREDIT = 16384;        // bytes that were read before the peer's window opens
constexpr size_t WIDE_FROM = 32768;     // bytes of a body that was read before its window grows

template <size_t N> bool is(std::string_view text, const char (&other)[N]) noexcept {
    return text.size() == N - 1 && memcmp(text.data(), other, N - 1) == 0;
}

// Fields that tell of a connection of HTTP/1.1 (RFC 9113 8.2.2).
bool is_of_connection(std::string_view name) noexcept {
    switch (name.size()) {
    case 7:
        return is(name, "upgrade");
    case 10:
        return is(name, "connection") || is(name, "keep-alive");
    case 16:
        return is(name, "proxy-connection");
    case 17:
        return is(name, "transfer-encoding");
    default:
        return false;
    }
}

bool is_line(std::string_view text) noexcept {
    return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == 127;
    });
}

// Writes a head, whose text it has room for, and has each part of it judged.
class HeadWriter {
  public:
    HeadWriter(const HeadLimits &limits, StreamHead *out) noexcept
        : out_(*out), at_(out->text.begin()), reader_(at_, limits, &out->head) {}

    void put(std::string_view text) noexcept {
        memcpy(at_, text.data(), text.size());
        at_ += text.size();
    }

    void begin(const std::string &method, const std::string &target) noexcept {
        put(method);
        put(" ");
        const unsigned char *const from = at_;
        put(target);
        const unsigned char *const end = at_;
        put(" HTTP/1.1\r\n");
        fault_ = reader_.begin_unread(out_.text.begin(), from, end);
        out_.head.fields = static_cast<uint32_t>(at_ - out_.text.begin());
    }

    void field(std::string_view name, std::string_view value) noexcept {
        const unsigned char *const from = at_;
        put(name);
        put(": ");
        put(value);
        end_field(from, name.size());
    }

    // Of a field whose value was put already.
    void end_field(const unsigned char *name, size_t width) noexcept {
        const unsigned char *const stop = at_;
        put("\r\n");
        if (fault_ == HeadFault::none) fault_ = reader_.unread_field(name, width, name + width + 1, stop);
    }

    unsigned char *at() const noexcept { return at_; }

    // False: a field holds what it may not.
    bool end() noexcept {
        put("\r\n");
        const size_t length = static_cast<size_t>(at_ - out_.text.begin());
        out_.text.drop_last(out_.text.size() - length);
        out_.head.length = static_cast<uint32_t>(length);
        out_.verdict = fault_ == HeadFault::none ? reader_.end(length) : refuse_head(&out_.head, fault_);
        return fault_ != HeadFault::field_name && fault_ != HeadFault::field_value;
    }

  private:
    StreamHead &out_;
    unsigned char *at_;
    HeadReader reader_;
    HeadFault fault_ = HeadFault::none;
};

}  // namespace

bool RestStream::read_head(const Call &call, bool has_body, const HeadLimits &limits, StreamHead *out) {
    constexpr size_t OTHERS = 96;  // what is written beside the call's own texts
    if (!is_line(call.verb) || !is_line(call.path) || call.verb == "CONNECT") return false;
    const bool has_host = !call.authority.empty();
    bool has_length = false, has_cookies = false;
    const size_t most = call.verb.size() + call.path.size() + call.authority.size() + call.text.size() + OTHERS;
    if (!out->text.extend(most)) throw std::bad_alloc();
    HeadWriter head(limits, out);
    head.begin(call.verb, call.path);
    if (has_host) head.field("host", call.authority);
    for (const Call::Entry &entry : call.entries) {
        const std::string_view name = call.name_of(entry);
        if (is(name, "cookie")) {
            has_cookies = true;
            continue;
        }
        if (is_of_connection(name) || (has_host && is(name, "host"))) continue;
        if (is(name, "content-length")) has_length = true;
        head.field(name, call.value_of(entry));
    }
    if (has_cookies) {  // one field in HTTP/1.1 (RFC 9113 8.2.3)
        const unsigned char *const from = head.at();
        head.put("cookie:");
        std::string_view between = " ";
        for (const Call::Entry &entry : call.entries) {
            if (!is(call.name_of(entry), "cookie")) continue;
            head.put(between);
            head.put(call.value_of(entry));
            between = "; ";
        }
        head.end_field(from, 6);
    }
    if (has_body && !has_length) head.field("transfer-encoding", "chunked");
    return head.end();
}

std::string RestStream::first_line(const Call &call) {
    return (is_line(call.verb) ? call.verb : "-") + " " + (is_line(call.path) ? call.path : "-") + " HTTP/2.0\r\n\r\n";
}

RestStream::~RestStream() {
    if (wide_) process_budget().give_back(WINDOW);
}

// ---- the session's side -------------------------------------------------------------------------

bool RestStream::put(const unsigned char *data, size_t length) noexcept {
    missing_body_ -= std::min<uint64_t>(length, missing_body_);
    std::lock_guard<std::mutex> guard(call_->lock);
    if (ahead_) {
        const size_t some = put_ahead(data, length);
        data += some;
        length -= some;
    }
    in_data_ += length;
    if (closed_ || length == 0) {  // its reader has left
        read_more();
    } else {
        if (in_at_ && left() == 0) {
            in_.clear();
            in_at_ = 0;
        }
        unsigned char *const to = in_.extend(length);
        if (!to) return false;
        memcpy(to, data, length);
    }
    tell_server();
    return true;
}

// Puts bytes into the server's memory, as far as it has room; they have been read by that.
size_t RestStream::put_ahead(const unsigned char *data, size_t length) noexcept {
    const size_t some = std::min(length, ahead_room_ - ahead_got_);
    memcpy(ahead_ + ahead_got_, data, some);
    ahead_got_ += some;
    in_read_ += some;
    return some;
}

void RestStream::put_end() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    in_over_ = true;
    tell_server();
}

void RestStream::closed() noexcept {
    {
        std::lock_guard<std::mutex> guard(call_->lock);
        cut_ = true;
        tell_server();
        if (closed_) return;  // the server has left before
    }
    if (cut) cut(owner, tag);
}

RestStream::Answer RestStream::answer() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    Answer found;
    found.interim = interim_;
    interim_ = false;
    found.head = !head_.empty();
    found.whole = call_->finished;
    found.alone = found.whole && call_->out_bytes == 0;
    found.broken = closed_ && !found.whole;
    found.full = !found.whole && call_->out_bytes >= ROOM;
    return found;
}

void RestStream::fields(SmallVector<http2::Field, 16> *out) {
    constexpr size_t VERSION = 9;  // "HTTP/1.1 "
    constexpr uint8_t KEPT = http2::FIELD_NO_COPY;  // they are read while the stream, and so this, is open
    char *at = head_.begin() + VERSION, *const end = head_.end() - 2;
    out->push_back(http2::field_of(":status", 7, at, 3, KEPT));
    for (at = static_cast<char *>(memchr(at, '\n', static_cast<size_t>(end - at))) + 1; at < end;) {
        char *const name = at, *const stop = static_cast<char *>(memchr(at, '\r', static_cast<size_t>(end + 2 - at)));
        const void *const colon = memchr(at, ':', static_cast<size_t>(stop - at));
        const size_t width = static_cast<size_t>(colon ? static_cast<const char *>(colon) - at : stop - at);
        for (size_t i = 0; i < width; ++i)  // without a branch: it becomes a loop over words
            name[i] = static_cast<char>(name[i] | (static_cast<unsigned char>(name[i] - 'A') < 26 ? 32 : 0));
        const std::string_view known(name, width);
        for (at += width + 1; at < stop && *at == ' '; ++at) {
        }
        // Their values do not come again, and would take the place of those that do.
        const bool varies = is(known, "x-request-id") || is(known, "server-timing");
        if (!is_of_connection(known))
            out->push_back(http2::field_of(name, known.size(), at, static_cast<size_t>(stop - at),
                                           varies ? KEPT | http2::FIELD_NO_INDEX : KEPT));
        at = stop + 2;
    }
}

bool RestStream::awaits_body() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    return wanted_ & EPOLLIN && head_.empty() && !closed_ && !cut_;
}

bool RestStream::awaits_room() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    return wanted_ & EPOLLOUT && !closed_ && !cut_;
}

bool RestStream::takes_window() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    const bool widens = widens_;
    widens_ = false;
    return widens;
}

size_t RestStream::take_read() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    const size_t read = in_read_;
    in_read_ = 0;
    return read;
}

size_t RestStream::missing() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    return ahead_ ? ahead_room_ - ahead_got_ : 0;
}

// ---- the HTTP server's side ---------------------------------------------------------------------

// Which events hold. Room for a few bytes only is none.
uint32_t RestStream::events() const noexcept {
    uint32_t now = 0;
    if (cut_ || in_over_ || left() || (ahead_ && ahead_got_ == ahead_room_)) now |= EPOLLIN;
    if (cut_ || call_->out_bytes <= ROOM / 2) now |= EPOLLOUT;
    return now;
}

void RestStream::tell_server() noexcept {
    if (!(wanted_ & events())) return;
    wanted_ = 0;
    ready(owner, tag);
}

void RestStream::arm(uint32_t events) noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    wanted_ = events & (EPOLLIN | EPOLLOUT);
    tell_server();
}

// What was read, or is not wanted, may come again from the peer.
void RestStream::read_more() noexcept {
    if (left() > CREDIT) return;
    in_read_ += in_data_;
    in_data_ = 0;
}

ssize_t RestStream::receive(void *data, size_t room) noexcept {
    size_t some;
    bool opens;
    {
        std::lock_guard<std::mutex> guard(call_->lock);
        const size_t there = ahead_got_;
        ahead_ = nullptr;
        ahead_got_ = 0;
        some = there ? there : std::min(room, left());
        if (some == 0) {
            if (!cut_ && in_over_ && !left()) return 0;
            errno = cut_ ? ECONNRESET : EAGAIN;
            return -1;
        }
        if (!there) {
            memcpy(data, in_.data() + in_at_, some);
            in_at_ += some;
            read_more();
        }
        in_total_ += some;
        if (!wide_ && in_total_ >= WIDE_FROM && !in_over_)
            wide_ = widens_ = process_budget().reserve(WINDOW, false);
        opens = (widens_ || in_read_ >= CREDIT) && !in_over_;
    }
    if (opens) call_->connection->mail(call_);
    return static_cast<ssize_t>(some);
}

void RestStream::receive_ahead(void *data, size_t room) noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    if (left() || in_over_ || cut_ || room == 0) return;  // there is no waiting
    ahead_ = static_cast<unsigned char *>(data);
    ahead_room_ = room;
}

size_t RestStream::waiting() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    return left();
}

Unread RestStream::unread() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    if (ahead_got_ || left()) return Unread::some;
    return cut_ ? Unread::broken : in_over_ ? Unread::closed : Unread::none;
}

uint64_t RestStream::unsent() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    return call_->out_bytes;
}

bool RestStream::is_cut() noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    return cut_;
}

bool RestStream::send_continue() noexcept {
    {
        std::lock_guard<std::mutex> guard(call_->lock);
        if (cut_) return false;
        interim_ = true;
    }
    call_->connection->mail(call_);
    return true;
}

bool RestStream::send_head(const char *text, size_t length) noexcept {
    std::lock_guard<std::mutex> guard(call_->lock);
    char *const to = head_.extend(length);
    if (to) memcpy(to, text, length);
    return to;
}

// An answer is told to the session in one piece as far as it is there: the call comes back with its end, or where
// nothing more fits.
ssize_t RestStream::send(const iovec *parts, int count, bool last) noexcept {
    size_t taken = 0, total = 0;
    {
        std::lock_guard<std::mutex> guard(call_->lock);
        if (cut_) {
            errno = EPIPE;
            return -1;
        }
        for (int i = 0; i < count && taken == total; ++i) {
            const size_t room = call_->out_bytes < ROOM ? ROOM - call_->out_bytes : 0;
            const size_t some = std::min(parts[i].iov_len, room);
            if (!call_->append(static_cast<const unsigned char *>(parts[i].iov_base), some)) {
                errno = EPROTO;
                return -1;
            }
            total += parts[i].iov_len;
            taken += some;
        }
        call_->finished = last && taken == total;
    }
    if (taken < total && taken == 0) {
        errno = EAGAIN;
        return -1;
    }
    call_->connection->mail(call_);
    return static_cast<ssize_t>(taken);
}

void RestStream::close() noexcept {
    bool tells;
    {
        std::lock_guard<std::mutex> guard(call_->lock);
        closed_ = true;
        ahead_ = nullptr;
        ahead_got_ = 0;
        wanted_ = 0;
        if (wide_) process_budget().give_back(WINDOW);
        wide_ = widens_ = false;
        in_.clear();
        in_at_ = 0;
        read_more();
        tells = !cut_ && (!call_->finished || in_read_);
    }
    if (tells) call_->connection->mail(call_);
    call_->release();
}

}  // namespace ksrv::grpc
