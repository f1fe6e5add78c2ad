#include "queue/request_queue.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>

#include "queue/deadline_timer.hpp"

namespace ksrv {

// ---- entering and leaving -------------------------------------------------------------------

std::size_t Queue::add_slot() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    try {
        slots_.emplace_back();
    } catch (const std::bad_alloc &) {
        return SIZE_MAX;
    }
    return slots_.size() - 1;
}

// The entry becomes a running one without having waited. The caller holds the mutex.
void Queue::run(Entry *entry, std::int64_t now) noexcept {
    entry->started_ns = now;
    entry->in_hand = true;
    entry->state.store(STATE_RUNNING, std::memory_order_release);
}

// An idle instance's slot for the entry, which then runs. The caller holds the mutex.
bool Queue::claim_slot(Entry *entry, std::size_t *slot, std::int64_t now) noexcept {
    if (idle_ == 0 || queued_ > 0 || ready_batches_ > 0 || prefetching_) return false;
    for (std::size_t i = slots_.size(); i-- > 0;) {
        if (!slots_[i].idle || slots_[i].claimed || slots_[i].nudged) continue;
        slots_[i].claimed = true;
        ++claimed_;
        --idle_;
        run(entry, now);
        *slot = i;
        return true;
    }
    return false;
}

void Queue::return_slot(std::size_t slot) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    slots_[slot].claimed = false;
    --claimed_;
    ++idle_;
    if (prefetching_) prefetcher_.notify_one();
    if (queued_ > 0 || ready_batches_ > 0 || closed_ || slots_[slot].nudged) instances_.notify_all();
}

void Queue::nudge(std::size_t slot) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    slots_[slot].nudged = true;
    instances_.notify_all();
}

// Makes the entry one of the queue's. The caller holds the mutex.
Push Queue::admit(Entry *entry, Line **line, std::int64_t now) noexcept {
    if (closed_) return PUSH_CLOSED;
    if (places_ >= capacity_) return PUSH_FULL;
    try {
        *line = &lines_[level(entry)];
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
    return PUSH_OK;
}

// Puts an entry into the lines, or claims a slot for it. The caller holds the mutex.
Push Queue::accept(Entry *entry, std::size_t *slot, std::int64_t now) noexcept {
    Line *line = nullptr;
    const Push admitted = admit(entry, &line, now);
    if (admitted != PUSH_OK) return admitted;
    if (slot != nullptr && claim_slot(entry, slot, now)) return PUSH_INLINE;
    entry->previous = line->last;
    entry->next = nullptr;
    (line->last != nullptr ? line->last->next : line->first) = entry;
    line->last = entry;
    entry->placed = true;
    entry->state.store(STATE_QUEUED, std::memory_order_release);
    ++queued_;
    ++places_;
    if (idle_ > 0) wake_instance();
    if (prefetching_ || (idle_ == 0 && may_prefetch.load(std::memory_order_relaxed)))
        prefetcher_.notify_one();
    return PUSH_OK;
}

// What the submitter has reserved stays the entry's when a push is refused.
bool Queue::reserve(const Entry *entry) noexcept {
    return entry->reserved ||
           process_budget().reserve(entry->nbytes, entry->nbytes <= MemoryBudget::SMALL_REQUEST);
}

void Queue::give_back(const Entry *entry) noexcept {
    if (!entry->reserved) process_budget().give_back(entry->nbytes);
}

Push Queue::push(Entry *entry, std::size_t *slot, bool caller_blocks) noexcept {
    const std::int64_t now = now_ns();
    if (entry->deadline_ns <= now) return PUSH_EXPIRED;
    if (!reserve(entry)) return PUSH_BYTES;
    Push pushed;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        pushed = accept(entry, runs_inline(caller_blocks) ? slot : nullptr, now);
    }
    if (pushed == PUSH_OK || pushed == PUSH_INLINE) {
        if (entry->deadline_ns != NEVER) process_timer().expect(entry->deadline_ns);
    } else {
        give_back(entry);
    }
    return pushed;
}

std::size_t Queue::push_some(Entry **entries, std::size_t count, std::uint64_t max_rows,
                             Push *results, std::size_t *slot) noexcept {
    const std::int64_t now = now_ns();
    std::int64_t soonest = NEVER;
    std::size_t inlined = 0;
    std::uint64_t rows = 0;
    for (std::size_t i = 0; i < count; ++i) {
        results[i] = PUSH_OK;
        if (entries[i]->deadline_ns <= now) {
            results[i] = PUSH_EXPIRED;
        } else if (!reserve(entries[i])) {
            results[i] = PUSH_BYTES;
        }
    }
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            Entry *entry = entries[i];
            if (results[i] != PUSH_OK) continue;
            // The batch on the claimed slot grows as an instance's batch would.
            if (inlined > 0 && queued_ == 0 && entry->batch_key == entries[0]->batch_key &&
                rows + entry->rows <= max_rows) {
                Line *line = nullptr;
                results[i] = admit(entry, &line, now);
                if (results[i] == PUSH_OK) {
                    run(entry, now);
                    results[i] = PUSH_INLINE;
                }
            } else {
                results[i] = accept(entry, runs_inline(false) && i == 0 ? slot : nullptr, now);
            }
            if (results[i] == PUSH_INLINE) {
                ++inlined;
                rows += entry->rows;
            }
            if (results[i] == PUSH_INLINE || results[i] == PUSH_OK)
                soonest = std::min(soonest, entry->deadline_ns);
        }
    }
    if (soonest != NEVER) process_timer().expect(soonest);
    for (std::size_t i = 0; i < count; ++i) {
        const bool kept = results[i] == PUSH_OK || results[i] == PUSH_INLINE;
        const bool reserved = results[i] != PUSH_EXPIRED && results[i] != PUSH_BYTES;
        if (!kept && reserved) give_back(entries[i]);
    }
    return inlined;
}

