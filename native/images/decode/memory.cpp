#include "images/decode/memory.hpp"

#include "base/clock.hpp"

namespace ksrv {

DecodeRoom DecodeMemory::take(std::uint64_t nbytes) noexcept {
    const bool small = is_small(nbytes);
    if (nbytes > process_budget().most(small)) return DecodeRoom::too_large;
    std::unique_lock<std::mutex> lock(mutex_);
    const auto reserve = [&] {
        if (!process_budget().reserve(nbytes, small)) return false;
        ++reservations_;
        return true;
    };
    if (reserve()) return DecodeRoom::taken;
    if (reservations_ == 0) return DecodeRoom::none;
    ++waiting_;
    changed_.wait_until(lock, now_ns() + WAIT_NS);
    --waiting_;
    if (reserve()) return DecodeRoom::taken;
    return reservations_ == 0 ? DecodeRoom::none : DecodeRoom::wait;
}

void DecodeMemory::give_back(std::uint64_t nbytes) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    process_budget().give_back(nbytes);
    --reservations_;
    if (waiting_ > 0) changed_.notify_all();
}

int DecodeMemory::waiting() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    return waiting_;
}

}  // namespace ksrv
