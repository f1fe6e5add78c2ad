// libFuzzer harness of native/http/proxy_header.hpp: by whom a proxy was connected to.
//
// The first byte chooses which versions are accepted. The verdict on a prefix may only be `incomplete` or the verdict on
// the whole, a whole header is within its bound, and bytes after it change nothing.

#include <cstring>
#include <vector>

#include "http/proxy_header.hpp"
#include "require.hpp"

namespace {

// A copy of exactly this size, so that a read beyond the end is seen.
ksrv::ProxyVerdict judge(const std::uint8_t *data, std::size_t size, ksrv::ProxyVersions accepted,
                         ksrv::ProxySource *source) {
    const std::vector<unsigned char> copy(data, data + size);
    return ksrv::read_proxy_header(copy.data(), copy.size(), accepted, source);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 1) return 0;
    const auto accepted = static_cast<ksrv::ProxyVersions>(data[0] & 3);
    ++data;
    --size;
    ksrv::ProxySource whole, part;
    const ksrv::ProxyVerdict verdict = judge(data, size, accepted, &whole);
    require((verdict == ksrv::ProxyVerdict::malformed) == (whole.fault != nullptr));
    require((verdict == ksrv::ProxyVerdict::whole) == (whole.length != 0));
    require(whole.length <= size && whole.length <= ksrv::PROXY_HEADER_MOST);
    if (verdict == ksrv::ProxyVerdict::incomplete) require(size < ksrv::PROXY_HEADER_MOST);
    for (std::size_t end = 0; end < size; end += 1 + end / 16) {
        const ksrv::ProxyVerdict early = judge(data, end, accepted, &part);
        require(early == ksrv::ProxyVerdict::incomplete || early == verdict);
        if (verdict == ksrv::ProxyVerdict::whole)
            require((early == ksrv::ProxyVerdict::whole) == (end >= whole.length));
    }
    if (verdict != ksrv::ProxyVerdict::whole) return 0;
    require(judge(data, whole.length, accepted, &part) == verdict && part.length == whole.length);
    require(std::memcmp(&part.peer, &whole.peer, sizeof part.peer) == 0 && part.names_client == whole.names_client);
    ksrv::ProxyRules rules;
    rules.trusted.push_back({{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10}, 104});
    (void)rules.trusts(whole.peer);
    return 0;
}
