// Large pieces of freed memory, kept for the next allocation of the same size.
//
// Strategy: a fixed table, newest first, under one mutex; what does not fit is the caller's to free.
// Nothing is allocated, nothing throws, and the contents of a kept piece are whatever they were.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ksrv {

class KeptArenas {
  public:
    static constexpr std::size_t MOST = 256;            // pieces
    static constexpr std::size_t SMALLEST = 128 << 10;  // smaller ones cost little to map anew

    // A kept piece of exactly this size, or null.
    void *take(std::size_t size) noexcept {
        if (size < SMALLEST) return nullptr;
        const std::lock_guard<std::mutex> hold(mutex_);
        for (std::size_t i = count_; i-- > 0;) {
            if (pieces_[i].size != size) continue;
            void *found = pieces_[i].data;
            for (; i + 1 < count_; ++i) pieces_[i] = pieces_[i + 1];
            --count_;
            bytes_ -= size;
            ++reused_;
            return found;
        }
        return nullptr;
    }

    // Whether the piece is kept from now on; if not, it is still the caller's.
    bool keep(void *data, std::size_t size) noexcept {
        if (size < SMALLEST || data == nullptr) return false;
        const std::lock_guard<std::mutex> hold(mutex_);
        if (count_ == MOST || size > cap_ || bytes_ > cap_ - size) return false;
        pieces_[count_++] = {data, size};
        bytes_ += size;
        return true;
    }

    // Takes the newest piece out for good; null when nothing is left.
    void *drop(std::size_t *size) noexcept {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (count_ == 0) return nullptr;
        --count_;
        *size = pieces_[count_].size;
        bytes_ -= *size;
        return pieces_[count_].data;
    }

    void set_cap(std::size_t cap) noexcept {
        const std::lock_guard<std::mutex> hold(mutex_);
        cap_ = cap;
    }
    std::size_t bytes() noexcept {
        const std::lock_guard<std::mutex> hold(mutex_);
        return bytes_;
    }
    std::uint64_t reused() noexcept {
        const std::lock_guard<std::mutex> hold(mutex_);
        return reused_;
    }

  private:
    struct Piece {
        void *data;
        std::size_t size;
    };

    std::mutex mutex_;
    Piece pieces_[MOST];
    std::size_t count_ = 0, bytes_ = 0, cap_ = 0;
    std::uint64_t reused_ = 0;
};

}  // namespace ksrv
