// Memory in which a worker puts batches for a handler process, and the process its answers.
//
// Strategy: a fixed number of places, used in turn. The worker fills a place and counts it as dispatched;
// the process runs what is dispatched, writes the answer into the answer's place of the same number and
// counts it as completed. Batches that it has not begun can be taken back: each side writes its own count
// first and then reads the other's, so that one of them sees the other. Neither copies a message and neither makes a system call while the other one
// is awake: a side that goes to sleep says so first, looks once more, and is then woken by the bell, a
// message of one byte on the channel (process/channel.hpp). So an end of the other side wakes a sleeper too.
//
// The rows of a batch that has no room in its place lie in one of a few large places. The process makes its
// arrays of them where they lie, and says for how long it has any; memory for them is taken when they are needed.
//
// The process runs user code. The worker keeps its own counts, reads nothing back that it wrote, and
// copies the head of an answer before it checks it; `read_answer` believes no number.
//
// Nothing here throws or knows Python.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "memory/buffer_pool.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

constexpr std::uint64_t RING_PLACES = 8;
constexpr std::size_t RING_BATCH_BYTES = 64 * 1024;   // of one batch: records, ids, heads and rows
constexpr std::size_t RING_ANSWER_BYTES = 64 * 1024;  // of one answer: rows, behind its head
constexpr int RING_LARGE_PLACES = 4;  // for the rows of batches that their own places have no room for
constexpr std::size_t RING_LARGE_BYTES = 8 * 1024 * 1024;
constexpr int RING_OUTPUTS = 8, RING_STAGES = 8;
constexpr std::size_t RING_NAME = 256, RING_STAGE_NAME = 24;
constexpr std::size_t RING_ALIGNMENT = 64;

constexpr std::size_t ring_aligned(std::size_t size) noexcept {
    return (size + RING_ALIGNMENT - 1) & ~(RING_ALIGNMENT - 1);
}

struct RingControl {
    alignas(64) std::atomic<std::uint64_t> dispatched;  // the worker's
    std::atomic<std::uint32_t> process_sleeps;
    alignas(64) std::atomic<std::uint64_t> completed;   // the process's
    std::atomic<std::uint64_t> began;                   // the batch that it runs, or ran last
    // The process's: whether arrays of it lie in a large place, which is then not filled again.
    std::atomic<std::uint32_t> held[RING_LARGE_PLACES];
    alignas(64) std::atomic<std::uint64_t> wake_at;     // batches after which the worker wants the bell
    std::atomic<std::uint32_t> worker_sleeps;
};

// The head of a batch's place; behind it so many records, then ids and heads, then the rows of each
// input from an aligned byte on. The rows of a large batch are in a large place instead.
struct RingBatch {
    std::uint64_t number;
    std::uint64_t rows;
    std::uint64_t row_length;  // where rows are padded: of the rows of the batch; else 0
    std::uint32_t requests;
    std::uint32_t inputs;
    std::uint32_t text_bytes;  // of records, ids and heads
    std::uint32_t first_row;   // where the first input begins, from the begin of the place it lies in
    std::uint32_t large, unused;  // 1 more than the number of the large place; 0 for none
};

inline constexpr std::size_t RING_WANTED = 8;

struct RingRequest {
    std::uint64_t row_length;  // where rows are padded: without the padding
    std::int64_t deadline_ns;  // the client's own; NEVER without one
    std::uint32_t rows, id_length, head_length;
    std::uint32_t wanted_count;            // 0: all outputs
    std::uint8_t wanted[RING_WANTED];      // their places among the declared ones
};

enum RingForm : std::uint32_t {
    RING_OUTPUTS_HERE = 0,
    RING_ON_CHANNEL,  // the answer, or the failure, is a message
};

struct RingStage {
    char name[RING_STAGE_NAME];
    std::uint64_t ns;
};

struct RingOutput {
    std::uint64_t offset, nbytes;  // in the answer's rows
    std::int64_t shape[MAX_RANK];
    std::uint8_t datatype, rank;
    std::uint16_t name_length;
    char name[RING_NAME];
};

struct RingAnswer {
    std::uint64_t number;
    std::int64_t began_ns, ended_ns;
    std::uint32_t form, outputs, stages, unused;
    RingStage stage[RING_STAGES];
    RingOutput output[RING_OUTPUTS];
};

constexpr std::size_t RING_ANSWER_HEAD = (sizeof(RingAnswer) + 63) & ~std::size_t{63};

