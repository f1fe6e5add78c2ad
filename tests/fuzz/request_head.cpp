// libFuzzer harness of native/http/request_head.hpp: whose the bytes at the start of a connection are.
//
// The first byte chooses how the bytes are cut into reads and which limits apply. The verdict must not
// depend on the cuts, a plain head must be one that a naive reader calls plain in the points that
// framing rests on, and everything that it points at must lie within it.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "http/request_head.hpp"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

std::string lower(std::string text) {
    for (char &c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    return text;
}

std::string without_blanks(std::string text) {
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.pop_back();
    text.erase(0, std::min(text.find_first_not_of(" \t"), text.size()));
    return text;
}

// The values of a field, by the plainest reading of a head whose lines end in CRLF.
std::vector<std::string> values(const std::string &head, const std::string &wanted) {
    std::vector<std::string> found;
    std::size_t at = head.find("\r\n") + 2;
    while (at < head.size()) {
        const std::size_t end = head.find("\r\n", at);
        const std::string line = head.substr(at, end - at);
        const std::size_t colon = line.find(':');
        if (colon != std::string::npos && lower(line.substr(0, colon)) == wanted) {
            std::string value = line.substr(colon + 1);
            if (!value.empty() && value[0] == ' ') value.erase(0, 1);
            found.push_back(value);
        }
        at = end + 2;
    }
    return found;
}

void check_plain(const std::string &head, const ksrv::Head &found, const ksrv::HeadLimits &limits) {
    require(found.length == head.size() && found.length <= limits.head);
    require(head.compare(head.size() - 4, 4, "\r\n\r\n") == 0);
    require(head.find('\0') == std::string::npos && found.fields <= found.length);
    const std::string version = head.substr(head.find("\r\n") - 9, 11);
    require(version == (found.http_1_0 ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n"));
    const auto codings = values(head, "transfer-encoding"), expected = values(head, "expect");
    require(codings.size() == (found.chunked ? 1u : 0u) && expected.size() == found.expects_continue);
    require(codings.empty() || without_blanks(lower(codings[0])) == "chunked");
    require(expected.empty() || without_blanks(lower(expected[0])) == "100-continue");
    require(!found.http_1_0 || (codings.empty() && expected.empty()));
    const auto callers = values(head, "authorization");
    const std::string caller = head.substr(found.authorization.offset, found.authorization.length);
    require(caller == (callers.size() == 1 ? without_blanks(callers[0]) : ""));
    require(values(head, "upgrade").empty() && values(head, "content-encoding").empty());
    require(values(head, "host").size() == 1);
    const auto connection = values(head, "connection");
    require(connection.size() <= 1);
    const std::string unasked = found.http_1_0 ? "close" : "keep-alive";
    const std::string asked = connection.empty() ? unasked : without_blanks(lower(connection[0]));
    require(asked == "close" || asked == "keep-alive");
    require(found.close == (asked == "close"));
    const auto lengths = values(head, "content-length");
    if (found.route != ksrv::Route::infer) {
        require(lengths.empty() && codings.empty() && expected.empty());
        require(head.compare(0, 7, "GET /v2") == 0);
        return;
    }
    require(lengths.size() == (found.chunked ? 0u : 1u));
    require(found.chunked || lengths[0] == std::to_string(found.content_length));
    require(found.chunked == (found.content_length == 0) && found.content_length <= limits.body);
    const auto json = values(head, "inference-header-content-length");
    require(json.size() == (found.has_json_length ? 1u : 0u));
    require(json.empty() || json[0] == std::to_string(found.json_length));
    require(found.chunked || found.json_length <= found.content_length);
    std::string target = "POST /v2/models/" + head.substr(found.name.offset, found.name.length);
    require(found.name.length >= 1 && found.name.length <= 63);
    if (found.version.length != 0)
        target += "/versions/" + head.substr(found.version.offset, found.version.length);
    target += "/infer" + version;
    require(head.compare(0, target.size(), target) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t step = 1 + (data[0] & 31);
    ksrv::HeadLimits limits;
    limits.body = 1 << 20;
    limits.fields = 16;
    limits.head = data[0] & 32 ? 256 : 16384;
    limits.compression = data[0] & 64;
    limits.scheme_count = 1;
    std::memcpy(limits.scheme[0], "x-forwarded-proto", 18);
    limits.scheme_length[0] = 17;
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
        const std::string head(reinterpret_cast<const char *>(all.data()), whole.length);
        const auto lengths = values(head, "content-length"), codings = values(head, "transfer-encoding");
        require(lengths.size() + codings.size() <= 1);
        require(codings.size() == (whole.chunked ? 1u : 0u));
        std::string length = lengths.empty() ? "0" : without_blanks(lengths[0]);
        length.erase(0, std::min(length.find_first_not_of('0'), length.size() - 1));
        require(length.size() > 18 ? whole.content_length == UINT64_MAX >> 1
                                   : length == std::to_string(whole.content_length));
        require(cut.length == whole.length && cut.chunked == whole.chunked);
        require(cut.content_length == whole.content_length && cut.question == whole.question);
    }
    require((at_once == ksrv::Verdict::refused) == (whole.fault != ksrv::HeadFault::none));
    if (at_once != ksrv::Verdict::native) return 0;
    require(cut.length == whole.length && cut.content_length == whole.content_length);
    require(cut.route == whole.route && cut.json_length == whole.json_length);
    const std::string head(reinterpret_cast<const char *>(all.data()), whole.length);
    check_plain(head, whole, limits);
    return 0;
}
