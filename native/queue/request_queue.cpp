#include "queue/request_queue.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>

#include "queue/deadline_timer.hpp"

namespace ksrv {

// ---- entering and leaving the queue ---------------------------------------------------------

std::size_t Queue::add_slot() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    try {
        slots_.emplace_back();
    } catch (const std::bad_alloc &) {
        return SIZE_MAX;
    }
    return slots_.size() - 1;
}

// Starts the request without waiting in a line. The caller holds the mutex.
void Queue::run(Request *request, std::int64_t now) noexcept {
    request->started_ns = now;
    request->in_hand = true;
    request->state.store(STATE_RUNNING, std::memory_order_release);
}

// Claims the slot of an idle instance for the request, and starts it. The caller holds the mutex.
bool Queue::claim_slot(Request *request, std::size_t *slot, std::int64_t now) noexcept {
    if (idle_ == 0 || queued_ > 0 || ready_batches_ > 0 || prefetching_) return false;
    for (std::size_t i = slots_.size(); i-- > 0;) {
        if (!slots_[i].idle || slots_[i].claimed || slots_[i].nudged || !fits(request, i)) continue;
        slots_[i].claimed = true;
        ++claimed_;
        --idle_;
        run(request, now);
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

// Adds the request to the queue, and finds its line. The caller holds the mutex.
Push Queue::admit(Request *request, Line **line, std::int64_t now) noexcept {
    if (closed_) return PUSH_CLOSED;
    if (places_ >= capacity_) return PUSH_FULL;
    try {
        *line = &lines_[level(request)];
        if (request->deadline_ns != NEVER) deadlines_.add(request);
    } catch (const std::bad_alloc &) {
        drop_empty_line(level(request));
        return PUSH_MEMORY;
    }
    request->enqueued_ns = now;
    request->queue = this;
    retain(request);
    retain(this);  // until the request is freed
    ++open_;
    counters[COUNT_PUSHED].fetch_add(1, std::memory_order_relaxed);
    return PUSH_OK;
}

void Queue::append(Line *line, Request *request) noexcept {
    request->previous = line->last;
    request->next = nullptr;
    (line->last != nullptr ? line->last->next : line->first) = request;
    line->last = request;
}

// Puts a request into a line, or claims a slot for it. The caller holds the mutex.
Push Queue::accept(Request *request, std::size_t *slot, std::int64_t now) noexcept {
    Line *line = nullptr;
    const Push admitted = admit(request, &line, now);
    if (admitted != PUSH_OK) return admitted;
    Sequence *sequence = request->sequence;
    if (sequence != nullptr) {
        sequenced_ = true;
        request->held_back = sequence->current != nullptr;
        if (!request->held_back) sequence->current = request;
    }
    if (request->held_back) {
        request->placed = true;
        ++places_;
        ++sequence->held_back;
        append(&held_back_, request);
        request->state.store(STATE_QUEUED, std::memory_order_release);
        return PUSH_OK;
    }
    if (slot != nullptr && claim_slot(request, slot, now)) {
        drop_empty_line(level(request));
        return PUSH_INLINE;
    }
    append(line, request);
    request->placed = true;
    request->state.store(STATE_QUEUED, std::memory_order_release);
    ++queued_;
    ++places_;
    if (idle_ > 0) wake_instance();
    if (prefetching_ || (idle_ == 0 && may_prefetch.load(std::memory_order_relaxed)))
        prefetcher_.notify_one();
    return PUSH_OK;
}

// Reserves the request's bytes, unless its submitter has reserved them. If the push is then refused, `give_back`
// returns only bytes that were reserved here.
bool Queue::reserve(const Request *request) noexcept {
    return request->reserved || process_budget().reserve(request->nbytes, request->nbytes <= SMALL_REQUEST_BYTES);
}

void Queue::give_back(const Request *request) noexcept {
    if (!request->reserved) process_budget().give_back(request->nbytes);
}

Push Queue::push(Request *request, std::size_t *slot, bool caller_blocks) noexcept {
    const std::int64_t now = now_ns();
    if (request->deadline_ns <= now) return PUSH_EXPIRED;
    if (!reserve(request)) return PUSH_BYTES;
    Push pushed;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        pushed = accept(request, runs_inline(caller_blocks) ? slot : nullptr, now);
    }
    if (pushed == PUSH_OK || pushed == PUSH_INLINE) {
        if (request->deadline_ns != NEVER) process_timer().expect(request->deadline_ns);
    } else {
        give_back(request);
    }
    return pushed;
}

std::size_t Queue::push_some(Request **requests, std::size_t count, std::uint64_t max_rows,
                             Push *results, std::size_t *slot) noexcept {
    const std::int64_t now = now_ns();
    std::int64_t soonest = NEVER;
    std::size_t inlined = 0;
    std::uint64_t rows = 0;
    for (std::size_t i = 0; i < count; ++i) {
        results[i] = PUSH_OK;
        if (requests[i]->deadline_ns <= now) {
            results[i] = PUSH_EXPIRED;
        } else if (!reserve(requests[i])) {
            results[i] = PUSH_BYTES;
        }
    }
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            Request *request = requests[i];
            if (results[i] != PUSH_OK) continue;
            // The batch on the claimed slot grows as an instance's batch would.
            if (inlined > 0 && queued_ == 0 && request->sequence == nullptr &&
                request->batch_key == requests[0]->batch_key &&
                rows + request->rows <= max_rows) {
                Line *line = nullptr;
                results[i] = admit(request, &line, now);
                if (results[i] == PUSH_OK) {
                    drop_empty_line(level(request));
                    run(request, now);
                    results[i] = PUSH_INLINE;
                }
            } else {
                results[i] = accept(request, runs_inline(false) && i == 0 ? slot : nullptr, now);
            }
            if (results[i] == PUSH_INLINE) {
                ++inlined;
                rows += request->rows;
            }
            if (results[i] == PUSH_INLINE || results[i] == PUSH_OK)
                soonest = std::min(soonest, request->deadline_ns);
        }
    }
    if (soonest != NEVER) process_timer().expect(soonest);
    for (std::size_t i = 0; i < count; ++i) {
        const bool kept = results[i] == PUSH_OK || results[i] == PUSH_INLINE;
        const bool reserved = results[i] != PUSH_EXPIRED && results[i] != PUSH_BYTES;
        if (!kept && reserved) give_back(requests[i]);
    }
    return inlined;
}

