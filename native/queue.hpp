// Bounded queues, deadlines and batch forming: one queue for each model version.
//
// Strategy: everything about a queue is guarded by its one mutex, which is held for a few list and
// heap operations at a time. Waiting requests stand in one list for each priority, in order of
// arrival. A batch takes the first request and, in the same order, those of equal group that fit.
// All deadlines of a queue, of waiting and of running requests, stand in one heap; one timer thread
// for the process sleeps until the earliest of all queues. A request ends once: its state leaves
// the open ones under the mutex, and whoever moved it answers it, after the mutex is released.
//
// Two kinds of threads take requests. An instance takes a batch when it is idle. An assembler takes
// requests ahead while every instance is busy, tops its open batch up as long as they are, and then
// offers it; the queue knows only the batch's group and hands the offer over before anything else.
//
// Each instance has a seat. While it is idle and nothing waits, the seat may be lent to a thread that
// pushes a request: that thread runs it on the instance itself, and no other thread is woken.
//
// Nothing here throws or knows Python. `push` may find no memory and says so.

#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "entry.hpp"

namespace ksrv {

// ---- bytes in flight ------------------------------------------------------------------------

// What all accepted requests of the process hold together.
struct InFlight {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> bound{UINT64_MAX};

    bool reserve(std::uint64_t nbytes) noexcept {
        const std::uint64_t most = bound.load(std::memory_order_relaxed);
        std::uint64_t held = bytes.load(std::memory_order_relaxed);
        do {
            if (nbytes > most || held > most - nbytes) return false;
        } while (!bytes.compare_exchange_weak(held, held + nbytes, std::memory_order_relaxed));
        return true;
    }

    void give_back(std::uint64_t nbytes) noexcept {
        bytes.fetch_sub(nbytes, std::memory_order_relaxed);
    }
};

inline InFlight &in_flight() noexcept {
    static InFlight *made = new InFlight;
    return *made;
}

// ---- the queue ------------------------------------------------------------------------------

enum Push : int {
    PUSH_OK = 0,
    PUSH_FULL,     // every place is taken
    PUSH_BYTES,    // the bytes in flight are at their bound
    PUSH_CLOSED,   // the version no longer accepts; look for its successor
    PUSH_EXPIRED,  // the deadline had passed already
    PUSH_MEMORY,
    PUSH_LENT,     // nothing waits and an instance is idle: the caller runs the request on it
};

enum Take : int {
    TAKE_ENTRIES = 0,
    TAKE_OFFER,   // a batch that somebody assembled is there to be run
    TAKE_CLOSED,  // closed, and nothing is left
    TAKE_READY,   // (assembler) an instance is idle: offer the open batch now
    TAKE_NUDGED,  // somebody wants the instance's thread to look at its executor
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

class Queue {
  public:
    explicit Queue(std::size_t capacity) noexcept : capacity_(capacity) {}

    std::atomic<std::uint64_t> counters[COUNTERS] = {};
    std::atomic<long> refs{1};
    std::atomic<bool> may_take_ahead{false};
    std::atomic<bool> may_lend{false};

    // Makes a seat for an instance; SIZE_MAX when there is no memory.
    std::size_t add_seat() noexcept;

    // Accepts the entry, or says why not. An accepted entry is held by the queue as well. With
    // `seat`, an idle instance's seat may be lent: the entry then runs already.
    Push push(Entry *entry, std::size_t *seat = nullptr) noexcept;

    // Takes a batch for an idle instance; blocks. At most `room` entries and `max_rows` rows, but
    // one entry always. `delay_ns` is how long the oldest of a batch waits for a full one.
    Take take(std::size_t seat, Entry **out, std::size_t room, std::size_t *count,
              std::uint64_t max_rows, std::int64_t delay_ns) noexcept;

    // Has `take` return on the instance's own thread, once its seat is not lent.
    void nudge(std::size_t seat) noexcept;

    // The assembler's turn; blocks. `rows` are those already in its open batch (0: none is open)
    // and `oldest_ns` is when the oldest of them arrived.
    Take take_ahead(Entry **out, std::size_t room, std::size_t *count, std::uint64_t max_rows,
                    std::uint64_t rows, std::int64_t oldest_ns, std::int64_t delay_ns) noexcept;

