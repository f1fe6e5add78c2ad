#include "http/response_head.hpp"

#include <locale.h>
#include <time.h>

#include <cstdlib>
#include <cstring>

namespace ksrv {

namespace {

constexpr size_t DATE_BYTES = 29;

// The texts of every head, besides the caller's texts. Add each field that put_head writes.
constexpr char OWN_TEXT[] = "HTTP/1.1 \r\nServer: gunicorn\r\nDate: \r\nConnection: keep-alive\r\nx-request-id: \r\n\r\n";
constexpr size_t OWN_BYTES = sizeof OWN_TEXT - 1 + DATE_BYTES;

struct Date {
    time_t made_for = -1;
    char text[DATE_BYTES + 1];
};

// Formatted once per second and thread.
const char *http_date() noexcept {
    static const locale_t english = newlocale(LC_ALL_MASK, "C", nullptr);
    thread_local Date date;
    Date &made = date;
    const time_t now = time(nullptr);
    if (now == made.made_for) return made.text;
    tm parts;
    gmtime_r(&now, &parts);
    strftime_l(made.text, sizeof made.text, "%a, %d %b %Y %H:%M:%S GMT", &parts, english);
    made.made_for = now;
    return made.text;
}

}  // namespace

bool put_head(Outgoing *out, const char *status, size_t status_length, const char *fields,
              size_t fields_length, bool close, bool http_1_0, const RequestId &id, const char *body,
              size_t body_length) noexcept {
    const size_t most = status_length + fields_length + body_length + id.length + OWN_BYTES;
    char *text = out->head;
    if (most > ANSWER_HEAD) {
        text = out->long_head = static_cast<char *>(malloc(most));
        if (!text) return false;
    }
    char *at = text;
    const auto put = [&at](const char *piece, size_t length) {
        memcpy(at, piece, length);
        at += length;
    };
    put(http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ", 9);
    put(status, status_length);
    put("\r\nServer: gunicorn\r\nDate: ", 26);
    put(http_date(), DATE_BYTES);
    if (close) {
        put("\r\nConnection: close\r\n", 21);
    } else {
        put("\r\nConnection: keep-alive\r\n", 26);
    }
    put("x-request-id: ", 14);
    put(id.text, id.length);
    put("\r\n", 2);
    put(fields, fields_length);
    put("\r\n", 2);
    out->head_bytes = static_cast<size_t>(at - text);
    if (body_length) put(body, body_length);
    add_part(out, text, static_cast<size_t>(at - text));
    return true;
}

}  // namespace ksrv
