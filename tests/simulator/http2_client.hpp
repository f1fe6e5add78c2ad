// Clients of gRPC: unary calls and streams, on one connection.

#pragma once

#include <map>

#include "client.hpp"
#include "http2/library.hpp"
#include "../support/native/http2_frames.hpp"

namespace sim {

// HPACK's other side, by libnghttp2.
class Inflater {
  public:
    Inflater() { find<int(void **)>("nghttp2_hd_inflate_new")(&state_); }
    ~Inflater() { find<void(void *)>("nghttp2_hd_inflate_del")(state_); }
    Inflater(const Inflater &) = delete;
    Inflater &operator=(const Inflater &) = delete;

    // False: it is not a header block.
    bool read(const std::string &block, std::map<std::string, std::string> *out) {
        static auto *const step =
            find<ssize_t(void *, ksrv::http2::Field *, int *, const uint8_t *, size_t, int)>("nghttp2_hd_inflate_hd2");
        static auto *const over = find<int(void *)>("nghttp2_hd_inflate_end_headers");
        const uint8_t *at = reinterpret_cast<const uint8_t *>(block.data());
        size_t left = block.size();
        for (;;) {
            ksrv::http2::Field field;
            int flags = 0;
            const ssize_t used = step(state_, &field, &flags, at, left, 1);
            if (used < 0) return false;
            at += used;
            left -= static_cast<size_t>(used);
            if (flags & 2)
                (*out)[std::string(reinterpret_cast<const char *>(field.name), field.name_length)] =
                    std::string(reinterpret_cast<const char *>(field.value), field.value_length);
            if (flags & 1) break;
            if (!(flags & 2) && left == 0) break;
        }
        over(state_);
        return true;
    }

  private:
    template <typename Function> static Function *find(const char *name) {
        static void *const library = dlopen("libnghttp2.so.14", RTLD_NOW);
        return reinterpret_cast<Function *>(dlsym(library, name));
    }
    void *state_ = nullptr;
};

class Http2Client final : public Client {
  public:
    Http2Client(Scene *scene, int number, Temper temper, bool plain = false) : Client(scene, number, temper) {
        Random &random = machine().random;
        const size_t count = temper == Temper::takes_late ? random.between(8, 12) : random.between(1, 14);
        for (size_t i = 0; i < count; ++i) calls_.push_back(make_call(static_cast<int>(i), plain));
        depth_ = temper == Temper::takes_late ? 1 : random.between(1, 5);
        if (temper == Temper::takes_late || temper == Temper::stalls) calls_.insert(calls_.begin(), make_stalled());
        spoiled_ = random.below(count);
        withholds_ = temper == Temper::takes_nothing;
        const uint64_t least = temper == Temper::slow ? 8000 : 1;  // which is faster than the least rate still, a window in 300 ms
        flow_ = random.chance(300000) ? random.between(least, 40000) : 65535;
    }

  private:
    // A window of the server's answers costs a round trip, with the threads held up on both ways. With a smaller window the
    // client takes fewer bytes than the least rate, however soon it reads them, so the server may reset its stream.
    static constexpr uint64_t LEAST_FLOW = RATE / 4;

    enum Kind : uint8_t { unary, stream, half_message, no_message };
    struct Call {
        Kind kind;
        std::string id, head, body, expected;
        int grpc = 0;
        bool drops = false;
        uint32_t stream = 0;
        bool opened = false, over = false, stalls = false, trailers = false, reset_by_us = false;
        size_t sent = 0;
        bool half_closed = false;
        int64_t window = 65535;
        std::map<std::string, std::string> fields;
        std::string got;
        bool answered = false;
        int64_t ends_by = 0;
    };

    static std::string message(const std::string &bytes) {
        std::string made(1, '\0');
        for (int shift : {24, 16, 8, 0}) made.push_back(static_cast<char>(bytes.size() >> shift));
        return made + bytes;
    }
    std::string grpc_head(const char *path, const std::string &id, const std::string &more = "") const {
        return field(":method", "POST") + field(":scheme", "http") + field(":path", path) + field(":authority", "x") +
               field("content-type", "application/grpc") + field("te", "trailers") + field("x-request-id", id) + more;
    }