    // The assembler's open batch is complete: an instance takes it (`offer`), or it came to nothing.
    void close_open_batch(bool offer) noexcept;

    // A batch that must be run again, or on another instance.
    void offer() noexcept;

    // Moves taken entries to running. `alive[i]` is 0 for one that ended meanwhile; those are no
    // longer the batch's.
    void start(Entry **entries, std::size_t count, unsigned char *alive) noexcept;

    // Ends a batch. `won[i]` is 1 where the caller now answers and publishes the entry; the others
    // had ended before.
    void finish(Entry **entries, std::size_t count, unsigned char *won) noexcept;

    // Ends the lending of a seat.
    void return_seat(std::size_t seat) noexcept;

    // Ends one entry that is still open, as cancelled. False when it had ended before.
    bool cancel(Entry *entry) noexcept;

    // Ends what is past its deadline. Returns the next deadline, or NEVER.
    std::int64_t expire(std::int64_t now) noexcept;

    // No more pushes; what is queued is still served.
    void close() noexcept;

    // Takes out everything that still waits, as TAKEN; for a version that failed for good.
    std::size_t take_all(Entry **out, std::size_t room) noexcept;

    // Waits until nothing accepted is left, or the clock passes `until_ns`.
    bool wait_empty(std::int64_t until_ns) noexcept;

    void wake_all() noexcept;

    std::size_t waiting() noexcept { return read(places_); }
    std::size_t open() noexcept { return read(open_); }
    std::size_t idle() noexcept { return read(idle_); }
    bool closed() noexcept { return read(closed_); }
    bool full() noexcept { return read(places_) >= capacity_; }

  private:
    struct Line {
        Entry *first = nullptr, *last = nullptr;
    };
    struct Seat {
        bool idle = false;  // its instance's thread is inside `take`
        bool lent = false;
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

    static std::uint32_t level(const Entry *entry) noexcept {
        return entry->priority == 0 ? UINT32_MAX : entry->priority;
    }

    // A thread that sleeps on a lent seat would swallow a wake-up meant for another one.
    void wake_instance() noexcept {
        if (lent_ > 0) {
            instances_.notify_all();
        } else {
            instances_.notify_one();
        }
    }
    Push accept(Entry *entry, std::size_t *seat, std::int64_t now) noexcept;
    bool lend(Entry *entry, std::size_t *seat, std::int64_t now) noexcept;
    void unlink(Entry *entry) noexcept;
    void leave_place(Entry *entry) noexcept;
    void let_go(Entry *entry) noexcept;
    bool end(Entry *entry, State state, std::int64_t now) noexcept;
    std::size_t collect(std::uint64_t group, Entry **out, std::size_t room,
                        std::uint64_t rows_left, std::size_t taken, bool *full) noexcept;
    bool choose(std::uint64_t max_rows, std::int64_t delay_ns, std::int64_t now,
                std::uint64_t *group, std::int64_t *wake) noexcept;

    bool before(std::size_t a, std::size_t b) const noexcept {
        return deadlines_[a]->deadline_ns < deadlines_[b]->deadline_ns;
    }
    void place(std::size_t index, Entry *entry) noexcept {
        deadlines_[index] = entry;
        entry->heap_index = index;
    }
    void sift_up(std::size_t index) noexcept;
    void sift_down(std::size_t index) noexcept;
    void forget_deadline(Entry *entry) noexcept;

    Take try_take(std::size_t seat, Entry **out, std::size_t room, std::size_t *count,
                  std::uint64_t max_rows, std::int64_t delay_ns, std::int64_t *wake) noexcept;

    static void wait_until(std::condition_variable &condition, std::unique_lock<std::mutex> &lock,
                           std::int64_t until) noexcept {
        if (until == NEVER) {
            condition.wait(lock);
        } else {  // libstdc++'s steady_clock is CLOCK_MONOTONIC
            condition.wait_until(lock, std::chrono::steady_clock::time_point(
                                           std::chrono::nanoseconds(until)));
        }
    }

