// Authorization values that Python has already accepted, so that later requests with them need no Python.
//
// Strategy: only Python decides who may call. An accepted value is stored byte for byte, so that the decision is not
// repeated. Python decides about every other value. Readers need no lock: a value is written before the count includes
// it. Values are never removed, because a worker's tokens do not change: a reload starts a new worker.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace ksrv {

class KnownCallers {
  public:
    static constexpr size_t MOST = 64, LONGEST = 512;  // values, bytes of a value

    // Whether a value was accepted. The time does not depend on the bytes of the value: all stored values of the same
    // length are compared completely.
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

    // Stores a value. Values that are too long, or that exceed the capacity, are not stored: Python decides each time.
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
