#include "grpc/rest/stream.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "grpc/call.hpp"
#include "grpc/connection.hpp"
#include "http/transport.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t LONGEST_HEAD = 65536;  // of an answer
constexpr size_t CREDIT = 16384;        // bytes that were read before the peer's window opens
constexpr size_t WIDE_FROM = 32768;     // bytes of a message that was read before its window grows
constexpr size_t LEAST_PIECE = 512;

bool is_token(const std::string &text) noexcept {
    static constexpr char OTHERS[] = "!#$%&'*+-.^_`|~";
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               (c && strchr(OTHERS, c));
    });
}

bool is_target(const std::string &text) noexcept {
    return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == 127;
    });
}

bool is_line(const char *text, size_t length) noexcept {
    return std::none_of(text, text + length, [](char c) { return c == '\r' || c == '\n' || c == 0; });
}

bool is(const std::string &text, const char *other) noexcept { return text == other; }

// Fields that tell of a connection of HTTP/1.1.
bool is_of_connection(const std::string &name) noexcept {
    return is(name, "connection") || is(name, "keep-alive") || is(name, "transfer-encoding") ||
           is(name, "proxy-connection") || is(name, "upgrade");
}

}  // namespace

// Bytes of an answer between the server, which wrote them, and the socket.
struct RestStream::Piece final : http2::Keeper {
    static Piece *make(size_t room) {
        void *memory = malloc(sizeof(Piece) + room);
        if (!memory) throw std::bad_alloc();
        process_budget().take(room);
        return new (memory) Piece(room);
    }

