// A request to a model, from its submission to its answer.
//
// Strategy: the submitter, the queue and waiting threads each hold a reference. Two atomics order the threads. `state`
// decides who answers: it becomes final once, under the queue's mutex, and the thread that changed it answers. `done`
// is set after the answer was stored: then the answer may be read. Waiting threads sleep on `done` with a futex.
//
// Nothing here throws, allocates or uses Python.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "base/clock.hpp"

namespace ksrv {

inline constexpr std::size_t NOWHERE = SIZE_MAX;  // no index in the heap of deadlines, and no instance's slot

enum State : std::int32_t {
    STATE_NEW = 0,    // not pushed yet, or refused
    STATE_QUEUED,     // waits in the queue
    STATE_TAKEN,      // in a batch that is being assembled
    STATE_RUNNING,    // a handler runs it
    STATE_ANSWERED,   // this state and all later states are final
    STATE_CANCELLED,
    STATE_EXPIRED,
};

inline bool is_final(std::int32_t state) noexcept { return state >= STATE_ANSWERED; }

class Queue;
struct Request;

// Called with the GIL when a batch takes the request. Returns a new reference to its Python object, or null with a
// Python error set.
using Taken = void *(*)(Request *request);

// Called once by the answering thread, with the GIL and the response or exception, before `publish`.
using Answered = void (*)(Request *request, void *answer);

// Requests that an instance runs one at a time, in the order of their arrival, because the instance keeps state for
// them.
struct Sequence {
    explicit Sequence(std::size_t instance_slot) noexcept : slot(instance_slot) {}

    const std::size_t slot;        // of the instance
    Request *current = nullptr;    // in a line or in a batch; guarded by the queue's mutex
    std::size_t held_back = 0;     // number of requests that wait for `current`; guarded by the queue's mutex
    std::atomic<std::int32_t> refs{1};
};

inline void retain(Sequence *sequence) noexcept {
    sequence->refs.fetch_add(1, std::memory_order_relaxed);
}
inline void release(Sequence *sequence) noexcept {
    if (sequence->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete sequence;
}

struct Request {
    // Set by the submitter before the push, and constant afterwards. The hooks must not throw.
    void *payload = nullptr;
    Taken taken = nullptr;
    Answered answered = nullptr;  // null if the Python object keeps the answer
    // Called once after `publish` by the thread that expired or cancelled the request, with or without the GIL, without
    // a lock.
    void (*ended)(Request *request) = nullptr;
    // Called when the last reference is released. Frees the request.
    void (*freed)(Request *request) = nullptr;
    std::uint64_t batch_key = 0;          // only requests with equal keys may be batched together
    std::uint32_t rows = 1;
    std::uint32_t priority = 0;       // 1 is the most urgent; 0 is less urgent than all others
    std::int64_t deadline_ns = NEVER;
    std::uint64_t nbytes = 0;         // counted in the memory budget
    bool reserved = false;  // the bytes are reserved already; a queue that accepts the request gives them back
    bool counted = true;              // its end is counted; false for a part of a split request
    Sequence *sequence = nullptr;     // a counted reference, or null; requests of a sequence have no priority

    // Guarded by the queue's mutex.
    Queue *queue = nullptr;            // set by the push, and referenced until the request is freed
    Request *previous = nullptr, *next = nullptr;
    std::size_t heap_index = NOWHERE;  // index in the heap of deadlines
    bool placed = false;               // counts against the queue's capacity
    bool in_hand = false;              // a batch refers to it
    bool held_back = false;            // an earlier request of its sequence has not ended
    std::int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0;
    std::int32_t ended_in = STATE_NEW;  // the open state in which it expired or was cancelled

    // How long it waited, without the time for assembling its batch.
    std::uint64_t queued_ns(std::uint64_t assemble_ns) const noexcept {
        const auto waited = static_cast<std::uint64_t>(started_ns - enqueued_ns);
        return waited > assemble_ns ? waited - assemble_ns : 0;
    }

    std::atomic<std::int32_t> state{STATE_NEW};
    std::atomic<std::int32_t> done{0};
    std::atomic<std::int32_t> waiters{0};
    std::atomic<std::int32_t> refs{1};
};

inline void retain(Request *request) noexcept { request->refs.fetch_add(1, std::memory_order_relaxed); }

void release(Request *request) noexcept;  // the last release also releases the queue

// Makes the answer readable for waiters. Called once, by the thread that moved the state to a final state.
inline void publish(Request *request) noexcept {
    request->done.store(1, std::memory_order_seq_cst);
    if (request->waiters.load(std::memory_order_seq_cst) != 0)
        syscall(SYS_futex, reinterpret_cast<std::int32_t *>(&request->done), FUTEX_WAKE_PRIVATE,
                INT_MAX, nullptr, nullptr, 0);
}

enum Waited : int { WAIT_DONE = 0, WAIT_TIMEOUT, WAIT_INTERRUPTED };

// Sleeps until the answer may be read, the clock reaches `until_ns`, or a signal arrives.
Waited wait_done(Request *request, std::int64_t until_ns) noexcept;

}  // namespace ksrv
