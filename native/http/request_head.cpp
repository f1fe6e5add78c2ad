// Reads the head of an HTTP/1.1 request: `classify_head` (the last function) finds its end with `find_head_end`, then
// `judge_head` splits it into lines, and `HeadReader` checks the request line and each field. The functions before
// check single parts.
//
// Most functions move `at` through the bytes up to `end`.

#include "base/own_host.hpp"
#include "http/characters.hpp"
#include "http/request_head.hpp"
#include "http/request_target.hpp"

#include <cstring>

namespace ksrv {

namespace {

// Whether two texts are equal except for case. Of the valid bytes of names and values, only letters differ in the bit
// that is set here (and "^" and "~", which none of the searched names has).
inline bool same_name(const unsigned char *name, const char *lower, size_t length) noexcept {
    const auto differs = [&](size_t at, auto word) noexcept {
        decltype(word) one, other, fold;
        memset(&fold, 0x20, sizeof fold);
        memcpy(&one, name + at, sizeof one);
        memcpy(&other, lower + at, sizeof other);
        return (one | fold) != (other | fold);
    };
    size_t at = 0;
    for (; length - at >= 8; at += 8)
        if (differs(at, uint64_t())) return false;
    for (; length - at >= 4; at += 4)
        if (differs(at, uint32_t())) return false;
    for (; at < length; ++at)
        if ((name[at] | 0x20) != (lower[at] | 0x20)) return false;
    return true;
}

template <size_t N>
inline bool named(const unsigned char *name, size_t length, const char (&lower)[N]) noexcept {
    return length == N - 1 && same_name(name, lower, N - 1);
}

template <size_t N>
inline bool prefixed(const unsigned char *name, size_t length, const char (&lower)[N]) noexcept {
    return length >= N - 1 && same_name(name, lower, N - 1);
}

// Moves the ends of a value past surrounding blanks.
void trim(const unsigned char *&at, const unsigned char *&end) noexcept {
    while (at < end && (*at == ' ' || *at == '\t')) ++at;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t')) --end;
}

// Parses a length (RFC 9112 6.2). More than 18 digits are larger than any limit.
bool number(const unsigned char *at, const unsigned char *end, uint64_t *value) noexcept {
    trim(at, end);
    if (at == end) return false;
    while (end - at > 1 && *at == '0') ++at;
    uint64_t sum = 0;
    for (const unsigned char *digit = at; digit < end; ++digit) {
        if (!is(*digit, DIGIT)) return false;
        sum = sum * 10 + (*digit - '0');
    }
    *value = end - at > 18 ? UINT64_MAX >> 1 : sum;
    return true;
}

// The end of the run of plain field value bytes that starts at `at`. Checks eight bytes at a time while all are 0x20 to
// 0x7e, then single bytes.
const unsigned char *plain_end(const unsigned char *at, const unsigned char *end) noexcept {
    for (;;) {
        while (end - at >= 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            const uint64_t ones = 0x0101010101010101u;
            const uint64_t high = 0x8080808080808080u;
            const uint64_t below = (word - ones * 0x20) & ~word & high;  // a byte under 0x20
            const uint64_t rubout = word ^ (ones * 0x7f);
            const uint64_t deleted = (rubout - ones) & ~rubout & high;   // a byte equal to 0x7f
            if ((word & high) | below | deleted) break;
            at += 8;
        }
        size_t steps = 0;
        while (at < end && steps < 8 && is(*at, VALUE)) {
            ++at;
            ++steps;
        }
        if (at == end || steps < 8) return at;
    }
}

// Whether a value is the word `lower`, between optional blanks, ignoring case.
template <size_t N>
inline bool single_word(const unsigned char *at, const unsigned char *end, const char (&lower)[N]) noexcept {
    trim(at, end);
    return named(at, static_cast<size_t>(end - at), lower);
}

// Whether a comma-separated list contains the word `lower`, ignoring case.
template <size_t N>
inline bool lists(const unsigned char *at, const unsigned char *end, const char (&lower)[N]) noexcept {
    for (;;) {
        const void *comma = memchr(at, ',', static_cast<size_t>(end - at));
        const unsigned char *const stop = comma ? static_cast<const unsigned char *>(comma) : end;
        if (single_word(at, stop, lower)) return true;
        if (!comma) return false;
        at = stop + 1;
    }
}

Span trimmed(const unsigned char *at, const unsigned char *end, const unsigned char *data) noexcept {
    trim(at, end);
    return {static_cast<uint32_t>(at - data), static_cast<uint32_t>(end - at)};
}

// llhttp does not accept a tab as a blank in fields that determine the framing.
bool has_tab(const unsigned char *at, const unsigned char *end) noexcept {
    return memchr(at, '\t', static_cast<size_t>(end - at)) != nullptr;
}

// Whether the content type is an image, a sound or a multipart form.
bool is_upload(const unsigned char *at, const unsigned char *end) noexcept {
    trim(at, end);
    const size_t length = static_cast<size_t>(end - at);
    return prefixed(at, length, "image/") || prefixed(at, length, "audio/") || prefixed(at, length, "multipart/");
}

// The fault in a field line that does not begin with a name and a colon. `at` follows the name.
HeadFault name_fault(const unsigned char *name, const unsigned char *at, const unsigned char *end) noexcept {
    if (name < end && (*name == ' ' || *name == '\t')) return HeadFault::folded;  // RFC 9112 5.2
    const void *feed = memchr(at, '\r', static_cast<size_t>(end - at));
    const unsigned char *const stop = feed ? static_cast<const unsigned char *>(feed) : end;
    const bool colon = memchr(at, ':', static_cast<size_t>(stop - at)) != nullptr;
    return colon && *name != ':' ? HeadFault::field_name : HeadFault::field_line;
}

// Whether an `Accept` value may ask for a stream of answers: `text/event-stream`, or JSON lines.
bool names_stream(const unsigned char *at, const unsigned char *end) noexcept {
    for (; end - at >= 5; ++at) {
        const size_t left = static_cast<size_t>(end - at);
        if (prefixed(at, left, "event-stream") || prefixed(at, left, "jsonl") ||
            prefixed(at, left, "ndjson"))
            return true;
    }
    return false;
}

enum class Ending : uint8_t { open, found, never };

// Searches data[0, filled) for CRLFCRLF; data[0, from) was searched before. `never`: the bytes have a bare line feed or
// a NUL, or exceed `limit`, so that they cannot be the beginning of a valid head. `*length` is the length of the head
// if `found`, or for `never` the number of valid bytes plus one.
Ending find_head_end(const unsigned char *data, size_t from, size_t filled, size_t limit,
                     size_t *length) noexcept {
    const size_t bound = filled < limit ? filled : limit;
    Ending ending = filled >= limit ? Ending::never : Ending::open;
    size_t at = from, stop = bound;  // the searched range
    *length = limit;
    while (at < bound) {
        const void *feed = memchr(data + at, '\n', bound - at);
        if (!feed) break;
        const size_t line_end = static_cast<size_t>(static_cast<const unsigned char *>(feed) - data);
        at = line_end + 1;
        const bool bare = line_end == 0 || data[line_end - 1] != '\r';
        if (!bare && (line_end < 3 || data[line_end - 2] != '\n' || data[line_end - 3] != '\r')) continue;
        ending = bare ? Ending::never : Ending::found;
        *length = stop = at;
        break;
    }
    if (const void *nul = memchr(data + from, 0, stop > from ? stop - from : 0)) {
        *length = static_cast<size_t>(static_cast<const unsigned char *>(nul) - data) + 1;
        return Ending::never;
    }
    return ending;
}

// Methods without lower-case letters: the registered methods (IANA), and others of the same form.
constexpr size_t METHOD_LEAST = 3, METHOD_MOST = 20;

bool method(const unsigned char *&at, const unsigned char *end) noexcept {
    const unsigned char *const start = at;
    while (at < end && is(*at, TOKEN) && !(*at >= 'a' && *at <= 'z') && *at != '#') ++at;
    const size_t length = static_cast<size_t>(at - start);
    return length >= METHOD_LEAST && length <= METHOD_MOST && at < end && *at++ == ' ';
}

// The fault in a malformed request line, or in its method, target or version.
HeadFault line_fault(const unsigned char *at, const unsigned char *end) noexcept {
    const void *feed = memchr(at, '\r', static_cast<size_t>(end - at));
    if (feed) end = static_cast<const unsigned char *>(feed);
    const void *first = memchr(at, ' ', static_cast<size_t>(end - at));
    if (!first) return HeadFault::request_line;
    const unsigned char *const target = static_cast<const unsigned char *>(first) + 1;
    const void *second = memchr(target, ' ', static_cast<size_t>(end - target));
    if (!second) return HeadFault::request_line;
    if (!method(at, end)) return HeadFault::method;
    const unsigned char *stop = target;
    while (stop < end && is(*stop, TARGET)) ++stop;
    return stop == target || *stop != ' ' ? HeadFault::target : HeadFault::version;
}

// The end of a refused message is unknown. Its announcements about a body are dropped, because they cannot be trusted.
Verdict refuse_head(Head *head, HeadFault fault) noexcept {
    head->fault = fault;
    head->http_1_0 = head->chunked = head->expects_continue = head->has_json_length = false;
    head->content_length = head->json_length = 0;
    return Verdict::refused;
}

// Checks a head in parts: `begin` for the request line, `field` for each field, `end`. The caller stops at a fault.
// `native_` becomes false at anything that is valid, but that the native server does not handle: the head is then for
// the app. The caller reports such bytes itself with `leave_to_app`, which has a separate flag, because it may be
// called before `begin` sets `native_`.
class HeadReader {
  public:
    HeadReader(const unsigned char *data, const HeadLimits &limits, Head *head) noexcept
        : data_(data), limits_(limits), head_(*head) {
        *head = Head{};
    }

