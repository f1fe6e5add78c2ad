// Decides whether the native server serves the message whose head begins a connection's buffer.
//
// Strategy: first find where the head ends (an incremental search, linear in the bytes received),
// then judge the complete head once, strictly, against the few forms that the HTTP server serves itself.
// Goals: never accept what llhttp or gunicorn's Python parser would refuse or frame differently;
// never depend on how the bytes were split over reads; never answer. It is not an HTTP parser and
// must not become one: gunicorn's parser reads every unusual head, which costs only speed.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// `native`: served here; `app`: for the Falcon app, with a body whose framing is known; `unusual`: gunicorn's
// parser reads the head, and says what it is and how its body is framed.
enum class Verdict : uint8_t { incomplete, native, app, unusual };

enum class Route : uint8_t { none, infer, live, ready, server, metadata, model_ready };

// Whether a route tells what the server or a model is: to those who may call.
inline bool is_description(Route route) noexcept {
    return route == Route::server || route == Route::metadata || route == Route::model_ready;
}

constexpr int SCHEME_NAMES = 8;
constexpr int SCHEME_NAME_BYTES = 48;

// gunicorn's own limits, as its parser would apply them, and the HTTP server's.
struct HeadLimits {
    size_t head = 16384;          // bytes of a head that is judged here
    size_t fields = 64;           // header fields
    size_t request_line = 4094;   // bytes, without CRLF
    size_t field_size = 8190;     // bytes of one field, with CRLF
    uint64_t body = 0;            // the greatest Content-Length
    uint64_t json = UINT64_MAX;   // bytes of it that may be JSON
    size_t chunks = 65536;        // of a chunked body
    size_t longest_head = 65536;  // of an unusual one
    bool compression = false;     // answers may be compressed: Accept-Encoding matters
    bool origins = false;         // answers tell web pages who may read them: Origin matters
    size_t scheme_count = 0;      // gunicorn's secure_scheme_headers, in lower case
    char scheme[SCHEME_NAMES][SCHEME_NAME_BYTES] = {};
};

struct Span {
    uint32_t offset = 0;
    uint32_t length = 0;
};

struct Head {
    Route route = Route::none;
    Span name;                    // the model, for a route that names one
    Span version;                 // empty where the target names none
    uint32_t length = 0;          // bytes up to and with the empty line; set once it was found
    uint32_t fields = 0;          // offset of the first field
    uint64_t content_length = 0;
    uint64_t json_length = 0;     // Inference-Header-Content-Length
    bool has_json_length = false;
    Span authorization;           // the only Authorization's value; empty where there are several
    Span request_id;              // the same of X-Request-ID
    Span traceparent;             // and of traceparent
    bool close = false;           // the connection ends with the answer
    bool http_1_0 = false;        // the answer is of HTTP/1.0 as well
    bool chunked = false;         // the body comes in chunks, and its length is not known
    bool expects_continue = false;  // the sender waits for 100 Continue before it sends the body
    bool question = false;        // a GET or HEAD of what the server knows, which no handler answers
};

enum class Ending : uint8_t { open, found, never };

// Looks for CRLFCRLF in data[0, filled), of which data[0, from) was searched before. `never` means
// that no head of at most `limit` bytes without a bare line feed or a NUL can begin like this; `*length` is
// then how far it was right, and the byte behind that.
Ending find_head_end(const unsigned char *data, size_t from, size_t filled, size_t limit,
                     size_t *length) noexcept;

// Whether a value of Host names a host with an optional port (RFC 3986 3.2.2), or is empty, as where the target has no
// authority (RFC 9112 3.2). It has no blanks around it.
bool is_host(const unsigned char *text, size_t length) noexcept;

// Judges a complete head of `length` bytes, the empty line included.
Verdict judge_head(const unsigned char *data, size_t length, const HeadLimits &limits,
                   Head *head) noexcept;

// The verdict on what a connection has received since its last message. `searched` remembers how
// far the search for the end of the head has come; start a message with 0.
Verdict classify_head(const unsigned char *data, size_t filled, size_t *searched,
                  const HeadLimits &limits, Head *head) noexcept;

}  // namespace ksrv
