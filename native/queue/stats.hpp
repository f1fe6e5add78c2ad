// Sums of the batches, rows and times of one instance, for metrics and statistics.
//
// A mutex guards writers and readers, because a thread that serves a handler process does not have the GIL. Readers
// take a copy.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

#include "base/clock.hpp"
#include "queue/request.hpp"

namespace ksrv {

// Upper bounds in nanoseconds. One more bucket counts longer times.
inline constexpr std::uint64_t DURATION_BOUNDS[] = {
    100'000ull,     250'000ull,     500'000ull,      1'000'000ull,     2'500'000ull,     5'000'000ull,
    10'000'000ull,   25'000'000ull,   50'000'000ull,    100'000'000ull,   250'000'000ull,   500'000'000ull,
    1'000'000'000ull, 2'500'000'000ull, 5'000'000'000ull, 10'000'000'000ull,
    15'000'000'000ull, 20'000'000'000ull, 30'000'000'000ull};
inline constexpr int BOUNDS = static_cast<int>(std::size(DURATION_BOUNDS));

struct Histogram {
    std::uint64_t buckets[BOUNDS + 1] = {};
    std::uint64_t count = 0, ns = 0;

    void add(std::uint64_t value) noexcept { add(value, 1); }

    // Adds `times` occurrences of `value`.
    void add(std::uint64_t value, std::uint64_t times) noexcept {
        int bucket = 0;  // searched from the shortest, because most times are short
        while (bucket < BOUNDS && DURATION_BOUNDS[bucket] < value) ++bucket;
        buckets[bucket] += times;
        count += times;
        ns += value * times;
    }

    void absorb(const Histogram &other) noexcept {
        for (int i = 0; i <= BOUNDS; ++i) buckets[i] += other.buckets[i];
        count += other.count;
        ns += other.ns;
    }
};

// The time since 1970.
inline std::int64_t unix_milliseconds() noexcept { return nanoseconds_of(CLOCK_REALTIME) / 1'000'000; }

enum Stage : int {
    STAGE_REQUEST = 0,  // from arrival to answer, of successful requests
    STAGE_FAILED,       // from arrival to answer, of failed requests
    STAGE_QUEUE,
    STAGE_ASSEMBLE,
    STAGE_PREPROCESS,
    STAGE_INFERENCE,
    STAGE_POSTPROCESS,
    STAGE_CACHE_HIT,   // cache lookups that found an answer
    STAGE_CACHE_MISS,  // cache lookups without a result
    STAGES,
};

// The time that a stage of a batch took, under the name that answers and spans show.
struct ReplyStage {
    const char *name;
    std::size_t length;
    std::uint64_t nanoseconds;
};

// Sums over the batches with one number of rows.
struct SizeSums {
    std::uint64_t batches = 0, input_ns = 0, infer_ns = 0, output_ns = 0;
};

// The most batch sizes with separate sums. If a model does not batch, its clients choose the sizes.
inline constexpr std::size_t MOST_SIZES = 1024;

// The times of one batch, in nanoseconds.
struct RunTimes {
    std::uint64_t assemble = 0, preprocess = 0, inference = 0, postprocess = 0;
};

struct Sums {
    std::mutex mutex;  // guards all fields; locked by the callers unless a comment says otherwise
    Histogram stages[STAGES];
    std::map<std::uint64_t, SizeSums> sizes;  // by number of rows
    std::uint64_t rows = 0, batches = 0;
    std::int64_t last_ms = 0;  // when the last batch ended, since 1970
    SizeSums lost;  // used if memory is short even for the first size

    // The sums of batches with `count` rows. If there are too many sizes already, or memory is short, the sums of the
    // next larger known size, or of the largest.
    SizeSums &of_size(std::uint64_t count) noexcept {
        auto found = sizes.lower_bound(count);
        if (found != sizes.end() && found->first == count) return found->second;
        if (sizes.size() < MOST_SIZES) {
            try {
                return sizes[count];
            } catch (const std::bad_alloc &) {
                if (sizes.empty()) return lost;
            }
        }
        return (found != sizes.end() ? found : std::prev(found))->second;
    }

    // Adds a request of a batch that was answered successfully.
    void add_served(const Request &request, const RunTimes &times) noexcept {
        stages[STAGE_REQUEST].add(static_cast<std::uint64_t>(request.ended_ns - request.enqueued_ns));
        stages[STAGE_QUEUE].add(request.queued_ns(times.assemble));
    }

    // Adds a batch with `served` successful requests.
    void add_batch(std::uint64_t size, std::uint64_t served, const RunTimes &times) noexcept {
        if (served != 0) {
            stages[STAGE_ASSEMBLE].add(times.assemble, served);
            stages[STAGE_PREPROCESS].add(times.preprocess, served);
            stages[STAGE_INFERENCE].add(times.inference, served);
            stages[STAGE_POSTPROCESS].add(times.postprocess, served);
        }
        SizeSums &sums = of_size(size);
        ++sums.batches;
        sums.input_ns += times.assemble + times.preprocess;
        sums.infer_ns += times.inference;
        sums.output_ns += times.postprocess;
        rows += size;
        ++batches;
        last_ms = unix_milliseconds();
    }

    // Adds a batch without failures. `won` has 0 for requests that had ended before. Locks the mutex.
    void note_answered(const Request *const *requests, std::size_t count, const unsigned char *won,
                       const RunTimes &times) noexcept {
        std::uint64_t size = 0, served = 0;
        const std::lock_guard<std::mutex> guard(mutex);
        for (std::size_t i = 0; i < count; ++i) {
            size += requests[i]->rows;
            if (!won[i]) continue;
            ++served;
            add_served(*requests[i], times);
        }
        add_batch(size, served, times);
    }

    void absorb(const Sums &other) noexcept {
        for (int stage = 0; stage < STAGES; ++stage) stages[stage].absorb(other.stages[stage]);
        for (const auto &item : other.sizes) {
            SizeSums &mine = of_size(item.first);
            mine.batches += item.second.batches;
            mine.input_ns += item.second.input_ns;
            mine.infer_ns += item.second.infer_ns;
            mine.output_ns += item.second.output_ns;
        }
        rows += other.rows;
        batches += other.batches;
        last_ms = std::max(last_ms, other.last_ms);
    }
};

}  // namespace ksrv
