// Clients of HTTP/1.1, over plain sockets and over TLS.

#pragma once

#include "client.hpp"

namespace sim {

class HttpClient final : public Client {
  public:
    // A `plain` one asks for what everybody gets at once.
    HttpClient(Scene *scene, int number, Temper temper, bool plain = false) : Client(scene, number, temper) {
        Random &random = machine().random;
        depth_ = random.chance(500000) ? 1 : random.between(2, 6);
        const size_t count = temper == Temper::takes_late ? random.between(4, 10) : random.between(1, 12);
        for (size_t i = 0; i < count; ++i) asks_.push_back(make_ask(static_cast<int>(i), plain));
        if (temper == Temper::stalls) stall_ask_ = random.below(count);
        if (temper == Temper::garbles || temper == Temper::resets) stall_ask_ = random.below(count);
    }

  private:
    struct Ask {
        std::string id, text, body, expected;
        int status = 200;
        bool is_head = false, in_chunks = false, drops = false, closes = false, waits_for_interim = false;
    };

    Ask make_ask(int i, bool plain) {
        static constexpr size_t SIZES[] = {0, 1, 40, 300, 3000, 20000, 66000, 150000};
        static const char *const PATHS[] = {"echo", "echo", "late", "fail", "pieces", "drop", "early"};
        Random &random = machine().random;
        Ask made;
        made.id = "c" + std::to_string(number_) + "-" + std::to_string(i);
        const std::string common = "\r\nhost: x\r\nx-request-id: " + made.id + "\r\n";
        const uint64_t kind = plain ? 0 : random.below(10);
        if (kind < 2) {
            made.is_head = random.chance(200000);
            made.text = (made.is_head ? "HEAD" : "GET") + std::string(" /v2/health/live HTTP/1.1") + common + "\r\n";
            made.expected = "good";
            return made;
        }
        if (kind == 2) {
            made.text = "GET /x/echo HTTP/1.1" + common + "\r\n";
            return made;
        }
        size_t size = SIZES[random.below(temper_ == Temper::takes_late ? 8 : 7)];
        if (temper_ == Temper::takes_late) size = 150000;
        size += random.below(size + 1);
        made.body = pattern(made.id, size);
        made.in_chunks = random.chance(250000);
        const bool infers = kind < 7;
        std::string path = infers ? "v2/models/m/infer" : std::string("x/") + PATHS[random.below(7)];
        if (path == "x/drop" && !random.chance(300000)) path = "x/echo";
        made.text = "POST /" + path + " HTTP/1.1" + common;
        made.expected = made.body;
        if (path == "x/fail") {
            made.status = 422;
            made.expected = "fail " + made.id;
        }
        if (path == "x/early" && size > 65536 && !made.in_chunks) {
            made.status = 413;
            made.closes = true;
            made.expected = "fail " + made.id;
        }
        if (path == "x/early" && made.in_chunks) path = "x/echo", made.text = "POST /x/echo HTTP/1.1" + common;
        made.drops = path == "x/drop";
        if (random.chance(100000) && size) {
            made.text += "expect: 100-continue\r\n";
            made.waits_for_interim = random.chance(500000);
            if (path == "x/early") {
                made.status = 413;
                made.closes = true;
                made.expected = "fail " + made.id;
                if (!made.waits_for_interim) made.status = 0;  // as what has come of its body when it is looked at
            }
        }
        if (made.in_chunks) {
            made.text += "transfer-encoding: chunked\r\n\r\n";
            std::string chunks;
            for (size_t at = 0; at < made.body.size();) {
                const size_t some = std::min<size_t>(random.between(1, 30000), made.body.size() - at);
                char line[16];
                snprintf(line, sizeof line, "%zx\r\n", some);
                chunks += line + made.body.substr(at, some) + "\r\n";
                at += some;
            }
            made.body = chunks + "0\r\n\r\n";
        } else {
            made.text += "content-length: " + std::to_string(made.body.size()) + "\r\n\r\n";
        }
        return made;
    }

    const char *name() const override { return tls_ ? "HTTP/1.1 over TLS" : "HTTP/1.1"; }

