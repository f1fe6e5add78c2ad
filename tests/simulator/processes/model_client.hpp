// Clients of a model whose handler runs in processes: each row has a different tag, and the answer has the same tags.

#pragma once

#include "../client.hpp"
#include "handler_process.hpp"

namespace sim {

class ModelClient final : public Client {
  public:
    ModelClient(Scene *scene, int number, Temper temper, size_t row_bytes, bool hurries) : Client(scene, number, temper), row_bytes_(row_bytes) {
        Random &random = machine().random;
        count_ = random.between(1, row_bytes > 4096 ? 8 : 200);
        depth_ = random.chance(300000) ? 1 : random.between(2, 12);
        hurries_ = hurries;
        leaves_ = temper == Temper::resets ? random.below(count_) : count_;
    }

  private:
    static constexpr int64_t PATIENCE_NS = 60 * SECOND;  // for an answer, even if processes die

    struct Ask {
        std::string body;
        uint32_t rows;
        bool has_timeout;
        int64_t sent_ns;
    };

    const char *name() const override { return "of a model"; }
    std::string state() const override { return std::to_string(asks_.size()) + " sent and " + std::to_string(answered_) + " answered of " + std::to_string(count_); }

    void act() override {
        read_answers();
        if (over_) return;
        if (answered_ == count_) {
            leave();
            return;
        }
        while (!closing_ && asks_.size() < count_ && asks_.size() - answered_ < depth_) {
            ask();
            if (asks_.size() > leaves_) {
                flush();
                machine().after(static_cast<int64_t>(machine().random.below(30 * MS)), [this] { leave(machine().random.chance(500000)); });
                leaves_ = count_;
            }
        }
        const int64_t give_up = answered_ < asks_.size() ? asks_[answered_].sent_ns + PATIENCE_NS : 0;
        if (give_up && machine().now > give_up && temper_ != Temper::resets)
            machine().fail("client %d has waited for its answer %zu for %.0f s", number_, answered_, PATIENCE_NS / 1e9);
        if (give_up) wake_at(machine().now + SECOND);
    }

    void ask() {
        Random &random = machine().random;
        const uint32_t number = static_cast<uint32_t>(asks_.size());
        Ask made;
        made.rows = static_cast<uint32_t>(random.between(1, 3));
        made.has_timeout = hurries_ && random.chance(200000);
        made.sent_ns = machine().now;
        const std::string id = "c" + std::to_string(number_) + "-" + std::to_string(number);
        std::string json = "{\"id\":\"" + id + "\",\"inputs\":[{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[" + std::to_string(made.rows) + "," +
                           std::to_string(row_bytes_ / 4) + "],\"parameters\":{\"binary_data_size\":" + std::to_string(made.rows * row_bytes_) +
                           "}}],\"parameters\":{\"binary_data_output\":true" +
                           (made.has_timeout ? ",\"timeout\":" + std::to_string(random.between(1, 50000)) : "") + "}}";
        json.resize((json.size() + 3) / 4 * 4, ' ');
        for (uint32_t row = 0; row < made.rows; ++row) {
            const Tag tag = tag_of(number, row);
            for (size_t at = 0; at < row_bytes_; at += TAG_BYTES) made.body.append(reinterpret_cast<const char *>(&tag), TAG_BYTES);
        }
        made.body = json + made.body;
        say("POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\nx-request-id: " + id + "\r\ninference-header-content-length: " + std::to_string(json.size()) +
            "\r\ncontent-length: " + std::to_string(made.body.size()) + "\r\n\r\n" + made.body);
        asks_.push_back(std::move(made));
    }
    Tag tag_of(uint32_t number, uint32_t row) const { return {static_cast<uint32_t>(number_), number, row, 7}; }

    void read_answers() {
        for (;;) {
            const size_t end = got_.find("\r\n\r\n");
            if (end == std::string::npos) return;
            const int status = atoi(got_.c_str() + 9);
            machine().tell("client %d gets the status %d", number_, status);
            const size_t field = got_.find("\r\ncontent-length: ");
            const size_t length = status >= 200 && field < end ? strtoull(got_.c_str() + field + 18, nullptr, 10) : 0;
            if (got_.size() < end + 4 + length) return;
            if (got_.find("\r\nConnection: close\r\n") < end + 2) closing_ = true;
            if (status >= 200) take_answer(status, got_.substr(end + 4, length));
            got_.erase(0, end + 4 + length);
        }
    }
    void take_answer(int status, const std::string &body) {
        if (answered_ >= asks_.size()) machine().fail("client %d gets an answer more than it has requests", number_);
        const Ask &ask = asks_[answered_];
        ++scene_->answers;
        std::string tags;
        for (uint32_t row = 0; row < ask.rows; ++row) {
            const Tag tag = tag_of(static_cast<uint32_t>(answered_), row);
            tags.append(reinterpret_cast<const char *>(&tag), TAG_BYTES);
        }
        const std::string id = "\"id\":\"c" + std::to_string(number_) + "-" + std::to_string(answered_) + "\"";
        const bool own = body == ask.body  // of the worker's general way
                         || (body.find(id) != std::string::npos && body.size() > tags.size() && body.compare(body.size() - tags.size(), tags.size(), tags) == 0);
        if (status == 200 && !own) machine().fail("client %d: the answer %zu belongs to another request: %s", number_, answered_, body.substr(0, 200).c_str());
        const bool may_fail = scene_->faults || scene_->stops || scene_->tight;
        if (status != 200 && !may_fail) machine().fail("client %d: the answer %zu has the status %d, and nothing fails", number_, answered_, status);
        if (status == 200 && closing_ && !hurt())
            machine().fail("client %d: the answer %zu ends the connection, and nothing fails", number_, answered_);
        if (status != 200) ++scene_->refusals;
        if (status == 500) ++scene_->failures;
        ++answered_;
    }

    void ended() override {
        if (answered_ < count_) ++scene_->lost;
        if (answered_ < count_ && !hurt() && !closing_ && temper_ != Temper::resets)
            machine().fail("client %d loses its connection before its answer %zu", number_, answered_);
    }

    const size_t row_bytes_;
    size_t count_, depth_, leaves_, answered_ = 0;
    bool hurries_ = false;
    bool closing_ = false;  // an answer ends the connection: the queue was full, and the server reads no more of a long request
    std::vector<Ask> asks_;
};

}  // namespace sim
