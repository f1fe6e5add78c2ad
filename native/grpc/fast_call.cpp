// Reads a ModelInferRequest without Python, and writes the answer as a ModelInferResponse.
//
// The functions are in the order of their use: `read_message` compares a scanned message with the signature; `ANSWERS`
// are the functions that the queue calls for the answer; `make_fast_call` at the end uses both.

#include "grpc/fast_call.hpp"

#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "grpc/connection.hpp"
#include "grpc/server.hpp"

namespace ksrv::grpc {

namespace {

constexpr size_t TENSOR_BYTES = 65536;  // limit for the copied tensors of an answer
constexpr size_t ID_BYTES = 4096;  // limit for the request's id, which the answer repeats
constexpr size_t PARAMETERS = 1;  // limit for a call's parameters: one may be present that does not affect the answer

Call *call_of(const FastRequest &request) noexcept { return static_cast<Call *>(request.call); }

bool is(const unsigned char *body, const protobuf::Span &span, std::string_view text) noexcept {
    return span.length == text.size() && memcmp(body + span.offset, text.data(), text.size()) == 0;
}

// Whether a parameter is about the responses of a stream. perf_analyzer sends it with every call.
bool is_about_streams(const unsigned char *body, const message::Parameter &given) noexcept {
    return given.choice == message::BOOL_PARAM && is(body, given.key, "triton_enable_empty_final_response");
}

// Finds the images in `bytes_contents`, one per row.
bool find_images(const message::Input &input, const unsigned char *body, size_t place,
                 const ModelSignature &signature, FastRequestLayout *layout) noexcept {
    if (input.fields != 1u << message::BYTES_CONTENTS || input.elements != layout->rows) return false;
    size_t at = input.contents.offset;
    const size_t end = at + input.contents.length;
    return take_images(signature, body, place, layout->rows, layout,
                       [&](size_t, size_t *offset, size_t *length) {
                           protobuf::Span element;
                           if (!message::next_element(body, &at, end, &element)) return false;
                           *offset = element.offset;
                           *length = element.length;
                           return true;
                       });
}

// Checks the input at `index` of a message, and stores where its tensor is. False leaves the message to Python, as in
// the functions below. `place` is the index of the input in the model's signature.
bool read_input(const message::Request &found, const unsigned char *body, size_t index,
                const ModelSignature &signature, FastRequestLayout *layout) noexcept {
    const message::Input &input = found.inputs[index];
    // Whether tensors are in `contents`. Accepted only for images, because numbers would need conversion.
    const bool typed = found.raw.size() == 0;
    size_t place = 0;
    while (place < signature.inputs.size() && !is(body, input.name, signature.inputs[place].name)) ++place;
    if (place == signature.inputs.size()) return false;
    for (size_t other = 0; other < index; ++other)
        if (is(body, found.inputs[other].name, signature.inputs[place].name)) return false;
    const InputSignature &declared = signature.inputs[place];
    const bool images = input.type == DT_BYTES && declared.images.accepted;
    if (input.parameters || input.has_contents != typed || (typed && !images) || input.rank == 0) return false;
    const int64_t rows = input.shape[0];
    if (rows < 1 || rows > INT32_MAX || (index && rows != layout->rows)) return false;
    layout->rows = static_cast<uint32_t>(rows);
    if (images && !(input.rank == 1 || (input.rank == 2 && input.shape[1] == 1))) return false;
    layout->given[place] = true;
    if (typed) return find_images(input, body, place, signature, layout);
    const protobuf::Span &raw = found.raw[index];
    if (images) return take_image_elements(signature, body, place, raw.offset, raw.length, rows, nullptr, layout);
    if (declared.datatype == DT_BOOL || input.type != declared.datatype ||
        !take_shape(declared, place, input.shape, input.rank, layout))
        return false;
    const unsigned __int128 length = declared.padded ? layout->row_length : 1;
    const unsigned __int128 bytes = length * declared.row_bytes * static_cast<unsigned __int128>(rows);
    if (raw.length == 0 || raw.length != bytes) return false;
    place_binary(body, raw.offset, raw.length, item_size_of(declared.datatype), place, layout);
    return true;
}

bool read_outputs(const message::Request &found, const unsigned char *body, const ModelSignature &signature,
                  FastRequestLayout *layout) noexcept {
    const size_t count = found.outputs.size();
    if (count > FAST_OUTPUTS) return false;
    for (size_t i = 0; i < count; ++i) {
        size_t place = 0;
        while (place < signature.outputs.size() && !is(body, found.outputs[i].name, signature.outputs[place]))
            ++place;
        if (found.outputs[i].parameters || place == signature.outputs.size() || place > 255) return false;
        for (size_t other = 0; other < i; ++other)
            if (layout->wanted[other] == place) return false;  // Python refuses an output that is requested twice
        layout->wanted[i] = static_cast<uint8_t>(place);
    }
    layout->wanted_count = static_cast<uint8_t>(count);
    for (bool &binary : layout->binary) binary = true;
    return true;
}

bool read_message(const message::Request &found, const unsigned char *body, const ModelSignature &signature,
                  FastRequestLayout *layout) noexcept {
    const size_t count = found.inputs.size();
    const bool all_raw = found.raw.size() == count, all_typed = found.raw.size() == 0;
    if (count > signature.inputs.size() || !(all_raw || all_typed) || found.id.length > ID_BYTES) return false;
    for (size_t i = 0; i < found.parameters.size(); ++i)
        if (!is_about_streams(body, found.parameters[i])) return false;
    for (size_t i = 0; i < count; ++i)
        if (!read_input(found, body, i, signature, layout)) return false;
    if (!has_inputs(signature, *layout)) return false;
    layout->id_offset = found.id.offset;
    layout->id_length = found.id.length;
    return (!signature.max_rows || layout->rows <= signature.max_rows) &&
           read_outputs(found, body, signature, layout);
}

// The size of the metadata in the form of an HTTP/1 head, which all readers of request headers understand.
size_t head_bytes(const Call &call) noexcept { return 2 + call.head.text.size() + 18 + call.head.request_id.length; }

void put_head(const Call &call, char *to) noexcept {
    const auto put = [&to](const char *from, size_t length) {
        memcpy(to, from, length);
        to += length;
    };
    put("\r\n", 2);
    put(call.head.text.data(), call.head.text.size());
    put("x-request-id: ", 14);
    put(call.head.request_id.text, call.head.request_id.length);
    put("\r\n\r\n", 4);
}

// Whether the answer's tensors are few enough bytes to be copied into one message here, not by Python.
bool fits(const FastRequest &request, const ReplyPart *parts, int part_count, int64_t) noexcept {
    if (!are_declared(*request.signature, parts, part_count)) return false;
    const int count = request.layout.wanted_count ? request.layout.wanted_count : part_count;
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) {
        const ReplyPart &part = parts[request.layout.handler_output(i)];
        if (part.row_bytes > static_cast<int64_t>(TENSOR_BYTES)) return false;
        bytes += request.rows * static_cast<size_t>(part.row_bytes);
    }
    return bytes <= TENSOR_BYTES;
}

// Writes the description of an output. `alone`: the request is the whole batch, so its first dimension is kept.
void put_output(protobuf::Writer &out, const ReplyPart &part, int64_t rows, bool alone) noexcept {
    protobuf::Writer entry, shape;
    entry.bytes(1, part.name, part.name_length);
    entry.bytes(2, part.datatype, part.datatype_length);
    for (int i = 0; i < part.rank; ++i)
        shape.varint(static_cast<uint64_t>(i == 0 && !alone ? rows : part.shape[i]));
    if (shape.size()) entry.bytes(3, shape.data(), shape.size());
    out.bytes(5, entry.data(), entry.size());
}

// Writes a ModelInferResponse.
bool write_response(protobuf::Writer &out, FastRequest &request, const ReplyPart *parts, int part_count, int64_t row,
                    bool alone) noexcept {
    const ModelSignature &signature = *request.signature;
    const FastRequestLayout &layout = request.layout;
    const int64_t rows = static_cast<int64_t>(request.rows);
    const int count = layout.wanted_count ? layout.wanted_count : part_count;
    if (!signature.model.empty()) out.bytes(1, signature.model.data(), signature.model.size());
    if (!signature.version.empty()) out.bytes(2, signature.version.data(), signature.version.size());
    if (layout.id_length) out.bytes(3, request.body() + layout.id_offset, layout.id_length);
    for (int i = 0; i < count; ++i) put_output(out, parts[layout.handler_output(i)], rows, alone);
    for (int i = 0; i < count; ++i) {
        const ReplyPart &part = parts[layout.handler_output(i)];
        out.bytes(6, part.data + row * part.row_bytes, static_cast<size_t>(rows * part.row_bytes));
    }
    return !out.failed();
}

// Sends the answer, and finishes the call.
void send(FastRequest *request, const ReplyPart *parts, int part_count, int64_t row, bool alone) noexcept {
    Call *call = call_of(*request);
    protobuf::Writer out;
    const bool written = call->method->form->write(out, *request, parts, part_count, row, alone);
    Payload *payload = written ? Payload::make(call->connection->server(), 1, out.size()) : nullptr;
    if (!payload) {
        fail_fast_request(request);
        return;
    }
    payload->copy(out.data(), out.size());
    payload->close();
    payload->count(call->connection->budget());
    std::string none;
    Metadata nothing;
    call->finish(OK, none, nothing, payload);
}

void finish(Call *call, int status, const char *words, size_t length) noexcept {
    std::string text;
    Metadata nothing;
    try {
        text.assign(words, length);
    } catch (const std::bad_alloc &) {
        // The status is sufficient.
    }
    call->finish(status, text, nothing);
}

void fail(FastRequest *request) noexcept {
    static constexpr char words[] = "the server failed; see its log";
    finish(call_of(*request), INTERNAL, words, sizeof words - 1);
}

void ended(FastRequest *request) noexcept {
    if (request->state.load(std::memory_order_acquire) == STATE_CANCELLED) return;  // the client is gone
    char text[LATE_BYTES];
    Call *call = call_of(*request);
    call->connection->server()->count(ServerCounter::late);
    finish(call, DEADLINE_EXCEEDED, text, put_late_text(*request, text));
}

void freed(FastRequest *request) noexcept { call_of(*request)->release(); }

const FastAnswers ANSWERS = {fits, send, fail, ended, freed};

}  // namespace