    explicit Piece(size_t its_room) noexcept : room(its_room) {}
    unsigned char *bytes() noexcept { return reinterpret_cast<unsigned char *>(this + 1); }
    void retain() noexcept override { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept override {
        if (refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        process_budget().give_back(room);
        this->~Piece();
        free(this);
    }

    std::atomic<int> refs{1};
    const size_t room;
    size_t size = 0, taken = 0;
    Piece *next = nullptr;
};

RestStream::~RestStream() {
    if (wide_) process_budget().give_back(WINDOW);
    while (first_) {
        Piece *piece = first_;
        first_ = piece->next;
        piece->release();
    }
}

// ---- the session's side -------------------------------------------------------------------------

bool RestStream::begin(const Call &call, bool has_body) {
    if (!is_token(call.verb) || !is_target(call.path) || call.verb == "CONNECT") return false;
    bool has_length = false, has_host = !call.authority.empty();
    std::string head = call.verb + " " + call.path + " HTTP/1.1\r\n", cookies;
    if (has_host) {
        if (!is_line(call.authority.data(), call.authority.size())) return false;
        head += "host: " + call.authority + "\r\n";
    }
    for (const Call::Entry &entry : call.entries) {
        const char *value = call.text.data() + entry.value;
        const std::string name(call.text.data() + entry.name, entry.name_length);
        if (!is_token(name) || !is_line(value, entry.value_length)) return false;
        if (is_of_connection(name) || (has_host && is(name, "host"))) continue;
        if (is(name, "cookie")) {
            cookies.append(cookies.empty() ? "" : "; ").append(value, entry.value_length);
            continue;
        }
        if (is(name, "content-length")) has_length = true;
        head.append(name).append(": ").append(value, entry.value_length).append("\r\n");
    }
    if (!cookies.empty()) head += "cookie: " + cookies + "\r\n";
    in_chunks_ = has_body && !has_length;
    if (in_chunks_) head += "transfer-encoding: chunked\r\n";
    head += "\r\n";
    is_head_ = call.verb == "HEAD";
    append(reinterpret_cast<const unsigned char *>(head.data()), head.size());
    return true;
}

std::string RestStream::first_line(const Call &call) {
    return (is_token(call.verb) ? call.verb : "-") + " " + (is_target(call.path) ? call.path : "-") +
           " HTTP/2.0\r\n\r\n";
}

void RestStream::append(const unsigned char *data, size_t length) {
    if (in_at_ && in_at_ == in_.size()) {
        in_.clear();
        in_at_ = chunk_length_ = 0;
    }
    in_.insert(in_.end(), data, data + length);
}

// DATA joins the last chunk, unless the server has read some of that: a size for each frame of one byte would take six
// times the bytes that the peer's window allows.
void RestStream::append_chunk(const unsigned char *data, size_t length) {
    constexpr size_t SIZE_LINE = 10;  // "0000ffff\r\n"
    static constexpr unsigned char END[] = "\r\n";
    if (chunk_length_ && in_at_ <= chunk_at_) {
        in_.resize(in_.size() - 2);
    } else {
        static constexpr unsigned char NO_SIZE[SIZE_LINE] = {};
        append(NO_SIZE, SIZE_LINE);
        chunk_at_ = in_.size() - SIZE_LINE;
        chunk_length_ = 0;
    }
    append(data, length);
    append(END, 2);
    chunk_length_ += length;
    char line[SIZE_LINE + 1];
    snprintf(line, sizeof line, "%08zx\r\n", chunk_length_);
    memcpy(in_.data() + chunk_at_, line, SIZE_LINE);
}

bool RestStream::put(const unsigned char *data, size_t length) noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    if (ahead_) {
        const size_t some = put_ahead(data, length);
        data += some;
        length -= some;
    }
    in_data_ += length;
    if (closed_ || length == 0) {  // its reader has left
        read_more(0);
        tell_server();
        return true;
    }
    try {
        in_chunks_ ? append_chunk(data, length) : append(data, length);
    } catch (const std::bad_alloc &) {
        return false;
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
    static constexpr unsigned char LAST[] = "0\r\n\r\n";
    std::lock_guard<std::mutex> guard(lock_);
    if (in_over_) return;
    in_over_ = true;
    try {
        if (in_chunks_ && !closed_) append(LAST, sizeof LAST - 1);
    } catch (const std::bad_alloc &) {
        // The body has no end then, which the server answers.
    }
    tell_server();
}

void RestStream::closed() noexcept {
    {
        std::lock_guard<std::mutex> guard(lock_);
        cut_ = true;
        tell_server();
        if (closed_) return;  // the server has left before
    }
    if (cut) cut(owner, tag);
}

RestStream::Answer RestStream::answer() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    Answer found;
    found.interim = interim_;
    interim_ = false;
    found.head = has_head_;
    found.alone = state_ == State::over && out_bytes_ == 0;
    found.broken = closed_ && state_ != State::over;
    found.whole = state_ == State::over;
    found.full = !found.whole && out_bytes_ >= ROOM;
    return found;
}

size_t RestStream::offer(size_t most, bool *over) noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    const size_t offered = std::min(most, out_bytes_);
    *over = state_ == State::over && offered == out_bytes_;
    return offered;
}

bool RestStream::take(size_t length, http2::OutgoingBytes *out) noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    try {
        while (length) {
            Piece *piece = first_;
            const size_t some = std::min(length, piece->size - piece->taken);
            out->refer(piece->bytes() + piece->taken, some, piece);
            piece->taken += some;
            out_bytes_ -= some;
            length -= some;
            if (piece->taken < piece->size) continue;
            first_ = piece->next;
            if (!first_) last_ = nullptr;
            piece->release();
        }
    } catch (const std::bad_alloc &) {
        return false;
    }
    tell_server();
    return true;
}

bool RestStream::awaits_body() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    return wanted_ & EPOLLIN && state_ == State::head && !closed_ && !cut_;
}

bool RestStream::awaits_room() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    return wanted_ & EPOLLOUT && !closed_ && !cut_;
}

bool RestStream::takes_window() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    const bool widens = widens_;
    widens_ = false;
    return widens;
}

size_t RestStream::take_read() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    const size_t read = in_read_;
    in_read_ = 0;
    return read;
}

