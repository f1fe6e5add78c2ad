// libFuzzer target for native/protobuf/infer_request.hpp: for any bytes, every note is inside
// the message, every count inside its limit, and typed values can be walked without leaving their span.

#include <cstdint>
#include <vector>

#include "protobuf/infer_request.hpp"
#include "require.hpp"

using namespace ksrv;

namespace {

void inside(const protobuf::Span &span, std::size_t size) {
    require(span.offset <= size && span.length <= size - span.offset);
}

template <typename Wire, typename Item>
void decode(const unsigned char *data, const message::Input &input) {
    std::vector<Item> out(input.elements);
    std::int64_t value = 0;
    const std::size_t done = protobuf::decode_varints<Wire, Item>(
        data + input.packed.offset, input.elements, out.data(), &value);
    require(done <= input.elements);
}

void check_input(const unsigned char *data, std::size_t size, const message::Limits &limits,
                 const message::Request &found, const message::Input &input) {
    inside(input.name, size);
    inside(input.datatype, size);
    inside(input.contents, size);
    inside(input.packed, size);
    require(input.rank <= limits.rank);
    require(input.first_parameter + input.parameters <= found.inner_parameters.size());
    if (found.unsure || input.fields == 0 || (input.fields & (input.fields - 1))) return;
    if (input.fields == 1u << message::BYTES_CONTENTS) {
        std::size_t at = input.contents.offset;
        std::uint64_t count = 0;
        protobuf::Span element;
        while (message::next_element(data, &at, input.contents.offset + input.contents.length,
                                     &element)) {
            inside(element, size);
            ++count;
        }
        require(count == input.elements);
    } else if (input.fields < 1u << message::FP32_CONTENTS) {
        require(input.elements <= input.packed.length);
        decode<bool, std::uint8_t>(data, input);
        decode<std::int32_t, std::int8_t>(data, input);
        decode<std::int64_t, std::int64_t>(data, input);
        decode<std::uint32_t, std::uint16_t>(data, input);
        decode<std::uint64_t, std::uint64_t>(data, input);
    } else {
        require(input.elements * 4 == input.packed.length ||
                input.elements * 8 == input.packed.length);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    message::Limits limits;
    limits.inputs = 8;
    limits.parameters = 16;
    limits.text = 256;
    message::Request found;
    const message::Outcome outcome = message::scan(data, size, limits, found);
    require(found.inputs.size() <= limits.inputs);
    require(found.outputs.size() <= limits.inputs);
    require(found.raw.size() <= limits.inputs);
    require(found.parameters.size() + found.inner_parameters.size() <= limits.parameters);
    if (outcome != message::OK) {
        require(outcome != message::MALFORMED || found.failed_at <= size);
        return 0;
    }
    inside(found.model_name, size);
    inside(found.model_version, size);
    inside(found.id, size);
    for (std::size_t i = 0; i < found.parameters.size(); ++i) {
        inside(found.parameters[i].key, size);
        inside(found.parameters[i].text, size);
    }
    for (std::size_t i = 0; i < found.raw.size(); ++i) inside(found.raw[i], size);
    for (std::size_t i = 0; i < found.outputs.size(); ++i) inside(found.outputs[i].name, size);
    for (std::size_t i = 0; i < found.inputs.size(); ++i)
        check_input(data, size, limits, found, found.inputs[i]);
    return 0;
}