    // The method must end one blank before the target. `minor` is the last digit of HTTP/1.x.
    HeadFault begin(const unsigned char *method, const unsigned char *target, const unsigned char *target_end,
                    unsigned char minor) noexcept {
        constexpr size_t VERSION = 9;  // " HTTP/1.1"
        if (static_cast<size_t>(target_end - method) + VERSION > limits_.request_line)
            return HeadFault::request_line_too_long;
        const auto is_method = [&](const char *name, size_t length) {
            return static_cast<size_t>(target - method) == length + 1 && memcmp(method, name, length) == 0;
        };
        const bool get = is_method("GET", 3), post = is_method("POST", 4), connects = is_method("CONNECT", 7);
        // A higher minor version is an extension of 1.1 (RFC 9110 2.5).
        native_ = (get || post) && minor <= '1';
        head_.http_1_0 = minor == '0';
        close_ = connects;
        if (*target != '/') {  // the other three forms of a target, RFC 9112 3.2
            const bool all = target_end - target == 1 && *target == '*';
            const unsigned char *authority = target;
            if (is_absolute(authority, target_end)) {
                const unsigned char *stop = authority;
                while (stop < target_end && *stop != '/' && *stop != '?' && *stop != '#') ++stop;
                const size_t length = static_cast<size_t>(stop - authority);
                if (length == 0 || !is_host(authority, length)) return HeadFault::host;
            } else if (all ? !is_method("OPTIONS", 7) : !connects) {
                return HeadFault::target;
            }
            native_ = false;
        }
        const unsigned char *path = target;
        if (limits_.mount_length && !below_mount(path, target_end, limits_)) native_ = false;
        if (native_) route_ = target_route(post, path, target_end, data_, &head_);
        if (native_ && post && route_ == Route::none) find_plain(path, target_end);
        head_.question = (get || is_method("HEAD", 4)) && is_question(path, target_end);
        return HeadFault::none;
    }

