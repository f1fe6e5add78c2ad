// Bounded queues, deadlines and batch forming: one queue for each model version.
//
// Strategy: everything about a queue is guarded by its one mutex, which is held for a few list and
// heap operations at a time. Waiting requests stand in one list for each priority, in order of
// arrival. A batch takes the first request and, in the same order, those of equal batch key that fit.
// All deadlines of a queue, of waiting and of running requests, stand in one heap; one timer thread
// for the process sleeps until the earliest of all queues. A request ends once: its state leaves
// the open ones under the mutex, and the thread that moved it answers it, after the mutex is released.
//
// Two kinds of threads take requests. An instance takes a batch when it is idle. The prefetcher takes
// requests while every instance is busy, tops its open batch up as long as they are, and then closes it: it
// is a ready batch, which an instance takes before anything else. The queue knows only the batch's key.
//
// Each instance has a slot. While the instance is idle and nothing waits, a thread that pushes a request may
// claim the slot: it then runs the request on the instance itself, and no other thread is woken.
//
// A request of a sequence is for the one instance that has the sequence's state, and only one request of a
// sequence stands in the lines or is in a batch at a time. Those behind it are held back in a line of their own.
//
// Nothing here throws or knows Python. `push` may find no memory and says so.

#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "base/monotonic_condition.hpp"
#include "memory/memory_budget.hpp"
#include "queue/request.hpp"

namespace ksrv {

enum Push : int {
    PUSH_OK = 0,
    PUSH_FULL,     // every place is taken
    PUSH_BYTES,    // the bytes in flight are at their bound
    PUSH_CLOSED,   // the version no longer accepts; look for its successor
    PUSH_EXPIRED,  // the deadline had passed already
    PUSH_MEMORY,
    PUSH_INLINE,     // nothing waits and an instance is idle: the caller runs the request on it
};

enum Take : int {
    TAKE_REQUESTS = 0,
    TAKE_READY_BATCH,   // a batch that was put together before is there to be run
    TAKE_CLOSED,  // closed, and nothing is left
    TAKE_INSTANCE_IDLE,   // (prefetcher) an instance is idle: close the open batch now
    TAKE_NUDGED,  // `nudge` was called: the instance's thread looks at its executor
    TAKE_NOTHING,
};

enum Counter : int {
    COUNT_PUSHED = 0,
    COUNT_FULL,
    COUNT_BYTES,
    COUNT_CANCELLED,
    COUNT_EXPIRED_QUEUED,   // its handler never saw it
    COUNT_EXPIRED_RUNNING,
    COUNT_INVALID,          // refused before the queue: it does not fit the model
    COUNTERS,
};

// Clients that were answered together send their next requests one after the other. So that the first of these does not become
// a batch of one, an instance waits for a share of the time that its last batch took, where that batch joined requests.
inline std::int64_t regroup_delay_ns(std::uint64_t rows, std::int64_t ran_ns) noexcept {
    constexpr std::int64_t SHARE = 200, SHORTEST_NS = 100'000, LONGEST_NS = 2'000'000;
    if (rows <= 1 || ran_ns < SHARE * SHORTEST_NS) return 0;
    return std::min(ran_ns / SHARE, LONGEST_NS);
}

// Whether the next batch is to be assembled while one runs. The prefetcher takes requests before the run ends, so its batch lacks
// all that arrive until then, and two small batches take turns where one could be large: assembly must be worth that.
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
    std::atomic<bool> inline_for_blocked{false};  // threads that only wait for their request may

    // Has the prefetcher work beside runs like the last one, or not.
    void note_run(std::int64_t ran_ns, std::int64_t assembled_ns) noexcept {
        const bool beside = assembles_beside_run(ran_ns, assembled_ns);
        if (may_prefetch.load(std::memory_order_relaxed) != beside) may_prefetch.store(beside);
    }

    // Makes a slot for an instance; SIZE_MAX when there is no memory.
    std::size_t add_slot() noexcept;

    // Counts a request that `push` refused for good. The I/O threads do not count: a request that they
    // cannot push is pushed once more, the general way.
    void refused(Push pushed) noexcept {
        if (pushed == PUSH_FULL) counters[COUNT_FULL].fetch_add(1, std::memory_order_relaxed);
        if (pushed == PUSH_BYTES) counters[COUNT_BYTES].fetch_add(1, std::memory_order_relaxed);
        if (pushed == PUSH_EXPIRED)
            counters[COUNT_EXPIRED_QUEUED].fetch_add(1, std::memory_order_relaxed);
    }

    // Accepts the request, or says why not. An accepted request is held by the queue as well. With
    // `slot`, an idle instance's slot may be claimed: the request then runs already. `caller_blocks` tells that
    // the caller has nothing else to do until the request has ended.
    Push push(Request *request, std::size_t *slot = nullptr, bool caller_blocks = false) noexcept;

    // Accepts requests that arrived together, each with its own result. Where the first may claim an
    // idle instance's slot, those behind it that fit into its batch run with it. Returns how many do.
    std::size_t push_some(Request **requests, std::size_t count, std::uint64_t max_rows, Push *results,
                          std::size_t *slot) noexcept;

    // Takes a batch for an idle instance; blocks. At most `room` requests and `max_rows` rows, but
    // one request always. `delay_ns` is how long the oldest of a batch waits for a full one.
    Take take(std::size_t slot, Request **out, std::size_t room, std::size_t *count,
              std::uint64_t max_rows, std::int64_t delay_ns) noexcept;

