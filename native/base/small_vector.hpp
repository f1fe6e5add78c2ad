// A growing array whose first elements live inside the object.
//
// Strategy: most infer requests have one or two inputs, so their headers are read without allocating memory. If there
// are more elements than fit, they move to the heap. Elements must be trivially copyable, so that moving them is a
// memcpy.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

namespace ksrv {

template <class T, std::size_t Inside>
class SmallVector {
    static_assert(std::is_trivially_copyable_v<T>, "elements are moved with memcpy");

public:
    SmallVector() noexcept = default;
    SmallVector(const SmallVector &) = delete;
    SmallVector &operator=(const SmallVector &) = delete;
    ~SmallVector() {
        if (!is_inside()) std::free(data_);
    }

    // Adds room for `count` elements at the end, uninitialised; null if memory is short. Invalidates earlier pointers.
    T *extend(std::size_t count) noexcept {
        if (count > capacity_ - size_ && !grow(size_ + count)) return nullptr;
        T *first = data_ + size_;
        size_ += count;
        return first;
    }

    // Adds a default element at the end; null if memory is short.
    T *add() noexcept {
        T *place = extend(1);
        return place ? new (place) T() : nullptr;
    }

    void push_back(const T &value) {
        T *place = extend(1);
        if (place == nullptr) throw std::bad_alloc();
        new (place) T(value);
    }

    void drop_first(std::size_t count) noexcept {
        size_ -= count;
        std::memmove(static_cast<void *>(data_), data_ + count, size_ * sizeof(T));
    }

    void clear() noexcept { size_ = 0; }
    bool empty() const noexcept { return size_ == 0; }
    std::size_t size() const noexcept { return size_; }
    const T *data() const noexcept { return data_; }
    T &operator[](std::size_t index) noexcept { return data_[index]; }
    const T &operator[](std::size_t index) const noexcept { return data_[index]; }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }
    const T *begin() const noexcept { return data_; }
    const T *end() const noexcept { return data_ + size_; }

private:
    bool is_inside() const noexcept { return static_cast<const void *>(data_) == storage_; }

    bool grow(std::size_t least) noexcept {
        const std::size_t capacity = least > 2 * capacity_ ? least : 2 * capacity_;
        void *larger = std::malloc(capacity * sizeof(T));
        if (larger == nullptr) return false;
        std::memcpy(larger, static_cast<const void *>(data_), size_ * sizeof(T));
        if (!is_inside()) std::free(data_);
        data_ = static_cast<T *>(larger);
        capacity_ = capacity;
        return true;
    }

    alignas(T) unsigned char storage_[Inside * sizeof(T)];
    T *data_ = reinterpret_cast<T *>(storage_);
    std::size_t size_ = 0;
    std::size_t capacity_ = Inside;
};

}  // namespace ksrv
