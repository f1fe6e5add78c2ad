// The base of all simulated clients: a link, perhaps TLS over it, a temper, and the time by which the server must have ended them.
//
// A client is a chain of events. `step` reads what has arrived, sends the next bytes and schedules the next step. A good client
// gets each of its answers, independently of other clients. The server may end a bad client, within its limits. No client ever
// gets bytes that belong to another request.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "network.hpp"
#include "../support/native/tls_peer.hpp"

namespace sim {

enum class Temper : uint8_t { good, slow, takes_late, takes_nothing, half_closes, resets, garbles, stalls, dribbles, tempers };

// The limits of the server, and what the simulator adds: a sweep, what the threads were held up, and the way of an answer.
constexpr int64_t HEAD_NS = 10 * SECOND, GRACE_NS = 10 * SECOND, IDLE_NS = 75 * SECOND, GRPC_IDLE_NS = 300 * SECOND;
constexpr int64_t LINGER_NS = 2 * SECOND, RATE = 4096, TICK_NS = 500 * MS;
constexpr int64_t DRIBBLES_NS = 500 * SECOND;  // until a client that dribbles leaves

struct Scene {  // shared by all clients of a simulation
    int http = -1, grpc = -1;  // listeners
    bool tls = false;
    bool faults = false;   // calls fail: a good client may lose its connection
    bool stops = false;    // the server drains, or stops accepting, meanwhile
    bool tight = false;    // there are few bytes, places or streams: refusals are answers as well
    uint64_t answers = 0, refusals = 0, lost = 0, ended = 0;
    uint64_t failures = 0;  // of models
};

class Client {
  public:
    Client(Scene *scene, int number, Temper temper) : scene_(scene), number_(number), temper_(temper) {}
    virtual ~Client() { leave(); }

    void begin(int listener, bool tls, const char *alpn) {
        tls_ = tls;
        alpn_ = alpn;
        link_ = network().connect(listener);
        if (!link_) {
            over_ = true;
            return;
        }
        Random &random = machine().random;
        link_->down_room = random.chance(300000) ? random.between(600, 5000) : random.between(16384, 262144);
        if (temper_ == Temper::takes_late) link_->down_room = random.between(30000, 60000);  // less than a window: it is full again and again
        if (temper_ == Temper::slow) link_->down_room = std::max<size_t>(link_->down_room, 16384);  // several streams make the least rate each
        link_->client_buffer = random.between(0, 16384);
        link_->most_delay = static_cast<int64_t>(random.between(20, random.chance(100000) ? 40000 : 1500)) * US;
        if (temper_ == Temper::dribbles) {
            link_->most_piece = random.between(1, 40);
        } else if (link_->most_delay < 2 * MS && random.chance(200000)) {
            link_->most_piece = random.between(64, 900);  // faster than the least rate still
        }
        link_->counts_records = tls;
        link_->tell_client = [this] { step_within(0); };
        // Its bytes may take longer than a simulation, and a refused call does not end the connection.
        if (temper_ == Temper::dribbles) machine().after(DRIBBLES_NS, [this] { leave(); });
        if (tls_) peer_ = std::make_unique<TlsPeer>(network().add(File::client_end, link_), 0x0304, alpn_);
        step_within(MS);
    }
    bool is_over() const { return over_; }
    void part() { leave(); }
    Temper temper() const { return temper_; }
    std::string described() const {
        const Link &link = *link_;
        return std::string(name()) + ", client " + std::to_string(number_) + ", temper " + std::to_string(int(temper_)) + ", " + state() +
               (agreed_ || !tls_ ? "" : ", no handshake") + "; link: " + std::to_string(link.flying.size()) + " flying, " +
               std::to_string(link.up.size()) + " unread, " + std::to_string(link.down.size()) + " untaken" + (link.up_over ? ", up over" : "") +
               (link.down_over ? ", down over" : "") + (link.refused ? ", refused" : "") + (link.server_gone ? ", server gone" : "") +
               (link.was_full ? ", full" : "") + ", low water " + std::to_string(link.low_water);
    }
    const LinkPointer &link() const { return link_; }

  protected:
    virtual void act() = 0;  // with what has come in `got_`
    virtual void ended() {}  // by the server
    virtual const char *name() const = 0;
    virtual std::string state() const { return {}; }

