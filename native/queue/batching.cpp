// Forms batches: which requests are batched together, when, and for which thread.

#include <algorithm>
#include <mutex>

#include "queue/request_queue.hpp"

namespace ksrv {

// Takes requests of one batch key in order while they fit. If a request does not fit, the batch is full. `taken` counts
// the requests already in the batch, because an empty batch takes its first request even if that has too many rows. The
// caller holds the mutex.
std::size_t Queue::collect(std::size_t slot, std::uint64_t batch_key, Request **out, std::size_t room,
                           std::uint64_t rows_left, std::size_t taken,
                           bool *full) noexcept {
    std::size_t count = 0;
    *full = rows_left == 0 && taken > 0;
    for (auto item = lines_.begin(); item != lines_.end() && !*full;) {
        Line &line = item->second;
        ++item;  // unlinking the last request may erase the line
        for (Request *request = line.first, *next; request != nullptr; request = next) {
            next = request->next;
            if (request->batch_key != batch_key || !fits(request, slot)) continue;
            if (count == room || (request->rows > rows_left && taken + count > 0)) {
                *full = true;
                break;
            }
            unlink(request);
            request->state.store(STATE_TAKEN, std::memory_order_release);
            request->in_hand = true;
            rows_left -= std::min<std::uint64_t>(request->rows, rows_left);
            out[count++] = request;
            if (rows_left == 0) {
                *full = true;
                break;
            }
            if (next == nullptr) break;  // the line may have been erased
        }
    }
    return count;
}

// Finds the batch key of the next batch: the first key in the order of the queue whose requests fill a batch or have
// waited for `delay_ns`. Otherwise sets `*wake` to when the first key has waited long enough. Called with the mutex
// locked.
bool Queue::choose(std::size_t slot, std::uint64_t max_rows, std::int64_t delay_ns,
                   std::int64_t now, std::uint64_t *batch_key, std::int64_t *wake) noexcept {
    *wake = NEVER;
    if (queued_ == 0) return false;
    constexpr std::size_t GROUPS = 64;  // more keys wait until some of these have left
    Group groups[GROUPS];
    std::size_t found = 0;
    for (auto &item : lines_) {
        for (Request *request = item.second.first; request != nullptr; request = request->next) {
            if (prefetching_ && request->batch_key == prefetched_key_) continue;
            if (!fits(request, slot)) continue;
            if (delay_ns == 0 || closed_) {
                *batch_key = request->batch_key;
                return true;
            }
            Group *group = std::find_if(groups, groups + found, [request](const Group &other) {
                return other.key == request->batch_key;
            });
            if (group == groups + found) {
                if (found == GROUPS) continue;
                ++found;
                *group = {request->batch_key, 0, request->enqueued_ns, false};
            }
            if (group->full) continue;
            group->oldest_ns = std::min(group->oldest_ns, request->enqueued_ns);
            group->rows += request->rows;
            group->full = group->rows >= max_rows;
            // Usually the first key is due, and however many requests wait, only a batch of them is looked at.
            if (group == groups && (group->full || now - group->oldest_ns >= delay_ns)) {
                *batch_key = group->key;
                return true;
            }
        }
    }
    for (Group *group = groups; group != groups + found; ++group) {
        if (group->full || now - group->oldest_ns >= delay_ns) {
            *batch_key = group->key;
            return true;
        }
        *wake = std::min(*wake, group->oldest_ns + delay_ns);
    }
    return false;
}

Take Queue::take(std::size_t slot, Request **out, std::size_t room, std::size_t *count,
                 std::uint64_t max_rows, std::int64_t delay_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    *count = 0;
    ++idle_;
    slots_[slot].idle = true;
    if (prefetching_) prefetcher_.notify_one();  // it must close its open batch for this instance
    for (;;) {
        std::int64_t wake = NEVER;
        if (!slots_[slot].claimed) {  // otherwise another thread runs a request on this instance
            const Take taken = try_take(slot, out, room, count, max_rows, delay_ns, &wake);
            if (taken != TAKE_NOTHING) {
                --idle_;
                slots_[slot].idle = false;
                // More work may exist for another instance, or for the prefetcher.
                if (queued_ > 0 || ready_batches_ > 0) {
                    if (idle_ > 0) {
                        wake_instance();
                    } else if (may_prefetch.load(std::memory_order_relaxed)) {
                        prefetcher_.notify_one();
                    }
                }
                return taken;
            }
        }
        instances_.wait_until(lock, wake);
    }
}

// Looks once for work for the instance of `slot`. The caller holds the mutex.
Take Queue::try_take(std::size_t slot, Request **out, std::size_t room, std::size_t *count,
                     std::uint64_t max_rows, std::int64_t delay_ns,
                     std::int64_t *wake) noexcept {
    if (slots_[slot].nudged) {
        slots_[slot].nudged = false;
        return TAKE_NUDGED;
    }
    if (ready_batches_ > 0) {
        --ready_batches_;
        return TAKE_READY_BATCH;
    }
    std::uint64_t batch_key = 0;
    if (choose(slot, max_rows, delay_ns, delay_ns > 0 ? now_ns() : 0, &batch_key, wake)) {
        bool full = false;
        *count = collect(slot, batch_key, out, room, max_rows, 0, &full);
        return TAKE_REQUESTS;
    }
    if (closed_ && queued_ == 0 && held_back_.first == nullptr && !prefetching_) {
        instances_.notify_all();
        prefetcher_.notify_all();
        return TAKE_CLOSED;
    }
    return TAKE_NOTHING;
}

// Whether requests of the same batch key and kind as `first` fill a batch. The caller holds the mutex.
bool Queue::fills_a_batch(const Request *first, std::uint64_t max_rows) noexcept {
    if (max_rows == 0) return true;
    std::uint64_t rows = 0;
    for (auto &item : lines_) {
        for (Request *request = item.second.first; request != nullptr; request = request->next) {
            if (request->batch_key != first->batch_key) continue;
            if (request->taken != first->taken) return false;
            rows += request->rows;
            if (rows >= max_rows) return true;
        }
    }
    return false;
}

// `kind`: the `taken` callback that the requests must have.
std::size_t Queue::take_ahead(std::size_t slot, void *(*kind)(Request *), Request **out,
                              std::size_t room, std::uint64_t max_rows) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    if (idle_ > 0 || ready_batches_ > 0 || prefetching_ || slots_[slot].nudged) return 0;
    const Request *first = first_queued();
    if (first == nullptr || first->taken != kind || first->priority != 0 || !fills_a_batch(first, max_rows)) return 0;
    bool full = false;
    return collect(slot, first->batch_key, out, room, max_rows, 0, &full);
}

