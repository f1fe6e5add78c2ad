// Answers a batch of fast-path requests. Each answer is written to its connection in one piece: head, JSON and tensors.
//
// Strategy: all answers of a batch are checked before one is sent. So a batch is either answered here completely, or
// left to Python completely, which handles large and unusual answers.

#pragma once

#include <cstddef>
#include <cstdint>

#include "queue/request_queue.hpp"
#include "queue/stats.hpp"
#include "server/fast_path.hpp"

namespace ksrv {

constexpr std::size_t FAST_RESPONSE_BYTES = 65536;        // limit for JSON and tensors of an answer
constexpr std::size_t FAST_RESPONSE_TENSOR_BYTES = 8192;  // limit for the tensors of an answer

// An output of a batch, with the rows of all requests.
struct ReplyPart {
    const char *name, *datatype;
    std::size_t name_length, datatype_length;
    Datatype type;  // the value of `datatype`
    const unsigned char *data;
    const std::ptrdiff_t *shape;
    int rank;
    std::int64_t row_bytes;
};

// Whether the outputs are the model's declared outputs.
bool are_declared(const ModelSignature &signature, const ReplyPart *parts, int part_count) noexcept;

// A handler's answer to a batch. `stages` begins with the assembly. If no stage is called inference, the whole run
// counts as inference.
struct FastReply {
    const ReplyPart *parts;
    int part_count;
    const ReplyStage *stages;
    int stage_count;
    std::uint64_t ran_ns;
};

// Sets the bytes per row of an output of a batch with `rows` rows. False if the output's first dimension is not `rows`.
// If the batch has only one request (`alone`), any shape is allowed whose bytes divide evenly.
bool set_row_bytes(ReplyPart *part, std::uint64_t nbytes, std::uint64_t rows, bool alone) noexcept;

// Answers the requests of a batch that have not ended, and counts the batch in `sums`. Sent data is copied from the
// outputs. `won` has room for a mark for each request.
//
// False, without sending anything, if an answer is large or unusual, or memory is too short to cut the padding off.
bool answer_batch(Queue *queue, Sums *sums, Request **requests, std::size_t count, unsigned char *won,
                  const FastReply &reply) noexcept;

}  // namespace ksrv
