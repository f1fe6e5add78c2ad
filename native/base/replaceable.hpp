// A value that many threads read, and that a thread may replace as a whole. A reader keeps the value that it got, even
// if the value is replaced meanwhile.

#pragma once

#include <memory>
#include <utility>

namespace ksrv {

template <typename Value> class Replaceable {
  public:
    explicit Replaceable(std::shared_ptr<const Value> value = nullptr) noexcept : value_(std::move(value)) {}

    void replace(std::shared_ptr<const Value> value) noexcept { std::atomic_store(&value_, std::move(value)); }
    std::shared_ptr<const Value> get() const noexcept { return std::atomic_load(&value_); }

  private:
    std::shared_ptr<const Value> value_;
};

}  // namespace ksrv
