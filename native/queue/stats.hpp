// Counts and times of one instance, written by one thread at a time.
//
// Strategy: plain numbers in fixed places; a time is put into its two histograms, of fixed and of exponential
// buckets, by a few comparisons of whole numbers. Readers take a copy. Writers and readers take turns by a mutex,
// for a thread that serves a handler process has no GIL.

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

// Upper bounds in nanoseconds; times above the last one go into one more bucket.
inline constexpr std::uint64_t DURATION_BOUNDS[] = {
    100000ull,     250000ull,     500000ull,      1000000ull,     2500000ull,     5000000ull,
    10000000ull,   25000000ull,   50000000ull,    100000000ull,   250000000ull,   500000000ull,
    1000000000ull, 2500000000ull, 5000000000ull, 10000000000ull,
    15000000000ull, 20000000000ull, 30000000000ull};
inline constexpr int BOUNDS = static_cast<int>(std::size(DURATION_BOUNDS));

// The buckets of a native histogram of Prometheus, schema 3: each power of two of a second is divided into
// eight. Bucket `i` ends at 2^((FIRST_EXPONENTIAL + i) / 8) s, inclusively; the first one, which is the
// zero bucket, begins at 0, and the last one takes in all that is longer (2^12 s is above an hour).
inline constexpr int EXPONENTIAL_SCHEMA = 3;
inline constexpr int FIRST_EXPONENTIAL = -20 * (1 << EXPONENTIAL_SCHEMA);  // 2^-20 s is about a microsecond
inline constexpr int EXPONENTIAL_BUCKETS = (32 << EXPONENTIAL_SCHEMA) + 1;

// The exponential bucket of a time in nanoseconds.
inline int exponential_bucket(std::uint64_t ns) noexcept {
    // 2^(0/8) s, 2^(1/8) s ... 2^(7/8) s, in nanoseconds with 32 bits of fraction.
    static constexpr std::uint64_t BETWEEN[] = {
        4294967296000000000ull, 4683695047832392561ull, 5107605667107197932ull, 5569883475385291208ull,
        6074000999952099384ull, 6623745058664271696ull, 7223245205676679009ull, 7877004751727667949ull};
    static_assert(std::size(BETWEEN) == 1 << EXPONENTIAL_SCHEMA);
    constexpr int EIGHTHS = (1 << EXPONENTIAL_SCHEMA) - 1, LAST = EXPONENTIAL_BUCKETS - 1;
    // Whether a bucket ends before the time. Bucket 0 ends at 2^-20 s.
    const auto ends_before = [ns](int bucket) {
        const int octave = (bucket >> EXPONENTIAL_SCHEMA) + (FIRST_EXPONENTIAL >> EXPONENTIAL_SCHEMA);
        return BETWEEN[bucket & EIGHTHS] >> (32 - octave) < ns;
    };
    if (!ends_before(0)) return 0;
    if (ends_before(LAST - 1)) return LAST;
    // Times with these leading four bits lie in the bucket found here or in the two behind it: a second is 2^29.897 ns.
    const int width = 63 - __builtin_clzll(ns);
    const int eighth = static_cast<int>(ns >> (width - EXPONENTIAL_SCHEMA)) & EIGHTHS;
    int bucket = std::max(width * (EIGHTHS + 1) - 79 + eighth + (eighth != 0), 0);
    while (ends_before(bucket)) ++bucket;
    return bucket;
}

struct Histogram {
    std::uint64_t buckets[BOUNDS + 1] = {};
    std::uint64_t exponential[EXPONENTIAL_BUCKETS] = {};
    std::uint64_t count = 0, ns = 0;

    void add(std::uint64_t value) noexcept { add(value, 1); }

    // `times` occurrences that took `value` each.
    void add(std::uint64_t value, std::uint64_t times) noexcept {
        int bucket = 0;  // searched from the shortest on, because most times are short
        while (bucket < BOUNDS && DURATION_BOUNDS[bucket] < value) ++bucket;
        buckets[bucket] += times;
        exponential[exponential_bucket(value)] += times;
        count += times;
        ns += value * times;
    }

    void absorb(const Histogram &other) noexcept {
        for (int i = 0; i <= BOUNDS; ++i) buckets[i] += other.buckets[i];
        for (int i = 0; i < EXPONENTIAL_BUCKETS; ++i) exponential[i] += other.exponential[i];
        count += other.count;
        ns += other.ns;
    }
};

// The time since 1970.
inline std::int64_t unix_milliseconds() noexcept { return nanoseconds_of(CLOCK_REALTIME) / 1'000'000; }

enum Stage : int {
    STAGE_REQUEST = 0,  // arrival to answer, of requests that were answered well
    STAGE_FAILED,       // the same of requests that failed
    STAGE_QUEUE,
    STAGE_ASSEMBLE,
    STAGE_PREPROCESS,
    STAGE_INFERENCE,
    STAGE_POSTPROCESS,
    STAGE_CACHE_HIT,   // looking a request up that the response cache answered
    STAGE_CACHE_MISS,  // the same of requests whose answers it had not
    STAGES,
};

struct SizeSums {
    std::uint64_t batches = 0, input_ns = 0, infer_ns = 0, output_ns = 0;
};

// Batch sizes that are told apart. Where a model does not batch, its clients choose the sizes.
inline constexpr std::size_t MOST_SIZES = 1024;

// The times of one batch.
struct BatchTimes {
    std::uint64_t assemble = 0, preprocess = 0, inference = 0, postprocess = 0;
};

struct Sums {
    std::mutex mutex;  // of all below; taken by the callers where nothing else is said
    Histogram stages[STAGES];
    std::map<std::uint64_t, SizeSums> sizes;  // by rows
    std::uint64_t rows = 0, batches = 0;
    std::int64_t last_ms = 0;
    SizeSums lost;  // where not even one size could be kept

    // The sums of batches of so many rows. Once many sizes are known, or there is no memory for one
    // more, those of the next larger size that is known, or of the largest.
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

    // One request of a batch that was answered well.
    void add_served(const Request &request, const BatchTimes &times) noexcept {
        stages[STAGE_REQUEST].add(static_cast<std::uint64_t>(request.ended_ns - request.enqueued_ns));
        stages[STAGE_QUEUE].add(request.queued_ns(times.assemble));
    }

    // A batch, with `served` requests that were answered well.
    void add_batch(std::uint64_t size, std::uint64_t served, const BatchTimes &times) noexcept {
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

    // A batch in which nothing failed; `won` has 0 for requests that had ended before. Takes the mutex.
    void note_answered(const Request *const *requests, std::size_t count, const unsigned char *won,
                       const BatchTimes &times) noexcept {
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
