// Spans that wait for the thread that exports them, encoded as OTLP's `ScopeSpans.spans`.
//
// Strategy: a request's thread encodes its spans and appends them, under a mutex, to the last chunk. A chunk is sent to
// the collector in one message. If the collector is slow, spans are dropped and counted: serving requests is more
// important.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <string>

#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"

namespace ksrv {

// Which of the requests with a caller's span, and without one, are traced: OpenTelemetry's samplers.
struct SpanSampler {
    bool follows_parent = true;  // the caller decides, if the request has a caller's span
    double share = 1.0;          // of the traces, by their ids

    // `low`: the last eight bytes of the trace id as a number.
    bool chooses(std::uint64_t low, bool has_parent, bool parent_sampled) const noexcept {
        if (has_parent && follows_parent) return parent_sampled;
        return share >= 1.0 || static_cast<double>(low) < std::ldexp(share, 64);
    }
};

class SpanLog {
  public:
    static constexpr std::size_t CHUNK_BYTES = 1 << 20;

    explicit SpanLog(std::size_t most_bytes = 16u << 20) noexcept : most_bytes_(most_bytes) {}

    // Appends the spans of a batch, which stay together in a chunk.
    void keep(const unsigned char *spans, std::size_t length, std::uint64_t count) noexcept {
        const std::lock_guard<std::mutex> guard(mutex_);
        try {
            if (closed_ || bytes_ + length > most_bytes_) throw std::bad_alloc();
            if (chunks_.empty() || chunks_.back().size() + length > CHUNK_BYTES) {
                chunks_.emplace_back();
                if (chunks_.size() > 1) changed_.notify_one();
            }
            chunks_.back().append(reinterpret_cast<const char *>(spans), length);
            bytes_ += length;
        } catch (const std::bad_alloc &) {
            lost.fetch_add(count, std::memory_order_relaxed);
        }
    }

    // Waits until a chunk is full, until `until_ns`, or until the log is closed, and moves the oldest chunk to `out`,
    // which is empty if no span waits. False if the log is closed and empty.
    bool take(std::int64_t until_ns, std::string *out) noexcept {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!closed_ && chunks_.size() < 2 && now_ns() < until_ns) changed_.wait_until(lock, until_ns);
        out->clear();
        if (chunks_.empty()) return !closed_;
        *out = std::move(chunks_.front());
        chunks_.pop_front();
        bytes_ -= out->size();
        return true;
    }

    // Opens or closes the log. A closed log drops new spans.
    void set_open(bool open) noexcept {
        const std::lock_guard<std::mutex> guard(mutex_);
        closed_ = !open;
        changed_.notify_all();
    }

    std::atomic<std::uint64_t> lost{0};  // spans that were dropped
    SpanSampler sampler;                 // set before the log is opened

  private:
    const std::size_t most_bytes_;
    std::mutex mutex_;
    MonotonicCondition changed_;
    std::deque<std::string> chunks_;
    std::size_t bytes_ = 0;
    bool closed_ = true;
};

// The log of this process.
SpanLog &process_spans() noexcept;

}  // namespace ksrv
