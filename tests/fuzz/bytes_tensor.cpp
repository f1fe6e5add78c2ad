// libFuzzer harness of native/tensor/bytes_tensor.hpp.
//
// The first two bytes choose the element count and whether the input takes images; the rest is the
// buffer. A naive reader reads each accepted buffer again, and must see the same elements.

#include <cstdlib>
#include <vector>

#include "tensor/bytes_tensor.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::uint64_t count = data[0] == 255 ? UINT64_MAX : data[0];
    const bool is_image = data[1] & 1;
    // A copy of exactly this size, so that a read beyond the end is seen.
    const std::vector<unsigned char> buffer(data + 2, data + size);
    ksrv::ElementFault fault;
    const ksrv::BytesForm form =
        ksrv::bytes_form(buffer.data(), buffer.size(), count, is_image, &fault);
    std::size_t offset = 0;
    std::uint64_t found = 0;
    while (found < count && buffer.size() - offset >= ksrv::PREFIX_BYTES) {
        const std::uint32_t length = ksrv::element_length(buffer.data() + offset);
        if (length > buffer.size() - offset - ksrv::PREFIX_BYTES) break;
        offset += ksrv::PREFIX_BYTES + length;
        ++found;
    }
    const bool walks = found == count && offset == buffer.size();
    if (form == ksrv::BYTES_PREFIXED && !walks) std::abort();
    if (form == ksrv::BYTES_INVALID && (walks || (is_image && count == 1))) std::abort();
    if (form == ksrv::BYTES_BARE && !(is_image && count == 1)) std::abort();
    if (form == ksrv::BYTES_INVALID && fault.offset > buffer.size()) std::abort();
    return 0;
}
