// libFuzzer harness of native/json/number_array.hpp.
//
// The first byte chooses the datatype, the second the capacity. Accepted numbers are read again with
// another capacity and must give the same count and the same values.

#include <algorithm>
#include <cstring>
#include <vector>

#include "json/number_array.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const auto datatype = static_cast<ksrv::Datatype>(data[0] % (ksrv::DT_COUNT + 1) - 1);
    const std::size_t capacity = data[1];
    const std::vector<char> text(data + 2, data + size);
    std::vector<std::uint64_t> out(capacity + 1, 0xA5A5A5A5A5A5A5A5ULL);
    ksrv::NumbersResult result;
    if (ksrv::read_numbers(text.data(), text.size(), datatype, out.data(), capacity, &result) !=
        ksrv::NUMBERS_OK) {
        require(result.offset <= text.size());
        return 0;
    }
    require(out[capacity] == 0xA5A5A5A5A5A5A5A5ULL);
    require(result.count <= text.size());
    std::vector<std::uint64_t> values(result.count + 1);
    ksrv::NumbersResult again;
    require(ksrv::read_numbers(text.data(), text.size(), datatype, values.data(), result.count, &again) == ksrv::NUMBERS_OK);
    require(again.count == result.count);
    const std::size_t kept = std::min<std::size_t>(capacity, result.count);
    require(std::memcmp(values.data(), out.data(), kept * ksrv::item_size_of(datatype)) == 0);
    return 0;
}