    std::string state() const override {
        return std::to_string(sent_) + " sent and " + std::to_string(answered_) + " answered of " + std::to_string(asks_.size()) +
               (held_body_ ? ", waits for 100" : "") + (closing_ ? ", closing" : "") + (answered_ < asks_.size() ? ": " + asks_[answered_].text : "");
    }

    void act() override {
        read_answers();
        if (over_) return;
        if (answered_ == asks_.size()) {
            scene_->answers += 0;
            leave(temper_ == Temper::resets);
            return;
        }
        speak();
    }

    void speak() {
        Random &random = machine().random;
        while (!silent_ && !held_body_ && sent_ < asks_.size() && sent_ - answered_ < depth_) {
            const Ask &ask = asks_[sent_];
            if (closing_) return;
            std::string text = ask.text;
            if (temper_ != Temper::good && sent_ == stall_ask_ && (temper_ == Temper::stalls || temper_ == Temper::garbles || temper_ == Temper::resets)) {
                text += ask.body;
                misbehave(text);
                return;
            }
            if (ask.waits_for_interim) {
                held_body_ = true;  // until 100 Continue or an answer has come
            } else {
                text += ask.body;
            }
            ++sent_;
            say(text);
            if (temper_ == Temper::takes_nothing && sent_ == asks_.size()) {
                flush();
                silent_ = true;
                must_end_within(IDLE_NS + GRACE_NS + LINGER_NS, "it takes nothing of its answers");
            }
            if (temper_ == Temper::half_closes && sent_ == asks_.size() && !held_body_) {
                flush();
                network().end_sending(link_);
                silent_ = true;
                half_closed_ = true;
            }
            if (random.chance(300000)) {
                step_within(20 * MS);
                return;
            }
        }
    }

    void misbehave(const std::string &text) {
        Random &random = machine().random;
        const size_t some = random.below(text.size());
        if (temper_ == Temper::garbles) {
            std::string bytes = text;
            const size_t many = random.between(1, 5);
            for (size_t i = 0; i < many; ++i) bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
            say(bytes.substr(0, random.chance(500000) ? bytes.size() : some));
            flush();
            garbled_ = silent_ = true;
            must_end_within(IDLE_NS + GRACE_NS + LINGER_NS + 60 * SECOND, "it has sent garbage");
            return;
        }
        say(text.substr(0, some));
        flush();
        if (temper_ == Temper::resets) {
            machine().after(static_cast<int64_t>(random.below(200)) * MS, [this] { leave(true); });
            silent_ = stalled_ = true;
            return;
        }
        silent_ = stalled_ = true;
        const Ask &ask = asks_[sent_];
        const bool nothing = some == 0, in_head = some < ask.text.size();
        // Once it has agreed on TLS it may be idle, as after an answer.
        const int64_t allowed = nothing  ? (sent_ || tls_ ? IDLE_NS : HEAD_NS)
                                : in_head ? HEAD_NS
                                          : GRACE_NS + static_cast<int64_t>(some) * SECOND / RATE + 2 * SECOND;
        // Earlier requests are answered first, and their handlers take time. The bytes of this request need time to arrive.
        stall_allowed_ = allowed;
        await_arrival();
    }
    void await_arrival() {
        if (over_) return;
        if (link_->flying.empty() && answered_ == sent_) {
            must_end_within(stall_allowed_ + SECOND, "a request has stopped coming");
            return;
        }
        machine().after(20 * MS, [this] { await_arrival(); });
    }

