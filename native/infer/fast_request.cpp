#include "infer/fast_request.hpp"

#include <cstring>

#include "json/number_array.hpp"
#include "json/number_writer.hpp"
#include "tensor/bytes_tensor.hpp"
#include "infer/infer_header_reader.hpp"
#include "infer/plain_request.hpp"

namespace ksrv {

namespace {

// The functions below fill `layout`, and return false if Python must handle the request. `index` is the index of the
// declared input, which is also the index in the layout's arrays.

// Whether an input has the declared datatype and shape, and no parameters.
bool is_declared(const InferHeader &header, const InputHeader &input, const InputSignature &declared,
                 std::size_t index, FastRequestLayout *layout) noexcept {
    return input.parameters.count == 0 && input.datatype == declared.datatype &&
           input.size_form != SIZE_LIST && input.nbytes != 0 &&
           take_shape(declared, index, header.shapes.data() + input.shape_first, input.rank, layout);
}

// Whether an input consists of BYTES after the JSON, with one image per row.
bool holds_images(const InferHeader &header, const InputHeader &input) noexcept {
    return !input.has_data && input.parameters.count == 0 &&
           (input.rank == 1 || (input.rank == 2 && header.shapes[input.shape_first + 1] == 1));
}

bool take_input_images(const InferHeader &header, const InputHeader &input, const ModelSignature &signature,
                       const unsigned char *body, std::size_t index, FastRequestLayout *layout) noexcept {
    const bool listed = input.size_form == SIZE_LIST;
    return take_image_elements(signature, body, index, input.offset, input.length,
                               header.shapes[input.shape_first],
                               listed ? header.sizes.data() + input.sizes_first : nullptr, layout);
}

// Takes an input whose values are binary in the body. Bytes of BOOL must be 0 or 1.
bool take_binary(const InputHeader &input, const unsigned char *body, std::size_t index,
                 FastRequestLayout *layout) noexcept {
    if (input.length != input.nbytes) return false;
    place_binary(body, input.offset, input.length, item_size_of(input.datatype), index, layout);
    return input.datatype != DT_BOOL || find_not_bool(body + input.offset, input.length) == input.length;
}

// Takes an input whose values are JSON numbers. `copy_inputs` parses them later.
bool take_numbers(const InputHeader &input, const unsigned char *body, std::size_t index,
                  FastRequestLayout *layout) noexcept {
    const std::size_t text = input.data_end - input.data_begin;
    // Each number needs at least a digit and a comma or bracket, so that the text justifies the memory.
    if (input.elements > text / 2 || json_value_bytes(input.datatype) == 0) return false;
    reserve_copy(body, index, {input.data_begin, input.data_end, true}, static_cast<std::size_t>(input.nbytes), layout);
    return true;
}

bool take_inputs(const InferHeader &header, const ModelSignature &signature, const unsigned char *body,
                 FastRequestLayout *layout) noexcept {
    const std::size_t count = signature.inputs.size();
    if (header.inputs.size() > count) return false;
    for (std::size_t i = 0; i < header.inputs.size(); ++i) {
        const InputHeader &input = header.inputs[i];
        std::size_t index = 0;  // input names of a request are unique
        while (index < count && input.name != signature.inputs[index].name) ++index;
        if (index == count) return false;
        const bool images = input.datatype == DT_BYTES && signature.inputs[index].images.accepted;
        if (!(images ? holds_images(header, input)
                     : is_declared(header, input, signature.inputs[index], index, layout)))
            return false;
        layout->given[index] = true;
        const std::int64_t rows = header.shapes[input.shape_first];
        if (i != 0 && rows != layout->rows) return false;
        if (rows < 1 || rows > INT32_MAX) return false;
        layout->rows = static_cast<std::uint32_t>(rows);
        if (!(images           ? take_input_images(header, input, signature, body, index, layout)
              : input.has_data ? take_numbers(input, body, index, layout)
                               : take_binary(input, body, index, layout)))
            return false;
    }
    return has_inputs(signature, *layout);
}

// Takes the request's parameters. False if one of them needs Python.
bool take_parameters(const InferHeader &header, FastRequestLayout *layout) noexcept {
    for (std::size_t i = 0; i < header.request_parameters.count; ++i) {
        const Parameter &parameter = header.parameters[header.request_parameters.first + i];
        const bool is_unsigned = parameter.kind == PARAM_INT && parameter.integer >= 0;
        if (is(parameter.key, "binary_data_output") && parameter.kind == PARAM_BOOL) {
            std::memset(layout->binary, parameter.integer == 1, sizeof layout->binary);
        } else if (is(parameter.key, "timeout") && is_unsigned) {
            layout->timeout_us = static_cast<std::uint64_t>(parameter.integer);
        } else if (is(parameter.key, "priority") && is_unsigned && parameter.integer <= UINT32_MAX) {
            layout->priority = static_cast<std::uint32_t>(parameter.integer);
        } else {
            return false;
        }
    }
    return true;
}

bool take_outputs(const InferHeader &header, const ModelSignature &signature, FastRequestLayout *layout) noexcept {
    const std::size_t count = header.outputs.size();
    if (count > FAST_OUTPUTS) return false;
    for (std::size_t i = 0; i < count; ++i) {
        const OutputHeader &output = header.outputs[i];
        std::size_t index = 0;
        while (index < signature.outputs.size() && output.name != signature.outputs[index]) ++index;
        if (index == signature.outputs.size() || index > 255) return false;
        layout->wanted[i] = static_cast<std::uint8_t>(index);
        for (std::size_t j = 0; j < output.parameters.count; ++j) {
            const Parameter &parameter = header.parameters[output.parameters.first + j];
            if (!is(parameter.key, "binary_data") || parameter.kind != PARAM_BOOL) return false;
            layout->binary[i] = parameter.integer == 1;
        }
    }
    layout->wanted_count = static_cast<std::uint8_t>(count);
    return true;
}

}  // namespace

void reserve_copy(const unsigned char *body, std::size_t index, const CopiedValues &values, std::size_t nbytes,
                  FastRequestLayout *layout) noexcept {
    layout->copied[index] = values;
    // To the next multiple of 64 bytes.
    layout->length += (0 - reinterpret_cast<std::uintptr_t>(body + layout->length)) & 63;
    layout->offsets[index] = layout->length;
    layout->length += nbytes;
}

bool read_fast_request(const ModelSignature &signature, const unsigned char *body, std::size_t body_length,
                       std::size_t json_length, FastRequestLayout *layout) noexcept {
    if (json_length == 0 || json_length > body_length || json_length > signature.json_limit) return false;
    InferHeader header;
    HeaderFault fault;
    const char *text = reinterpret_cast<const char *>(body);
    if (read_infer_header(text, json_length, body_length, signature.limits, &header, &fault) != HEADER_OK ||
        !take_parameters(header, layout))
        return false;
    layout->length = body_length;
    if (!take_inputs(header, signature, body, layout)) return false;
    if (signature.max_rows && layout->rows > signature.max_rows) return false;
    if (!take_outputs(header, signature, layout)) return false;
    if (!header.id.empty()) {
        if (header.id.data() < text || header.id.data() >= text + json_length) return false;  // an id with escapes
        layout->id_offset = static_cast<std::size_t>(header.id.data() - text);
        layout->id_length = header.id.size();
    }
    return true;
}

void place_binary(const unsigned char *body, std::size_t offset, std::size_t length, std::size_t item,
                  std::size_t index, FastRequestLayout *layout) noexcept {
    if (reinterpret_cast<std::uintptr_t>(body + offset) % item == 0) {
        layout->offsets[index] = offset;
    } else {
        reserve_copy(body, index, {offset, offset + length, false}, length, layout);
    }
}

bool take_shape(const InputSignature &declared, std::size_t index, const std::int64_t *shape, std::size_t rank,
                FastRequestLayout *layout) noexcept {
    if (rank != declared.tail.size() + 1) return false;
    for (std::size_t i = 0; i < declared.tail.size(); ++i) {
        const std::int64_t size = shape[i + 1];
        if (size == declared.tail[i]) continue;
        if (declared.tail[i] != -1 || size < 1) return false;
        const auto length = static_cast<std::uint64_t>(size);
        if (layout->row_length != 0 && layout->row_length != length) return false;
        layout->row_length = length;
    }
    layout->given[index] = true;
    return true;
}

bool has_inputs(const ModelSignature &signature, const FastRequestLayout &layout) noexcept {
    for (std::size_t i = 0; i < signature.inputs.size(); ++i)
        if (!layout.given[i] && !signature.inputs[i].made) return false;
    return layout.rows > 0 && (!signature.lengths || layout.row_length > 0);
}

// The number after the bucket, which FIRST_LENGTH_KEY explains, is 0 for requests of the fast path.
std::uint64_t batch_key_of(const ModelSignature &signature, const FastRequestLayout &layout) noexcept {
    return signature.lengths ? FIRST_LENGTH_KEY + 4 * signature.lengths->bucket(layout.row_length) : 0;
}

bool needs_padding(const ModelSignature &signature, const FastRequestLayout &layout) noexcept {
    if (!signature.lengths) return false;
    for (std::size_t i = 0; i < signature.inputs.size(); ++i)
        if (!layout.given[i]) return true;
    return signature.lengths->padded(layout.row_length) != layout.row_length;
}

RowSource source_of(const FastRequestLayout &layout, const unsigned char *body, std::size_t index) noexcept {
    RowSource source;
    source.images = layout.images[index].get();
    if (source.images)
        source.data = body;
    else if (layout.given[index])
        source.data = body + layout.offsets[index];
    source.rows = layout.rows;
    source.row_length = layout.row_length;
    return source;
}

void copy_rows(const InputSignature &declared, const RowSource &source, std::uint64_t row_length,
               unsigned char *to) noexcept {
    const std::size_t item = item_size_of(declared.datatype);
    if (!source.data) {
        const std::uint64_t padded = declared.tail[0] == -1 ? row_length : static_cast<std::uint64_t>(declared.tail[0]);
        fill_mask(to, static_cast<std::int64_t>(source.rows), source.row_length, padded, declared.one,
                  declared.padding, item);
        return;
    }
    if (!declared.padded) {
        std::memcpy(to, source.data, source.rows * declared.row_bytes);
        return;
    }
    std::int64_t from_shape[MAX_RANK], to_shape[MAX_RANK];
    from_shape[0] = to_shape[0] = static_cast<std::int64_t>(source.rows);
    for (std::size_t i = 0; i < declared.tail.size(); ++i) {
        const std::int64_t size = declared.tail[i];
        from_shape[i + 1] = source.tail  ? source.tail[i]
                            : size == -1 ? static_cast<std::int64_t>(source.row_length)
                                         : size;
        to_shape[i + 1] = size == -1 ? static_cast<std::int64_t>(row_length) : size;
    }
    copy_padded(source.data, from_shape, to, to_shape, declared.tail.size() + 1, declared.padding, item);
}

bool take_image_elements(const ModelSignature &signature, const unsigned char *body, std::size_t index,
                         std::size_t offset, std::size_t length, std::int64_t count, const std::uint64_t *sizes,
                         FastRequestLayout *layout) noexcept {
    if (count < 1) return false;
    ElementFault fault;
    const BytesForm form =
        sizes ? BYTES_BARE : bytes_form(body + offset, length, static_cast<std::uint64_t>(count), true, &fault);
    if (form == BYTES_INVALID) return false;
    std::size_t at = offset;
    const std::size_t end = offset + length;
    const auto next = [&](std::size_t i, std::size_t *where, std::size_t *nbytes) {
        std::uint64_t size = sizes ? sizes[i] : length;
        if (form == BYTES_PREFIXED) {
            size = element_length(body + at);  // `walk_prefixed` has checked it
            at += PREFIX_BYTES;
        }
        if (size > end - at) return false;
        *where = at;
        *nbytes = static_cast<std::size_t>(size);
        at += *nbytes;
        return true;
    };
    return take_images(signature, body, index, count, layout, next) && at == end;
}

bool copy_inputs(const ModelSignature &signature, const FastRequestLayout &layout, unsigned char *body) noexcept {
    if (layout.plain) return copy_plain_inputs(signature, layout, body);
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
        const CopiedValues &values = layout.copied[i];
        if (!values.numbers) {  // copies nothing if the input is used in place, because begin equals end
            std::memcpy(body + layout.offsets[i], body + values.begin, values.end - values.begin);
            continue;
        }
        const InputSignature &declared = signature.inputs[i];
        const std::uint64_t count =
            layout.rows * (declared.bytes_of_row(layout.row_length) / item_size_of(declared.datatype));
        NumbersResult result;
        const char *text = reinterpret_cast<const char *>(body) + values.begin;
        if (read_numbers(text, values.end - values.begin, declared.datatype, body + layout.offsets[i], count,
                         &result) != NUMBERS_OK ||
            result.count != count)
            return false;
    }
    return true;
}

}  // namespace ksrv
