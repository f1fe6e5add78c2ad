// libFuzzer harness of native/http/chunked_body.hpp: the decoder of chunked bodies.
//
// The first byte chooses how the bytes are cut into reads. The result must not depend on the cuts, and nothing is
// read beyond what has come.

#include <string>
#include <vector>

#include "http/chunked_body.hpp"
#include "require.hpp"

namespace {

constexpr std::size_t MOST_BYTES = 64;

struct Decoded {
    std::string contents;
    std::size_t at = 0;
    bool ended = false;
    ksrv::ChunkFault fault = ksrv::ChunkFault::none;
};

Decoded decode(const std::vector<unsigned char> &all, std::size_t step, std::size_t most_chunks) {
    ksrv::ChunkDecoder decoder;
    decoder.begin(most_chunks);
    decoder.most_bytes = MOST_BYTES;
    Decoded found;
    for (std::size_t filled = 0; filled < all.size();) {
        filled = filled + step < all.size() ? filled + step : all.size();
        // A copy of exactly this size, so that a read beyond its end is seen.
        const std::vector<unsigned char> read(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(filled));
        while (found.at < filled && !decoder.ended() && decoder.fault() == ksrv::ChunkFault::none) {
            found.at += decoder.read(read.data() + found.at, filled - found.at);
            std::size_t run = filled - found.at;
            if (decoder.run() < run) run = static_cast<std::size_t>(decoder.run());
            if (run == 0) continue;
            found.contents.append(reinterpret_cast<const char *>(read.data()) + found.at, run);
            decoder.take(run);
            found.at += run;
        }
    }
    require(decoder.shown_length() <= ksrv::ChunkDecoder::SHOWN);
    require(found.contents.size() <= MOST_BYTES && found.contents.size() <= decoder.announced());
    found.ended = decoder.ended();
    found.fault = decoder.fault();
    return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t step = 1 + (data[0] & 31), most_chunks = 1 + (data[0] >> 5);
    const std::vector<unsigned char> all(data + 1, data + size);
    const Decoded whole = decode(all, all.size(), most_chunks), cut = decode(all, step, most_chunks);
    require(whole.contents == cut.contents && whole.at == cut.at);
    require(whole.ended == cut.ended && whole.fault == cut.fault);
    return 0;
}
