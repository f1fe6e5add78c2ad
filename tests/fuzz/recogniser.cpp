// libFuzzer harness of native/recogniser.hpp: plain request heads.
//
// Compile: clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -Inative
//          tests/fuzz/recogniser.cpp -o build/fuzz/recogniser
//
// The first two bytes choose where the input is split into two reads. The verdict must not depend
// on the split; a plain head must hold nothing that another parser could read differently, which is
// checked here by the slowest and plainest means. That llhttp and gunicorn agree is the business of
// tests/property/test_recogniser_differential.py.

#include <cstdlib>
#include <string>
#include <vector>

#include "recogniser.hpp"

namespace {

void require(bool condition) {
    if (!condition) std::abort();
}

std::string lower(std::string text) {
    for (char &c : text)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    return text;
}

void check_plain(const std::string &head, const ksrv::Head &said, const ksrv::HeadLimits &limits) {
    require(head.size() == said.length && head.size() <= limits.head);
    require(head.compare(head.size() - 4, 4, "\r\n\r\n") == 0);
    require(head.find("\r\n\r\n") == head.size() - 4);
    std::vector<std::string> lines;
    for (std::size_t at = 0; at + 2 < head.size();) {
        const std::size_t end = head.find("\r\n", at);
        lines.push_back(head.substr(at, end - at));
        at = end + 2;
    }
    for (const std::string &line : lines)
        for (const char c : line) require((c >= 0x20 && c <= 0x7e) || c == '\t');
    const bool infer = said.route == ksrv::Route::infer;
    require(lines[0].compare(0, infer ? 5 : 4, infer ? "POST " : "GET ") == 0);
    require(lines[0].compare(lines[0].size() - 9, 9, " HTTP/1.1") == 0);
    std::size_t lengths = 0, hosts = 0;
    for (std::size_t i = 1; i < lines.size(); ++i) {
        const std::size_t colon = lines[i].find(':');
        require(colon != std::string::npos && colon > 0);
        const std::string name = lower(lines[i].substr(0, colon));
        require(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos);
        require(name != "expect" && name != "upgrade" && name != "te" && name != "trailer");
        require(name != "content-encoding" && name.compare(0, 9, "transfer-") != 0);
        require(name.compare(0, 6, "proxy-") != 0 && name.compare(0, 6, "http2-") != 0);
        hosts += name == "host";
        if (name == "content-length") {
            std::string value = lines[i].substr(colon + 1);
            if (!value.empty() && value[0] == ' ') value.erase(0, 1);
            require(!value.empty() && value.size() <= 18);
            require(value.find_first_not_of("0123456789") == std::string::npos && value[0] != '0');
            require(std::stoull(value) == said.content_length);
            ++lengths;
        }
    }
    require(hosts == 1 && lengths == (infer ? 1u : 0u));
    if (infer) {
        require(said.content_length > 0 && said.content_length <= limits.body);
        require(!said.has_json_length || (said.json_length > 0 && said.json_length <= said.content_length));
        require(said.name.length > 0 && said.name.length <= 63);
        require(said.name.offset + said.name.length <= lines[0].size());
        require(said.version.offset + said.version.length <= lines[0].size());
    } else {
        require(said.content_length == 0);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 2) return 0;
    const std::size_t cut = data[0] | data[1] << 8;
    // Copies of exactly these sizes, so that a read beyond an end is seen.
    const std::vector<unsigned char> whole(data + 2, data + size);
    const std::size_t first = cut < whole.size() ? cut : whole.size();
    const std::vector<unsigned char> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(first));
    ksrv::HeadLimits limits;
    limits.body = 1 << 20;
    limits.head = 512;
    limits.fields = 8;

    ksrv::Head at_once, split;
    std::size_t searched = 0;
    const ksrv::Verdict verdict =
        ksrv::recognise(whole.data(), whole.size(), &searched, limits, &at_once);
    searched = 0;
    const ksrv::Verdict early = ksrv::recognise(part.data(), part.size(), &searched, limits, &split);
    require(early == ksrv::Verdict::need_more || early == verdict);
    if (early == ksrv::Verdict::need_more)
        require(ksrv::recognise(whole.data(), whole.size(), &searched, limits, &split) == verdict);
    if (verdict == ksrv::Verdict::plain) {
        require(split.length == at_once.length && split.content_length == at_once.content_length);
        check_plain(std::string(whole.begin(), whole.begin() + at_once.length), at_once, limits);
    }
    return 0;
}