    Call make_call(int i, bool plain) {
        static constexpr size_t SIZES[] = {0, 5, 100, 2000, 20000, 90000};
        Random &random = machine().random;
        Call made;
        made.id = "h" + std::to_string(number_) + "-" + std::to_string(i);
        made.kind = random.chance(650000) ? unary : stream;
        size_t size = temper_ == Temper::takes_late ? 200000 : SIZES[random.below(6)];
        size += random.below(size + 1);
        if (plain) {
            made.kind = unary;
            size = 100;
        }
        if (made.kind == unary) {
            static const char *const WHAT[] = {"echo", "echo", "echo", "late", "fail", "drop"};
            std::string what = WHAT[plain ? 0 : random.below(6)];
            if (what == "drop" && !random.chance(300000)) what = "echo";
            const std::string bytes = what + pattern(made.id, size);
            made.body = message(bytes);
            if (what == "fail") {
                made.grpc = 3;
            } else {
                made.expected = message(bytes);
            }
            made.drops = what == "drop";
            static const char *const METHODS[] = {"/s/unary", "/s/unary", "/s/checked"};
            made.head = grpc_head(METHODS[random.below(3)], made.id);
        } else {
            const size_t count = random.between(0, 6);
            for (size_t k = 0; k < count; ++k) made.body += message(pattern(made.id + "." + std::to_string(k), random.below(size + 1)));
            made.expected = made.body;
            made.head = grpc_head("/s/stream", made.id);
        }
        return made;
    }
    // A call whose message does not come, or not whole: the server has to end it.
    Call make_stalled() {
        Random &random = machine().random;
        Call made;
        made.id = "h" + std::to_string(number_) + "-s";
        made.stalls = true;
        made.kind = random.chance(400000) ? no_message : half_message;
        const bool timed = random.chance(400000);
        made.head = grpc_head("/s/unary", made.id, timed ? field("grpc-timeout", "1S") : "");
        if (made.kind == half_message) made.body = message(pattern(made.id, 3000)).substr(0, random.between(1, 2000));
        made.ends_by = timed ? SECOND : HEAD_NS + static_cast<int64_t>(made.body.size()) * SECOND / RATE;
        return made;
    }

    const char *name() const override { return tls_ ? "gRPC over TLS" : "gRPC"; }

    std::string state() const override {
        std::string made;
        for (const Call &call : calls_)
            if (!call.over)
                made += call.id + " of kind " + std::to_string(call.kind) + (call.opened ? "" : " not") + " opened, " + std::to_string(call.sent) + " of " + std::to_string(call.body.size()) + " sent" + (call.half_closed ? " and over" : "") + ", window " +
                        std::to_string(call.window) + ", got " + std::to_string(call.got.size()) + " of " + std::to_string(call.expected.size()) + "; ";
        return made + "window " + std::to_string(window_);
    }