    // Takes a further batch for an instance that is busy, where the batch would be this instance's anyway: no
    // other instance is idle, and nothing stands before it. Requests of one kind and without a
    // priority only, the kind being told by their `taken`; where requests are joined, a full batch only. Returns how many; never blocks.
    std::size_t take_ahead(std::size_t slot, void *(*kind)(Request *), Request **out, std::size_t room,
                           std::uint64_t max_rows) noexcept;

    // Puts taken requests without a priority, which no handler has seen, back to where they were, in their
    // order. The array is used up.
    void put_back(Request **requests, std::size_t count) noexcept;

    // Has `take` return on the instance's own thread, once its slot is not claimed.
    void nudge(std::size_t slot) noexcept;

    // The prefetcher's turn; blocks. `rows` are those already in its open batch (0: none is open)
    // and `oldest_ns` is when the oldest of them arrived.
    Take prefetch(Request **out, std::size_t room, std::size_t *count, std::uint64_t max_rows,
                    std::uint64_t rows, std::int64_t oldest_ns, std::int64_t delay_ns) noexcept;

    // The prefetcher's open batch is complete: an instance takes it (`ready`), or all of it has ended.
    void close_open_batch(bool ready) noexcept;

    // A batch that must be run again, or on another instance.
    void requeue() noexcept;

    // Moves taken requests to running. `alive[i]` is 0 for a request that ended meanwhile, or that
    // `finish` had before; it is no longer the batch's.
    void start(Request **requests, std::size_t count, unsigned char *alive) noexcept;

    // Ends a batch. `won[i]` is 1 where the caller now answers, publishes and releases the request; the
    // others had ended before. A batch may be finished twice: that changes nothing about requests that
    // had ended.
    void finish(Request **requests, std::size_t count, unsigned char *won) noexcept;

    // Ends the claim of a slot.
    void return_slot(std::size_t slot) noexcept;

    // Ends one request that is still open, as cancelled. False when it had ended before.
    bool cancel(Request *request) noexcept;

    // Ends the requests that are past their deadlines. Returns the next deadline, or NEVER.
    std::int64_t expire(std::int64_t now) noexcept;

    // No more pushes; queued requests are still served.
    void close() noexcept;

    // Takes out everything that still waits, as TAKEN; for a version that failed for good.
    std::size_t take_all(Request **out, std::size_t room) noexcept;

    // Waits until nothing accepted is left, or the clock passes `until_ns`.
    bool wait_empty(std::int64_t until_ns) noexcept;

    std::size_t waiting() noexcept { return read(places_); }
    std::size_t open() noexcept { return read(open_); }
    std::size_t lines() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        return lines_.size();
    }
    std::size_t idle() noexcept { return read(idle_); }
    bool closed() noexcept { return read(closed_); }
    bool full() noexcept { return read(places_) >= capacity_; }

    // Whether it is full; a request that is told so is counted.
    bool turns_away() noexcept {
        const bool turned = full();
        if (turned) refused(PUSH_FULL);
        return turned;
    }

  private:
    struct Line {
        Request *first = nullptr, *last = nullptr;
    };
    struct Slot {
        bool idle = false;  // its instance's thread is inside `take`
        bool claimed = false;  // by a thread that runs a request on it
        bool nudged = false;
    };
    struct Group {
        std::uint64_t key, rows;
        std::int64_t oldest_ns;
        bool full;
    };

    template <typename T> T read(const T &field) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        return field;
    }

    static std::uint32_t level(const Request *request) noexcept {
        return request->priority == 0 ? UINT32_MAX : request->priority;
    }

    // A thread that sleeps on a claimed slot would swallow a wake-up meant for another one.
    void wake_instance() noexcept {
        if (claimed_ > 0 || sequenced_) {  // or on an instance that has not the state of the request
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
    // Between the two marks of `start` and `finish`: the queue's reference is to be let go of.
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

    bool before(std::size_t a, std::size_t b) const noexcept {
        return deadlines_[a]->deadline_ns < deadlines_[b]->deadline_ns;
    }
    void place(std::size_t index, Request *request) noexcept {
        deadlines_[index] = request;
        request->heap_index = index;
    }
    void sift_up(std::size_t index) noexcept;
    void sift_down(std::size_t index) noexcept;
    void forget_deadline(Request *request) noexcept;

    Take try_take(std::size_t slot, Request **out, std::size_t room, std::size_t *count,
                  std::uint64_t max_rows, std::int64_t delay_ns, std::int64_t *wake) noexcept;

    bool fills_a_batch(const Request *first, std::uint64_t max_rows) noexcept;

    static void wait_until(MonotonicCondition &condition, std::unique_lock<std::mutex> &lock,
                           std::int64_t until) noexcept {
        if (until == NEVER) {
            condition.wait(lock);
        } else {
            condition.wait_until(lock, until);
        }
    }

    std::mutex mutex_;
    MonotonicCondition instances_, prefetcher_, empty_;
    std::map<std::uint32_t, Line> lines_;
    std::vector<Request *> deadlines_;
    const std::size_t capacity_;
    Line held_back_;           // requests behind others of their sequences
    std::size_t queued_ = 0;   // in the lines
    std::size_t places_ = 0;   // queued, or taken and not yet running
    std::size_t open_ = 0;     // accepted, and still held by the queue or a batch
    std::size_t idle_ = 0;     // instances inside `take` whose slots are not claimed
    std::size_t claimed_ = 0;
    std::vector<Slot> slots_;
    std::size_t ready_batches_ = 0;
    bool closed_ = false;
    bool sequenced_ = false;   // a request of a sequence was here
    bool prefetching_ = false;
    std::uint64_t prefetched_key_ = 0;
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

// Ends a request as cancelled, in whichever queue it is. False when it had ended before, or was not
// accepted by any.
bool cancel(Request *request) noexcept;

}  // namespace ksrv
