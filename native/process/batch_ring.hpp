// The ring: shared memory through which a worker passes batches to a handler process, and the process its answers.
//
// Strategy: a fixed number of slots, used in turn. The worker fills a slot and increments `dispatched`. The process
// runs dispatched batches, writes each answer to the answer slot of the same number, and increments `completed`. The
// worker can take back batches that the process has not begun: each side stores its counter, then loads the
// other's (Dekker, sequentially consistent). At least one sees the other's store, so a batch is never both taken back
// and begun. Neither side makes a system call while the other is awake: before a side sleeps it sets a flag, looks
// once more, and is then woken by the bell, a message of one byte on the channel (ksrv/engine/processes/link.py). If
// the other side ends, the closed channel wakes a sleeping side, too.
//
// Large slots carry rows that do not fit a batch's slot, and large tensors of messages. Each side writes to a few
// of them. A large slot is a `Block`: the reader makes arrays over it in place. `held` counts the batches and messages
// that name a slot and that its reader has not released. Memory for large slots is allocated on demand.
//
// The process runs user code. Therefore the worker keeps private counters, never reads back what it wrote, and copies
// the head of an answer before it checks it. `read_answer` trusts no number.
//
// One thread of each side uses the batch slots. Any thread may lease, receive and release large slots. Nothing here
// throws or uses Python.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "memory/buffer_pool.hpp"
#include "tensor/datatype.hpp"

namespace ksrv {

constexpr std::uint64_t RING_SLOTS = 8;
constexpr std::size_t RING_BATCH_BYTES = 64 * 1024;   // size of a batch slot: records, ids, heads and rows
constexpr std::size_t RING_ANSWER_BYTES = 64 * 1024;  // size of an answer's rows, which follow its head
constexpr int RING_LARGE_SLOTS = 8;  // per writer: the worker writes slots 0 to 7, the process slots 8 to 15
constexpr int RING_ALL_LARGE_SLOTS = 2 * RING_LARGE_SLOTS;
constexpr std::size_t RING_LARGE_BYTES = 8 * 1024 * 1024;
constexpr int RING_OUTPUTS = 8, RING_STAGES = 8;
constexpr std::size_t RING_NAME = 256, RING_STAGE_NAME = 24;
constexpr std::size_t RING_ALIGNMENT = 64;

constexpr std::size_t ring_aligned(std::size_t size) noexcept {
    return (size + RING_ALIGNMENT - 1) & ~(RING_ALIGNMENT - 1);
}

struct RingControl {
    alignas(64) std::atomic<std::uint64_t> dispatched;  // written by the worker
    std::atomic<std::uint32_t> process_sleeps;
    alignas(64) std::atomic<std::uint64_t> completed;   // written by the process
    std::atomic<std::uint64_t> began;  // the running batch, or the last that ran; written by the process
    std::atomic<std::uint32_t> held[RING_ALL_LARGE_SLOTS];  // must be 0 before a large slot is filled
    alignas(64) std::atomic<std::uint64_t> wake_at;  // the worker wants the bell once this many batches are completed
    std::atomic<std::uint32_t> worker_sleeps;
};

// The head of a batch slot. After it follow the request records, then for each request its id, its head and the sizes
// of its images, then the rows of each input, each at an aligned offset. Rows that do not fit are in a large slot
// instead.
struct RingRun {
    std::uint64_t number;
    std::uint64_t rows;
    std::uint64_t row_length;  // row length of the batch if rows are padded, else 0
    std::uint32_t requests;
    std::uint32_t inputs;
    std::uint32_t text_bytes;  // size of records, ids, heads and sizes of images
    std::uint32_t first_row;   // offset of the first input in the slot that has the rows
    std::uint32_t large, unused;  // number of the large slot plus 1; 0 for none
};

inline constexpr std::size_t RING_WANTED = 8;

struct RingRequest {
    std::uint64_t row_length;  // unpadded row length, if rows are padded
    std::int64_t deadline_ns;  // the client's deadline, or NEVER
    std::uint32_t rows, id_length, head_length;
    std::uint32_t pictures;                // a bit for each input that was sent as encoded images
    std::uint32_t wanted_count;            // 0: all outputs
    std::uint8_t wanted[RING_WANTED];      // indexes of the requested outputs
};

enum RingForm : std::uint32_t {
    RING_OUTPUTS_HERE = 0,
    RING_ON_CHANNEL,  // the answer or failure is sent on the channel
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

// Whether a stage's name is a word, so that it can be used in a header line.
bool is_stage_name(const char (&name)[RING_STAGE_NAME]) noexcept;

class Ring {
  public:
    // Creates a ring. Null and errno if memory or descriptors are short.
    static Ring *make() noexcept;
    // Maps the ring of a descriptor, which the caller keeps. Null if the descriptor is not that of a ring.
    static Ring *map(int fd) noexcept;
    ~Ring();

