// Parses HTTP/1.1 request heads (RFC 9112), and decides who answers a message.
//
// Strategy: first find the end of the head (an incremental search, linear in the received bytes), then check the
// complete head once. This is the only parser of heads in the server. A head that RFC 9112 forbids, or that another
// parser on the way might frame differently, is refused with a fault that says why.
// Goals: never frame a message differently than llhttp or gunicorn; never depend on how reads split the bytes; never
// answer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ksrv {

// `native`: the native server answers without the Falcon app, unless something else prevents it. `app`: for the Falcon
// app, with a body of known framing. `refused`: the head has a fault, and the end of the message is unknown.
enum class Verdict : uint8_t { incomplete, native, app, refused };

// Why a head is refused: a row for each fault, with the status and the end of the error message. Python writes the
// message for `too_long`, because it names the limit.
#define KSRV_HEAD_FAULTS(row)                                                                                         \
    row(none, 0, "")                                                                                                   \
    row(line_end, 400, "a line of the head does not end with CR LF, or holds a NUL") /* RFC 9112 2.2 */                \
    row(too_long, 431, "")                                                                                             \
    row(request_line_too_long, 414, "the request line is too large")                 /* RFC 9112 3 */                  \
    row(too_many_fields, 431, "the head has too many header fields")                 /* RFC 6585 5 */                  \
    row(field_too_long, 431, "a header field is too large")                          /* RFC 6585 5 */                  \
    row(request_line, 400, "the first line is not a method, a target and a version") /* RFC 9112 3 */                  \
    row(method, 400, "the method is not a word of 3 to 20 characters in upper case") /* RFC 9110 9.1 */                \
    row(target, 400, "the target is neither a path that begins with '/' nor a URL, or holds a character that must "    \
                     "be escaped")                                                   /* RFC 9112 3.2 */                \
    row(version, 400, "the version is not HTTP/1.0 or HTTP/1.1")                     /* RFC 9112 2.3 */                \
    row(field_line, 400, "a line of the head is not a name, a colon and a value")    /* RFC 9112 5 */                  \
    row(field_name, 400, "the name of a header field holds a character that no name has") /* RFC 9112 5.1 */           \
    row(folded, 400, "a header field is continued on a further line")                /* RFC 9112 5.2 */                \
    row(field_value, 400, "the value of a header field holds a control character")   /* RFC 9110 5.5 */                \
    row(length, 400, "Content-Length is not a number")                               /* RFC 9112 6.3 */                \
    row(lengths, 400, "the head has several Content-Length fields; one is allowed")  /* RFC 9112 6.3 */                \
    row(length_and_coding, 400, "the head has both Content-Length and Transfer-Encoding") /* RFC 9112 6.1 */           \
    row(coding, 400, "Transfer-Encoding is not chunked alone; a compressed body has a Content-Encoding") /* 6.1 */     \
    row(old_coding, 400, "HTTP/1.0 has no Transfer-Encoding")                        /* RFC 9112 6.1 */                \
    row(no_host, 400, "a request of HTTP/1.1 needs a Host field")                    /* RFC 9112 3.2 */                \
    row(hosts, 400, "the head has several Host fields; one is allowed")              /* RFC 9112 3.2 */                \
    row(host, 400, "the Host field names no host with an optional port")             /* RFC 9112 3.2 */                \
    row(content_types, 400, "the head has several Content-Type fields; one is allowed") /* RFC 9110 8.3 */             \
    row(expectation, 417, "Expect is not 100-continue")                              /* RFC 9110 10.1.1 */

#define KSRV_ROW(name, status, text) name,
enum class HeadFault : uint8_t { KSRV_HEAD_FAULTS(KSRV_ROW) };
#undef KSRV_ROW

struct HeadRefusal {
    uint16_t status;
    const char *text;
};

// Indexed by HeadFault.
#define KSRV_ROW(name, status, text) {status, text},
inline constexpr HeadRefusal HEAD_REFUSALS[] = {KSRV_HEAD_FAULTS(KSRV_ROW)};
#undef KSRV_ROW

// The first bytes of an HTTP/2 connection (RFC 9113 3.4).
constexpr char HTTP2_PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t HTTP2_PREFACE_BYTES = sizeof HTTP2_PREFACE - 1;

enum class Route : uint8_t { none, infer, live, ready, server, metadata, model_ready };

// Whether a route tells about the server or a model (metadata, readiness of a model), for which a caller needs the token.
inline bool is_description(Route route) noexcept {
    return route == Route::server || route == Route::metadata || route == Route::model_ready;
}

constexpr int MOUNT_BYTES = 128;  // Longest prefix of all paths.

struct HeadLimits {
    size_t head = 16384;          // bytes of a head that the native server answers
    size_t fields = 100;          // header fields
    size_t request_line = 4094;   // bytes, without CRLF
    size_t field_size = 8190;     // bytes of one field, with CRLF
    uint64_t body = 0;            // the largest Content-Length
    uint64_t json = UINT64_MAX;   // the most bytes of JSON in a body
    size_t chunks = 65536;        // in a chunked body
    size_t longest_head = 65536;  // the most bytes of any head
    bool compression = false;     // answers may be compressed, so that Accept-Encoding matters
    bool origins = false;         // answers have CORS fields, so that Origin matters
    bool own_hosts = false;       // the app checks heads with a foreign Host (base/own_host.hpp)
    size_t mount_length = 0;      // 0 if the paths have no prefix
    char mount[MOUNT_BYTES] = {};  // the prefix of all paths
    // The paths of plain JSON, such as /v1/models/{name}:predict. Longer bodies than `plain_body` are left to the app.
    std::vector<std::string> plain_paths;
    uint64_t plain_body = 32768;
};

// A part of the received bytes.
struct Span {
    uint32_t offset = 0;
    uint32_t length = 0;
};

struct Head {
    Route route = Route::none;
    HeadFault fault = HeadFault::none;
    uint8_t plain = 0;            // Route::infer: the number of its path in plain_paths, from 1; 0: KServe v2
    Span name;                    // the model's name, if the route has one
    Span version;                 // empty if the target has none
    uint32_t length = 0;          // bytes including the empty line; 0 until the end is found
    uint32_t fields = 0;          // offset of the first header field in the received bytes
    uint64_t content_length = 0;
    uint64_t json_length = 0;     // Inference-Header-Content-Length
    bool has_json_length = false;
    Span authorization;           // the value of Authorization; empty if it occurs more than once
    Span request_id;              // likewise X-Request-ID
    Span traceparent;             // likewise traceparent
    bool close = false;           // the connection is closed after the answer
    bool http_1_0 = false;        // the answer is HTTP/1.0, too
    bool chunked = false;         // the body is chunked, so that its length is unknown
    bool expects_continue = false;  // the sender waits for 100 Continue before it sends the body
    bool question = false;        // a GET or HEAD that can be answered without a handler
};

// Classifies the bytes that a connection has received since its last message. `searched` stores the progress of the
// search for the end of the head. It must be 0 at the start of a message.
Verdict classify_head(const unsigned char *data, size_t filled, size_t *searched,
                      const HeadLimits &limits, Head *head) noexcept;

}  // namespace ksrv