    std::mutex mutex_;
    std::condition_variable instances_, assembler_, empty_;
    std::map<std::uint32_t, Line> lines_;
    std::vector<Entry *> deadlines_;
    const std::size_t capacity_;
    std::size_t queued_ = 0;   // in the lines
    std::size_t places_ = 0;   // queued, or taken and not yet running
    std::size_t open_ = 0;     // accepted, and still held by the queue or a batch
    std::size_t idle_ = 0;     // instances inside `take` whose seats are not lent
    std::size_t lent_ = 0;
    std::vector<Seat> seats_;
    std::size_t offered_ = 0;
    bool closed_ = false;
    bool assembling_ = false;
    std::uint64_t assembling_group_ = 0;
};

inline void retain(Queue *queue) noexcept { queue->refs.fetch_add(1, std::memory_order_relaxed); }
inline void release(Queue *queue) noexcept {
    if (queue->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete queue;
}

inline void release(Entry *entry) noexcept {
    if (entry->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    Queue *queue = entry->queue;
    entry->freed(entry);
    if (queue != nullptr) release(queue);
}

// ---- the timer ------------------------------------------------------------------------------

// One thread that ends requests at their deadlines, for every queue of the process. It never waits
// for the GIL: what Python has to know of an ended request is left for a Python thread to fetch.
class Timer {
  public:
    // False when the thread cannot be started.
    bool watch(Queue *queue) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        try {
            queues_.push_back(queue);
            if (!running_) start_thread();
        } catch (const std::exception &) {
            queues_.erase(std::remove(queues_.begin(), queues_.end(), queue), queues_.end());
            return false;
        }
        retain(queue);
        return true;
    }

    void forget(Queue *queue) noexcept {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            const auto found = std::find(queues_.begin(), queues_.end(), queue);
            if (found == queues_.end()) return;
            queues_.erase(found);
        }
        release(queue);
    }

    // Called after a deadline has been put into a queue's heap.
    void expect(std::int64_t deadline) noexcept {
        if (deadline >= wake_at_.load(std::memory_order_relaxed)) return;
        std::lock_guard<std::mutex> guard(mutex_);
        if (deadline >= wake_at_.load(std::memory_order_relaxed)) return;
        wake_at_.store(deadline, std::memory_order_relaxed);
        sooner_.notify_one();
    }

    // Around fork: the child has no timer thread and watches nothing of its parent's.
    void before_fork() noexcept { mutex_.lock(); }
    void after_fork_in_parent() noexcept { mutex_.unlock(); }
    void after_fork_in_child() noexcept {
        running_ = false;
        queues_.clear();
        wake_at_.store(NEVER);
        new (&sooner_) std::condition_variable;
        mutex_.unlock();
    }

  private:
    void start_thread() {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for Python's main thread
        try {
            std::thread([this] { run(); }).detach();
            running_ = true;
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void run() noexcept {
        std::vector<Queue *> due;
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            const std::int64_t wake = wake_at_.load(std::memory_order_relaxed);
            const std::int64_t now = now_ns();
            if (wake > now) {
                if (wake == NEVER) {
                    sooner_.wait(lock);
                } else {
                    sooner_.wait_until(lock, std::chrono::steady_clock::time_point(
                                                 std::chrono::nanoseconds(wake)));
                }
                continue;
            }
            // A push that the walk below misses takes its queue's mutex after the walk did, so that
            // it sees NEVER here and names its own deadline.
            wake_at_.store(NEVER, std::memory_order_relaxed);
            due.assign(queues_.begin(), queues_.end());
            for (Queue *queue : due) retain(queue);
            lock.unlock();
            std::int64_t next = NEVER;
            for (Queue *queue : due) {
                next = std::min(next, queue->expire(now));
                release(queue);
            }
            lock.lock();
            if (next < wake_at_.load(std::memory_order_relaxed))
                wake_at_.store(next, std::memory_order_relaxed);
        }
    }

    std::mutex mutex_;
    std::condition_variable sooner_;
    std::atomic<std::int64_t> wake_at_{NEVER};
    std::vector<Queue *> queues_;
    bool running_ = false;
};

// Never destroyed: its thread outlives the exit handlers.
inline Timer &process_timer() noexcept {
    static Timer *timer = [] {
        static Timer *made = new Timer;
        pthread_atfork([] { made->before_fork(); }, [] { made->after_fork_in_parent(); },
                       [] { made->after_fork_in_child(); });
        return made;
    }();
    return *timer;
}

// ---- deadlines ------------------------------------------------------------------------------

inline void Queue::sift_up(std::size_t index) noexcept {
    Entry *entry = deadlines_[index];
    while (index > 0) {
        const std::size_t parent = (index - 1) / 2;
        if (deadlines_[parent]->deadline_ns <= entry->deadline_ns) break;
        place(index, deadlines_[parent]);
        index = parent;
    }
    place(index, entry);
}

inline void Queue::sift_down(std::size_t index) noexcept {
    Entry *entry = deadlines_[index];
    for (;;) {
        std::size_t child = 2 * index + 1;
        if (child >= deadlines_.size()) break;
        if (child + 1 < deadlines_.size() && before(child + 1, child)) ++child;
        if (entry->deadline_ns <= deadlines_[child]->deadline_ns) break;
        place(index, deadlines_[child]);
        index = child;
    }
    place(index, entry);
}

inline void Queue::forget_deadline(Entry *entry) noexcept {
    const std::size_t index = entry->heap_index;
    if (index == NOWHERE) return;
    entry->heap_index = NOWHERE;
    Entry *last = deadlines_.back();
    deadlines_.pop_back();
    if (last == entry) return;
    place(index, last);
    if (index > 0 && before(index, (index - 1) / 2)) {
        sift_up(index);
    } else {
        sift_down(index);
    }
}

// ---- entering and leaving -------------------------------------------------------------------

inline std::size_t Queue::add_seat() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    try {
        seats_.emplace_back();
    } catch (const std::bad_alloc &) {
        return SIZE_MAX;
    }
    return seats_.size() - 1;
}

// The entry becomes a running one without having waited. The caller holds the mutex.
inline bool Queue::lend(Entry *entry, std::size_t *seat, std::int64_t now) noexcept {
    if (idle_ == 0 || queued_ > 0 || offered_ > 0 || assembling_) return false;
    for (std::size_t i = seats_.size(); i-- > 0;) {
        if (!seats_[i].idle || seats_[i].lent || seats_[i].nudged) continue;
        seats_[i].lent = true;
        ++lent_;
        --idle_;
        entry->started_ns = now;
        entry->in_hand = true;
        entry->state.store(STATE_RUNNING, std::memory_order_release);
        *seat = i;
        return true;
    }
    return false;
}

inline void Queue::return_seat(std::size_t seat) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    seats_[seat].lent = false;
    --lent_;
    ++idle_;
    if (assembling_) assembler_.notify_one();
    if (queued_ > 0 || offered_ > 0 || closed_ || seats_[seat].nudged) instances_.notify_all();
}

inline void Queue::nudge(std::size_t seat) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    seats_[seat].nudged = true;
    instances_.notify_all();
}

// Puts an entry into the lines, or lends it a seat. The caller holds the mutex.
inline Push Queue::accept(Entry *entry, std::size_t *seat, std::int64_t now) noexcept {
    if (closed_) return PUSH_CLOSED;
    if (places_ >= capacity_) return PUSH_FULL;
    Line *line = nullptr;
    try {
        line = &lines_[level(entry)];
        if (entry->deadline_ns != NEVER) deadlines_.push_back(entry);
    } catch (const std::bad_alloc &) {
        return PUSH_MEMORY;
    }
    if (entry->deadline_ns != NEVER) sift_up(deadlines_.size() - 1);
    entry->enqueued_ns = now;
    entry->queue = this;
    retain(entry);
    retain(this);  // until the entry is freed
    ++open_;
    counters[COUNT_PUSHED].fetch_add(1, std::memory_order_relaxed);
    if (seat != nullptr && may_lend.load(std::memory_order_relaxed) && lend(entry, seat, now))
        return PUSH_LENT;
    entry->previous = line->last;
    entry->next = nullptr;
    (line->last != nullptr ? line->last->next : line->first) = entry;
    line->last = entry;
    entry->placed = true;
    entry->state.store(STATE_QUEUED, std::memory_order_release);
    ++queued_;
    ++places_;
    if (idle_ > 0) wake_instance();
    if (assembling_ || (idle_ == 0 && may_take_ahead.load(std::memory_order_relaxed)))
        assembler_.notify_one();
    return PUSH_OK;
}

inline Push Queue::push(Entry *entry, std::size_t *seat) noexcept {
    const std::int64_t now = now_ns();
    if (entry->deadline_ns <= now) {
        counters[COUNT_EXPIRED_QUEUED].fetch_add(1, std::memory_order_relaxed);
        return PUSH_EXPIRED;
    }
    if (!in_flight().reserve(entry->nbytes)) {
        counters[COUNT_BYTES].fetch_add(1, std::memory_order_relaxed);
        return PUSH_BYTES;
    }
    Push pushed;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        pushed = accept(entry, seat, now);
    }
    if (pushed == PUSH_OK || pushed == PUSH_LENT) {
        if (entry->deadline_ns != NEVER) process_timer().expect(entry->deadline_ns);
    } else {
        in_flight().give_back(entry->nbytes);
        if (pushed == PUSH_FULL) counters[COUNT_FULL].fetch_add(1, std::memory_order_relaxed);
    }
    return pushed;
}

