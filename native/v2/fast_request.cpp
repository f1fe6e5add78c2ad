#include "v2/fast_request.hpp"

#include "v2/infer_header_reader.hpp"
#include "v2/tensor_blocks.hpp"

namespace ksrv {

namespace {

bool fast_input(const InferHeader &header, const InputHeader &input, const InputSignature &declared,
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

bool fast_outputs(const InferHeader &header, const ModelSignature &signature,
                  FastRequestLayout *layout) noexcept {
    const std::size_t count = header.outputs.size();
    if (count == 0) return header.binary_output == 1;
    if (count > FAST_OUTPUTS) return false;
    for (std::size_t i = 0; i < count; ++i) {
        const OutputHeader &output = header.outputs[i];
        if (output.classification != 0 || output.shared.given || output.parameters_count != 0 ||
            (output.binary < 0 ? header.binary_output : output.binary) != 1)
            return false;
        std::size_t place = 0;
        while (place < signature.outputs.size() &&
               !output.name.is(signature.outputs[place].data(), signature.outputs[place].size()))
            ++place;
        if (place == signature.outputs.size() || place > 255) return false;
        layout->wanted[i] = static_cast<std::uint8_t>(place);
    }
    layout->wanted_count = static_cast<std::uint8_t>(count);
    return true;
}

}  // namespace

bool read_fast_request(const ModelSignature &signature, const unsigned char *body, std::size_t body_length,
                std::size_t json_length, FastRequestLayout *layout) noexcept {
    if (json_length == 0 || json_length >= body_length || json_length > signature.json_limit) return false;
    InferHeader header;
    HeaderFault fault;
    const char *text = reinterpret_cast<const char *>(body);
    if (scan_infer_header(text, json_length, signature.limits, &header, &fault) != HEADER_OK ||
        split_blocks(&header, json_length, body_length, &fault) != HEADER_OK ||
        header.inputs.size() != signature.inputs.size() || header.parameters_count != 0 ||
        header.priority != 0 || header.mark_final > 0)
        return false;
    std::int64_t rows = -1;
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
        const InputHeader &input = header.inputs[i];
        if (!fast_input(header, input, signature.inputs[i], body)) return false;
        const std::int64_t first = header.shapes[input.shape_first];
        if (rows >= 0 && rows != first) return false;
        rows = first;
        layout->offsets[i] = input.offset;
    }
    if (rows < 1 || rows > INT32_MAX) return false;
    if (signature.max_rows && static_cast<std::uint64_t>(rows) > signature.max_rows) return false;
    if (!fast_outputs(header, signature, layout)) return false;
    if (header.id.length) {
        if (header.id.data < text || header.id.data >= text + json_length) return false;  // unescaped
        layout->id_offset = static_cast<std::size_t>(header.id.data - text);
        layout->id_length = header.id.length;
    }
    layout->rows = static_cast<std::uint32_t>(rows);
    layout->timeout_us = header.timeout_us;
    return true;
}

}  // namespace ksrv
