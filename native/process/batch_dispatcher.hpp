// Serves one handler process without Python: moves batches from the model's queue into the process's ring, and answers
// from the ring into the connections.
//
// Strategy: the thread of an instance calls `serve`, which returns only if Python is needed: to plan the resize of a
// new picture size, for a batch that does not fit the ring, for a message from the process, and for a batch without an
// answer of the common form (a failure, an answer on the channel, a missed deadline, a dead process, a malformed
// answer). Python then finishes that batch and calls `serve` again. So all rules about failures exist once, in Python.
// After a message the batch stays in the ring.
//
// A quick handler gets its next batches while it still runs the first, so that the two sides need not wake each other
// for every batch. The requests of such a batch are still waiting (STATE_TAKEN) until the handler begins it: they
// expire as waiting requests, and return to the queue if the process dies first.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "process/batch_ring.hpp"
#include "queue/request_queue.hpp"
#include "queue/stats.hpp"
#include "server/fast_rows.hpp"

namespace ksrv {

enum class Served : int {
    requests,  // `batch` has a taken batch that Python must run
    ready,     // as TAKE_READY_BATCH
    closed,
    nudged,
    started,   // `batch` has a dispatched, running batch that Python must finish
    plans,     // Python must plan the picture sizes in `rows.missing`; the next call continues with the batch
    message,   // `running` has sent a message, or Python must check its calls
};

// Why the dispatcher returns a dispatched batch to Python.
enum class HandBack : int {
    on_channel = 0,  // the answer is sent on the channel, the channel is closed, or the deadline has passed
    outputs,         // `answer` has outputs that are too large for an answer of the common form
    malformed,
};

// An instance's settings for taking batches.
struct DispatchTerms {
    std::size_t slot;
    std::uint64_t max_rows;
    std::int64_t delay_ns, run_timeout_ns;
    bool has_calls;  // calls to other models are in progress, and Python checks them regularly
};

// A batch in the ring, or one that is returned to Python. Holds references to its requests.
struct DispatchedRun {
    std::vector<Request *> requests;
    std::uint64_t number = 0, rows = 0, assemble_ns = 0;
    std::int64_t dispatched_ns = 0, began_ns = 0, deadline_ns = NEVER;
    int large = -1;        // the number of the large slot with the rows; -1 if they are in the batch's slot
    bool images = false, started = false;  // started: the handler has begun the batch

    void release_requests() noexcept;
};

class RingDispatcher {
  public:
    // All arguments must outlive this object. `channel` is a descriptor on which bells arrive. A batch has at most
    // `room` requests. The constructor throws if memory is short.
    RingDispatcher(Queue *queue, Ring *ring, int channel, Sums *sums, std::size_t room);
    ~RingDispatcher();

    // Dispatches and answers batches until Python is needed. Sleeps without the GIL. Called only by the instance's
    // thread.
    Served serve(const DispatchTerms &terms) noexcept;

    // Stops using the ring. Batches that the handler has not begun are returned to the queue.
    void put_back() noexcept;

    // The batch that `serve` returned last.
    DispatchedRun batch;
    HandBack why = HandBack::on_channel;
    RingAnswer answer;  // valid for HandBack::outputs
    const char *fault = nullptr;  // of the answer, for HandBack::malformed
    RowWriter rows;

    std::size_t in_ring() const noexcept { return put_ - landed_; }

    // Moves the first batch of the ring to `batch`, for Python to finish.
    void hand_over(HandBack why) noexcept;

    // The batch that the handler runs.
    const DispatchedRun &running() noexcept { return at(landed_ + 1); }

    // The model of the requests that wait for resize plans.
    const ModelSignature *pending() const noexcept { return static_cast<FastRequest *>(taken_[0])->signature; }

  private:
    // Batches are dispatched ahead only while their runs together take at most this long.
    static constexpr std::int64_t RUNS_AHEAD_NS = 200'000;
    static constexpr std::int64_t RING_LOOK_NS = 300'000;      // between checks of a ring with several batches
    static constexpr std::int64_t CALLS_LOOK_NS = 50'000'000;  // between checks of calls to other models
    static constexpr std::int64_t TAKE_BACK_NS = 5'000'000;    // if a run takes this long, later batches are taken back

    // Batches are numbered from 1. Batches `landed_` + 1 to `put_` are in the ring, and the process runs the first of
    // them.
    DispatchedRun &at(std::uint64_t number) noexcept { return slots_[number % RING_SLOTS]; }
    enum class Way { ring, python, plans };  // who continues with a batch; plans: Python, only to plan picture sizes

    Way dispatch(std::size_t count, bool ahead) noexcept;
    Served give_to_python(std::size_t count) noexcept;
    void start(DispatchedRun &batch, std::int64_t began_ns, const DispatchTerms &terms) noexcept;
    bool land(const DispatchTerms &terms) noexcept;
    bool finish(DispatchedRun &done) noexcept;
    void fill(const DispatchTerms &terms) noexcept;
    void take_back() noexcept;
    void put_back_from(std::uint64_t first) noexcept;
    // Why `wait` returned: answers may be ready; Python must finish the first batch; Python must read a message.
    enum class Woke { look, python, message };
    Woke wait(std::int64_t look_ns) noexcept;
    std::uint64_t depth() const noexcept;

    const std::size_t room_;
    Queue *const queue_;
    Ring *const ring_;
    const int channel_;
    Sums *const sums_;
    DispatchedRun slots_[RING_SLOTS];
    // Sized for the largest batch in advance, so that serving allocates nothing.
    std::vector<Request *> taken_;
    std::vector<unsigned char> marks_;  // for `Queue::start` and `Queue::finish`
    std::unique_ptr<unsigned char[]> answered_;  // the rows of the answer that is being sent
    std::size_t pending_ = 0;  // requests in `taken_` that wait for resize plans
    std::uint64_t put_ = 0, landed_ = 0;  // counts of batches that entered and left the ring
    std::int64_t ran_ns_ = RUNS_AHEAD_NS;  // estimated run time of a batch
    std::int64_t regroup_ns_ = 0;          // how long the next batch may wait for more requests, see `regroup_delay_ns`
    std::int64_t landed_ns_ = 0;          // when the last batch left the ring
};

}  // namespace ksrv
