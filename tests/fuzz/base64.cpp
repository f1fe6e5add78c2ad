// libFuzzer harness of native/json/base64.hpp: what is accepted fills exactly the memory that was asked for, and a fault
// is at a group of four.

#include <cstdint>
#include <cstring>
#include <memory>

#include "json/base64.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    // Copies of the exact sizes, so that the sanitizer sees one byte too many.
    std::unique_ptr<unsigned char[]> text(new unsigned char[size]);
    if (size) std::memcpy(text.get(), data, size);
    std::size_t decoded = 0;
    if (!ksrv::base64_decoded_size(text.get(), size, &decoded)) {
        require(size % 4 != 0);
        return 0;
    }
    std::unique_ptr<unsigned char[]> out(new unsigned char[decoded]);
    const std::size_t end = ksrv::decode_base64(text.get(), size, out.get());
    require(end == size || (end < size && end % 4 == 0));
    return 0;
}
