// Which infer requests need no Python before their handler.
//
// Strategy: the header is read by the one reader that every route has, and what was read is compared
// with what the model declares. A request is plain when nothing about it is left to decide: binary
// inputs of the declared names, datatypes and shapes, aligned, in the declared order; binary outputs
// that the model has; no parameters but those that say so, and a timeout. Everything else, wrong
// requests above all, is left to the general way, which says what is wrong with them.

#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "v2/tensor_blocks.hpp"
#include "v2/infer_header_reader.hpp"

namespace ksrv {

class Queue;

constexpr std::size_t PLAIN_INPUTS = 4;
constexpr std::size_t PLAIN_OUTPUTS = 8;

struct PlainInput {
    std::string name;
    Datatype datatype = DT_INVALID;
    std::vector<std::int64_t> tail;  // the dimensions behind the first, all of them fixed
    std::uint64_t row_bytes = 0;
};

// What a door knows of one version of a model. It is counted: the gates and each request hold it.
struct Plan {
    std::atomic<long> refs{1};
    Queue *queue = nullptr;  // held by whoever made the plan
    void *lane = nullptr;    // the Python object behind it, which outlives the plan's other holders
    std::string model, version;
    std::vector<PlainInput> inputs;
    std::vector<std::string> outputs;  // none where the model declares none
    std::uint64_t max_rows = 0;        // of a batch; 0: requests are not joined
    std::int64_t timeout_ns = 0;       // 0: none
    HeaderLimits limits;
    std::size_t json_limit = 0;
    // The answer past the deadline: {prefix}{milliseconds}{waiting or running}.
    std::string late_status, late_fields, late_prefix, late_waiting, late_running;

    void retain() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }
};

struct PlainRequest {
    std::size_t id_offset = 0, id_length = 0;  // in the body
    std::uint32_t rows = 0;
    std::size_t offsets[PLAIN_INPUTS] = {};    // of the inputs, in the body
    std::uint64_t timeout_us = 0;
    std::uint8_t wanted_count = 0;             // 0: all outputs
    std::uint8_t wanted[PLAIN_OUTPUTS] = {};   // their places in Plan::outputs
};

namespace detail {

inline bool plain_input(const InferHeader &header, const InputHeader &input, const PlainInput &declared,
                        const unsigned char *body) noexcept {
    if (input.has_data || input.shared.given || input.parameters_count != 0 ||
        input.datatype != declared.datatype || input.size_form == SIZE_LIST ||
        input.rank != declared.tail.size() + 1 ||
        !input.name.is(declared.name.data(), declared.name.size()))
        return false;
    for (std::size_t i = 0; i < declared.tail.size(); ++i)
        if (header.shapes[input.shape_first + 1 + i] != declared.tail[i]) return false;
    return input.length != 0 &&
           reinterpret_cast<std::uintptr_t>(body + input.offset) % item_size_of(input.datatype) == 0;
}

inline bool plain_outputs(const InferHeader &header, const Plan &plan, PlainRequest *request) noexcept {
    const std::size_t count = header.outputs.size();
    if (count == 0) return header.binary_output == 1;
    if (count > PLAIN_OUTPUTS) return false;
    for (std::size_t i = 0; i < count; ++i) {
        const OutputHeader &output = header.outputs[i];
        if (output.classification != 0 || output.shared.given || output.parameters_count != 0 ||
            (output.binary < 0 ? header.binary_output : output.binary) != 1)
            return false;
        std::size_t place = 0;
        while (place < plan.outputs.size() &&
               !output.name.is(plan.outputs[place].data(), plan.outputs[place].size()))
            ++place;
        if (place == plan.outputs.size() || place > 255) return false;
        request->wanted[i] = static_cast<std::uint8_t>(place);
    }
    request->wanted_count = static_cast<std::uint8_t>(count);
    return true;
}

}  // namespace detail

// Whether the body is a plain request; then `request` says where its parts are.
inline bool read_plain(const Plan &plan, const unsigned char *body, std::size_t body_length,
                       std::size_t json_length, PlainRequest *request) noexcept {
    if (json_length == 0 || json_length >= body_length || json_length > plan.json_limit) return false;
    InferHeader header;
    HeaderFault fault;
    const char *text = reinterpret_cast<const char *>(body);
    if (scan_infer_header(text, json_length, plan.limits, &header, &fault) != HEADER_OK ||
        split_blocks(&header, json_length, body_length, &fault) != HEADER_OK ||
        header.inputs.size() != plan.inputs.size() || header.parameters_count != 0 ||
        header.priority != 0 || header.mark_final > 0)
        return false;
    std::int64_t rows = -1;
    for (std::size_t i = 0; i < plan.inputs.size(); ++i) {
        const InputHeader &input = header.inputs[i];
        if (!detail::plain_input(header, input, plan.inputs[i], body)) return false;
        const std::int64_t first = header.shapes[input.shape_first];
        if (rows >= 0 && rows != first) return false;
        rows = first;
        request->offsets[i] = input.offset;
    }
    if (rows < 1 || rows > INT32_MAX) return false;
    if (plan.max_rows && static_cast<std::uint64_t>(rows) > plan.max_rows) return false;
    if (!detail::plain_outputs(header, plan, request)) return false;
    if (header.id.length) {
        if (header.id.data < text || header.id.data >= text + json_length) return false;  // unescaped
        request->id_offset = static_cast<std::size_t>(header.id.data - text);
        request->id_length = header.id.length;
    }
    request->rows = static_cast<std::uint32_t>(rows);
    request->timeout_us = header.timeout_us;
    return true;
}

}  // namespace ksrv
