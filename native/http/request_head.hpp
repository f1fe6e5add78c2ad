// The parser of HTTP/1.1 request heads (RFC 9112), and the decision who serves a message.
//
// Strategy: first find where the head ends (an incremental search, linear in the bytes received), then judge the
// complete head once. It is the only parser of heads in the server. A head that RFC 9112 forbids, or that another
// parser on the way might frame differently, is refused with a fault that says why.
// Goals: never frame a message differently than llhttp or gunicorn would; never depend on how the bytes were split
// over reads; never answer.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ksrv {

// `native`: served without the Falcon app where nothing else prevents it; `app`: for the Falcon app, with a body
// whose framing is known; `refused`: the head has a fault, and where the message ends is not known.
enum class Verdict : uint8_t { incomplete, native, app, refused };

// Why a head is refused. The statuses and sentences are in ksrv/server/http/head_faults.py.
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
    host,                   // Host is no host with an optional port (RFC 9112 3.2)
    content_types,          // several Content-Type (RFC 9110 8.3)
    expectation,            // Expect is not 100-continue (RFC 9110 10.1.1)
};

// What a connection of HTTP/2 begins with in place of a head (RFC 9113 3.4).
constexpr char HTTP2_PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t HTTP2_PREFACE_BYTES = sizeof HTTP2_PREFACE - 1;

enum class Route : uint8_t { none, infer, live, ready, server, metadata, model_ready };

// Whether a route tells what the server or a model is: to those who may call.
inline bool is_description(Route route) noexcept {
    return route == Route::server || route == Route::metadata || route == Route::model_ready;
}

constexpr int SCHEME_NAMES = 8;
constexpr int SCHEME_NAME_BYTES = 48;

constexpr int MOUNT_BYTES = 128;

struct HeadLimits {
    size_t head = 16384;          // bytes of a head that is served natively
    size_t fields = 100;          // header fields
    size_t request_line = 4094;   // bytes, without CRLF
    size_t field_size = 8190;     // bytes of one field, with CRLF
    uint64_t body = 0;            // the greatest Content-Length
    uint64_t json = UINT64_MAX;   // bytes of it that may be JSON
    size_t chunks = 65536;        // of a chunked body
    size_t longest_head = 65536;  // bytes of any head
    bool compression = false;     // answers may be compressed: Accept-Encoding matters
    bool origins = false;         // answers tell web pages who may read them: Origin matters
    bool own_hosts = false;       // a Host that is_foreign_host finds is for the app, which refuses it
    size_t scheme_count = 0;      // gunicorn's secure_scheme_headers, in lower case
    char scheme[SCHEME_NAMES][SCHEME_NAME_BYTES] = {};
    size_t scheme_length[SCHEME_NAMES] = {};
    size_t mount_length = 0;      // of the prefix that all paths have; 0 for none
    char mount[MOUNT_BYTES] = {};
};

struct Span {
    uint32_t offset = 0;
    uint32_t length = 0;
};

struct Head {
    Route route = Route::none;
    HeadFault fault = HeadFault::none;
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

// The verdict on a head with a fault.
Verdict refuse_head(Head *head, HeadFault fault) noexcept;

// Judges a head part by part: its request line, each field, its end. A fault is the last that is told.
class HeadReader {
  public:
    HeadReader(const unsigned char *data, const HeadLimits &limits, Head *head) noexcept;

    // The method ends one blank before the target; `minor` is the last digit of HTTP/1.x.
    HeadFault begin(const unsigned char *method, const unsigned char *target, const unsigned char *target_end,
                    unsigned char minor) noexcept;
    // A field whose name and value hold the bytes that they may hold.
    HeadFault field(const unsigned char *name, size_t width, const unsigned char *value,
                    const unsigned char *stop) noexcept;
    Verdict end(size_t length) noexcept;

    // Where a name or a value ends; one that is unusual is for the app. Both may end at `end`, and no later.
    const unsigned char *name_end(const unsigned char *at) noexcept;
    const unsigned char *value_end(const unsigned char *at, const unsigned char *end) noexcept;
    void leave_to_app() noexcept { app_ = true; }

  private:
    enum Once : unsigned {
        LENGTH = 1, CONTENT_TYPE = 2, CONNECTION = 4, EXPECT = 8, HOST_FIELD = 16, AUTHORIZATION = 32, TRACEPARENT = 64,
        REQUEST_ID = 128, SCHEME = 256,
    };

    // Whether none of the fields that `which` stands for has come before.
    bool first(unsigned which) noexcept {
        const bool before = seen_ & which;
        seen_ |= which;
        return !before;
    }
    void take_only(unsigned which, const unsigned char *value, const unsigned char *stop, Span *span) noexcept;

    const unsigned char *const data_;
    const HeadLimits &limits_;
    Head &head_;
    Route route_ = Route::none;
    size_t count_ = 0;
    unsigned seen_ = 0;
    bool native_ = false, app_ = false, upload_ = false, close_ = false, keep_ = false;
};

// The verdict on what a connection has received since its last message. `searched` remembers how
// far the search for the end of the head has come; start a message with 0.
Verdict classify_head(const unsigned char *data, size_t filled, size_t *searched,
                  const HeadLimits &limits, Head *head) noexcept;

}  // namespace ksrv