inline void Queue::unlink(Entry *entry) noexcept {
    const auto found = lines_.find(level(entry));
    Line &line = found->second;
    (entry->previous != nullptr ? entry->previous->next : line.first) = entry->next;
    (entry->next != nullptr ? entry->next->previous : line.last) = entry->previous;
    entry->previous = entry->next = nullptr;
    --queued_;
    // The common line stays; those of rare priorities go, so that clients cannot pile them up.
    if (line.first == nullptr && found->first != UINT32_MAX) lines_.erase(found);
}

inline void Queue::leave_place(Entry *entry) noexcept {
    if (!entry->placed) return;
    entry->placed = false;
    --places_;
}

// The queue's side is done with an entry that has ended and that no batch refers to. The caller
// still holds the mutex; releasing the entry and the queue is left to it.
inline void Queue::let_go(Entry *entry) noexcept {
    in_flight().give_back(entry->nbytes);
    if (--open_ == 0) empty_.notify_all();
}

// True when this call ended the entry. It is then out of the lines and the deadlines.
inline bool Queue::end(Entry *entry, State state, std::int64_t now) noexcept {
    const std::int32_t before = entry->state.load(std::memory_order_relaxed);
    if (before == STATE_NEW || is_final(before)) return false;
    if (before == STATE_QUEUED) unlink(entry);
    forget_deadline(entry);
    leave_place(entry);
    entry->ended_in = before;
    entry->ended_ns = now;
    entry->state.store(state, std::memory_order_release);
    return true;
}

