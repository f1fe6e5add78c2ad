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

namespace ksrv {

// `native`: the native server answers without the Falcon app, unless something else prevents it. `app`: for the Falcon
// app, with a body of known framing. `refused`: the head has a fault, and the end of the message is unknown.
enum class Verdict : uint8_t { incomplete, native, app, refused };

// Why a head is refused. ksrv/server/http/head_faults.py has the statuses and sentences.
enum class HeadFault : uint8_t {
    none,
    line_end,               // a line ends with LF alone, or the head holds NUL (RFC 9112 2.2)
    too_long,               // the head has more bytes than `longest_head`
    request_line_too_long,  // RFC 9112 3
    too_many_fields,        // RFC 6585 5
    field_too_long,         // RFC 6585 5
    request_line,           // not method, target and version with one blank between them (RFC 9112 3)
    method,                 // not a token without lower-case letters (RFC 9110 9.1)
    target,                 // none of the four forms, or one that the method does not take (RFC 9112 3.2)
    version,                // not HTTP/1.x (RFC 9112 2.3)
    field_line,             // no colon, or nothing before it (RFC 9112 5)
    field_name,             // not a token; a blank before the colon (RFC 9112 5.1)
    folded,                 // obs-fold (RFC 9112 5.2)
    field_value,            // a control character (RFC 9110 5.5)
    length,                 // Content-Length is not a number (RFC 9112 6.3)
    lengths,                // several Content-Length (RFC 9112 6.3)
    length_and_coding,      // Content-Length and Transfer-Encoding (RFC 9112 6.1)
    coding,                 // Transfer-Encoding is not chunked alone (RFC 9112 6.1)
    old_coding,             // Transfer-Encoding in HTTP/1.0 (RFC 9112 6.1)
    no_host,                // HTTP/1.1 without Host (RFC 9112 3.2)
    hosts,                  // several Host (RFC 9112 3.2)
    host,                   // Host is not a host with an optional port (RFC 9112 3.2)
    content_types,          // several Content-Type (RFC 9110 8.3)
    expectation,            // Expect is not 100-continue (RFC 9110 10.1.1)
};

// The first bytes of an HTTP/2 connection (RFC 9113 3.4).
constexpr char HTTP2_PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t HTTP2_PREFACE_BYTES = sizeof HTTP2_PREFACE - 1;

enum class Route : uint8_t { none, infer, live, ready, server, metadata, model_ready };

// Whether a route describes the server or a model, which needs permission.
inline bool is_description(Route route) noexcept {
    return route == Route::server || route == Route::metadata || route == Route::model_ready;
}

constexpr int SCHEME_NAMES = 8;
constexpr int SCHEME_NAME_BYTES = 48;

constexpr int MOUNT_BYTES = 128;

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
    bool own_hosts = false;       // the app refuses foreign hosts (see is_foreign_host)
    size_t scheme_count = 0;      // gunicorn's secure_scheme_headers, in lower case
    char scheme[SCHEME_NAMES][SCHEME_NAME_BYTES] = {};
    size_t scheme_length[SCHEME_NAMES] = {};
    size_t mount_length = 0;      // of the prefix of all paths; 0 for none
    char mount[MOUNT_BYTES] = {};
};

struct Span {
    uint32_t offset = 0;
    uint32_t length = 0;
};

struct Head {
    Route route = Route::none;
    HeadFault fault = HeadFault::none;
    Span name;                    // the model's name, if the route has one
    Span version;                 // empty if the target has none
    uint32_t length = 0;          // bytes including the empty line; 0 until the end is found
    uint32_t fields = 0;          // offset of the first field
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

// Whether a value of Host, without surrounding blanks, is a host with an optional port (RFC 3986 3.2.2), or empty, as
// for a target without authority (RFC 9112 3.2).
bool is_host(const unsigned char *text, size_t length) noexcept;

// Classifies the bytes that a connection has received since its last message. `searched` stores the progress of the
// search for the end of the head. It must be 0 at the start of a message.
Verdict classify_head(const unsigned char *data, size_t filled, size_t *searched,
                  const HeadLimits &limits, Head *head) noexcept;

}  // namespace ksrv