void Queue::unlink(Request *request) noexcept {
    const auto found = lines_.find(level(request));
    Line &line = request->held_back ? held_back_ : found->second;
    (request->previous != nullptr ? request->previous->next : line.first) = request->next;
    (request->next != nullptr ? request->next->previous : line.last) = request->previous;
    request->previous = request->next = nullptr;
    if (request->held_back) {
        request->held_back = false;
        --request->sequence->held_back;
        return;
    }
    --queued_;
    drop_empty_line(found->first);
}

// Erases a line without requests, because each request may name another of 2^32 priorities. The line of requests
// without a priority is kept. The caller holds the mutex.
void Queue::drop_empty_line(std::uint32_t level) noexcept {
    if (level == UINT32_MAX) return;
    const auto found = lines_.find(level);
    if (found != lines_.end() && found->second.first == nullptr) lines_.erase(found);
}

// Lets the next request of the sequence proceed. The caller holds the mutex.
void Queue::leave_sequence(Request *request) noexcept {
    Sequence *sequence = request->sequence;
    if (sequence == nullptr || sequence->current != request) return;
    sequence->current = nullptr;
    if (sequence->held_back == 0) return;
    Request *following = held_back_.first;
    while (following->sequence != sequence) following = following->next;
    unlink(following);
    sequence->current = following;
    append(&lines_.find(level(following))->second, following);
    ++queued_;
    if (idle_ > 0) wake_instance();
}

void Queue::leave_place(Request *request) noexcept {
    if (!request->placed) return;
    request->placed = false;
    --places_;
}

// Returns the bytes of a request that has ended and that no batch refers to. The caller holds the mutex, and must
// release the queue's reference to the request after it has released the mutex.
void Queue::let_go(Request *request) noexcept {
    process_budget().give_back(request->nbytes);
    if (--open_ == 0) empty_.notify_all();
}

// Ends the request and removes it from the lines and the deadlines. False if it had ended before. The caller holds the
// mutex.
bool Queue::end(Request *request, State state, std::int64_t now) noexcept {
    const std::int32_t before = request->state.load(std::memory_order_relaxed);
    if (before == STATE_NEW || is_final(before)) return false;
    if (before == STATE_QUEUED) {
        unlink(request);
        leave_sequence(request);
    }
    deadlines_.remove(request);
    leave_place(request);
    request->ended_in = before;
    request->ended_ns = now;
    request->state.store(state, std::memory_order_release);
    return true;
}

// ---- running and ending requests ------------------------------------------------------------