// ---- forming batches ------------------------------------------------------------------------

// Takes entries of one group in order while they fit; the first one that does not fit fills the
// batch. `taken` counts what the batch holds already: an empty one takes its first whatever its rows.
inline std::size_t Queue::collect(std::uint64_t group, Entry **out, std::size_t room,
                                  std::uint64_t rows_left, std::size_t taken,
                                  bool *full) noexcept {
    std::size_t count = 0;
    *full = rows_left == 0 && taken > 0;
    for (auto item = lines_.begin(); item != lines_.end() && !*full;) {
        Line &line = item->second;
        ++item;  // unlinking the last entry of a line may erase it
        for (Entry *entry = line.first, *next; entry != nullptr; entry = next) {
            next = entry->next;
            if (entry->group != group) continue;
            if (count == room || (entry->rows > rows_left && taken + count > 0)) {
                *full = true;
                break;
            }
            unlink(entry);
            entry->state.store(STATE_TAKEN, std::memory_order_release);
            entry->in_hand = true;
            rows_left -= std::min<std::uint64_t>(entry->rows, rows_left);
            out[count++] = entry;
            if (rows_left == 0) {
                *full = true;
                break;
            }
            if (next == nullptr) break;  // the line may be gone
        }
    }
    return count;
}

// The first group, in the order of its first request, that may leave now. Otherwise `*wake` is when
// one may without another push.
inline bool Queue::choose(std::uint64_t max_rows, std::int64_t delay_ns, std::int64_t now,
                          std::uint64_t *group, std::int64_t *wake) noexcept {
    *wake = NEVER;
    if (queued_ == 0) return false;
    constexpr std::size_t GROUPS = 64;  // those beyond wait until one of these has left
    Group groups[GROUPS];
    std::size_t found = 0;
    for (auto &item : lines_) {
        for (Entry *entry = item.second.first; entry != nullptr; entry = entry->next) {
            if (assembling_ && entry->group == assembling_group_) continue;
            if (delay_ns == 0 || closed_) {
                *group = entry->group;
                return true;
            }
            Group *mine = std::find_if(groups, groups + found, [entry](const Group &other) {
                return other.key == entry->group;
            });
            if (mine == groups + found) {
                if (found == GROUPS) continue;
                ++found;
                *mine = {entry->group, 0, entry->enqueued_ns, false};
            }
            if (mine->full) continue;
            mine->oldest_ns = std::min(mine->oldest_ns, entry->enqueued_ns);
            mine->rows += entry->rows;
            mine->full = mine->rows >= max_rows;
        }
    }
    for (Group *mine = groups; mine != groups + found; ++mine) {
        if (mine->full || now - mine->oldest_ns >= delay_ns) {
            *group = mine->key;
            return true;
        }
        *wake = std::min(*wake, mine->oldest_ns + delay_ns);
    }
    return false;
}

