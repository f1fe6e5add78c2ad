// The Authorization values that the server has admitted: their next requests need no look by Python.
//
// Strategy: Python alone decides who may call. A value that it has admitted is remembered to the byte, so
// that nothing is decided twice; every other value is Python's again. Values are only ever added, for a
// worker's tokens never change: a reload replaces the worker.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace ksrv {

class KnownCallers {
  public:
    static constexpr size_t MOST = 64, LONGEST = 512;

    // Whether a value was admitted. How long it takes tells nothing of the bytes of a value, for all bytes
    // of each value of the same length are compared.
    bool knows(const unsigned char *value, size_t length) const noexcept {
        bool found = false;
        const size_t count = count_.load(std::memory_order_acquire);
        for (size_t i = 0; i < count; ++i) {
            if (values_[i].length != length) continue;
            unsigned char different = 0;
            for (size_t at = 0; at < length; ++at)
                different = static_cast<unsigned char>(different | (values_[i].bytes[at] ^ value[at]));
            found |= different == 0;
        }
        return found;
    }

    // Remembers a value. One that is too long, or one more than there is room for, stays Python's.
    void add(const unsigned char *value, size_t length) noexcept {
        if (length == 0 || length > LONGEST) return;
        std::lock_guard<std::mutex> guard(mutex_);
        const size_t count = count_.load(std::memory_order_relaxed);
        if (count == MOST || knows(value, length)) return;
        memcpy(values_[count].bytes, value, length);
        values_[count].length = length;
        count_.store(count + 1, std::memory_order_release);
    }

  private:
    struct Value {
        size_t length = 0;
        unsigned char bytes[LONGEST];
    };

    std::mutex mutex_;
    std::atomic<size_t> count_{0};
    Value values_[MOST];
};

}  // namespace ksrv
