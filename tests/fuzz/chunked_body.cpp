// libFuzzer harness of native/http/chunked_body.hpp: the look at a chunked body, and its copy.
//
// The first byte chooses how the bytes are cut into reads. What is found must not depend on the cuts, a whole
// body must be what a naive reader makes of it, and nothing is read beyond what has come.

#include <cstdlib>
#include <string>
#include <vector>

#include "http/chunked_body.hpp"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

// The contents of a body whose framing is right; `end` is behind it.
std::string plain_reading(const std::string &body, std::size_t *end) {
    std::string contents;
    for (std::size_t at = 0;;) {
        const std::size_t line = body.find("\r\n", at);
        require(line != std::string::npos && line > at && line - at <= 8);
        const std::string digits = body.substr(at, line - at);
        require(digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos);
        const std::size_t size = std::strtoul(digits.c_str(), nullptr, 16);
        require(body.compare(line + 2 + size, 2, "\r\n") == 0);
        *end = at = line + 2 + size + 2;
        if (size == 0) return contents;
        contents += body.substr(line + 2, size);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t step = 1 + (data[0] & 31), most_chunks = 1 + (data[0] >> 5), most_bytes = 64;
    const std::vector<unsigned char> all(data + 1, data + size);
    ksrv::ChunkedBody whole, cut;
    const ksrv::Chunks at_once =
        ksrv::look_at_chunks(all.data(), all.size(), most_chunks, most_bytes, &whole);
    ksrv::Chunks found = ksrv::Chunks::incomplete;
    for (std::size_t filled = 0; filled < all.size() && found == ksrv::Chunks::incomplete;) {
        filled = filled + step < all.size() ? filled + step : all.size();
        // A copy of exactly this size, so that a read beyond its end is seen.
        const std::vector<unsigned char> read(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(filled));
        found = ksrv::look_at_chunks(read.data(), filled, most_chunks, most_bytes, &cut);
    }
    require(found == at_once && cut.at == whole.at && cut.decoded == whole.decoded);
    if (at_once != ksrv::Chunks::whole) return 0;
    require(whole.at <= all.size() && whole.decoded <= most_bytes && whole.chunks <= most_chunks);
    std::size_t end = 0;
    const std::string contents = plain_reading({all.begin(), all.end()}, &end);
    require(end == whole.at && contents.size() == whole.decoded);
    const std::vector<unsigned char> exactly(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(whole.at));
    std::vector<unsigned char> copied(whole.decoded);
    ksrv::copy_chunks(exactly.data(), copied.data());
    require(std::string(copied.begin(), copied.end()) == contents);
    return 0;
}