inline Take Queue::take(std::size_t seat, Entry **out, std::size_t room, std::size_t *count,
                        std::uint64_t max_rows, std::int64_t delay_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    *count = 0;
    ++idle_;
    seats_[seat].idle = true;
    if (assembling_) assembler_.notify_one();
    for (;;) {
        std::int64_t wake = NEVER;
        if (!seats_[seat].lent) {
            const Take taken = try_take(seat, out, room, count, max_rows, delay_ns, &wake);
            if (taken != TAKE_NOTHING) {
                --idle_;
                seats_[seat].idle = false;
                // More may be there for another instance, or for the assembler.
                if (queued_ > 0 || offered_ > 0) {
                    if (idle_ > 0) {
                        wake_instance();
                    } else if (may_take_ahead.load(std::memory_order_relaxed)) {
                        assembler_.notify_one();
                    }
                }
                return taken;
            }
        }
        wait_until(instances_, lock, wake);
    }
}

// One look for work, by an instance whose seat is its own. The caller holds the mutex.
inline Take Queue::try_take(std::size_t seat, Entry **out, std::size_t room, std::size_t *count,
                            std::uint64_t max_rows, std::int64_t delay_ns,
                            std::int64_t *wake) noexcept {
    if (seats_[seat].nudged) {
        seats_[seat].nudged = false;
        return TAKE_NUDGED;
    }
    if (offered_ > 0) {
        --offered_;
        return TAKE_OFFER;
    }
    std::uint64_t group = 0;
    if (choose(max_rows, delay_ns, delay_ns > 0 ? now_ns() : 0, &group, wake)) {
        bool full = false;
        *count = collect(group, out, room, max_rows, 0, &full);
        return TAKE_ENTRIES;
    }
    if (closed_ && queued_ == 0 && !assembling_) {
        instances_.notify_all();
        assembler_.notify_all();
        return TAKE_CLOSED;
    }
    return TAKE_NOTHING;
}

inline Take Queue::take_ahead(Entry **out, std::size_t room, std::size_t *count,
                              std::uint64_t max_rows, std::uint64_t rows, std::int64_t oldest_ns,
                              std::int64_t delay_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    *count = 0;
    for (;;) {
        std::int64_t wake = NEVER;
        if (!assembling_) {
            if (idle_ == 0 && queued_ > 0 && offered_ == 0 &&
                may_take_ahead.load(std::memory_order_relaxed)) {
                Entry *leader = nullptr;
                for (auto &item : lines_)
                    if ((leader = item.second.first) != nullptr) break;
                assembling_ = true;
                assembling_group_ = leader->group;
                bool full = false;
                *count = collect(leader->group, out, room, max_rows, 0, &full);
                return TAKE_ENTRIES;
            }
            if (closed_ && queued_ == 0) return TAKE_CLOSED;
        } else {
            bool full = rows >= max_rows;
            if (!full) {
                *count = collect(assembling_group_, out, room, max_rows - rows, 1, &full);
                if (*count > 0) return TAKE_ENTRIES;
            }
            const std::int64_t ripe = oldest_ns + delay_ns;
            const bool leaves = full || delay_ns == 0 || closed_ || now_ns() >= ripe;
            if (idle_ > 0 && leaves) return TAKE_READY;
            if (idle_ > 0) wake = ripe;
        }
        wait_until(assembler_, lock, wake);
    }
}