enum RingFault : int {
    RING_OK = 0,
    RING_NUMBER,  // it is of another batch
    RING_COUNTS,
    RING_STAGE,   // a stage's name is no word
    RING_NAMES,
    RING_DATATYPE,
    RING_SHAPE,   // a shape has no size, or its size is not the one given
    RING_PLACE,   // bytes outside of the answer's place
};

const char *ring_fault_text(RingFault fault) noexcept;

// Whether a stage's name is a word, which header lines may be made of.
bool is_stage_name(const char (&name)[RING_STAGE_NAME]) noexcept;

class BatchRing {
  public:
    // A new one; null and errno without memory, or without a descriptor.
    static BatchRing *make() noexcept;
    // The one behind a descriptor, which stays the caller's; null where it is none.
    static BatchRing *map(int fd) noexcept;
    ~BatchRing();
    BatchRing(const BatchRing &) = delete;
    BatchRing &operator=(const BatchRing &) = delete;

    RingControl &control() noexcept { return *reinterpret_cast<RingControl *>(data_); }
    unsigned char *batch(std::uint64_t number) noexcept {
        return data_ + FIRST + number % RING_PLACES * RING_BATCH_BYTES;
    }
    unsigned char *answer(std::uint64_t number) noexcept {
        return data_ + FIRST + RING_PLACES * RING_BATCH_BYTES +
               number % RING_PLACES * (RING_ANSWER_HEAD + RING_ANSWER_BYTES);
    }
    const unsigned char *answer_rows(std::uint64_t number) noexcept {
        return answer(number) + RING_ANSWER_HEAD;
    }

    unsigned char *large(int place) noexcept {
        return data_ + SMALL + static_cast<std::size_t>(place) * RING_LARGE_BYTES;
    }

    // The worker's: has memory for so many bytes of a large place; false where there is none.
    bool reserve(int place, std::size_t nbytes) noexcept;

    // The worker's, once the process has mapped it: `keep_pages` of the small places.
    bool seal() noexcept { return keep_pages(fd_, SMALL); }

    int fd() const noexcept { return fd_; }
    void close_fd() noexcept;

    std::atomic<bool> used{false};  // whether a batch was ever put in; the worker's own note

    // Copies the head of an answer and checks it; what it names are bytes of `answer_rows` then.
    RingFault read_answer(std::uint64_t number, RingAnswer *answer) noexcept;

  private:
    static constexpr std::size_t FIRST = 4096;
    static constexpr std::size_t SMALL =
        (FIRST + RING_PLACES * (RING_BATCH_BYTES + RING_ANSWER_HEAD + RING_ANSWER_BYTES) + 4095) &
        ~std::size_t{4095};
    static constexpr std::size_t SIZE = SMALL + RING_LARGE_PLACES * RING_LARGE_BYTES;

    explicit BatchRing(unsigned char *data) noexcept : data_(data) {}

    unsigned char *data_;
    int fd_ = -1;  // -1 once it is closed, or where it is the caller's
    std::size_t reserved_[RING_LARGE_PLACES] = {};
};

static_assert(sizeof(RingControl) <= 4096, "the control words have a page of their own");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "two processes use them");

// One byte on the channel, without waiting for room: a full channel wakes its reader as well.
void ring_bell(int channel) noexcept;

enum Bell : int {
    BELL_RANG = 0,
    BELL_MESSAGE,  // a message waits; it is not read
    BELL_CLOSED,
    BELL_PASSED,   // the deadline
    BELL_INTERRUPTED,
};

// Sleeps until something comes on the channel; takes in the bell. NEVER waits without end.
Bell wait_for_bell(int channel, std::int64_t deadline_ns) noexcept;

// The worker's side: takes back what was dispatched behind batch `kept` and is not begun. Returns the last
// batch that stays dispatched.
std::uint64_t take_back(BatchRing &ring, std::uint64_t kept, std::uint64_t dispatched) noexcept;

// The process's side: sleeps until a batch behind `completed` is dispatched (BELL_RANG), which has begun then,
// or a message waits. Looks for `spin_ns` nanoseconds before it sleeps.
Bell wait_for_batch(BatchRing &ring, int channel, std::uint64_t completed, std::int64_t spin_ns) noexcept;

// Counts a batch as completed, and wakes a worker that waits for it.
void complete_batch(BatchRing &ring, int channel, std::uint64_t number) noexcept;

}  // namespace ksrv