size_t RestStream::missing() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    return ahead_ ? ahead_room_ - ahead_got_ : 0;
}

// ---- the HTTP server's side ---------------------------------------------------------------------

// Which events hold. Room for a few bytes only is none.
uint32_t RestStream::events() const noexcept {
    uint32_t now = 0;
    if (cut_ || in_over_ || in_at_ < in_.size() || (ahead_ && ahead_got_ == ahead_room_)) now |= EPOLLIN;
    if (cut_ || out_bytes_ <= ROOM / 2) now |= EPOLLOUT;
    return now;
}

void RestStream::tell_server() noexcept {
    if (!(wanted_ & events())) return;
    wanted_ = 0;
    ready(owner, tag);
}

void RestStream::arm(uint32_t events) noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    wanted_ = events & (EPOLLIN | EPOLLOUT);
    tell_server();
}

// What was read, or is not wanted, may come again from the peer.
void RestStream::read_more(size_t left) noexcept {
    if (left > CREDIT) return;
    in_read_ += in_data_;
    in_data_ = 0;
}

ssize_t RestStream::receive(void *data, size_t room) noexcept {
    size_t some;
    bool opens;
    {
        std::lock_guard<std::mutex> guard(lock_);
        const size_t there = ahead_got_;
        ahead_ = nullptr;
        ahead_got_ = 0;
        some = there ? there : std::min(room, in_.size() - in_at_);
        if (some == 0) {
            if (!cut_ && in_over_) return 0;
            errno = cut_ ? ECONNRESET : EAGAIN;
            return -1;
        }
        if (!there) {
            memcpy(data, in_.data() + in_at_, some);
            in_at_ += some;
            read_more(in_.size() - in_at_);
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
    std::lock_guard<std::mutex> guard(lock_);
    if (in_at_ < in_.size() || in_over_ || cut_ || room == 0) return;  // there is no waiting
    ahead_ = static_cast<unsigned char *>(data);
    ahead_room_ = room;
}

Unread RestStream::unread() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    if (ahead_got_ || in_at_ < in_.size()) return Unread::some;
    return cut_ ? Unread::broken : in_over_ ? Unread::closed : Unread::none;
}

uint64_t RestStream::unsent() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    return out_bytes_;
}

bool RestStream::is_cut() noexcept {
    std::lock_guard<std::mutex> guard(lock_);
    return cut_;
}

// An answer is told to the session in one piece as far as it is there: the call comes back with its end, or where
// nothing more fits.
ssize_t RestStream::send(const iovec *parts, int count) noexcept {
    size_t taken = 0;
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (cut_) {
            errno = EPIPE;
            return -1;
        }
        try {
            for (int i = 0; i < count; ++i) {
                const unsigned char *data = static_cast<const unsigned char *>(parts[i].iov_base);
                const size_t some = put_answer(data, parts[i].iov_len);
                taken += some;
                if (some < parts[i].iov_len) break;
            }
        } catch (const std::bad_alloc &) {
            state_ = State::broken;
        }
        if (state_ == State::broken) {
            errno = EPROTO;
            return -1;
        }
    }
    if (taken == 0) {
        errno = EAGAIN;
        return -1;
    }
    call_->connection->mail(call_);
    return static_cast<ssize_t>(taken);
}

