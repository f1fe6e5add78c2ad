// The parsers of native/http for wire_parsers.py, which calls them through ctypes.

#include <algorithm>
#include <cstring>

#include "http/chunked_body.hpp"
#include "http/proxy_header.hpp"
#include "http/request_head.hpp"

using namespace ksrv;

namespace {

#define KSRV_ROW(name, status, text) #name,
constexpr const char *FAULTS[] = {KSRV_HEAD_FAULTS(KSRV_ROW)};
#undef KSRV_ROW

}  // namespace

extern "C" {

struct HeadOptions {
    uint64_t body, json, head, fields, request_line, field_size, chunks, longest_head;
    bool compression, origins, own_hosts;
    char mount[MOUNT_BYTES + 1];
};

struct ClassifiedHead {
    const char *fault;
    uint64_t verdict, route, name, name_length, version, version_length, length, content_length, json_length;
    bool has_json_length, close, http_1_0, chunked, expects_continue, question;
};

// Classifies `data` after each of the `count` reads of `pieces` bytes, until the verdict is known.
void classify(const unsigned char *data, size_t total, const size_t *pieces, size_t count, const HeadOptions *options,
              ClassifiedHead *out) {
    HeadLimits limits;
    limits.body = options->body;
    limits.json = options->json;
    limits.head = options->head;
    limits.fields = options->fields;
    limits.request_line = options->request_line;
    limits.field_size = options->field_size;
    limits.longest_head = options->longest_head;
    limits.compression = options->compression;
    limits.origins = options->origins;
    limits.own_hosts = options->own_hosts;
    limits.mount_length = strlen(options->mount);
    memcpy(limits.mount, options->mount, limits.mount_length);
    Head head;
    Verdict verdict = Verdict::incomplete;
    size_t searched = 0, filled = 0;
    for (size_t i = 0; i < count && verdict == Verdict::incomplete; ++i) {
        filled = std::min(total, filled + pieces[i]);
        verdict = classify_head(data, filled, &searched, limits, &head);
    }
    *out = {FAULTS[static_cast<int>(head.fault)], static_cast<uint64_t>(verdict), static_cast<uint64_t>(head.route),
            head.name.offset, head.name.length, head.version.offset, head.version.length, head.length,
            head.content_length, head.json_length, head.has_json_length, head.close, head.http_1_0, head.chunked,
            head.expects_continue, head.question};
}

// Decodes a chunked body after each of the `count` reads of `pieces` bytes. Returns the fault, and -1 without a fault.
int decode(const unsigned char *data, size_t total, const size_t *pieces, size_t count, size_t most_chunks,
           uint64_t most_bytes, unsigned char *contents, size_t *contents_length, size_t *read, bool *ended) {
    ChunkDecoder decoder;
    decoder.begin(most_chunks);
    decoder.most_bytes = most_bytes;
    size_t filled = 0, at = 0, made = 0;
    for (size_t i = 0; i < count; ++i) {
        filled = std::min(total, filled + pieces[i]);
        while (at < filled && !decoder.ended() && decoder.fault() == ChunkFault::none) {
            at += decoder.read(data + at, filled - at);
            const size_t run = std::min<uint64_t>(filled - at, decoder.run());
            if (run == 0) continue;
            memcpy(contents + made, data + at, run);
            made += run;
            decoder.take(run);
            at += run;
        }
    }
    *contents_length = made;
    *read = at;
    *ended = decoder.ended();
    return decoder.fault() == ChunkFault::none ? -1 : static_cast<int>(decoder.fault());
}

// Reads a PROXY protocol header. Returns the verdict; a malformed header has a `fault`.
int read_proxy(const unsigned char *data, size_t length, int versions, size_t *header, bool *names_client,
               unsigned char *peer, const char **fault) {
    ProxySource source;
    const ProxyVerdict verdict = read_proxy_header(data, length, static_cast<ProxyVersions>(versions), &source);
    *header = source.length;
    *names_client = source.names_client;
    *fault = source.fault;
    memcpy(peer, &source.peer, 28);
    return static_cast<int>(verdict);
}
}