    // Checks a field whose name and value have only valid bytes. `width` is the length of the name, `stop` the end of
    // the value. Fields that matter are found by their first letter, because most fields of a head do not matter.
    HeadFault field(const unsigned char *name, size_t width, const unsigned char *value,
                    const unsigned char *stop) noexcept {
        if (++count_ > limits_.fields) return HeadFault::too_many_fields;
        if (static_cast<size_t>(stop - name) + 2 > limits_.field_size) return HeadFault::field_too_long;
        switch (name[0] | 0x20) {
        case 'a':
            // Fields that may ask for another answer than the native server makes.
            if (named(name, width, "accept-encoding")) {
                if (limits_.compression) native_ = false;
            } else if (named(name, width, "accept")) {
                if (names_stream(value, stop)) native_ = false;
            } else if (named(name, width, "authorization")) {
                take_only(AUTHORIZATION, value, stop, &head_.authorization);
            }
            break;
        case 'c':
            if (named(name, width, "content-length")) {
                if (!first(LENGTH)) return HeadFault::lengths;
                if (!number(value, stop, &head_.content_length)) return HeadFault::length;
                if (has_tab(value, stop)) native_ = false;
            } else if (named(name, width, "content-type")) {
                if (!first(CONTENT_TYPE)) return HeadFault::content_types;
                upload_ = is_upload(value, stop);
            } else if (named(name, width, "connection")) {  // a list, and several such fields are one list (RFC 9110 5.3)
                const bool is_single = single_word(value, stop, "keep-alive") || single_word(value, stop, "close");
                if (!first(CONNECTION) || !is_single || (head_.http_1_0 && has_tab(value, stop))) native_ = false;
                close_ = close_ || lists(value, stop, "close");
                keep_ = keep_ || lists(value, stop, "keep-alive");
            } else if (named(name, width, "content-encoding")) {
                native_ = false;
            }
            break;
        case 'e':
            if (named(name, width, "expect")) {
                if (!single_word(value, stop, "100-continue")) return HeadFault::expectation;
                if (!first(EXPECT) || head_.http_1_0) native_ = false;
                head_.expects_continue = !head_.http_1_0;  // ignored in HTTP/1.0 (RFC 9110 10.1.1)
            }
            break;
        case 'h':
            if (named(name, width, "host")) {
                const Span host = trimmed(value, stop, data_);
                if (!first(HOST_FIELD)) return HeadFault::hosts;
                if (!is_host(data_ + host.offset, host.length)) return HeadFault::host;
                if (limits_.own_hosts && is_foreign_host(data_ + host.offset, host.length)) native_ = false;
            }
            break;
        case 'i':
            if (named(name, width, "inference-header-content-length")) {
                if (head_.has_json_length) native_ = false;
                head_.has_json_length = true;
                if (!number(value, stop, &head_.json_length)) {
                    head_.json_length = 0;  // malformed: Python's parser reports it
                    route_ = Route::none;
                }
            }
            break;
        case 'o':
            if (limits_.origins && named(name, width, "origin")) native_ = false;
            break;
        case 't':
            if (named(name, width, "transfer-encoding")) {
                // Only "chunked", once. Other codings could be framed in two ways (RFC 9112 6.1).
                if (head_.chunked || !single_word(value, stop, "chunked")) return HeadFault::coding;
                if (has_tab(value, stop)) native_ = false;
                head_.chunked = true;
            } else if (named(name, width, "te")) {
                native_ = false;
            } else if (named(name, width, "traceparent")) {
                take_only(TRACEPARENT, value, stop, &head_.traceparent);
            }
            break;
        case 'x':
            if (named(name, width, "x-request-id")) take_only(REQUEST_ID, value, stop, &head_.request_id);
            break;
        default:
            break;
        }
        return HeadFault::none;
    }

