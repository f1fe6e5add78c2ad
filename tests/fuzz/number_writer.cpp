// libFuzzer harness of native/json/number_writer.hpp.
//
// The first byte chooses the datatype. The written text must fit into the announced bytes, and read back as the
// same values, bit for bit, unless there is a NaN or an infinity among them.

#include <cstring>
#include <vector>

#include "json/number_array.hpp"
#include "json/number_writer.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 1) return 0;
    const auto datatype = static_cast<ksrv::Datatype>(data[0] % ksrv::DT_COUNT);
    const std::size_t width = ksrv::json_value_bytes(datatype);
    if (width == 0) return 0;
    std::vector<unsigned char> values(data + 1, data + size);
    if (datatype == ksrv::DT_BOOL)
        for (unsigned char &value : values) value &= 1;
    const std::size_t count = values.size() / ksrv::item_size_of(datatype);
    std::vector<char> text(count * width + 2);
    ksrv::TextWriter out(text.data(), text.size());
    ksrv::put_numbers(out, datatype, values.data(), count);
    require(!out.full());
    if (!ksrv::all_finite(datatype, values.data(), count)) return 0;
    std::vector<std::uint64_t> again(count + 1);
    ksrv::NumbersResult result;
    require(ksrv::read_numbers(out.text(), out.length(), datatype, again.data(), count, &result) ==
            ksrv::NUMBERS_OK);
    require(result.count == count);
    require(count == 0 || std::memcmp(again.data(), values.data(), count * ksrv::item_size_of(datatype)) == 0);
    return 0;
}