    // Ends the use of a ring of `make` or `map`, which is deleted when no large slot of it is in use.
    void release() noexcept;
    Ring(const Ring &) = delete;
    Ring &operator=(const Ring &) = delete;

    RingControl &control() noexcept { return *reinterpret_cast<RingControl *>(data_); }
    unsigned char *batch(std::uint64_t number) noexcept {
        return data_ + FIRST + number % RING_SLOTS * RING_BATCH_BYTES;
    }
    unsigned char *answer(std::uint64_t number) noexcept {
        return data_ + FIRST + RING_SLOTS * RING_BATCH_BYTES +
               number % RING_SLOTS * (RING_ANSWER_HEAD + RING_ANSWER_BYTES);
    }
    const unsigned char *answer_rows(std::uint64_t number) noexcept {
        return answer(number) + RING_ANSWER_HEAD;
    }

    unsigned char *large(int slot) noexcept {
        return data_ + SMALL + static_cast<std::size_t>(slot) * RING_LARGE_BYTES;
    }

    // Returns one reference to a large slot that this side writes. Null if `nbytes` are too many, memory is short, or
    // all slots are in use.
    Block *lease(std::size_t nbytes) noexcept;

    // The number of a large slot that this side writes; -1 for another block.
    int number_of(const Block *block) const noexcept;

    // Counts a batch or message that names a leased slot, before it is sent. `unname` undoes it.
    void name(int slot) noexcept { control().held[slot].fetch_add(1); }
    void unname(int slot) noexcept { control().held[slot].fetch_sub(1); }

    // Returns one reference to a large slot that a batch or message of the other side names. Null for a wrong number.
    Block *receive(std::uint32_t slot) noexcept;

    // For the worker, after the process has mapped the ring: `keep_pages` for the small slots.
    bool seal() noexcept { return keep_pages(fd_, SMALL); }

    int fd() const noexcept { return fd_; }
    void close_fd() noexcept;

    std::atomic<bool> used{false};  // whether a batch was ever dispatched; known only to the worker

    // Copies and checks the head of an answer. Returns what is wrong with it, or null: then its offsets are within
    // `answer_rows`.
    const char *read_answer(std::uint64_t number, RingAnswer *answer) noexcept;

  private:
    static constexpr std::size_t FIRST = 4096;
    static constexpr std::size_t SMALL =
        (FIRST + RING_SLOTS * (RING_BATCH_BYTES + RING_ANSWER_HEAD + RING_ANSWER_BYTES) + 4095) &
        ~std::size_t{4095};
    static constexpr std::size_t SIZE = SMALL + RING_ALL_LARGE_SLOTS * RING_LARGE_BYTES;

    struct LargeSlot : Block {
        Ring *ring = nullptr;
        std::size_t reserved = 0;    // bytes whose pages are allocated
        std::uint32_t received = 0;  // how often the other side has named it since it was returned
    };

    explicit Ring(unsigned char *data, int first_written) noexcept;
    static Ring *mapped(int fd, int first_written) noexcept;  // for `make` and `map`
    bool reserve(LargeSlot &slot, std::size_t nbytes) noexcept;
    static void return_slot(Block *block) noexcept;

    unsigned char *data_;
    int fd_ = -1;  // -1 if closed, or if the caller owns it
    const int first_written_;  // this side writes RING_LARGE_SLOTS large slots, from this number on
    std::mutex receiving_;  // guards LargeSlot::received
    std::atomic<long> users_{1};  // the caller of `make` or `map`, and the large slots in use
    LargeSlot slots_[RING_ALL_LARGE_SLOTS];
};

static_assert(sizeof(RingControl) <= 4096, "the control words must fit one page");
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "atomics between processes must be lock-free");

// Sends one byte on the channel without blocking. If the channel is full, its reader wakes up anyway.
void ring_bell(int channel) noexcept;

enum Bell : int {
    BELL_RANG = 0,
    BELL_MESSAGE,  // a message waits, unread
    BELL_CLOSED,
    BELL_PASSED,   // the deadline has passed
    BELL_INTERRUPTED,
};

// Sleeps until something arrives on the channel. Consumes the bell. NEVER waits without a limit.
Bell wait_for_bell(int channel, std::int64_t deadline_ns) noexcept;

// For the worker: takes back dispatched batches after batch `kept` that were not begun. Returns the last batch that
// stays dispatched.
std::uint64_t take_back(Ring &ring, std::uint64_t kept, std::uint64_t dispatched) noexcept;

// For the process: sleeps until a batch after `completed` is dispatched (BELL_RANG; the batch is then begun), or a
// message arrives. Polls for `spin_ns` nanoseconds before it sleeps.
Bell wait_for_batch(Ring &ring, int channel, std::uint64_t completed, std::int64_t spin_ns) noexcept;

// Counts a batch as completed, and wakes the worker if it waits for that.
void complete_batch(Ring &ring, int channel, std::uint64_t number) noexcept;

}  // namespace ksrv
