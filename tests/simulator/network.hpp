// Descriptors that no kernel knows: sockets and the network between them, epoll, eventfd, and channels to other processes.
//
// Strategy: a link is one connection. Its client is not a thread: it puts bytes on the way, which arrive later and in other pieces,
// and takes bytes out of what the server has sent. The process's end behaves like Linux: level and edge triggered events,
// one-shot events, low-water marks, half-closed and reset connections, and full buffers. Numbers of descriptors are reused at
// once, so that a call with a closed descriptor meets another link. A call with a free descriptor ends the simulation.

#pragma once

#include <errno.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "machine.hpp"

namespace sim {

constexpr int FIRST_FD = 50000;
constexpr size_t FEW_BYTES = 512;

// Bytes in order, taken from the front.
struct Bytes {
    std::string text;
    size_t at = 0;
    size_t size() const { return text.size() - at; }
    bool empty() const { return size() == 0; }
    void add(const char *data, size_t length) {
        if (at > 65536 && at * 2 > text.size()) {
            text.erase(0, at);
            at = 0;
        }
        text.append(data, length);
    }
    size_t peek(void *out, size_t most) const {
        const size_t some = std::min(most, size());
        if (some) memcpy(out, text.data() + at, some);
        return some;
    }
    size_t take(void *out, size_t most) {
        const size_t some = out ? peek(out, most) : std::min(most, size());
        at += some;
        if (at == text.size()) {
            text.clear();
            at = 0;
        }
        return some;
    }
};

struct Link {
    Bytes flying, up, down;      // on the way to the server; received by its kernel; sent by it and not taken by the client
    bool fin_flying = false, up_over = false;      // the client sends no more
    bool down_over = false;                        // the server sends no more
    bool reset = false;                            // by the client, as the server sees it
    bool refused = false;                          // by the server: the client sees a reset
    bool client_gone = false, server_gone = false;
    bool was_full = false;                         // the server waits for room
    bool arriving = false;                         // an event of the network is on its way
    bool hurt = false;                             // a fault was made with it
    size_t up_room = 262144, down_room = 65536, client_buffer = 16384;
    int low_water = 1;
    int64_t least_delay = 10 * US, most_delay = MS;
    size_t most_piece = SIZE_MAX;
    bool counts_records = false;                   // TLS: what the library does with a record costs time
    size_t record_left = 0, header_got = 0;
    unsigned char record_header[5];
    uint64_t got_by_server = 0, sent_by_server = 0;
    int64_t last_arrival = 0;
    int64_t accepted_ns = FOREVER;                 // when the server accepted it; no deadline of the server runs before
    std::function<void()> tell_client;             // something has changed that it can see
};
using LinkPointer = std::shared_ptr<Link>;

struct Listener {
    std::deque<LinkPointer> backlog;
};

struct Watch {
    uint32_t events;
    epoll_data_t data;
    bool edge, armed;
};

struct File {
    enum Kind : uint8_t { epoll, event, listener, server_end, client_end, channel } kind;
    LinkPointer link;
    Listener listening;
    uint64_t count = 0;              // an eventfd's
    std::map<int, Watch> watched;    // an epoll's
    std::deque<std::string> inbox;   // a channel's, and what it has room for
    size_t inbox_room = 0;
    int peer = -1;                   // the descriptor of its other end, -1 once that is closed
    bool unread = false;             // the other end was closed before it had read all: an error, once
};

class Network {
  public:
    static Network &the() {
        static Network *made = new Network;
        return *made;
    }

    void begin() {
        files_.clear();
        machine().is_ready = [this](const void *epoll) { return has_events(static_cast<const File *>(epoll)); };
    }
    size_t open() const {
        size_t count = 0;
        for (const auto &file : files_) count += file != nullptr;
        return count;
    }
    static bool is_ours(int fd) { return fd >= FIRST_FD; }

    int add(File::Kind kind, LinkPointer link = nullptr) {
        Machine::Outside outside;
        auto made = std::make_unique<File>();
        made->kind = kind;
        made->link = std::move(link);
        size_t place = 0;
        while (place < files_.size() && files_[place]) ++place;
        if (place == files_.size()) files_.emplace_back();
        files_[place] = std::move(made);
        return FIRST_FD + static_cast<int>(place);
    }
    File &at(int fd, const char *call) {
        const size_t place = static_cast<size_t>(fd - FIRST_FD);
        if (place >= files_.size() || !files_[place]) machine().fail("%s with descriptor %d, which is not open", call, fd);
        return *files_[place];
    }