    void act() override {
        if (!began_) {
            began_ = true;
            std::string settings;
            if (flow_ != 65535) settings = std::string("\0\4\0\0", 4) + static_cast<char>(flow_ >> 8) + static_cast<char>(flow_);
            say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, settings));
        }
        ReceivedFrame found;
        while (!over_ && ReceivedFrame::take(&got_, &found)) take_frame(found);
        if (over_) return;
        size_t left = 0;
        for (const Call &call : calls_) left += !call.over;
        if (left == 0) {
            leave(temper_ == Temper::resets);
            return;
        }
        speak();
    }

    void speak() {
        Random &random = machine().random;
        if (silent_) return;
        size_t open = 0;
        for (Call &call : calls_) open += call.opened && !call.over && !call.stalls;
        for (Call &call : calls_) {
            if (call.opened || going_ || open >= depth_) continue;
            if (!may_open_) break;
            call.opened = true;
            call.stream = next_stream_;
            next_stream_ += 2;
            call.window = server_window_;
            by_stream_[call.stream] = &call;
            open += !call.stalls;
            const bool ends = call.body.empty() && !call.stalls && random.chance(500000);
            call.half_closed = ends;
            say(frame(1, 4 | (ends ? 1 : 0), call.stream, call.head));
            if (random.chance(200000)) break;
        }
        std::vector<Call *> those;
        for (Call &call : calls_)
            if (call.opened && !call.over && !call.half_closed && !(call.stalls && call.sent == call.body.size())) those.push_back(&call);
        for (size_t turns = 0; turns < 40 && !those.empty(); ++turns) {
            const size_t which = random.below(those.size());
            Call &call = *those[which];
            const size_t missing = call.body.size() - call.sent;
            const int64_t window = std::min(call.window, window_);
            const size_t most = std::min<size_t>({missing, static_cast<size_t>(std::max<int64_t>(window, 0)), random.between(1, 16384)});
            if (missing && !most) {
                those.erase(those.begin() + static_cast<ptrdiff_t>(which));
                continue;
            }
            const bool last = most == missing && !call.stalls && random.chance(700000);
            say(frame(0, last ? 1 : 0, call.stream, call.body.substr(call.sent, most)));
            call.sent += most;
            call.window -= static_cast<int64_t>(most);
            window_ -= static_cast<int64_t>(most);
            if (last) call.half_closed = true;
            if (call.stalls && call.sent == call.body.size()) await_end(&call);
            if (last || (call.stalls && call.sent == call.body.size())) those.erase(those.begin() + static_cast<ptrdiff_t>(which));
        }
        for (Call &call : calls_)
            if (call.opened && call.stalls && call.body.empty() && !call.over && call.ends_by) await_end(&call);
        if (calls_[spoiled_].opened && !spoils_) spoil();
        if (!those.empty()) step_within(5 * MS);
        bool more = false;
        for (const Call &call : calls_) more = more || !call.opened;
        if (more && open < depth_ && !going_) step_within(10 * MS);
    }

    // Spoils a connection in the midst of calls, as the temper says.
    void spoil() {
        Random &random = machine().random;
        spoils_ = true;
        if (temper_ == Temper::resets) {
            if (random.chance(500000)) {
                machine().after(static_cast<int64_t>(random.below(50)) * MS, [this] { leave(true); });
            } else {
                for (Call &call : calls_)
                    if (call.opened && !call.over && random.chance(600000)) {
                        say(frame(3, 0, call.stream, std::string("\0\0\0\x08", 4)));
                        call.over = call.reset_by_us = true;
                    }
                step_within(20 * MS);
            }
        } else if (temper_ == Temper::garbles) {
            garbled_ = true;
            std::string bytes = frame(static_cast<int>(random.below(11)), static_cast<int>(random.below(256)), static_cast<uint32_t>(random.below(20)),
                                      pattern("g", random.below(60)));
            if (random.chance(500000)) bytes = pattern("\x03\x7f\x01", random.between(1, 200));
            say(bytes);
            flush();
            silent_ = random.chance(700000);
            if (silent_) must_end_within(GRPC_IDLE_NS + 100 * SECOND, "it has sent garbage");
        } else if (temper_ == Temper::takes_nothing) {
            flush();
            silent_ = true;
            must_end_within(GRPC_IDLE_NS + 100 * SECOND, "it takes nothing");
        } else if (temper_ == Temper::half_closes && next_stream_ > 2) {
            flush();
            network().end_sending(link_);
            silent_ = true;
        }
    }

    void await_end(Call *call) {
        const int64_t allowed = call->ends_by;
        call->ends_by = 0;
        if (!allowed) return;
        flush();
        look_when_there(call, allowed);
    }
    void look_when_there(Call *call, int64_t allowed) {
        if (over_ || call->over) return;
        if (!link_->flying.empty() || link_->server_gone) {
            machine().after(5 * MS, [this, call, allowed] { look_when_there(call, allowed); });
            return;
        }
        const int64_t late = temper_ == Temper::takes_late ? 13 * SECOND : 0;  // the answer waits for it, after other answers' window
        machine().at(std::max(machine().now, link_->last_arrival) + allowed + late + TICK_NS + 4 * Machine::MOST_STALL + 2 * link_->most_delay, [this, call] {
            if (over_ || call->over || link_->refused || link_->down_over || link_->server_gone) return;
            wrong(*call, call->kind == no_message ? "no message has come in its time, and the call is open still"
                                                  : "half a message has come, and the call is still open after its time");
        });
    }

    void take_frame(const ReceivedFrame &found) {
        const auto number = [&](size_t at) {
            uint32_t value = 0;
            for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(found.payload[at + i]);
            return value;
        };
        machine().tell("client %d gets a frame of type %d, flags %d, stream %u, %zu bytes", number_, found.type, found.flags, found.stream,
                       found.payload.size());
        Call *call = nullptr;
        const auto known = by_stream_.find(found.stream);
        if (known != by_stream_.end()) call = known->second;
        if (found.stream && !call && !garbled_) machine().fail("client %d (%s): a frame on stream %u, which it has not opened", number_, name(), found.stream);
        if (call && call->over && !call->reset_by_us && (found.type == 0 || found.type == 1) && !garbled_) wrong(*call, "a frame comes behind the end of its stream");
        switch (found.type) {
        case 4:
            if (found.flags & 1) return;
            for (size_t at = 0; at + 6 <= found.payload.size(); at += 6) {
                const int id = static_cast<unsigned char>(found.payload[at + 1]);
                if (id != 4) continue;
                const int64_t value = number(at + 2);
                for (auto &one : by_stream_) one.second->window += value - server_window_;
                server_window_ = value;
            }
            may_open_ = true;
            say(frame(4, 1, 0, ""));
            break;
        case 6:
            if (!(found.flags & 1) && !silent_) say(frame(6, 1, 0, found.payload));
            break;
        case 7: going_ = true; going_last_ = number(0) & 0x7fffffff; end_refused(); break;
        case 8:
            if (call) call->window += number(0);
            else window_ += number(0);
            break;
        case 3:
            if (call && !call->over) {
                call->over = true;
                end_call(*call, true, number(0));
            }
            break;
        case 1: {
            std::map<std::string, std::string> fields;
            if (!inflater_.read(found.payload, &fields)) machine().fail("client %d (%s): it gets no header block", number_, name());
            if (!call) return;
            if (fields.count(":status") && fields[":status"] == "100") return;
            if (call->answered && fields.count(":status") && !garbled_) wrong(*call, "it gets a second answer");
            if (!call->answered && !fields.count(":status") && !garbled_ && !call->reset_by_us) wrong(*call, "its answer has no status");
            call->answered = true;
            for (auto &one : fields) call->fields[one.first] = one.second;
            if (found.flags & 1 && !call->over) {
                call->over = true;
                end_call(*call, false, 0);
            }
            break;
        }
        case 0:
            if (!call) return;
            call->got += found.payload;
            if (!withholds_ && !silent_ && !found.payload.empty()) {
                std::string more;
                for (int shift : {24, 16, 8, 0}) more.push_back(static_cast<char>(found.payload.size() >> shift));
                say(frame(8, 0, 0, more));
                if (!(found.flags & 1)) say(frame(8, 0, found.stream, more));
            }
            if (found.flags & 1 && !call->over) {
                call->over = true;
                end_call(*call, false, 0);
            }
            break;
        default: break;
        }
    }

    void end_refused() {
        for (Call &call : calls_)
            if (!call.over && (!call.opened || call.stream > going_last_)) {
                call.over = true;
                ++scene_->lost;
            }
    }

    void end_call(Call &call, bool was_reset, uint32_t error) {
        if (garbled_ || call.reset_by_us) return;
        ++scene_->answers;
        const bool whole = !call.stalls;
        const std::string id = call.fields.count("x-request-id") ? call.fields["x-request-id"] : call.id;
        if (id != call.id && id[0] == 'h' && id.find('-') < 6) wrong(call, "its answer is that of " + id);
        if (was_reset && !(error == 0 && whole && call.answered)) {  // NO_ERROR after a whole answer asks for nothing more
            ++scene_->refusals;
            if (call.got.compare(0, call.expected.size(), call.expected, 0, call.got.size()) != 0) wrong(call, "the received part of its answer belongs to another call");
            const bool is_too_slow = error == 8 && flow_ < LEAST_FLOW;
            if (is_good() && !hurt() && !scene_->tight && !call.drops && error != 7 && !is_too_slow) wrong(call, "its stream is reset with " + std::to_string(error));
            return;
        }
        if (!call.fields.count("grpc-status")) {
            if (was_reset || (is_good() && !hurt())) wrong(call, "it ends without a status");
            return;
        }
        const int status = atoi(call.fields["grpc-status"].c_str());
        if (status == 0) {
            if (call.grpc || call.stalls) wrong(call, "it succeeds");
            if (call.got != call.expected) wrong(call, "its bytes belong to another call: " + std::to_string(call.got.size()) + " for " + std::to_string(call.expected.size()));
        } else {
            if (status != call.grpc) ++scene_->refusals;
            if (status != call.grpc && is_good() && !hurt() && !scene_->tight) wrong(call, "its status is " + std::to_string(status) + " " + call.fields["grpc-message"]);
            if (call.got.compare(0, call.expected.size(), call.expected, 0, call.got.size()) != 0) wrong(call, "the received part of its answer belongs to another call");
        }
    }
    bool is_good() const {
        return temper_ == Temper::good || temper_ == Temper::slow;
    }

    void ended() override {
        size_t left = 0;
        const Call *first = nullptr;
        for (const Call &call : calls_)
            if (!call.over && !call.stalls && ++left == 1) first = &call;
        if (!left || !is_good() || hurt() || scene_->tight || garbled_) {
            scene_->lost += left;
            return;
        }
        wrong(*first, "its connection ends");
    }
    [[noreturn]] void wrong(const Call &call, const std::string &what) const {
        std::string fields;
        for (const auto &one : call.fields) fields += ", " + one.first + ": " + one.second;
        machine().tell("call %s, stream %u%s", call.id.c_str(), call.stream, fields.c_str());
        machine().fail("client %d (%s, temper %d, call %s of kind %d): %s", number_, name(), int(temper_), call.id.c_str(), int(call.kind),
                       what.c_str());
    }

    std::vector<Call> calls_;
    std::map<uint32_t, Call *> by_stream_;
    Inflater inflater_;
    size_t depth_, spoiled_ = 0;
    uint64_t flow_;
    bool began_ = false, may_open_ = false, going_ = false, garbled_ = false, withholds_ = false, spoils_ = false;
    uint32_t next_stream_ = 1, going_last_ = 0;
    int64_t server_window_ = 65535, window_ = 65535;
};

}  // namespace sim
