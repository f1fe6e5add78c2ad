// What was answered, until the thread of the access log takes it.

#pragma once

#include <cstddef>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace ksrv {

template <typename Record> class AccessRecords {
  public:
    // Keeps a record that takes so many bytes beside its own; false where too many wait, or there is no memory: a line of the
    // access log is not worth a request.
    bool keep(Record record, size_t bytes) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        if (bytes_ + sizeof record + bytes > MOST_BYTES) return false;
        try {
            records_.push_back(std::move(record));
        } catch (const std::bad_alloc &) {
            return false;
        }
        bytes_ += sizeof record + bytes;
        return true;
    }

    void take(std::vector<Record> *out) {
        std::lock_guard<std::mutex> guard(mutex_);
        out->swap(records_);
        records_.clear();
        bytes_ = 0;
    }

  private:
    static constexpr size_t MOST_BYTES = 16u << 20;

    std::mutex mutex_;
    std::vector<Record> records_;
    size_t bytes_ = 0;
};

}  // namespace ksrv