    // The end of a name or a value, at most `end`. A head with unusual characters is left to the app.
    const unsigned char *name_end(const unsigned char *at) noexcept {
        while (is(*at, FIELD)) ++at;
        if (!is(*at, TOKEN)) return at;
        while (is(*at, TOKEN)) ++at;
        leave_to_app();
        return at;
    }

    const unsigned char *value_end(const unsigned char *at, const unsigned char *end) noexcept {
        at = plain_end(at, end);
        while (at < end && *at >= 0x80) {  // obs-text (RFC 9110 5.5)
            at = plain_end(at + 1, end);
            leave_to_app();
        }
        return at;
    }

    void leave_to_app() noexcept { app_ = true; }

    Verdict end(size_t length) noexcept {
        head_.length = static_cast<uint32_t>(length);
        if (app_ || length > limits_.head) native_ = false;
        const bool counted = seen_ & LENGTH;
        if (!(seen_ & HOST_FIELD)) {  // RFC 9112 3.2
            if (!head_.http_1_0) return refuse_head(&head_, HeadFault::no_host);
            native_ = false;
        }
        // RFC 9112 6.1: a message with both may be an attempt at request smuggling.
        if (head_.chunked && counted) return refuse_head(&head_, HeadFault::length_and_coding);
        if (head_.chunked && head_.http_1_0) return refuse_head(&head_, HeadFault::old_coding);
        head_.close = close_ || (head_.http_1_0 && !keep_);
        const uint64_t body = head_.content_length, json = head_.json_length;
        const bool has_json = head_.has_json_length;
        if (upload_ && !has_json) native_ = false;  // images and forms have separate limits
        if (native_ && route_ == Route::infer) {
            // Requests that are refused before their body is read are left to the app.
            const bool json_fits = !has_json || json > 0;
            const bool fits = head_.chunked ? !has_json || json <= limits_.json
                                            : counted && body > 0 && body <= limits_.body &&
                                                  (has_json ? json <= body && json <= limits_.json : body <= limits_.json);
            native_ = json_fits && fits;
            if (head_.plain && (head_.chunked || has_json || body > limits_.plain_body)) native_ = false;
        } else if (route_ == Route::none || counted || head_.chunked || head_.expects_continue) {
            native_ = false;
        }
        if (native_) head_.route = route_;
        if (body || head_.chunked || head_.expects_continue) head_.question = false;
        return native_ ? Verdict::native : Verdict::app;
    }

