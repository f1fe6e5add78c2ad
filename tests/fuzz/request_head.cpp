// libFuzzer harness of native/http/request_head.hpp: whose the bytes at the start of a connection are.
//
// The first byte chooses how the bytes are cut into reads and which limits apply. The verdict must not
// depend on the cuts, and everything that a plain head points at must lie within it.

#include <vector>

#include "http/request_head.hpp"
#include "require.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t step = 1 + (data[0] & 31);
    ksrv::HeadLimits limits;
    limits.body = 1 << 20;
    limits.fields = 16;
    limits.head = data[0] & 32 ? 256 : 16384;
    limits.compression = data[0] & 64;
    // Copies of exactly these sizes, so that a read beyond an end is seen.
    const std::vector<unsigned char> all(data + 1, data + size);
    ksrv::Head whole, cut;
    std::size_t searched = 0;
    const ksrv::Verdict at_once =
        ksrv::classify_head(all.data(), all.size(), &searched, limits, &whole);
    require(at_once != ksrv::Verdict::incomplete || searched <= all.size());
    ksrv::Verdict verdict = ksrv::Verdict::incomplete;
    searched = 0;
    for (std::size_t filled = 0; filled < all.size() && verdict == ksrv::Verdict::incomplete;) {
        filled = filled + step < all.size() ? filled + step : all.size();
        const std::vector<unsigned char> read(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(filled));
        verdict = ksrv::classify_head(read.data(), read.size(), &searched, limits, &cut);
    }
    require(verdict == at_once);
    if (at_once == ksrv::Verdict::app) {
        require(cut.length == whole.length && cut.chunked == whole.chunked);
        require(cut.content_length == whole.content_length && cut.question == whole.question);
    }
    require((at_once == ksrv::Verdict::refused) == (whole.fault != ksrv::HeadFault::none));
    if (at_once != ksrv::Verdict::native) return 0;
    require(cut.length == whole.length && cut.content_length == whole.content_length);
    require(cut.route == whole.route && cut.json_length == whole.json_length);
    require(whole.length <= all.size() && whole.length <= limits.head && whole.fields <= whole.length);
    for (const auto &text : {whole.name, whole.version, whole.authorization}) require(text.offset + text.length <= whole.length);
    return 0;
}