void Queue::unlink(Entry *entry) noexcept {
    const auto found = lines_.find(level(entry));
    Line &line = found->second;
    (entry->previous != nullptr ? entry->previous->next : line.first) = entry->next;
    (entry->next != nullptr ? entry->next->previous : line.last) = entry->previous;
    entry->previous = entry->next = nullptr;
    --queued_;
    // The common line stays; those of rare priorities go, so that clients cannot pile them up.
    if (line.first == nullptr && found->first != UINT32_MAX) lines_.erase(found);
}

void Queue::leave_place(Entry *entry) noexcept {
    if (!entry->placed) return;
    entry->placed = false;
    --places_;
}

// The queue's side is done with an entry that has ended and that no batch refers to. The caller
// still holds the mutex; releasing the entry and the queue is left to it.
void Queue::let_go(Entry *entry) noexcept {
    process_budget().give_back(entry->nbytes);
    if (--open_ == 0) empty_.notify_all();
}

// True when this call ended the entry. It is then out of the lines and the deadlines.
bool Queue::end(Entry *entry, State state, std::int64_t now) noexcept {
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

// ---- running and ending ---------------------------------------------------------------------

void Queue::start(Entry **entries, std::size_t count, unsigned char *alive) noexcept {
    const std::int64_t now = now_ns();
    std::size_t gone = 0;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            Entry *entry = entries[i];
            alive[i] = 0;
            if (!entry->in_hand) continue;
            if (!is_final(entry->state.load(std::memory_order_relaxed))) {
                alive[i] = 1;
                entry->state.store(STATE_RUNNING, std::memory_order_release);
                if (entry->started_ns == 0) entry->started_ns = now;
                leave_place(entry);
            } else {
                alive[i] = PARTED;
                part_with(entry);
                ++gone;
            }
        }
    }
    if (gone != 0) release_parted(entries, count, alive);
}

// The batch does not refer to the entry any more. The caller holds the mutex.
void Queue::part_with(Entry *entry) noexcept {
    entry->in_hand = false;
    let_go(entry);
}

void Queue::release_parted(Entry **entries, std::size_t count, unsigned char *marks) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        if (marks[i] != PARTED) continue;
        marks[i] = 0;
        release(entries[i]);
    }
}

void Queue::finish(Entry **entries, std::size_t count, unsigned char *won) noexcept {
    const std::int64_t now = now_ns();
    std::size_t gone = 0;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            won[i] = 0;
            if (!entries[i]->in_hand) continue;
            won[i] = end(entries[i], STATE_ANSWERED, now) ? 1 : PARTED;
            part_with(entries[i]);
            gone += won[i] == PARTED;
        }
    }
    // The queue's references to those that were won pass to the caller, who publishes and releases them.
    if (gone != 0) release_parted(entries, count, won);
}

bool Queue::cancel(Entry *entry) noexcept {
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

bool cancel(Entry *entry) noexcept {
    // `queue` is written before the first state of an accepted entry: who sees that sees the queue.
    if (entry->state.load(std::memory_order_acquire) == STATE_NEW) return false;
    return entry->queue->cancel(entry);
}

std::int64_t Queue::expire(std::int64_t now) noexcept {
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

void Queue::close() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    closed_ = true;
    instances_.notify_all();
    prefetcher_.notify_all();
    if (open_ == 0) empty_.notify_all();
}

std::size_t Queue::take_all(Entry **out, std::size_t room) noexcept {
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

bool Queue::wait_empty(std::int64_t until_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    while (open_ > 0) {
        if (until_ns != NEVER && now_ns() >= until_ns) return false;
        wait_until(empty_, lock, until_ns);
    }
    return true;
}

// ---- deadlines ------------------------------------------------------------------------------

void Queue::sift_up(std::size_t index) noexcept {
    Entry *entry = deadlines_[index];
    while (index > 0) {
        const std::size_t parent = (index - 1) / 2;
        if (deadlines_[parent]->deadline_ns <= entry->deadline_ns) break;
        place(index, deadlines_[parent]);
        index = parent;
    }
    place(index, entry);
}

void Queue::sift_down(std::size_t index) noexcept {
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

void Queue::forget_deadline(Entry *entry) noexcept {
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

}  // namespace ksrv
