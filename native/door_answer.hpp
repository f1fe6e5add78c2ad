// Answers: the head as gunicorn would write it, ready-made messages, and sending without waiting.

#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "door_connection.hpp"

namespace ksrv {

// An answer that needs no Python: its status and its application headers, rendered when the worker
// starts, and its body.
struct ReadyAnswer {
    uint16_t status = 0;
    std::string status_line;  // "503 Service Unavailable"
    std::string fields;       // "content-type: ...\r\ncontent-length: 20\r\n"
    std::string body;
};

// What a health route says while the server is not ready. It tells why, so it changes while I/O
// threads send it.
class UnreadyAnswer {
  public:
    void replace(std::shared_ptr<const ReadyAnswer> answer) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        answer_.swap(answer);
    }

    std::shared_ptr<const ReadyAnswer> answer() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        return answer_;
    }

  private:
    std::mutex mutex_;
    std::shared_ptr<const ReadyAnswer> answer_ = std::make_shared<ReadyAnswer>();
};

enum Ready : int {
    READY_LIVE,
    READY_NOT_LIVE,
    READY_READY,
    READY_TOO_SLOW,      // the head or the body did not come in time
    READY_NO_ROOM,       // the bytes in flight are at their bound
    READY_FAILED,        // the server's own fault
    READY_ANSWERS,
};

inline uint64_t door_clock() noexcept {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

constexpr size_t DATE_BYTES = 29;

// "Sun, 06 Nov 1994 08:49:37 GMT", made once a second for each thread.
inline const char *http_date() noexcept {
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    thread_local time_t made_for = -1;
    thread_local char text[64];
    const time_t now = time(nullptr);
    if (now != made_for) {
        tm parts;
        gmtime_r(&now, &parts);
        snprintf(text, sizeof text, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT",
                 days + 3 * parts.tm_wday, parts.tm_mday, months + 3 * parts.tm_mon,
                 parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
        made_for = now;
    }
    return text;
}

inline void forget_outgoing(Outgoing *out) noexcept {
    free(out->spilled);
    free(out->long_head);
    out->spilled = nullptr;
    out->long_head = nullptr;
    out->parts = out->inline_parts;
    out->count = 0;
    out->at = 0;
    out->total = 0;
}

// Room for `count` parts behind the head; false when there is no memory.
inline bool reserve_parts(Outgoing *out, int count) noexcept {
    out->parts = out->inline_parts;
    if (count + 1 <= static_cast<int>(sizeof out->inline_parts / sizeof(iovec))) return true;
    out->spilled = static_cast<iovec *>(malloc(sizeof(iovec) * static_cast<size_t>(count + 1)));
    if (!out->spilled) return false;
    out->parts = out->spilled;
    return true;
}

inline void add_part(Outgoing *out, const void *data, size_t length) noexcept {
    if (length == 0) return;
    out->parts[out->count].iov_base = const_cast<void *>(data);
    out->parts[out->count].iov_len = length;
    ++out->count;
    out->total += length;
}

// Writes status line, Server, Date, Connection and the application's fields: what gunicorn writes,
// in its order. `fields` ends with CRLF or is empty. A ready-made body is copied behind the head.
inline bool put_head(Outgoing *out, const char *status, size_t status_length, const char *fields,
                     size_t fields_length, const char *server, size_t server_length, bool close,
                     const char *body = nullptr, size_t body_length = 0) noexcept {
    const size_t most = status_length + fields_length + server_length + body_length + 128;
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
    put("HTTP/1.1 ", 9);
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
    put(fields, fields_length);
    put("\r\n", 2);
    if (body_length) put(body, body_length);
    add_part(out, text, static_cast<size_t>(at - text));
    return true;
}

enum class Sent : uint8_t { all, blocked, broken };

// Sends as much as the socket takes now.
inline Sent send_now(int fd, Outgoing *out) noexcept {
    while (out->at < out->count) {
        msghdr message{};
        message.msg_iov = out->parts + out->at;
        const int left = out->count - out->at;
        message.msg_iovlen = static_cast<size_t>(left < ANSWER_PARTS ? left : ANSWER_PARTS);
        const ssize_t taken = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (taken < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) return Sent::blocked;
            return Sent::broken;
        }
        size_t rest = static_cast<size_t>(taken);
        out->sent += rest;
        while (rest > 0) {
            iovec *part = out->parts + out->at;
            const size_t step = rest < part->iov_len ? rest : part->iov_len;
            part->iov_base = static_cast<char *>(part->iov_base) + step;
            part->iov_len -= step;
            rest -= step;
            if (part->iov_len == 0) ++out->at;
        }
    }
    return Sent::all;
}

}  // namespace ksrv
