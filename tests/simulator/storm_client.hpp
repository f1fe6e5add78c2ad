// A client of TLS that sends KeyUpdates without end, which cost it little and the server much.

#pragma once

#include "client.hpp"

namespace sim {

class StormClient final : public Client {
  public:
    StormClient(Scene *scene, int number, size_t updates) : Client(scene, number, Temper::garbles), left_(updates) {}

  private:
    const char *name() const override { return "TLS"; }
    void act() override {
        if (began_) return;
        began_ = true;
        std::string records;
        for (; left_; --left_) records += peer_->key_update();
        raw(records);
        must_end_within(100 * SECOND, "it sends KeyUpdates alone");
    }

    size_t left_;
    bool began_ = false;
};

}  // namespace sim
