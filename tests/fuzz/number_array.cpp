// libFuzzer harness of native/json/number_array.hpp.
//
// The first byte chooses the datatype, the second the capacity. Accepted numbers are read again with
// another capacity and must give the same count and the same values; a real number must be what
// strtod reads.

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "json/number_array.hpp"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

// Compares FP64 values with strtod, token by token.
void check_reals(const std::vector<char> &text, const std::vector<double> &values) {
    std::size_t index = 0;
    for (std::size_t i = 0; i < text.size();) {
        const std::string separators = "[], \t\r\n";
        if (separators.find(text[i]) != std::string::npos) {
            ++i;
            continue;
        }
        std::size_t end = i;
        while (end < text.size() && separators.find(text[end]) == std::string::npos) ++end;
        const double expected = std::strtod(std::string(&text[i], end - i).c_str(), nullptr);
        const double got = values.at(index++);
        require(got == expected || (std::isnan(got) && std::isnan(expected)));
        require(std::signbit(got) == std::signbit(expected) || std::isnan(got));
        i = end;
    }
    require(index == values.size());
}

}  // namespace

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
    if (datatype != ksrv::DT_FP64) return 0;
    std::vector<double> values(result.count + 1);
    ksrv::NumbersResult again;
    require(ksrv::read_numbers(text.data(), text.size(), datatype, values.data(), result.count,
                               &again) == ksrv::NUMBERS_OK);
    require(again.count == result.count);
    values.resize(result.count);
    check_reals(text, values);
    return 0;
}