    // ---- a channel: a pair of AF_UNIX sockets of the type SOCK_SEQPACKET ----
    void open_channel(int ends[2], size_t room) {
        for (int i = 0; i < 2; ++i) ends[i] = add(File::channel);
        for (int i = 0; i < 2; ++i) {
            at(ends[i], "open_channel").peer = ends[1 - i];
            at(ends[i], "open_channel").inbox_room = room;
        }
    }
    ssize_t send_message(File &file, const std::string &message) {
        if (file.peer < 0) return fails(EPIPE);
        File &other = at(file.peer, "send");
        if (other.inbox.size() >= other.inbox_room) return fails(EAGAIN);
        other.inbox.push_back(message);
        machine().tell("%zu bytes for channel %d", message.size(), file.peer);
        return static_cast<ssize_t>(message.size());
    }
    ssize_t receive_message(File &file, void *out, size_t room, int flags) {
        Machine::Outside outside;
        if (std::exchange(file.unread, false)) return fails(ECONNRESET);
        if (file.inbox.empty()) return file.peer < 0 ? 0 : fails(EAGAIN);
        const std::string &first = file.inbox.front();
        const size_t length = first.size(), some = std::min(room, length);
        memcpy(out, first.data(), some);
        if (!(flags & MSG_PEEK)) file.inbox.pop_front();
        return static_cast<ssize_t>(flags & MSG_TRUNC ? length : some);
    }

    // ---- the client's end ----
    LinkPointer connect(int listener) {
        auto link = std::make_shared<Link>();
        const size_t there = static_cast<size_t>(listener - FIRST_FD);
        if (there >= files_.size() || !files_[there] || files_[there]->kind != File::listener) return nullptr;
        machine().after(static_cast<int64_t>(machine().random.below(200)) * US, [this, listener, link] {
            const size_t place = static_cast<size_t>(listener - FIRST_FD);
            if (place >= files_.size() || !files_[place] || files_[place]->kind != File::listener) {
                link->refused = true;
                if (link->tell_client) link->tell_client();
                return;
            }
            files_[place]->listening.backlog.push_back(link);
            touch(files_[place].get(), EPOLLIN);
        });
        return link;
    }
    void send(const LinkPointer &link, const std::string &bytes) {
        link->flying.add(bytes.data(), bytes.size());
        carry(link);
    }
    void end_sending(const LinkPointer &link) {
        link->fin_flying = true;
        carry(link);
    }
    void close_client(const LinkPointer &link, bool resets) {
        if (link->client_gone) return;
        link->client_gone = true;
        link->tell_client = nullptr;
        if (resets || !link->down.empty()) {
            machine().after(delay(*link), [this, link] { reset(link); });
        } else {
            end_sending(link);
        }
    }
    // Bytes for the client; 0 if none have arrived.
    size_t take(const LinkPointer &link, void *out, size_t most) {
        const size_t some = link->down.take(out, most);
        if (some && link->was_full && link->down.size() <= link->down_room / 3 * 2) {
            link->was_full = false;
            touch(link, EPOLLOUT);
        }
        return some;
    }

