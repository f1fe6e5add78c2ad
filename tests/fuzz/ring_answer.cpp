// libFuzzer target for native/process/batch_ring.hpp: what a faulty handler process leaves in its
// ring. An accepted answer names bytes of its place only, and each of its outputs has the size that
// a naive reader makes of its shape; what the worker has read does not change when the process writes on.
//
// The bytes are an answer's head from its number on; the first byte says whether the number is the right one.

#include <cstdint>
#include <cstring>

#include "base/utf8.hpp"
#include "process/batch_ring.hpp"
#include "require.hpp"

using namespace ksrv;

namespace {

void check_output(const RingOutput &output) {
    require(output.rank <= MAX_RANK && output.datatype < DT_BYTES);
    bool empty = false;
    for (int axis = 0; axis < output.rank; ++axis) {
        require(output.shape[axis] >= 0);
        if (output.shape[axis] == 0) empty = true;
    }
    std::uint64_t nbytes = empty ? 0 : item_size_of(static_cast<Datatype>(output.datatype));
    for (int axis = 0; axis < output.rank && !empty; ++axis) {
        require(output.shape[axis] <= static_cast<std::int64_t>(RING_ANSWER_BYTES));
        nbytes *= static_cast<std::uint64_t>(output.shape[axis]);
        require(nbytes <= RING_ANSWER_BYTES);
    }
    require(nbytes == output.nbytes);
    require(output.offset <= RING_ANSWER_BYTES && output.nbytes <= RING_ANSWER_BYTES - output.offset);
    require(output.name_length >= 1 && output.name_length <= RING_NAME);
    require(is_utf8(reinterpret_cast<const unsigned char *>(output.name), output.name_length));
}

void check_stage(const RingStage &stage) {
    const void *end = std::memchr(stage.name, '\0', RING_STAGE_NAME);
    require(end != nullptr && end != stage.name);
    for (const char *c = stage.name; *c != '\0'; ++c)
        require(std::strchr(" \t\r\n:,\"", *c) == nullptr);  // it becomes a part of a header line
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static Ring *const ring = Ring::make();
    static std::uint64_t number = 0;
    require(ring != nullptr);
    ++number;
    unsigned char *place = ring->answer(number);
    std::memset(place, 0, sizeof(RingAnswer));
    if (size == 0) return 0;
    const bool right = data[0] % 16 != 0;
    if (size - 1 > RING_ANSWER_HEAD) size = RING_ANSWER_HEAD + 1;
    std::memcpy(place, data + 1, size - 1);
    if (right) std::memcpy(place, &number, sizeof number);
    RingAnswer answer;
    const char *const fault = ring->read_answer(number, &answer);
    std::memset(place, 0xff, RING_ANSWER_HEAD);
    if (fault != nullptr) return 0;
    require(answer.number == number);
    if (answer.form == RING_ON_CHANNEL) return 0;
    require(answer.outputs <= RING_OUTPUTS && answer.stages <= RING_STAGES);
    for (std::uint32_t i = 0; i < answer.outputs; ++i) check_output(answer.output[i]);
    for (std::uint32_t i = 0; i < answer.stages; ++i) check_stage(answer.stage[i]);
    return 0;
}
