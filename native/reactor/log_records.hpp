// Log records that wait for the thread that writes them.

#pragma once

#include <cstddef>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace ksrv {

// Any thread adds records, and one thread takes them. Both lock the mutex.
template <typename Record> class LogRecords {
  public:
    explicit LogRecords(size_t most_bytes = 16u << 20) noexcept : most_bytes_(most_bytes) {}

    // Adds a record with `bytes` of additional memory. False if too many records wait or memory is short: the record is
    // lost, because serving requests is more important.
    bool keep(Record record, size_t bytes) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        if (bytes_ + sizeof record + bytes > most_bytes_) return false;
        try {
            records_.push_back(std::move(record));
        } catch (const std::bad_alloc &) {
            return false;
        }
        bytes_ += sizeof record + bytes;
        return true;
    }

    // Replaces the contents of `out` by all records.
    void take(std::vector<Record> *out) {
        std::lock_guard<std::mutex> guard(mutex_);
        out->swap(records_);
        records_.clear();
        bytes_ = 0;
    }

  private:
    const size_t most_bytes_;
    std::mutex mutex_;
    std::vector<Record> records_;
    size_t bytes_ = 0;
};

}  // namespace ksrv