const MessageForm MODEL_INFER = {message::scan, {1u << 7}, write_response};  // raw_input_contents

size_t first_tensor(const MessageForm &form, const unsigned char *message, size_t length) noexcept {
    protobuf::Cursor cursor(message, 0, length);
    const uint32_t *level = form.tensor_path;
    uint64_t field = 0, value = 0;
    unsigned type = 0, bytes = 0;
    bool odd = false;
    while (cursor.tag(&field, &type, &odd) && cursor.varint(&value, &bytes)) {
        if (type == protobuf::VARINT) continue;
        const bool leads_on = type == protobuf::BYTES && field < 32 && *level >> field & 1;
        if (leads_on && !*++level) return value ? cursor.at() : 0;
        if (!leads_on && (type != protobuf::BYTES || !cursor.advance(value))) return 0;
    }
    return 0;
}

FastRequest *make_fast_call(Call *call, const RouteTable &routes, uint64_t now) noexcept {
    Message &message = call->messages[0];
    if (!message.block) return nullptr;
    const unsigned char *body = message.block->data + message.offset;
    message::Request found;
    message::Limits limits;
    // Bounds the inputs, the outputs and the raw tensors, each by itself. `read_message` checks the exact limits.
    limits.inputs = FAST_INPUTS + FAST_OUTPUTS;
    limits.parameters = PARAMETERS;
    if (call->method->form->scan(body, message.length, limits, found) != message::OK || found.unsure) return nullptr;
    const char *text = reinterpret_cast<const char *>(body);
    const ModelRoute *route = routes.find(text + found.model_name.offset, found.model_name.length,
                                          text + found.model_version.offset, found.model_version.length);
    if (!route || !route->signature) return nullptr;
    FastRequestLayout layout;
    layout.length = message.length;
    if (!read_message(found, body, *route->signature, &layout)) return nullptr;
    // `read_message` has planned copies of tensors after the body.
    if (layout.length != message.length &&
        !extend_body(*route->signature, layout, message.offset, message.length, &message.block, &message.counted))
        return nullptr;
    FastRequest *request = new_fast_request(route->signature, head_bytes(*call));
    if (!request) return nullptr;
    call->note_model(route->signature->model, route->signature->version);
    put_head(*call, request->head());
    request->answers = &ANSWERS;
    request->call = call;
    request->reader = call->method->reader;
    call->retain();
    request->answered = call->connection->server()->fast_answered;
    request->rows = layout.rows;
    request->batch_key = batch_key_of(*route->signature, layout);
    request->layout = std::move(layout);
    request->nbytes = message.counted;
    request->reserved = true;
    request->block = message.block;
    request->body_offset = message.offset;
    request->body_length = message.length;
    const uint64_t deadline = call->head.deadline_ns, left = deadline > now ? deadline - now : 1;
    set_deadline(request, now, deadline ? left : 0);
    message = Message{};  // the request has its block and its bytes in the budget now
    return request;
}

void undo_fast_call(FastRequest *request) noexcept {
    Message &message = call_of(*request)->messages[0];
    message.block = request->block;
    message.offset = request->body_offset;
    message.length = request->body_length;
    message.counted = request->nbytes;
    request->block = nullptr;
    request->reserved = false;
    ksrv::release(request);
}

}  // namespace ksrv::grpc
