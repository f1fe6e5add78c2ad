// Bounded request queues with deadlines and batching, one for each model version.
//
// Strategy: one mutex guards the whole queue, and is held for a few list and heap operations at a time. Waiting
// requests are in a list for each priority, in order of arrival. A batch takes the first request and then, in order,
// requests with the same batch key that fit. The deadlines of all waiting and running requests of a queue are in one
// heap. A timer thread for the process sleeps until the earliest deadline of all queues. A request ends once: its state
// leaves the open states under the mutex, and the thread that changed the state answers it after releasing the mutex.
//
// Two kinds of threads take requests. An instance takes a batch when it is idle. The prefetcher takes requests while
// every instance is busy, adds to its open batch for as long as that lasts, and then closes the batch. It is then a
// ready batch, which an instance takes before anything else. The queue knows only the batch's key.
//
// Each instance has a slot. While the instance is idle and no request waits, a thread that pushes a request may claim
// the slot: it then runs the request on the instance itself, so that no other thread is woken.
//
// A request of a sequence can run only on the instance that has the sequence's state, and only one request of a
// sequence is in the lines or in a batch at a time. Later requests of the sequence are held back in a separate line.
//
// Nothing here throws or uses Python. `push` returns an error if memory is short.

#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "base/monotonic_condition.hpp"
#include "memory/memory_budget.hpp"
#include "queue/deadline_heap.hpp"
#include "queue/request.hpp"

namespace ksrv {

enum Push : int {
    PUSH_OK = 0,
    PUSH_FULL,     // the queue is at its capacity
    PUSH_BYTES,    // the memory budget is used up
    PUSH_CLOSED,   // the version no longer accepts requests; retry with its successor
    PUSH_EXPIRED,  // the deadline has passed already
    PUSH_MEMORY,
    PUSH_INLINE,   // accepted, in STATE_RUNNING: the caller must run the request on the claimed slot's instance
};

enum Take : int {
    TAKE_REQUESTS = 0,
    TAKE_READY_BATCH,    // the instance must run a batch that was assembled before
    TAKE_CLOSED,         // closed and empty
    TAKE_INSTANCE_IDLE,  // (prefetcher) an instance is idle: close the open batch now
    TAKE_NUDGED,         // `nudge` was called: the instance's thread must check its executor
    TAKE_NOTHING,        // only in the queue: keep waiting
};

enum Counter : int {
    COUNT_PUSHED = 0,
    COUNT_FULL,
    COUNT_BYTES,
    COUNT_CANCELLED,
    COUNT_EXPIRED_QUEUED,   // no handler ran it
    COUNT_EXPIRED_RUNNING,
    COUNT_INVALID,          // refused before the queue, because it does not match the model
    COUNTERS,
};

// How long an instance waits after a batch that had several requests. Their clients, which were answered together, send
// their next requests one after the other. The wait keeps the first of these from becoming a batch of one.
inline std::int64_t regroup_delay_ns(std::uint64_t rows, std::int64_t ran_ns) noexcept {
    constexpr std::int64_t SHARE = 200, SHORTEST_NS = 100'000, LONGEST_NS = 2'000'000;
    if (rows <= 1 || ran_ns < SHARE * SHORTEST_NS) return 0;
    return std::min(ran_ns / SHARE, LONGEST_NS);
}

// Whether the next batch should be assembled while another batch runs. The prefetcher's batch misses the requests that
// arrive before the run ends, so that two small batches alternate instead of one large batch. This is worth it only if
// assembling is slow: at least a twentieth of the run.
inline bool assembles_beside_run(std::int64_t ran_ns, std::int64_t assembled_ns) noexcept {
    constexpr std::int64_t SHORTEST_RUN_NS = 2'000'000, SHARE = 20;
    return ran_ns >= SHORTEST_RUN_NS && assembled_ns >= ran_ns / SHARE;
}

class Queue {
  public:
    explicit Queue(std::size_t capacity) noexcept : capacity_(capacity) {}

    std::atomic<std::uint64_t> counters[COUNTERS] = {};
    std::atomic<long> refs{1};
    std::atomic<bool> may_prefetch{false};
    std::atomic<bool> inline_for_all{false};      // any thread may claim a slot
    std::atomic<bool> inline_for_blocked{false};  // only threads that would wait for their request may claim a slot

    // Decides from the last run whether the prefetcher assembles batches during runs.
    void note_run(std::int64_t ran_ns, std::int64_t assembled_ns) noexcept {
        const bool beside = assembles_beside_run(ran_ns, assembled_ns);
        if (may_prefetch.load(std::memory_order_relaxed) != beside) may_prefetch.store(beside);
    }

    // Adds a slot for an instance. SIZE_MAX if memory is short.
    std::size_t add_slot() noexcept;

