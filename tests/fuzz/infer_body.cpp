// libFuzzer harness of native/infer/infer_header_reader.hpp: the JSON header and the tensor blocks after it.
//
// The first two bytes choose how much of the body is header. Everything that an accepted request
// points at must lie within the body, blocks must follow each other without gaps, and the counts
// must be within their limits.

#include <vector>

#include "infer/infer_header_reader.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t tail = data[0] | (data[1] & 3) << 8;
    // A copy of exactly this size, so that a read beyond the end is seen.
    const std::vector<char> json(data + 2, data + size - (tail < size - 2 ? tail : 0));
    const std::size_t body_length = size - 2;
    ksrv::HeaderLimits limits;
    limits.inputs = 16;
    limits.parameters = 16;
    limits.size_list = 32;
    ksrv::InferHeader header;
    ksrv::HeaderFault fault;
    if (ksrv::read_infer_header(json.data(), json.size(), body_length, limits, &header, &fault) != ksrv::HEADER_OK) {
        require(fault.error != ksrv::HEADER_OK && fault.offset <= body_length);
        return 0;
    }
    require(header.json_length <= json.size());
    require(header.inputs.size() <= limits.inputs && header.outputs.size() <= limits.inputs);
    require(header.decoded_length <= json.size());
    volatile char touched = 0;
    const auto touch = [&touched](std::string_view text) {
        for (char one : text) touched = one;
    };
    touch(header.id);
    for (const ksrv::Parameter &parameter : header.parameters) {
        touch(parameter.key);
        touch(parameter.text);
    }
    for (const ksrv::InputHeader &input : header.inputs) {
        touch(input.name);
        require(input.rank <= limits.rank && input.sizes_count <= limits.size_list);
        require(input.shape_first + input.rank <= header.shapes.size());
        require(input.sizes_first + input.sizes_count <= header.sizes.size());
        require(input.parameters.first + input.parameters.count <= header.parameters.size());
        if (input.has_data) {
            require(input.data_begin < input.data_end && input.data_end <= json.size());
            require(json[input.data_begin] == '[' && json[input.data_end - 1] == ']');
        }
    }
    std::size_t offset = json.size();
    for (const ksrv::InputHeader &input : header.inputs) {
        if (input.has_data || input.shared) continue;
        require(input.offset == offset && input.length <= body_length - offset);
        require(input.datatype == ksrv::DT_BYTES || input.length == input.nbytes);
        offset += input.length;
    }
    require(offset == body_length);
    return 0;
}
