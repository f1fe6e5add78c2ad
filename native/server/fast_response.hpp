// The answer to a fast-path request, written into its connection in one piece: head, JSON and tensors.

#pragma once

#include <memory>

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

// The outputs of one request of a batch, cut back to the length of its rows.
class CutParts {
  public:
    // False where an output is too large to be copied here, or is not as long as the batch.
    bool cut(const FastRequest &request, const ReplyPart *parts, int part_count, std::int64_t row) noexcept;

    const ReplyPart *parts() const noexcept { return parts_.get(); }

  private:
    struct Shape {
        std::ptrdiff_t sizes[MAX_RANK];
    };

    std::unique_ptr<ReplyPart[]> parts_;
    std::unique_ptr<Shape[]> shapes_;
    std::unique_ptr<unsigned char[]> data_;
};

// Whether a model's answers are cut back to the lengths of their rows.
bool cuts_answers(const ModelSignature &signature) noexcept;

// Whether the outputs are those that the model declares.
bool are_declared(const ModelSignature &signature, const ReplyPart *parts, int part_count) noexcept;

// Whether the outputs are those that the model declares, and can be written as each request asks for them,
// within the bytes of one answer.
bool fits_fast_response(const FastRequest &request, const ReplyPart *parts, int part_count,
                        std::int64_t row) noexcept;

// Answers with the rows of a batch that begin at `row`; the only request of a batch gets its outputs in
// the shapes that they have.
void send_fast_response(FastRequest *request, const ReplyPart *parts, int part_count, std::int64_t row,
                 bool alone, const ReplyStage *stages, int stage_count) noexcept;

}  // namespace ksrv
