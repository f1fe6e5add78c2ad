#include "http/response_head.hpp"

#include <time.h>

#include <cstdlib>
#include <cstring>

namespace ksrv {

namespace {

constexpr size_t DATE_BYTES = 29;

// The texts of every head, besides the caller's texts. Add each field that put_head writes.
constexpr char OWN_TEXT[] = "HTTP/1.1 \r\nServer: \r\nDate: \r\nConnection: keep-alive\r\nx-request-id: \r\n\r\n";
constexpr size_t OWN_BYTES = sizeof OWN_TEXT - 1 + DATE_BYTES;

struct Date {
    time_t made_for = -1;
    char text[DATE_BYTES + 1] = "Sun, 06 Nov 1994 08:49:37 GMT";
};

// Formatted once per second and thread.
const char *http_date() noexcept {
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    thread_local Date date;
    Date &made = date;
    const time_t now = time(nullptr);
    if (now == made.made_for) return made.text;
    tm parts;
    gmtime_r(&now, &parts);
    const auto put_two = [&made](int at, int number) {
        made.text[at] = static_cast<char>('0' + number / 10 % 10);
        made.text[at + 1] = static_cast<char>('0' + number % 10);
    };
    memcpy(made.text, days + 3 * parts.tm_wday, 3);
    put_two(5, parts.tm_mday);
    memcpy(made.text + 8, months + 3 * parts.tm_mon, 3);
    put_two(12, (parts.tm_year + 1900) / 100);
    put_two(14, parts.tm_year + 1900);
    put_two(17, parts.tm_hour);
    put_two(20, parts.tm_min);
    put_two(23, parts.tm_sec);
    made.made_for = now;
    return made.text;
}

}  // namespace

bool put_head(Outgoing *out, const char *status, size_t status_length, const char *fields,
              size_t fields_length, const char *server, size_t server_length, bool close,
              bool http_1_0, const RequestId &id, const char *body, size_t body_length) noexcept {
    const size_t most = status_length + fields_length + server_length + body_length + id.length + OWN_BYTES;
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
    put("\r\nServer: ", 10);
    put(server, server_length);
    put("\r\nDate: ", 8);
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
