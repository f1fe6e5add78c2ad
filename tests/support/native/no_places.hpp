// An owner of listeners that takes no connection, so that the clients' connections stay in the kernel's queue.

#pragma once

#include "reactor/listeners.hpp"

namespace ksrv {

struct NoPlaces final : Listeners::Owner {
    void *take_place() noexcept override { return nullptr; }
    void give_back_place(void *) noexcept override {}
    void accepted(void *, const Accepted &, bool) noexcept override {}
    bool has_room() const noexcept override { return true; }
    void make_room() noexcept override {}
    void accept_paused(bool) noexcept override {}
};

}  // namespace ksrv
