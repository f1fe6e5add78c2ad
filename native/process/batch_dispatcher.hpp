// Serves one handler process without Python: batches go from the model's queue into the process's ring, and
// its answers from there into the connections.
//
// Strategy: the thread of an instance calls `serve`, which returns only where Python is needed: for a size of
// pictures that came for the first time, for a batch that does not fit the ring, for a message of the process,
// and for a batch without a common answer: a failure, an answer on the channel, a deadline that passed, a
// process that died, an answer that is malformed. Python then goes on with that batch, and calls `serve`
// again. So all rules about failures exist once, in Python. A message leaves the batch where it is.
//
// A quick handler gets its next batches while it still runs the first, so that neither side has to wake the
// other for each of them. Such a batch stays one that waits (STATE_TAKEN) until the handler has come to it:
// it expires as a waiting one, and goes back into the queue if the process dies before.

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
    requests,  // a batch that Python runs: `batch` has it, taken and not started
    ready,     // as TAKE_READY_BATCH
    closed,
    nudged,
    started,   // a batch that was dispatched: `batch` has it, running; Python ends it
    plans,     // `rows.missing` has sizes of pictures to plan; the batch goes on with the next call
    message,   // the batch `running` has sent a message, or Python is to look after its calls
};

// Why the dispatcher returns a dispatched batch to Python.
enum class HandBack : int {
    on_channel = 0,  // the answer is, or will be, a message; or the channel is closed, or the deadline over
    outputs,         // `answer` has them: they are too large for an answer of the common form
    malformed,
};

// How an instance takes batches.
struct DispatchTerms {
    std::size_t slot;
    std::uint64_t max_rows;
    std::int64_t delay_ns, run_timeout_ns;
    bool has_calls;  // calls to other models are under way, which Python looks after now and then
};

// One batch in the ring, or on its way to Python. Its requests are held.
struct DispatchedBatch {
    std::vector<Request *> requests;
    std::uint64_t number = 0, rows = 0, assemble_ns = 0;
    std::int64_t dispatched_ns = 0, began_ns = 0, deadline_ns = NEVER;
    int large = -1;        // the large place with its rows; -1: they lie in its own
    bool images = false, started = false;  // the handler has come to it

    void release_requests() noexcept;
};

class BatchDispatcher {
  public:
    // All of them must outlive it; `channel` is the channel's descriptor, for bells. A batch has at most
    // `room` requests. Throws where there is no memory.
    BatchDispatcher(Queue *queue, BatchRing *ring, int channel, Sums *sums, std::size_t room);
    ~BatchDispatcher();

    Served serve(const DispatchTerms &terms) noexcept;

    // Ends the use of the ring: batches that the handler has not come to go back into the queue.
    void put_back() noexcept;

    // The batch that `serve` returned last.
    DispatchedBatch batch;
    HandBack why = HandBack::on_channel;
    RingAnswer answer;  // of HandBack::outputs
    RingFault fault = RING_OK;
    RowWriter rows;

    std::size_t in_ring() const noexcept { return put_ - landed_; }

    // Gives the first batch of the ring to Python, as `batch`.
    void hand_over(HandBack why) noexcept;

    // The batch that the handler has come to, as `serve` returned.
    const DispatchedBatch &running() noexcept { return at(landed_ + 1); }

    // The model of the requests that wait for plans.
    const ModelSignature *pending() const noexcept { return static_cast<FastRequest *>(taken_[0])->signature; }

  private:
    // Batches are dispatched ahead of the handler as long as their runs take no longer than this together.
    static constexpr std::int64_t RUNS_AHEAD_NS = 200'000;
    static constexpr std::int64_t RING_LOOK_NS = 300'000;      // between two looks at a ring with several batches
    static constexpr std::int64_t CALLS_LOOK_NS = 50'000'000;  // between two looks after calls
    static constexpr std::int64_t TAKE_BACK_NS = 5'000'000;    // after a run this long the batches behind it go back

    DispatchedBatch &at(std::uint64_t number) noexcept { return places_[number % RING_PLACES]; }
    enum class Way { ring, python, plans };

    Way dispatch(std::size_t count, bool ahead) noexcept;
    int large_place(std::size_t nbytes) noexcept;
    Served give_to_python(std::size_t count) noexcept;
    void start(DispatchedBatch &batch, std::int64_t began_ns, const DispatchTerms &terms) noexcept;
    bool land(const DispatchTerms &terms) noexcept;
    bool finish(DispatchedBatch &done) noexcept;
    void fill(const DispatchTerms &terms) noexcept;
    void take_back() noexcept;
    void put_back_from(std::uint64_t first) noexcept;
    enum class Woke { look, python, message };
    Woke wait(std::int64_t look_ns) noexcept;
    std::uint64_t depth() const noexcept;

    const std::size_t room_;
    Queue *const queue_;
    BatchRing *const ring_;
    const int channel_;
    Sums *const sums_;
    DispatchedBatch places_[RING_PLACES];
    // As long as a batch, all of them, so that serving allocates nothing.
    std::vector<Request *> taken_;
    std::vector<unsigned char> marks_;
    std::unique_ptr<unsigned char[]> answered_;  // the rows of an answer that is being sent
    std::size_t pending_ = 0;  // of `taken_`, which wait for plans
    std::uint64_t put_ = 0, landed_ = 0;  // batches that went into the ring, and that have left it
    std::int64_t ran_ns_ = RUNS_AHEAD_NS;  // about what the handler takes for a batch
    std::int64_t regroup_ns_ = 0;
    std::int64_t landed_ns_ = 0;          // when the last batch left the ring
};

}  // namespace ksrv