// Takes an answer apart; returns the bytes that it took.
size_t RestStream::put_answer(const unsigned char *data, size_t length) {
    size_t at = 0;
    while (at < length) {
        const size_t left = length - at;
        switch (state_) {
        case State::head: {
            const size_t before = head_.size();
            head_.append(reinterpret_cast<const char *>(data + at), std::min(left, LONGEST_HEAD - before));
            const size_t end = head_.find("\r\n\r\n", before < 3 ? 0 : before - 3);
            if (end == std::string::npos) {
                at += head_.size() - before;
                if (head_.size() >= LONGEST_HEAD) state_ = State::broken;
                break;
            }
            head_.resize(end + 2);
            at += end + 4 - before;
            read_head();
            head_.clear();
            break;
        }
        case State::counted:
        case State::open: {
            const size_t wanted = state_ == State::open ? left : static_cast<size_t>(std::min<uint64_t>(left, left_));
            const size_t some = add_piece(data + at, wanted);
            at += some;
            if (state_ == State::counted && (left_ -= some) == 0) state_ = State::over;
            if (some < wanted) return at;
            break;
        }
        case State::chunked: {
            at += chunks_.read(data + at, left);
            const size_t wanted = static_cast<size_t>(std::min<uint64_t>(chunks_.run(), length - at));
            if (wanted) {
                const size_t some = add_piece(data + at, wanted);
                chunks_.take(some);
                at += some;
                if (some < wanted) return at;
            }
            if (chunks_.ended()) state_ = State::over;
            if (chunks_.fault() != ChunkFault::none) state_ = State::broken;
            break;
        }
        case State::over:
        case State::broken:
            return length;
        }
    }
    return at;
}

// The head of an answer, or of 100 Continue, is there.
void RestStream::read_head() {
    const size_t line = head_.find("\r\n"), blank = head_.find(' ');
    status_ = head_.substr(blank + 1, 3);
    if (status_[0] == '1') {
        interim_ = true;
        return;
    }
    bool counted = false, chunked = false;
    for (size_t at = line + 2; at < head_.size();) {
        const size_t end = head_.find("\r\n", at), colon = head_.find(':', at);
        if (colon != std::string::npos && colon < end) {
            std::string name = head_.substr(at, colon - at);
            for (char &c : name)
                if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 32);
            size_t from = colon + 1;
            while (from < end && head_[from] == ' ') ++from;
            std::string value = head_.substr(from, end - from);
            if (is(name, "content-length")) {
                counted = true;
                left_ = strtoull(value.c_str(), nullptr, 10);
            }
            chunked |= is(name, "transfer-encoding") && is(value, "chunked");
            if (!is_of_connection(name)) fields_.emplace_back(std::move(name), std::move(value));
        }
        at = end + 2;
    }
    has_head_ = true;
    const bool empty = is_head_ || status_ == "204" || status_ == "304" || (counted && left_ == 0);
    state_ = empty ? State::over : counted ? State::counted : chunked ? State::chunked : State::open;
    if (chunked) chunks_.begin(SIZE_MAX);
}

size_t RestStream::add_piece(const unsigned char *data, size_t length) {
    const size_t some = std::min(length, out_bytes_ < ROOM ? ROOM - out_bytes_ : 0);
    for (size_t at = 0; at < some;) {
        if (!last_ || last_->size == last_->room) {
            Piece *piece = Piece::make(std::max(some - at, LEAST_PIECE));
            (last_ ? last_->next : first_) = piece;
            last_ = piece;
        }
        const size_t now = std::min(some - at, last_->room - last_->size);
        memcpy(last_->bytes() + last_->size, data + at, now);
        last_->size += now;
        out_bytes_ += now;
        at += now;
    }
    return some;
}

void RestStream::end_sending() noexcept {
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (state_ != State::open) return;  // whether it is over is known
        state_ = State::over;
    }
    call_->connection->mail(call_);
}

void RestStream::close() noexcept {
    bool tells;
    {
        std::lock_guard<std::mutex> guard(lock_);
        closed_ = true;
        ahead_ = nullptr;
        ahead_got_ = 0;
        wanted_ = 0;
        if (wide_) process_budget().give_back(WINDOW);
        wide_ = widens_ = false;
        in_.clear();
        in_at_ = chunk_length_ = 0;
        read_more(0);
        tells = !cut_ && (state_ != State::over || in_read_);
    }
    if (tells) call_->connection->mail(call_);
    call_->release();
}

}  // namespace ksrv::grpc