    // ---- the process's end, called by seams ----
    void closed(int fd) {
        Machine::Outside outside;
        File &file = at(fd, "close");
        machine().tell("close %d", fd);
        for (auto &other : files_)
            if (other && other->kind == File::epoll) other->watched.erase(fd);
        std::unique_ptr<File> gone = std::move(files_[static_cast<size_t>(fd - FIRST_FD)]);
        if (file.kind == File::server_end) {
            Link &link = *file.link;
            link.server_gone = true;
            if (!link.up.empty()) link.refused = true;
            link.down_over = true;
            tell(link);
        } else if (file.kind == File::client_end) {
            close_client(file.link, false);
        } else if (file.kind == File::listener) {
            for (const LinkPointer &waiting : file.listening.backlog) {
                waiting->refused = true;
                tell(*waiting);
            }
        } else if (file.kind == File::channel && file.peer >= 0) {
            File &other = at(file.peer, "close");
            other.peer = -1;
            other.unread = !file.inbox.empty();
        }
    }
    ssize_t receive(File &file, void *out, size_t most, bool peeks, bool discards) {
        Machine::Outside outside;
        Link &link = *file.link;
        if (file.kind == File::client_end) return receive_at_client(file.link, out, most);
        if (link.up.empty()) {
            if (link.reset) {
                errno = ECONNRESET;
                return -1;
            }
            if (link.up_over) return 0;
            errno = EAGAIN;
            return -1;
        }
        const size_t some = peeks ? link.up.peek(out, most) : link.up.take(discards ? nullptr : out, most);
        if (!peeks) {
            link.got_by_server += some;
            if (link.counts_records && !discards) count_records(link, static_cast<unsigned char *>(out), some);
            carry(file.link);
        }
        return static_cast<ssize_t>(some);
    }
    ssize_t send_some(File &file, const char *data, size_t length) {
        Machine::Outside outside;
        Link &link = *file.link;
        if (file.kind == File::client_end) {
            send(file.link, std::string(data, length));
            return static_cast<ssize_t>(length);
        }
        if (link.reset || link.down_over) {
            errno = link.reset ? ECONNRESET : EPIPE;
            return -1;
        }
        if (link.client_gone) {  // its system answers with a reset
            LinkPointer held = file.link;
            machine().after(delay(link), [this, held] { reset(held); });
            return static_cast<ssize_t>(length);
        }
        const size_t room = link.down.size() < link.down_room ? link.down_room - link.down.size() : 0;
        // Linux takes all of a few bytes or nothing.
        if (room == 0 || (room < length && length <= FEW_BYTES)) {
            link.was_full = true;
            errno = EAGAIN;
            return -1;
        }
        const size_t some = std::min(room, length);
        if (some < length) link.was_full = true;
        const bool first = link.down.empty();
        link.down.add(data, some);
        link.sent_by_server += some;
        if (first) tell(link);
        return static_cast<ssize_t>(some);
    }
    void shut(File &file) {
        Machine::Outside outside;
        machine().tell("shutdown of %p", static_cast<void *>(file.link.get()));
        file.link->down_over = true;
        tell(*file.link);
        touch(file.link, EPOLLIN);
    }
    int accept(File &file) {
        Machine::Outside outside;
        if (file.listening.backlog.empty()) {
            errno = EAGAIN;
            return -1;
        }
        LinkPointer link = file.listening.backlog.front();
        file.listening.backlog.pop_front();
        const int fd = add(File::server_end, link);
        link->accepted_ns = machine().now;
        ++accepted;
        machine().happened(&accepted);
        carry(link);
        machine().tell("accept %d, %p", fd, static_cast<void *>(link.get()));
        return fd;
    }

    uint32_t ready(const File &file) const {
        uint32_t now = 0;
        switch (file.kind) {
        case File::epoll: return has_events(&file) ? EPOLLIN : 0u;
        case File::event: return file.count ? EPOLLOUT | EPOLLIN : EPOLLOUT;
        case File::listener: return file.listening.backlog.empty() ? 0u : EPOLLIN;
        case File::channel: return (file.inbox.empty() && file.peer >= 0 ? 0u : EPOLLIN) | (file.peer < 0 ? EPOLLHUP : 0u);
        case File::server_end: {
            const Link &link = *file.link;
            if (link.up_over || link.reset || link.up.size() >= static_cast<size_t>(link.low_water)) now |= EPOLLIN;
            if (link.up_over || link.reset) now |= EPOLLRDHUP;
            if (link.reset || (link.up_over && link.down_over)) now |= EPOLLHUP;
            if (link.reset) now |= EPOLLERR;
            if (link.reset || link.down.size() <= link.down_room / 3 * 2) now |= EPOLLOUT;
            return now;
        }
        default: return 0;
        }
    }
    bool has_events(const File *epoll) const {
        if (epoll->kind == File::channel) return ready(*epoll) != 0;
        for (const auto &one : epoll->watched)
            if (found(one.first, one.second)) return true;
        return false;
    }
    int collect(File &epoll, epoll_event *out, int most) {
        Machine::Outside outside;
        std::vector<int> those;
        for (const auto &one : epoll.watched)
            if (found(one.first, one.second)) those.push_back(one.first);
        int count = 0;
        while (!those.empty() && count < most) {  // in any order
            const size_t which = machine().random.below(those.size());
            Watch &watch = epoll.watched[those[which]];
            out[count].events = found(those[which], watch);
            out[count++].data = watch.data;
            machine().tell("event %#x of descriptor %d", out[count - 1].events, those[which]);
            machine().note(static_cast<uint64_t>(those[which]) << 32 | out[count - 1].events);
            watch.edge = false;
            if (watch.events & EPOLLONESHOT) watch.armed = false;
            those.erase(those.begin() + static_cast<ptrdiff_t>(which));
        }
        return count;
    }
    int control(File &epoll, int what, int fd, const epoll_event *event) {
        Machine::Outside outside;
        machine().tell("epoll_ctl %d of %d, %#x", what, fd, event ? event->events : 0);
        at(fd, "epoll_ctl");
        const auto found = epoll.watched.find(fd);
        if (what == EPOLL_CTL_DEL || what == EPOLL_CTL_MOD) {
            if (found == epoll.watched.end()) {
                errno = ENOENT;
                return -1;
            }
        } else if (found != epoll.watched.end()) {
            errno = EEXIST;
            return -1;
        }
        if (what == EPOLL_CTL_DEL) {
            epoll.watched.erase(found);
        } else {
            epoll.watched[fd] = {event->events, event->data, true, true};
        }
        return 0;
    }
    void touch(const LinkPointer &link, uint32_t events) {
        for (auto &file : files_)
            if (file && file->kind == File::server_end && file->link == link) touch(file.get(), events);
    }
    void touch(const File *file, uint32_t) {
        const int fd = number_of(file);
        for (auto &other : files_) {
            if (!other || other->kind != File::epoll) continue;
            const auto found = other->watched.find(fd);
            if (found != other->watched.end()) found->second.edge = true;
        }
    }

