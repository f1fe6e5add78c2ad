// A value for many readers, which another thread replaces. Readers keep the value that they found.

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