  private:
    enum Once : unsigned {
        LENGTH = 1, CONTENT_TYPE = 2, CONNECTION = 4, EXPECT = 8, HOST_FIELD = 16, AUTHORIZATION = 32, TRACEPARENT = 64,
        REQUEST_ID = 128,
    };

    void find_plain(const unsigned char *path, const unsigned char *end) noexcept {
        for (size_t i = 0; i < limits_.plain_paths.size() && route_ == Route::none; ++i) {
            head_.name = head_.version = {};
            if (!is_plain_path(limits_.plain_paths[i], path, end, data_, &head_)) continue;
            head_.plain = static_cast<uint8_t>(i + 1);
            route_ = Route::infer;
        }
    }

    // Whether none of the fields in `which` occurred before.
    bool first(unsigned which) noexcept {
        const bool before = seen_ & which;
        seen_ |= which;
        return !before;
    }

    void take_only(unsigned which, const unsigned char *value, const unsigned char *stop, Span *span) noexcept {
        *span = first(which) ? trimmed(value, stop, data_) : Span{};
    }

    const unsigned char *const data_;
    const HeadLimits &limits_;
    Head &head_;
    Route route_ = Route::none;
    size_t count_ = 0;    // fields
    unsigned seen_ = 0;   // bits of `Once`
    // The native server can handle it; `leave_to_app` was called; Content-Type is of an upload; Connection has "close"
    // (or the method is CONNECT), or "keep-alive".
    bool native_ = false, app_ = false, upload_ = false, close_ = false, keep_ = false;
};

// Checks a complete head. Searches need no bound, because the CR of the empty line at its end stops them.
Verdict judge_head(const unsigned char *data, size_t length, const HeadLimits &limits, Head *head) noexcept {
    HeadReader reader(data, limits, head);
    head->length = static_cast<uint32_t>(length);
    if (length < 4) return refuse_head(head, HeadFault::request_line);
    const unsigned char *at = data;
    const unsigned char *const end = data + length - 2;  // the CRLF of the last field is inside
    // One empty line before the request line is ignored (RFC 9112 2.2).
    if (literal(at, end, "\r\n")) reader.leave_to_app();
    const unsigned char *const line = at;
    if (!method(at, end)) return refuse_head(head, line_fault(line, end));
    const unsigned char *const target = at;
    while (is(*at, TARGET)) ++at;
    const unsigned char *const target_end = at;
    if (target == target_end || !literal(at, end, " HTTP/1.") || at == end || !is(*at, DIGIT))
        return refuse_head(head, line_fault(line, end));
    const unsigned char minor = *at++;
    if (!literal(at, end, "\r\n")) return refuse_head(head, HeadFault::version);
    HeadFault fault = reader.begin(line, target, target_end, minor);
    head->fields = static_cast<uint32_t>(at - data);
    while (at < end && fault == HeadFault::none) {
        const unsigned char *const name = at;
        at = reader.name_end(at);
        const size_t width = static_cast<size_t>(at - name);
        if (width == 0 || *at != ':') return refuse_head(head, name_fault(name, at, end));
        const unsigned char *const value = ++at;
        at = reader.value_end(at, end);
        const unsigned char *const stop = at;
        if (!literal(at, end, "\r\n")) return refuse_head(head, HeadFault::field_value);
        fault = reader.field(name, width, value, stop);
    }
    return fault == HeadFault::none ? reader.end(length) : refuse_head(head, fault);
}

}  // namespace

Verdict classify_head(const unsigned char *data, size_t filled, size_t *searched,
                  const HeadLimits &limits, Head *head) noexcept {
    size_t length = 0;
    switch (find_head_end(data, *searched, filled, limits.longest_head, &length)) {
    case Ending::open:
        *searched = filled;
        return Verdict::incomplete;
    case Ending::never:
        *head = Head{};
        head->length = static_cast<uint32_t>(length);
        return refuse_head(head, length == limits.longest_head ? HeadFault::too_long : HeadFault::line_end);
    case Ending::found:
        break;
    }
    return judge_head(data, length, limits, head);
}

}  // namespace ksrv