void Queue::start(Request **requests, std::size_t count, unsigned char *alive) noexcept {
    const std::int64_t now = now_ns();
    std::size_t gone = 0;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            Request *request = requests[i];
            alive[i] = 0;
            if (!request->in_hand) continue;
            if (!is_final(request->state.load(std::memory_order_relaxed))) {
                alive[i] = 1;
                request->state.store(STATE_RUNNING, std::memory_order_release);
                if (request->started_ns == 0) request->started_ns = now;
                leave_place(request);
            } else {
                alive[i] = PARTED;
                part_with(request);
                ++gone;
            }
        }
    }
    if (gone != 0) release_parted(requests, count, alive);
}

// The batch no longer refers to the request. The caller holds the mutex.
void Queue::part_with(Request *request) noexcept {
    request->in_hand = false;
    leave_sequence(request);
    let_go(request);
}

void Queue::release_parted(Request **requests, std::size_t count, unsigned char *marks) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        if (marks[i] != PARTED) continue;
        marks[i] = 0;
        release(requests[i]);
    }
}

void Queue::finish(Request **requests, std::size_t count, unsigned char *won) noexcept {
    const std::int64_t now = now_ns();
    std::size_t gone = 0;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = 0; i < count; ++i) {
            won[i] = 0;
            if (!requests[i]->in_hand) continue;
            won[i] = end(requests[i], STATE_ANSWERED, now) ? 1 : PARTED;
            part_with(requests[i]);
            gone += won[i] == PARTED;
        }
    }
    // The queue's references to won requests pass to the caller, which publishes and releases them.
    if (gone != 0) release_parted(requests, count, won);
}

bool Queue::cancel(Request *request) noexcept {
    bool ended = false, free_now = false;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        ended = end(request, STATE_CANCELLED, now_ns());
        free_now = ended && !request->in_hand;
        if (free_now) let_go(request);
    }
    if (!ended) return false;
    if (request->counted) counters[COUNT_CANCELLED].fetch_add(1, std::memory_order_relaxed);
    publish(request);
    if (request->ended != nullptr) request->ended(request);
    if (free_now) release(request);
    return true;
}

bool cancel(Request *request) noexcept {
    // `queue` is written before the first state of an accepted request, so that it is visible together with the state.
    if (request->state.load(std::memory_order_acquire) == STATE_NEW) return false;
    return request->queue->cancel(request);
}

std::int64_t Queue::expire(std::int64_t now) noexcept {
    Request *ended = nullptr;  // linked by `next`, which a final request no longer needs
    std::int64_t upcoming = NEVER;
    {
        std::lock_guard<std::mutex> guard(mutex_);
        while (deadlines_.earliest_ns() <= now) {
            Request *request = deadlines_.first();
            const bool running = request->state.load(std::memory_order_relaxed) == STATE_RUNNING;
            end(request, STATE_EXPIRED, now);
            counters[running ? COUNT_EXPIRED_RUNNING : COUNT_EXPIRED_QUEUED].fetch_add(
                request->counted ? 1 : 0, std::memory_order_relaxed);
            // Each request in the list `ended` has a reference. It is the queue's reference, unless a batch still needs
            // that: then another reference is taken.
            if (request->in_hand) {
                retain(request);
            } else {
                let_go(request);
            }
            request->next = ended;
            ended = request;
        }
        upcoming = deadlines_.earliest_ns();
    }
    while (ended != nullptr) {
        Request *request = ended;
        ended = request->next;
        publish(request);
        if (request->ended != nullptr) request->ended(request);
        release(request);
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

// The request that must leave first. The caller holds the mutex.
Request *Queue::first_queued() noexcept {
    for (auto &item : lines_)
        if (item.second.first != nullptr) return item.second.first;
    return nullptr;
}

std::size_t Queue::take_all(Request **out, std::size_t room) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    std::size_t count = 0;
    while (count < room) {
        Request *request = first_queued();
        if (request == nullptr) request = held_back_.first;
        if (request == nullptr) break;
        unlink(request);
        request->state.store(STATE_TAKEN, std::memory_order_release);
        request->in_hand = true;
        out[count++] = request;
    }
    if (closed_ && queued_ == 0) instances_.notify_all();
    return count;
}

bool Queue::wait_empty(std::int64_t until_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    while (open_ > 0) {
        if (until_ns != NEVER && now_ns() >= until_ns) return false;
        empty_.wait_until(lock, until_ns);
    }
    return true;
}

}  // namespace ksrv