    // Counts a request that `push` refused for good. I/O threads do not call it: if their push fails, Python pushes the
    // request again.
    void refused(Push pushed) noexcept {
        if (pushed == PUSH_FULL) counters[COUNT_FULL].fetch_add(1, std::memory_order_relaxed);
        if (pushed == PUSH_BYTES) counters[COUNT_BYTES].fetch_add(1, std::memory_order_relaxed);
        if (pushed == PUSH_EXPIRED)
            counters[COUNT_EXPIRED_QUEUED].fetch_add(1, std::memory_order_relaxed);
    }

    // Accepts the request, or returns why not. The queue holds a reference to an accepted request. With `slot`, the
    // slot of an idle instance may be claimed: the request is then running already. `caller_blocks`: the caller would
    // only wait for the request.
    Push push(Request *request, std::size_t *slot = nullptr, bool caller_blocks = false) noexcept;

    // Accepts requests that arrived together, each with a separate result. If the first may claim the slot of an idle
    // instance, the following requests that fit its batch run with it. Returns how many do.
    std::size_t push_some(Request **requests, std::size_t count, std::uint64_t max_rows, Push *results,
                          std::size_t *slot) noexcept;

    // Takes a batch for an idle instance. Blocks. Takes at most `room` requests and `max_rows` rows, but at least one
    // request. `delay_ns` is how long the oldest request of a batch waits for the batch to fill.
    Take take(std::size_t slot, Request **out, std::size_t room, std::size_t *count,
              std::uint64_t max_rows, std::int64_t delay_ns) noexcept;

    // Takes the next batch for a busy instance. Returns the number of requests, which is 0 unless no other instance is
    // idle and the queue's head is eligible: without a priority, with the given `taken` callback, and, if the model
    // batches, enough requests for a full batch. Never blocks.
    std::size_t take_ahead(std::size_t slot, void *(*kind)(Request *), Request **out, std::size_t room,
                           std::uint64_t max_rows) noexcept;

    // Returns taken requests, which no handler has seen and which have no priority, to their previous positions in
    // order. Overwrites the array.
    void put_back(Request **requests, std::size_t count) noexcept;

    // Makes `take` return on the instance's thread, as soon as its slot is not claimed.
    void nudge(std::size_t slot) noexcept;

    // Takes requests for the prefetcher. Blocks. `rows` are the rows of its open batch (0: no open batch) and
    // `oldest_ns` is when the oldest request of the batch arrived.
    Take prefetch(Request **out, std::size_t room, std::size_t *count, std::uint64_t max_rows,
                    std::uint64_t rows, std::int64_t oldest_ns, std::int64_t delay_ns) noexcept;

    // Closes the prefetcher's open batch: an instance takes it (`ready`), or all of its requests have ended.
    void close_open_batch(bool ready) noexcept;

    // Announces a batch that must be run again, or on another instance.
    void requeue() noexcept;

    // Marks taken requests as running. `alive[i]` is 0 if a request has ended or was passed to `finish` before: it is
    // then no longer part of the batch.
    void start(Request **requests, std::size_t count, unsigned char *alive) noexcept;

    // Ends a batch. If `won[i]` is 1, the caller must answer, publish and release the request; otherwise the request
    // had ended before. Ending a batch twice does not change requests that have ended.
    void finish(Request **requests, std::size_t count, unsigned char *won) noexcept;

    // Ends the claim of a slot.
    void return_slot(std::size_t slot) noexcept;

    // Ends an open request as cancelled. False if it had ended before.
    bool cancel(Request *request) noexcept;

    // Ends requests whose deadlines have passed. Returns the next deadline, or NEVER.
    std::int64_t expire(std::int64_t now) noexcept;

    // Refuses further pushes. Queued requests are still served.
    void close() noexcept;

    // Takes out all waiting requests, in STATE_TAKEN, for a version that has failed for good.
    std::size_t take_all(Request **out, std::size_t room) noexcept;

    // Waits until no accepted request is left, or the clock reaches `until_ns`.
    bool wait_empty(std::int64_t until_ns) noexcept;

    std::size_t waiting() const noexcept { return places_.load(std::memory_order_relaxed); }
    std::size_t open() noexcept { return read(open_); }
    std::size_t lines() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        return lines_.size();
    }
    std::size_t idle() noexcept { return read(idle_); }
    bool closed() noexcept { return read(closed_); }
    bool full() const noexcept { return waiting() >= capacity_; }

    // Whether the queue is full. If so, counts a refused request.
    bool turns_away() noexcept {
        const bool turned = full();
        if (turned) refused(PUSH_FULL);
        return turned;
    }