void Queue::put_back(Request **requests, std::size_t count) noexcept {
    {
        std::lock_guard<std::mutex> guard(mutex_);
        for (std::size_t i = count; i-- > 0;) {
            Request *request = requests[i];
            if (request->in_hand && is_final(request->state.load(std::memory_order_relaxed))) {
                part_with(request);
                continue;
            }
            requests[i] = nullptr;  // only ended requests are released below
            if (!request->in_hand) continue;
            // The line of requests without a priority, which always exists.
            Line &line = lines_.find(level(request))->second;
            request->in_hand = false;
            request->previous = nullptr;
            request->next = line.first;
            (line.first != nullptr ? line.first->previous : line.last) = request;
            line.first = request;
            request->state.store(STATE_QUEUED, std::memory_order_release);
            ++queued_;
        }
        if (queued_ > 0) instances_.notify_all();
    }
    for (std::size_t i = 0; i < count; ++i)
        if (requests[i] != nullptr) release(requests[i]);
}

Take Queue::prefetch(Request **out, std::size_t room, std::size_t *count,
                       std::uint64_t max_rows, std::uint64_t rows, std::int64_t oldest_ns,
                       std::int64_t delay_ns) noexcept {
    std::unique_lock<std::mutex> lock(mutex_);
    *count = 0;
    for (;;) {
        std::int64_t wake = NEVER;
        if (!prefetching_) {
            const bool busy = idle_ == 0 && ready_batches_ == 0;
            // Any instance may take a prefetched batch, so requests of sequences are excluded.
            Request *leader = busy && may_prefetch.load() && !sequenced_ ? first_queued() : nullptr;
            if (leader != nullptr) {
                prefetching_ = true;
                prefetched_key_ = leader->batch_key;
                bool full = false;
                *count = collect(NOWHERE, leader->batch_key, out, room, max_rows, 0, &full);
                return TAKE_REQUESTS;
            }
            if (closed_ && queued_ == 0) return TAKE_CLOSED;
        } else {
            bool full = rows >= max_rows;
            if (!full) {
                // `taken` is 1, because the open batch has requests already.
                *count = collect(NOWHERE, prefetched_key_, out, room, max_rows - rows, 1, &full);
                if (*count > 0) return TAKE_REQUESTS;
            }
            const std::int64_t delay_ends_ns = oldest_ns + delay_ns;
            const bool complete = full || delay_ns == 0 || closed_ || now_ns() >= delay_ends_ns;
            if (idle_ > 0 && complete) return TAKE_INSTANCE_IDLE;
            if (idle_ > 0) wake = delay_ends_ns;
        }
        prefetcher_.wait_until(lock, wake);
    }
}

void Queue::close_open_batch(bool ready) noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    prefetching_ = false;
    if (ready) ++ready_batches_;
    instances_.notify_all();  // requests of the batch's key may be waiting, too
}

void Queue::requeue() noexcept {
    std::lock_guard<std::mutex> guard(mutex_);
    ++ready_batches_;
    wake_instance();
}

}  // namespace ksrv