inline void Queue::close_open_batch(bool offer) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    assembling_ = false;
    if (offer) ++offered_;
    instances_.notify_all();  // entries of the batch's group may be waiting as well
}

inline void Queue::offer() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    ++offered_;
    wake_instance();
}

// ---- running and ending ---------------------------------------------------------------------

inline void Queue::start(Entry **entries, std::size_t count, unsigned char *alive) noexcept {
    const std::int64_t now = now_ns();
    std::size_t gone = 0;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            Entry *entry = entries[i];
            const std::int32_t state = entry->state.load(std::memory_order_relaxed);
            alive[i] = !is_final(state);
            if (alive[i]) {
                entry->state.store(STATE_RUNNING, std::memory_order_release);
                if (entry->started_ns == 0) entry->started_ns = now;
                leave_place(entry);
            } else {
                entry->in_hand = false;
                let_go(entry);
                ++gone;
            }
        }
    }
    if (gone == 0) return;
    for (std::size_t i = 0; i < count; ++i)
        if (!alive[i]) release(entries[i]);
}

inline void Queue::finish(Entry **entries, std::size_t count, unsigned char *won) noexcept {
    const std::int64_t now = now_ns();
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            won[i] = end(entries[i], STATE_ANSWERED, now);
            entries[i]->in_hand = false;
            let_go(entries[i]);
        }
    }
    // The queue's references to the entries pass to the caller, who publishes and releases them.
}

inline bool Queue::cancel(Entry *entry) noexcept {
    bool ended = false, free_now = false;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        ended = end(entry, STATE_CANCELLED, now_ns());
        free_now = ended && !entry->in_hand;
        if (free_now) let_go(entry);
    }
    if (!ended) return false;
    counters[COUNT_CANCELLED].fetch_add(1, std::memory_order_relaxed);
    publish(entry);
    if (entry->ended != nullptr) entry->ended(entry);
    if (free_now) release(entry);
    return true;
}

inline std::int64_t Queue::expire(std::int64_t now) noexcept {
    Entry *ended = nullptr;  // linked by `next`, which a final entry no longer needs
    std::int64_t upcoming = NEVER;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        while (!deadlines_.empty() && deadlines_.front()->deadline_ns <= now) {
            Entry *entry = deadlines_.front();
            const bool running = entry->state.load(std::memory_order_relaxed) == STATE_RUNNING;
            end(entry, STATE_EXPIRED, now);
            counters[running ? COUNT_EXPIRED_RUNNING : COUNT_EXPIRED_QUEUED].fetch_add(
                1, std::memory_order_relaxed);
            if (entry->in_hand) {
                retain(entry);
            } else {
                let_go(entry);
            }
            entry->next = ended;
            ended = entry;
        }
        if (!deadlines_.empty()) upcoming = deadlines_.front()->deadline_ns;
    }
    while (ended != nullptr) {
        Entry *entry = ended;
        ended = entry->next;
        publish(entry);
        if (entry->ended != nullptr) entry->ended(entry);
        release(entry);
    }
    return upcoming;
}

inline void Queue::close() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    closed_ = true;
    instances_.notify_all();
    assembler_.notify_all();
    if (open_ == 0) empty_.notify_all();
}

inline std::size_t Queue::take_all(Entry **out, std::size_t room) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    std::size_t count = 0;
    while (queued_ > 0 && count < room) {
        Entry *entry = nullptr;
        for (auto &item : lines_)
            if ((entry = item.second.first) != nullptr) break;
        unlink(entry);
        entry->state.store(STATE_TAKEN, std::memory_order_release);
        entry->in_hand = true;
        out[count++] = entry;
    }
    if (closed_ && queued_ == 0) instances_.notify_all();
    return count;
}

inline bool Queue::wait_empty(std::int64_t until_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    while (open_ > 0) {
        if (until_ns != NEVER && now_ns() >= until_ns) return false;
        wait_until(empty_, lock, until_ns);
    }
    return true;
}

inline void Queue::wake_all() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    instances_.notify_all();
    assembler_.notify_all();
}

}  // namespace ksrv
