#include "server/fast_response.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "base/text_writer.hpp"
#include "infer/binary_response.hpp"
#include "queue/completions.hpp"
#include "tensor/padding.hpp"

namespace ksrv {

bool are_declared(const ModelSignature &signature, const ReplyPart *parts, int part_count) noexcept {
    if (signature.outputs.empty())
        return std::all_of(parts, parts + part_count, [](const ReplyPart &part) {
            return TextWriter::is_plain(part.name, part.name_length);
        });
    if (signature.outputs.size() != static_cast<std::size_t>(part_count)) return false;
    for (int i = 0; i < part_count; ++i) {
        const std::string &declared = signature.outputs[static_cast<std::size_t>(i)];
        if (declared.size() != parts[i].name_length ||
            memcmp(declared.data(), parts[i].name, parts[i].name_length) != 0)
            return false;
    }
    return true;
}

// In this file, the answer to a request has the rows from `row` on of `parts`, the outputs of its batch. `alone`: the
// outputs have only this request's rows, and keep their shapes.

namespace {

constexpr std::size_t FAST_RESPONSE_FIELDS_BYTES = 1024;  // limit for the header fields of an answer

// The most bytes that an output needs in the JSON besides its numbers.
std::size_t json_bytes_around(const ReplyPart &part) noexcept {
    return 100 + part.name_length + 24 * static_cast<std::size_t>(part.rank);
}

std::uint64_t values_of(const ReplyPart &part, std::int64_t rows) noexcept {
    return static_cast<std::uint64_t>(rows * part.row_bytes) / item_size_of(part.type);
}

FastRequest *fast(Request *request) noexcept { return static_cast<FastRequest *>(request); }

// Whether a model's answers are cut back to the unpadded row lengths.
bool cuts_answers(const ModelSignature &signature) noexcept {
    return std::any_of(signature.cut.begin(), signature.cut.end(), [](std::uint32_t bits) { return bits != 0; });
}

// The outputs of one request of a batch, cut back to its row length.
class CutParts {
  public:
    // False if an output is too large to be copied here, or does not have the batch's row length.
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

bool CutParts::cut(const FastRequest &request, const ReplyPart *parts, int part_count, std::int64_t row) noexcept {
    const ModelSignature &signature = *request.signature;
    if (!are_declared(signature, parts, part_count)) return false;
    const auto count = static_cast<std::size_t>(part_count);
    parts_.reset(new (std::nothrow) ReplyPart[count]);
    shapes_.reset(new (std::nothrow) Shape[count]);
    if (!parts_ || !shapes_) return false;
    std::size_t total = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const ReplyPart &part = parts[i];
        if (part.rank < 1 || part.rank > static_cast<int>(MAX_RANK)) return false;
        if (row + static_cast<std::int64_t>(request.rows) > part.shape[0]) return false;
        parts_[i] = part;
        parts_[i].shape = shapes_[i].sizes;
        std::uint64_t bytes = item_size_of(part.type);
        shapes_[i].sizes[0] = static_cast<std::ptrdiff_t>(request.rows);
        for (int k = 1; k < part.rank; ++k) {
            const bool is_length = (signature.cut[i] >> k & 1) != 0;
            if (is_length && static_cast<std::uint64_t>(part.shape[k]) < request.layout.row_length) return false;
            shapes_[i].sizes[k] =
                is_length ? static_cast<std::ptrdiff_t>(request.layout.row_length) : part.shape[k];
            bytes *= static_cast<std::uint64_t>(shapes_[i].sizes[k]);
        }
        parts_[i].row_bytes = static_cast<std::int64_t>(bytes);
        if (bytes > FAST_RESPONSE_BYTES || request.rows > FAST_RESPONSE_BYTES) return false;
        total += static_cast<std::size_t>((bytes * request.rows + 7) & ~std::uint64_t{7});
        if (total > FAST_RESPONSE_BYTES) return false;
    }
    data_.reset(new (std::nothrow) unsigned char[total + 1]);
    if (!data_) return false;
    unsigned char *to = data_.get();
    for (std::size_t i = 0; i < count; ++i) {
        std::int64_t from_shape[MAX_RANK], to_shape[MAX_RANK];
        std::copy_n(parts[i].shape, parts[i].rank, from_shape);
        std::copy_n(shapes_[i].sizes, parts[i].rank, to_shape);
        from_shape[0] = to_shape[0];
        copy_cut(parts[i].data + row * parts[i].row_bytes, from_shape, to, to_shape,
                 static_cast<std::size_t>(parts[i].rank), item_size_of(parts[i].type));
        parts_[i].data = to;
        to += (static_cast<std::uint64_t>(parts_[i].row_bytes) * request.rows + 7) & ~std::uint64_t{7};
    }
    return true;
}

RunTimes times_of(const FastReply &reply) noexcept {
    RunTimes times;
    times.assemble = reply.stages[0].nanoseconds;
    times.inference = reply.ran_ns;
    for (int i = 1; i < reply.stage_count; ++i) {
        const ReplyStage &stage = reply.stages[i];
        const auto is = [&stage](const char *name) { return std::memcmp(stage.name, name, stage.length) == 0; };
        // These names all have different lengths.
        if (stage.length == 9 && is("inference")) times.inference = stage.nanoseconds;
        if (stage.length == 10 && is("preprocess")) times.preprocess = stage.nanoseconds;
        if (stage.length == 11 && is("postprocess")) times.postprocess = stage.nanoseconds;
    }
    return times;
}

// Whether the outputs are the declared outputs, and can be written in the requested form within the size limit of an
// answer.
bool fits_fast_response(const FastRequest &request, const ReplyPart *parts, int part_count, std::int64_t row,
                        bool alone) noexcept {
    if (request.answers) return request.answers->fits(request, parts, part_count, row);
    const ModelSignature &signature = *request.signature;
    const FastRequestLayout &layout = request.layout;
    if (!are_declared(signature, parts, part_count)) return false;
    const std::int64_t rows = static_cast<std::int64_t>(request.rows);
    // 512: more than the fixed texts of an answer.
    std::size_t bytes = 512 + signature.model.size() + signature.version.size() + layout.id_length;
    std::size_t tensors = 0;
    const int count = layout.wanted_count ? layout.wanted_count : part_count;
    for (int i = 0; i < count; ++i) {
        const ReplyPart &part = parts[layout.handler_output(i)];
        const std::size_t length = static_cast<std::size_t>(rows * part.row_bytes);
        if (length > FAST_RESPONSE_BYTES) return false;
        bytes += json_bytes_around(part);
        if (layout.binary[i]) {
            tensors += length;
            continue;
        }
        const std::uint64_t values = values_of(part, rows);
        const std::size_t width = json_value_bytes(part.type);
        if (width == 0) return false;  // JSON cannot represent the datatype
        // Python writes NaN as a literal for this model, but `put_numbers` writes null.
        if (signature.nan_literals && !all_finite(part.type, part.data + row * part.row_bytes, values))
            return false;
        bytes += values * width;
        if (!layout.plain) continue;
        if (values == 0 || (alone && (part.rank == 0 || part.shape[0] != rows))) return false;
        // Brackets around each value, and the name in each row.
        bytes += 2 * values * static_cast<std::size_t>(part.rank) + request.rows * (part.name_length + 8);
    }
    return tensors <= FAST_RESPONSE_TENSOR_BYTES && bytes + tensors <= FAST_RESPONSE_BYTES;
}

// Renders an answer in plain JSON: rows under a key, each an object if it has several outputs.
bool put_rows(TextWriter &body, const FastRequest &request, const ReplyPart *parts, int count, std::int64_t row) noexcept {
    const std::string &key = request.layout.plain->answer;
    body.put("{");
    bool good = body.quoted(key.data(), key.size());
    body.put(":");
    const auto rows = static_cast<std::int64_t>(request.rows);
    if (count == 1)
        put_nested(body, parts->type, parts->data + row * parts->row_bytes, parts->shape, parts->rank, rows);
    for (std::int64_t i = 0; i < rows && count != 1; ++i) {
        body.put(i == 0 ? "[" : ",", 1);
        for (const ReplyPart *part = parts; part != parts + count; ++part) {
            body.put(part == parts ? "{" : ",", 1);
            good = body.quoted(part->name, part->name_length) && good;
            body.put(":");
            put_nested(body, part->type, part->data + (row + i) * part->row_bytes, part->shape + 1, part->rank - 1);
        }
        body.put("}");
    }
    if (count != 1) body.put("]");
    body.put("}");
    return good;
}

// Renders an answer in plain JSON: an object of the outputs. If the inputs had no dimension of rows, the outputs have
// none, and one value has no dimensions.
bool put_fields(TextWriter &body, const FastRequest &request, const ReplyPart *parts, int count, std::int64_t row) noexcept {
    const ModelSignature &signature = *request.signature;
    const auto rows = static_cast<std::int64_t>(request.rows);
    bool good = begin_model(body, signature.model.data(), signature.model.size(), signature.version.data(),
                            signature.version.size());
    for (const ReplyPart *part = parts; part != parts + count; ++part) {
        body.put(",");
        good = body.quoted(part->name, part->name_length) && good;
        body.put(":");
        const int dropped = request.layout.has_rows ? 0 : values_of(*part, rows) == 1 ? part->rank : 1;
        put_nested(body, part->type, part->data + row * part->row_bytes, part->shape + dropped, part->rank - dropped,
                   dropped ? -1 : rows);
    }
    body.put("}");
    return good;
}

// Renders the JSON of an answer. False if a text needs escapes.
bool put_json(TextWriter &body, const FastRequest &request, const ReplyPart *parts, int count, std::int64_t row,
              bool alone) noexcept {
    const ModelSignature &signature = *request.signature;
    const FastRequestLayout &layout = request.layout;
    const std::int64_t rows = static_cast<std::int64_t>(request.rows);
    if (layout.plain)
        return layout.plain->rows.empty() ? put_fields(body, request, parts, count, row)
                                          : put_rows(body, request, parts, count, row);
    bool good = begin_reply(body, signature.model.data(), signature.model.size(), signature.version.data(),
                            signature.version.size(),
                            reinterpret_cast<const char *>(request.body()) + layout.id_offset, layout.id_length);
    for (int i = 0; i < count && good; ++i) {
        const ReplyPart &part = parts[layout.handler_output(i)];
        good = begin_output(body, i == 0, part.name, part.name_length, part.datatype, part.datatype_length,
                            part.shape, part.rank, alone ? -1 : rows);
        if (layout.binary[i])
            end_binary_output(body, rows * part.row_bytes);
        else
            end_json_output(body, part.type, part.data + row * part.row_bytes, values_of(part, rows));
    }
    end_reply(body);
    return good;
}

// Answers one request of a batch.
void send_fast_response(FastRequest *request, const ReplyPart *parts, int part_count, std::int64_t row,
                 bool alone, const ReplyStage *stages, int stage_count) noexcept {
    if (request->answers) {
        request->answers->send(request, parts, part_count, row, alone);
        return;
    }
    const FastRequestLayout &layout = request->layout;
    AnswerSender *sender = request->sender;
    Connection *connection = sender->take_turn(request->turn);
    if (!connection) return;
    char room[FAST_RESPONSE_BYTES], fields_room[FAST_RESPONSE_FIELDS_BYTES];
    TextWriter body(room, sizeof room), fields(fields_room, sizeof fields_room);
    const int count = layout.wanted_count ? layout.wanted_count : part_count;
    const std::int64_t rows = static_cast<std::int64_t>(request->rows);
    const bool good = put_json(body, *request, parts, count, row, alone);
    if (std::any_of(layout.binary, layout.binary + count, [](bool binary) { return binary; }))
        begin_fields(fields, body.length());
    else
        begin_json_fields(fields);
    fields.put("server-timing: queue;dur=");
    fields.milliseconds(request->queued_ns(stages[0].nanoseconds));
    for (int i = 0; i < stage_count; ++i)
        put_stage(fields, false, stages[i].name, stages[i].length, stages[i].nanoseconds);
    for (int i = 0; i < count; ++i) {
        const ReplyPart &part = parts[layout.handler_output(i)];
        if (!layout.binary[i]) continue;
        body.put(reinterpret_cast<const char *>(part.data) + row * part.row_bytes,
                 static_cast<std::size_t>(rows * part.row_bytes));
    }
    end_fields(fields, true, body.length());
    static constexpr char line[] = "200 OK";
    const bool fits = good && !body.full() && !fields.full();
    if (fits && sender->put(connection, 200, line, sizeof line - 1, fields.text(), fields.length(), body.text(),
                            body.length())) {
        sender->send(connection, nullptr);
    } else {
        sender->send_prepared(connection, ANSWER_FAILED);
    }
}

}  // namespace

bool set_row_bytes(ReplyPart *part, std::uint64_t nbytes, std::uint64_t rows, bool alone) noexcept {
    if (!alone && (part->rank == 0 || static_cast<std::uint64_t>(part->shape[0]) != rows)) return false;
    part->row_bytes = static_cast<std::int64_t>(nbytes / rows);
    return static_cast<std::uint64_t>(part->row_bytes) * rows == nbytes;
}

bool answer_batch(Queue *queue, Sums *sums, Request **requests, std::size_t count, unsigned char *won,
                  const FastReply &reply) noexcept {
    if (reply.part_count == 0) return false;
    std::unique_ptr<CutParts[]> cuts;
    const bool cut_back = cuts_answers(*fast(requests[0])->signature);
    if (cut_back) {
        cuts.reset(new (std::nothrow) CutParts[count]);
        if (!cuts) return false;
    }
    std::int64_t row = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const FastRequest &request = *fast(requests[i]);
        if (cut_back && !cuts[i].cut(request, reply.parts, reply.part_count, row)) return false;
        if (!fits_fast_response(request, cut_back ? cuts[i].parts() : reply.parts, reply.part_count,
                                cut_back ? 0 : row, cut_back || count == 1))
            return false;
        row += request.rows;
    }

    // All answers fit: from here on the batch is answered here, and not by Python.
    // `finish` marks in `won` the requests that had not ended yet. This thread must answer these.
    queue->finish(requests, count, won);
    // Count before sending, because a client that has its answer may read the statistics.
    sums->note_answered(requests, count, won, times_of(reply));
    row = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t first = row;
        row += requests[i]->rows;
        if (!won[i]) continue;
        send_fast_response(fast(requests[i]), cut_back ? cuts[i].parts() : reply.parts, reply.part_count,
                           cut_back ? 0 : first, cut_back || count == 1, reply.stages, reply.stage_count);
        publish(requests[i]);
    }
    for (std::size_t i = 0; i < count; ++i)
        if (won[i]) release(requests[i]);
    return true;
}

}  // namespace ksrv
