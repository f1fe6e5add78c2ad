// Memory for a few rows of a picture, reused from picture to picture.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/per_thread.hpp"

namespace ksrv {

class RowMemory {
  public:
    RowMemory() = default;
    ~RowMemory() { std::free(data_); }
    RowMemory(const RowMemory &) = delete;
    RowMemory &operator=(const RowMemory &) = delete;

    // At least `nbytes`, aligned to a cache line, with undefined contents; null if memory is short.
    std::uint8_t *reserve(std::size_t nbytes) noexcept {
        const std::size_t rounded = (nbytes + SLACK + LINE - 1) / LINE * LINE;
        if (rounded < nbytes) return nullptr;
        if (rounded > size_) {
            std::free(data_);
            data_ = static_cast<std::uint8_t *>(std::aligned_alloc(LINE, rounded));
            size_ = data_ ? rounded : 0;
        }
        return data_;
    }

    // Frees memory that only a huge picture needed.
    void trim() noexcept {
        if (size_ <= KEPT) return;
        std::free(data_);
        data_ = nullptr;
        size_ = 0;
    }

    static constexpr std::size_t SLACK = 64;  // after the rows, because loops read whole vectors

  private:
    static constexpr std::size_t LINE = 64;
    static constexpr std::size_t KEPT = 1u << 20;
    std::uint8_t *data_ = nullptr;
    std::size_t size_ = 0;
};

// Row memory of the calling thread for the class `Owner`; null if memory is short. A new call for the same class
// invalidates the memory, so each thread may use only one object of the class at a time.
template <typename Owner> std::uint8_t *reserve_rows(std::size_t nbytes) noexcept {
    static PerThread<RowMemory> threads;
    RowMemory *const rows = threads.get();
    return rows ? rows->reserve(nbytes) : nullptr;
}

}  // namespace ksrv
