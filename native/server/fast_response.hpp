// The answers to a batch of fast-path requests, each written into its connection in one piece: head, JSON and tensors.
//
// Strategy: all answers of a batch are looked at before one is sent. So a batch is either answered here as a whole, or
// left to Python as a whole, which has the answers that are large or not of the common form.

#pragma once

#include <cstddef>
#include <cstdint>

#include "queue/request_queue.hpp"
#include "queue/stats.hpp"
#include "server/fast_path.hpp"

namespace ksrv {

constexpr std::size_t FAST_RESPONSE_BYTES = 65536;        // JSON and tensors of one answer
constexpr std::size_t FAST_RESPONSE_TENSOR_BYTES = 8192;  // of that, tensors

// One output of a whole batch.
struct ReplyPart {
    const char *name, *datatype;
    std::size_t name_length, datatype_length;
    Datatype type;  // which `datatype` names
    const unsigned char *data;
    const std::ptrdiff_t *shape;
    int rank;
    std::int64_t row_bytes;
};

struct ReplyStage {
    const char *name;
    std::size_t length;
    std::uint64_t nanoseconds;
};

// Whether the outputs are those that the model declares.
bool are_declared(const ModelSignature &signature, const ReplyPart *parts, int part_count) noexcept;

// What a handler answered to a batch. `stages` begins with the assembly. Where no stage is the inference, the whole run
// counts as that.
struct BatchReply {
    const ReplyPart *parts;
    int part_count;
    const ReplyStage *stages;
    int stage_count;
    std::uint64_t ran_ns;
};

// Sets the bytes of a row of an output of a batch with so many rows; false where the output has not these rows. The only
// request of a batch gets its outputs in the shapes that they have.
bool set_row_bytes(ReplyPart *part, std::uint64_t nbytes, std::uint64_t rows, bool alone) noexcept;

// Answers the requests of a batch that have not ended, and counts the batch in `sums`. What is sent is copied out of the
// outputs. `won` has room for a mark for each request.
//
// False where an answer is large or not of the common form, or there is no memory to cut it back; none is sent then.
bool answer_batch(Queue *queue, Sums *sums, Request **requests, std::size_t count, unsigned char *won,
                  const BatchReply &reply) noexcept;

}  // namespace ksrv