    void step_within(int64_t most) {
        if (over_ || stepping_) return;
        stepping_ = true;
        machine().after(static_cast<int64_t>(machine().random.below(static_cast<uint64_t>(most) + 1)) + US, [this] {
            stepping_ = false;
            if (!over_) step();
        });
    }
    void step() {
        pull();
        if (peer_ && !agreed_) {
            agreed_ = peer_->shake_hands();
            if (!agreed_) {
                if (link_->refused || link_->down_over) finish_by_server();
                return;
            }
        }
        pull();
        act();
        if (over_) return;
        flush();
        if (!link_->refused && !link_->down_over) return;
        if (link_->down.empty() || (silent_ && temper_ == Temper::takes_nothing)) {
            finish_by_server();
        } else if (!may_take()) {
            wake_at(takes_at_);
        } else {
            step_within(MS);
        }
    }

    // Whether it takes what has come, by its temper.
    bool may_take() const { return machine().now >= takes_at_; }
    void pull() {
        if (over_ || (peer_ && !agreed_)) return;
        if (!may_take()) {
            wake_at(takes_at_);
            return;
        }
        size_t most = SIZE_MAX;
        Random &random = machine().random;
        switch (temper_) {
        case Temper::slow:
            most = random.between(200, 20000);
            takes_at_ = machine().now + static_cast<int64_t>(random.between(1, 300)) * MS;
            break;
        case Temper::takes_late:
            takes_at_ = machine().now + static_cast<int64_t>(random.between(2500, 4000)) * MS;
            break;
        case Temper::takes_nothing:
            if (silent_) return;
            break;
        default: break;
        }
        char room[16384];
        while (most) {
            size_t some;
            if (peer_) {
                const std::string bytes = peer_->read();
                got_ += bytes;
                some = bytes.size();
            } else {
                some = network().take(link_, room, std::min(most, sizeof room));
                got_.append(room, some);
            }
            if (!some) break;
            if (!peer_) most -= std::min(most, some);
        }
        if (takes_at_ > machine().now && !link_->down.empty()) wake_at(takes_at_);
    }
    void wake_at(int64_t when) {
        if (waking_ > machine().now && waking_ <= when) return;
        waking_ = when;
        machine().at(when, [this] {
            if (!over_) step_within(0);
        });
    }

    void say(const std::string &bytes) { outbox_ += bytes; }
    void flush() {
        if (outbox_.empty() || over_ || silent_) return;
        if (peer_) {
            for (size_t at = 0; at < outbox_.size();) {
                const size_t some = std::min<size_t>(outbox_.size() - at, machine().random.between(1, 16000));
                peer_->send_all(peer_->data(outbox_.substr(at, some)));
                at += some;
            }
        } else {
            network().send(link_, outbox_);
        }
        outbox_.clear();
    }
    void raw(const std::string &bytes) {
        if (peer_) peer_->send_all(bytes);
        else network().send(link_, bytes);
    }

    // The server must end this connection within a time, which begins now or when the server accepts the connection. A server at
    // its limit accepts none, so a connection may wait in the listener's queue for longer than any deadline.
    void must_end_within(int64_t allowed, const char *why) {
        await_deadline(machine().now, allowed + TICK_NS + Machine::MOST_STALL * 4 + 2 * link_->most_delay + 4 * SECOND / 10, why);
    }
    void await_deadline(int64_t since, int64_t allowed, const char *why) {
        machine().at(since + allowed, [this, since, allowed, why] {
            if (over_ || link_->refused || link_->down_over || link_->server_gone) return;
            const int64_t accepted = std::min(link_->accepted_ns, machine().now);
            if (accepted > since) return await_deadline(accepted, allowed, why);
            machine().fail("client %d (%s, temper %d): %s, and its connection is open still", number_, name(), int(temper_), why);
        });
    }

    void leave(bool resets = false) {
        if (over_) return;
        over_ = true;
        ++scene_->ended;
        if (!link_) return;
        link_->most_piece = SIZE_MAX;
        network().close_client(link_, resets);
        peer_.reset();
    }
    void finish_by_server() {
        ended();
        leave();
    }
    bool hurt() const { return scene_->faults || scene_->stops || link_->hurt; }

    Scene *const scene_;
    const int number_;
    const Temper temper_;
    LinkPointer link_;
    std::unique_ptr<TlsPeer> peer_;
    bool tls_ = false, agreed_ = false, over_ = false, stepping_ = false;
    bool silent_ = false;  // it sends, and takes, nothing more
    const char *alpn_ = nullptr;
    std::string got_, outbox_;
    int64_t takes_at_ = 0, waking_ = 0;
};

// The bytes of a request, different for each request.
inline std::string pattern(const std::string &id, size_t length) {
    std::string made;
    made.reserve(length + id.size() + 1);
    while (made.size() < length) made += id + "/";
    made.resize(length);
    return made;
}

}  // namespace sim