    void read_answers() {
        for (;;) {
            if (got_.size() < 12) return;
            if (got_.compare(0, 7, "HTTP/1.") != 0) wrong("what it gets is not an answer: " + got_.substr(0, 40));
            const size_t end = got_.find("\r\n\r\n");
            if (end == std::string::npos) return;
            const std::string head = got_.substr(0, end + 2);
            const int status = atoi(head.c_str() + 9);
            machine().tell("client %d gets the status %d", number_, status);
            if (status == 100) {
                got_.erase(0, end + 4);
                send_body();
                continue;
            }
            const Ask *ask = answered_ < asks_.size() ? &asks_[answered_] : nullptr;
            std::string body;
            size_t used = end + 4;
            if (head.find("transfer-encoding: chunked") != std::string::npos) {
                if (!read_chunks(&used, &body)) return;
            } else if (!(ask && ask->is_head)) {
                const size_t at = head.find("content-length: ");
                if (at == std::string::npos) wrong("an answer has no length: " + head);
                const size_t length = strtoull(head.c_str() + at + 16, nullptr, 10);
                if (got_.size() < used + length) return;
                body = got_.substr(used, length);
                used += length;
            }
            got_.erase(0, used);
            closing_ = closing_ || head.find("Connection: close") != std::string::npos;
            take_answer(status, head, body);
            if (over_) return;
        }
    }
    bool read_chunks(size_t *used, std::string *body) const {
        for (size_t at = *used;;) {
            const size_t line = got_.find("\r\n", at);
            if (line == std::string::npos) return false;
            const size_t length = strtoull(got_.c_str() + at, nullptr, 16);
            at = line + 2;
            if (got_.size() < at + length + 2) return false;
            body->append(got_, at, length);
            at += length + 2;
            if (length == 0) {
                *used = at;
                return true;
            }
        }
    }

    void take_answer(int status, const std::string &head, const std::string &body) {
        const bool unsolicited = answered_ >= sent_ && !stalled_ && !garbled_;
        if (answered_ >= asks_.size()) wrong("there are more answers than requests");
        if (unsolicited && status != 408) wrong("an answer arrives before its request: " + head);
        const Ask &ask = asks_[answered_];
        const std::string field = "x-request-id: " + ask.id + "\r\n";
        const bool own = head.find(field) != std::string::npos;
        const size_t other = head.find("x-request-id: c");
        if (!own && other != std::string::npos && head.compare(other + 14, 1, "c") == 0 && head.find('-', other + 14) < head.find('\r', other) &&
            head.find('\r', other) - other < 26 && !garbled_)
            wrong("an answer is another request's: " + head);
        ++answered_;
        ++scene_->answers;
        const bool refused = status == 408 || status == 503 || status == 500 || status == 400;
        if (own && !garbled_ && !refused && status != 413 && ask.status && !ask.drops) {
            if (status != ask.status) wrong("an answer has the status " + std::to_string(status) + ", not " + std::to_string(ask.status) + " " + ask.text + "|" + body.substr(0, 60));
            if (!ask.is_head && body != ask.expected)
                wrong("an answer's bytes are not its request's: " + std::to_string(body.size()) + " for " + std::to_string(ask.expected.size()) + ", " + body.substr(0, 40) + ", " + ask.text);
        }
        if (refused) ++scene_->refusals;
        if (refused && is_good() && !scene_->faults && !scene_->tight && !scene_->stops)
            wrong("a good client is refused: " + std::to_string(status));
        if (stalled_ && answered_ > sent_) closing_ = true;
        if (held_body_) send_body();
    }
    bool is_good() const {
        return temper_ == Temper::good || temper_ == Temper::half_closes || temper_ == Temper::slow;
    }
    void send_body() {
        if (!held_body_ || silent_) return;
        held_body_ = false;
        if (answered_ == sent_) return;  // it was answered without
        Ask &ask = asks_[sent_ - 1];
        if (ask.status == 413) ask.status = 0;  // as what has come of its body when it is looked at
        say(ask.body);
    }

    void ended() override {
        if (answered_ == asks_.size() || !is_good() || hurt() || scene_->tight || closing_) {
            if (answered_ < asks_.size()) ++scene_->lost;
            return;
        }
        if (answered_ < sent_ && asks_[answered_].drops) return;
        if (tls_ && !agreed_) wrong("its handshake ends without a connection");
        wrong("its connection ends before " + asks_[answered_].id + " is answered: " + asks_[answered_].text);
    }
    [[noreturn]] void wrong(const std::string &what) const {
        machine().fail("client %d (%s, temper %d, request %zu of %zu): %s", number_, name(), int(temper_), answered_, asks_.size(),
                       what.c_str());
    }

    std::vector<Ask> asks_;
    size_t depth_, sent_ = 0, answered_ = 0, stall_ask_ = SIZE_MAX;
    bool held_body_ = false, closing_ = false, stalled_ = false, garbled_ = false, half_closed_ = false;
    int64_t stall_allowed_ = 0;
};

}  // namespace sim