  private:
    // Waiting requests of one priority, in order of arrival.
    struct Line {
        Request *first = nullptr, *last = nullptr;
    };
    struct Slot {
        bool idle = false;  // its instance's thread is in `take`
        bool claimed = false;  // a thread runs a request on it
        bool nudged = false;
    };
    // The waiting requests of one batch key, while `choose` looks for a batch.
    struct Group {
        std::uint64_t key, rows;
        std::int64_t oldest_ns;
        bool full;
    };

    template <typename T> T read(const T &field) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        return field;
    }

    // The key of the request's line: lines with lower numbers are served first.
    static std::uint32_t level(const Request *request) noexcept {
        return request->priority == 0 ? UINT32_MAX : request->priority;
    }

    // Wakes an instance for a request. Wakes all instances if the woken thread might be unable to take the request,
    // because its slot is claimed or its instance does not have the state of the request's sequence.
    void wake_instance() noexcept {
        if (claimed_ > 0 || sequenced_) {
            instances_.notify_all();
        } else {
            instances_.notify_one();
        }
    }
    bool runs_inline(bool caller_blocks) const noexcept {
        return inline_for_all.load(std::memory_order_relaxed) ||
               (caller_blocks && inline_for_blocked.load(std::memory_order_relaxed));
    }
    static bool reserve(const Request *request) noexcept;
    static void give_back(const Request *request) noexcept;
    Push accept(Request *request, std::size_t *slot, std::int64_t now) noexcept;
    Push admit(Request *request, Line **line, std::int64_t now) noexcept;
    void run(Request *request, std::int64_t now) noexcept;
    bool claim_slot(Request *request, std::size_t *slot, std::int64_t now) noexcept;
    void unlink(Request *request) noexcept;
    void leave_place(Request *request) noexcept;
    void let_go(Request *request) noexcept;
    // A mark that `start` and `finish` use internally: the queue's reference to the request must be released.
    static constexpr unsigned char PARTED = 2;
    void part_with(Request *request) noexcept;
    void release_parted(Request **requests, std::size_t count, unsigned char *marks) noexcept;
    bool end(Request *request, State state, std::int64_t now) noexcept;
    Request *first_queued() noexcept;
    std::size_t collect(std::size_t slot, std::uint64_t batch_key, Request **out, std::size_t room,
                        std::uint64_t rows_left, std::size_t taken, bool *full) noexcept;
    bool choose(std::size_t slot, std::uint64_t max_rows, std::int64_t delay_ns, std::int64_t now,
                std::uint64_t *batch_key, std::int64_t *wake) noexcept;
    static bool fits(const Request *request, std::size_t slot) noexcept {
        return request->sequence == nullptr || request->sequence->slot == slot;
    }
    void append(Line *line, Request *request) noexcept;
    void drop_empty_line(std::uint32_t level) noexcept;
    void leave_sequence(Request *request) noexcept;

    Take try_take(std::size_t slot, Request **out, std::size_t room, std::size_t *count,
                  std::uint64_t max_rows, std::int64_t delay_ns, std::int64_t *wake) noexcept;

    bool fills_a_batch(const Request *first, std::uint64_t max_rows) noexcept;

    std::mutex mutex_;
    MonotonicCondition instances_, prefetcher_, empty_;
    std::map<std::uint32_t, Line> lines_;    // by `level`
    DeadlineHeap deadlines_;                 // of waiting and running requests
    const std::size_t capacity_;
    Line held_back_;           // requests that wait for others of their sequences
    std::size_t queued_ = 0;   // in the lines
    std::atomic<std::size_t> places_{0};  // queued, or taken but not running; changes under the mutex
    std::size_t open_ = 0;     // accepted, and still referenced by the queue or a batch
    std::size_t idle_ = 0;     // instances in `take` whose slots are not claimed
    std::size_t claimed_ = 0;  // slots
    std::vector<Slot> slots_;
    std::size_t ready_batches_ = 0;
    bool closed_ = false;
    bool sequenced_ = false;   // a request of a sequence was pushed at least once
    bool prefetching_ = false;           // the prefetcher has an open batch
    std::uint64_t prefetched_key_ = 0;   // the batch key of the open batch
};

inline void retain(Queue *queue) noexcept { queue->refs.fetch_add(1, std::memory_order_relaxed); }
inline void release(Queue *queue) noexcept {
    if (queue->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete queue;
}

inline void release(Request *request) noexcept {
    if (request->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    Queue *queue = request->queue;
    Sequence *sequence = request->sequence;
    request->freed(request);
    if (sequence != nullptr) release(sequence);
    if (queue != nullptr) release(queue);
}

// Ends a request as cancelled in whichever queue it is. False if it had ended before, or was never accepted.
bool cancel(Request *request) noexcept;

}  // namespace ksrv