    uint64_t arrived = 0;   // changes that the server can see
    uint64_t accepted = 0;  // connections

  private:
    static ssize_t fails(int error) {
        errno = error;
        return -1;
    }
    static int64_t delay(const Link &link) {
        return static_cast<int64_t>(machine().random.between(static_cast<uint64_t>(link.least_delay), static_cast<uint64_t>(link.most_delay)));
    }
    static void tell(Link &link) {
        if (link.tell_client) link.tell_client();
    }
    int number_of(const File *file) const {
        for (size_t place = 0; place < files_.size(); ++place)
            if (files_[place].get() == file) return FIRST_FD + static_cast<int>(place);
        return -1;
    }
    uint32_t found(int fd, const Watch &watch) const {
        if (!watch.armed || (watch.events & EPOLLET && !watch.edge)) return 0;
        return ready(*files_[static_cast<size_t>(fd - FIRST_FD)]) & (watch.events | EPOLLERR | EPOLLHUP) & ~(EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE);
    }

    // Brings what is on the way to the server, piece by piece.
    void carry(const LinkPointer &link) {
        if (link->arriving || (link->flying.empty() && !link->fin_flying) || link->up_over || link->reset) return;
        if (!link->flying.empty() && link->up.size() >= link->up_room) return;  // continues when it has read
        link->arriving = true;
        machine().after(delay(*link), [this, link] {
            link->arriving = false;
            if (link->up_over || link->reset) return;
            if (link->server_gone && !link->flying.empty()) {  // nobody is there any more
                link->refused = true;
                tell(*link);
                return;
            }
            const size_t room = link->up_room - std::min(link->up_room, link->up.size());
            size_t some = std::min({link->flying.size(), room, link->most_piece});
            if (some > 1 && machine().random.chance(300000)) some = machine().random.between(1, some);
            if (some) {
                std::string piece(some, '\0');
                link->flying.take(&piece[0], some);
                link->up.add(piece.data(), some);
            }
            if (link->flying.empty() && link->fin_flying) link->up_over = true;
            link->last_arrival = machine().now;
            machine().tell("%zu bytes arrive at %p%s", some, static_cast<void *>(link.get()), link->up_over ? ", the last bytes" : "");
            ++arrived;
            touch(link, EPOLLIN);
            carry(link);
        });
    }
    void reset(const LinkPointer &link) {
        if (link->reset) return;
        link->reset = true;
        link->up = Bytes();
        link->flying = Bytes();
        ++arrived;
        touch(link, EPOLLIN);
    }
    ssize_t receive_at_client(const LinkPointer &link, void *out, size_t most) {
        const size_t some = take(link, out, most);
        if (some) return static_cast<ssize_t>(some);
        if (link->refused) {
            errno = ECONNRESET;
            return -1;
        }
        if (link->down_over) return 0;
        errno = EAGAIN;
        return -1;
    }
    // OpenSSL's work on a record costs time: 10 us for a KeyUpdate, as for the bytes of any other record.
    void count_records(Link &link, const unsigned char *bytes, size_t length) {
        constexpr size_t HEADER = 5;
        constexpr int64_t RECORD_NS = 10 * US;
        for (size_t at = 0; at < length;) {
            if (link.record_left) {
                const size_t some = std::min(link.record_left, length - at);
                link.record_left -= some;
                at += some;
                continue;
            }
            link.record_header[link.header_got++] = bytes[at++];
            if (link.header_got < HEADER) continue;
            link.header_got = 0;
            link.record_left = static_cast<size_t>(link.record_header[3]) << 8 | link.record_header[4];
            if (Machine::self()) machine().spend(RECORD_NS);
        }
    }

    std::vector<std::unique_ptr<File>> files_;
};

inline Network &network() { return Network::the(); }

}  // namespace sim
