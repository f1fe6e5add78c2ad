// One request on its way through a queue, from submission to its single answer.
//
// Strategy: a request is counted by its holders (the submitter, the queue, waiting threads) and
// carries two atomics. `state` says who may answer: it leaves the open states once, under the
// queue's mutex, and the thread that moved it answers. `done` says that the answer may be read: it is set
// after the answer has been stored, and it is the word that waiters sleep on.
//
// Nothing here throws, allocates or knows Python.

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

inline constexpr std::size_t NOWHERE = SIZE_MAX;

enum State : std::int32_t {
    STATE_NEW = 0,    // not pushed yet, or refused
    STATE_QUEUED,     // waits in the queue
    STATE_TAKEN,      // in a batch that is being assembled
    STATE_RUNNING,    // a handler has it
    STATE_ANSWERED,   // the states from here on are final
    STATE_CANCELLED,
    STATE_EXPIRED,
};

inline bool is_final(std::int32_t state) noexcept { return state >= STATE_ANSWERED; }

class Queue;
struct Request;

// Requests that an instance runs one after the other, in the order of their arrival: the instance has state
// for them.
struct Sequence {
    explicit Sequence(std::size_t instance_slot) noexcept : slot(instance_slot) {}

    const std::size_t slot;        // of the instance
    Request *current = nullptr;    // waits in a line or is in a batch; the queue's, under its mutex
    std::size_t held_back = 0;     // requests that wait for the current one; likewise
    std::atomic<std::int32_t> refs{1};
};

inline void retain(Sequence *sequence) noexcept {
    sequence->refs.fetch_add(1, std::memory_order_relaxed);
}
inline void release(Sequence *sequence) noexcept {
    if (sequence->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete sequence;
}

struct Request {
    // Set by the submitter before the push and never changed afterwards. The hooks do not throw.
    void *payload = nullptr;
    // Called when a batch takes the request, with the GIL: a new reference to the Python object that
    // stands for it, or null with a Python error set.
    void *(*taken)(Request *request) = nullptr;
    // Called once by the answering thread, with the GIL and the response or exception it answers with,
    // before `publish`; null where the Python object keeps the answer.
    void (*answered)(Request *request, void *answer) = nullptr;
    // Called once after `publish` by the thread that expired or cancelled the request, with or
    // without the GIL, no lock held.
    void (*ended)(Request *request) = nullptr;
    // Called when the last holder lets go; frees the request.
    void (*freed)(Request *request) = nullptr;
    std::uint64_t batch_key = 0;          // only requests of equal keys are joined
    std::uint32_t rows = 1;
    std::uint32_t priority = 0;       // 1 is the most urgent; 0 comes after all others
    std::int64_t deadline_ns = NEVER;
    std::uint64_t nbytes = 0;         // counts against the bytes in flight
    bool reserved = false;            // they are counted already; an accepting queue gives them back
    bool counted = true;              // its end is counted; a part of a split request is not, for the whole is
    Sequence *sequence = nullptr;     // that it belongs to, a counted reference; such requests have no priority

    // The queue's, under its mutex.
    Queue *queue = nullptr;            // set by the push, and held until the request is freed
    Request *previous = nullptr, *next = nullptr;
    std::size_t heap_index = NOWHERE;  // place among the deadlines
    bool placed = false;               // takes one of the queue's places
    bool in_hand = false;              // a batch refers to it
    bool held_back = false;            // an earlier request of its sequence has not left
    std::int64_t enqueued_ns = 0, started_ns = 0, ended_ns = 0;
    std::int32_t ended_in = STATE_NEW;  // the open state that it was expired or cancelled in

    // How long it waited, without the time in which its batch was assembled.
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

void release(Request *request) noexcept;  // the last holder lets go of the queue as well

// Lets waiters read the answer. The thread that moved the state to a final one calls this, once.
inline void publish(Request *request) noexcept {
    request->done.store(1, std::memory_order_seq_cst);
    if (request->waiters.load(std::memory_order_seq_cst) != 0)
        syscall(SYS_futex, reinterpret_cast<std::int32_t *>(&request->done), FUTEX_WAKE_PRIVATE,
                INT_MAX, nullptr, nullptr, 0);
}

enum Waited : int { WAIT_DONE = 0, WAIT_TIMEOUT, WAIT_INTERRUPTED };

// Sleeps until the answer may be read, the clock passes `until_ns`, or a signal arrives.
Waited wait_done(Request *request, std::int64_t until_ns) noexcept;

}  // namespace ksrv
