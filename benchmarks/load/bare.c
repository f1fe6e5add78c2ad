/* The least that an HTTP inference request can cost: a single-threaded epoll server that reads the
 * whole body into one reused buffer per connection and sends a fixed answer with one sendmsg.
 * It validates nothing; it answers "Expect: 100-continue" with 100 Continue. Every transport figure of ksrv is a ratio to this server.
 *
 *   cc -O2 -o bare bare.c && ./bare PORT ANSWER_BYTES [echo|NANOSECONDS]
 *   cc -O2 -DWITH_TLS -o bare-tls bare.c -lssl -lcrypto && ./bare-tls PORT ANSWER_BYTES KEY CERTIFICATE
 *
 * With `echo` the answer's tensor is the body's last ANSWER_BYTES bytes. With a number it is busy for so
 * long before each answer, as a server is that calls a handler. That costs more than the time itself: a
 * client that was not answered at once has gone to sleep and must be woken. With TLS it reads ahead, and
 * sends an answer's head and its first bytes in one record.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifdef WITH_TLS
#include <openssl/ssl.h>
#include <signal.h>
static SSL_CTX *tls;
#endif

struct connection {
    int fd;
    char *buffer;
    size_t capacity, filled;
    struct iovec parts[2];
    int at; /* first part that is not fully sent */
    int continued; /* 100 Continue was sent for this message */
#ifdef WITH_TLS
    SSL *ssl;
#endif
};

static size_t answer_bytes;
static int echo;
static long busy_ns;
static char json[256];
static size_t json_length;
static char *zeros;

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void drop(struct connection *c) {
#ifdef WITH_TLS
    SSL_free(c->ssl);
#endif
    close(c->fd);
    free(c->buffer);
    free(c);
}

/* As recv() and sendmsg(). */
#ifdef WITH_TLS
static ssize_t give_up(struct connection *c, int result) {
    int error = SSL_get_error(c->ssl, result);
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return error == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

static ssize_t take(struct connection *c, char *data, size_t room) {
    int got = SSL_read(c->ssl, data, (int)room);
    return got > 0 ? got : give_up(c, got);
}

static int holds_more(struct connection *c) { return SSL_has_pending(c->ssl); }

static ssize_t put(struct connection *c) {
    static char record[16384];
    const char *data = c->parts[c->at].iov_base;
    size_t length = c->parts[c->at].iov_len;
    if (c->at == 0) {
        size_t more = c->parts[1].iov_len < sizeof record - length ? c->parts[1].iov_len : sizeof record - length;
        memcpy(record, data, length);
        memcpy(record + length, c->parts[1].iov_base, more);
        data = record;
        length += more;
    }
    int sent = SSL_write(c->ssl, data, (int)length);
    return sent > 0 ? sent : give_up(c, sent);
}
#else
static ssize_t take(struct connection *c, char *data, size_t room) { return recv(c->fd, data, room, 0); }

static int holds_more(struct connection *c) { return !c; }

static ssize_t put(struct connection *c) {
    struct msghdr message = {.msg_iov = c->parts + c->at, .msg_iovlen = 2 - c->at};
    return sendmsg(c->fd, &message, MSG_NOSIGNAL);
}
#endif

/* Sends what is left of the answer; 1 done, 0 later, -1 broken. */
static int flush(struct connection *c) {
    while (c->at < 2) {
        ssize_t sent = put(c);
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        while (c->at < 2 && (size_t)sent >= c->parts[c->at].iov_len) sent -= c->parts[c->at++].iov_len;
        if (c->at < 2) {
            c->parts[c->at].iov_base = (char *)c->parts[c->at].iov_base + sent;
            c->parts[c->at].iov_len -= sent;
        }
    }
    return 1;
}

/* The length of the message in the buffer, or 0 while its head is not complete. */
static size_t message_length(struct connection *c, size_t *head) {
    char *end = memmem(c->buffer, c->filled, "\r\n\r\n", 4);
    if (!end) return 0;
    *head = end + 4 - c->buffer;
    for (char *line = memchr(c->buffer, '\n', *head); line && line < end;
         line = memchr(line + 1, '\n', end - line))
        if (strncasecmp(line + 1, "content-length:", 15) == 0)
            return *head + strtoull(line + 16, NULL, 10);
    return *head;
}

static int reserve(struct connection *c, size_t wanted) {
    if (wanted <= c->capacity) return 1;
    char *grown = realloc(c->buffer, wanted);
    if (!grown) return 0;
    c->buffer = grown;
    c->capacity = wanted;
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    answer_bytes = strtoull(argv[2], NULL, 10);
#ifdef WITH_TLS
    if (argc != 5) return 2;
    signal(SIGPIPE, SIG_IGN);
    tls = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_PrivateKey_file(tls, argv[3], SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_use_certificate_chain_file(tls, argv[4]) != 1)
        return 1;
    SSL_CTX_set_read_ahead(tls, 1);
    SSL_CTX_set_default_read_buffer_len(tls, 65536);
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    argc = 3;
#endif
    echo = argc > 3 && strcmp(argv[3], "echo") == 0;
    busy_ns = argc > 3 && !echo ? atol(argv[3]) : 0;
    zeros = calloc(1, answer_bytes ? answer_bytes : 1);
    json_length = snprintf(json, sizeof json,
                           "{\"model_name\":\"bare\",\"outputs\":[{\"name\":\"y\",\"datatype\":\"FP32\","
                           "\"shape\":[1,%zu],\"parameters\":{\"binary_data_size\":%zu}}]}",
                           answer_bytes / 4, answer_bytes);
    char head[512];
    int head_length = snprintf(head, sizeof head,
                               "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
                               "Inference-Header-Content-Length: %zu\r\nContent-Length: %zu\r\n\r\n%s",
                               json_length, json_length + answer_bytes, json);

    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024)) {
        perror("bare");
        return 1;
    }
    struct epoll_event event = {.events = EPOLLIN}, events[64];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; ++i) {
            struct connection *c = events[i].data.ptr;
            if (!c) {
                int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (fd < 0) continue;
                c = calloc(1, sizeof *c);
                c->fd = fd;
                c->at = 2;
                reserve(c, 65536);
#ifdef WITH_TLS
                c->ssl = SSL_new(tls);
                SSL_set_fd(c->ssl, fd);
                SSL_set_accept_state(c->ssl);
#endif
                event.events = EPOLLIN;
                event.data.ptr = c;
                epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            if (c->at == 2) {
                ssize_t got = take(c, c->buffer + c->filled, c->capacity - c->filled);
                if (got < 0 && errno == EAGAIN) continue;
                if (got <= 0) {
                    drop(c);
                    continue;
                }
                c->filled += got;
                size_t head_end = 0, length = message_length(c, &head_end);
                if (length && c->filled == head_end && !c->continued &&
                    memmem(c->buffer, head_end, "100-continue", 12)) {
                    static char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
                    c->parts[0] = (struct iovec){go_on, sizeof go_on - 1};
                    c->parts[1].iov_len = 0;
                    c->at = 0;
                    c->continued = flush(c);
                    c->at = 2;
                    if (c->continued != 1) drop(c);
                    continue;
                }
                if (!length || c->filled < length) {
                    if (!reserve(c, length > 65536 ? length : 65536)) drop(c);
                    else if (holds_more(c)) --i; /* no event tells of that */
                    continue;
                }
                for (long long until = busy_ns ? now_ns() + busy_ns : 0; until && now_ns() < until;) continue;
                c->parts[0] = (struct iovec){head, head_length};
                c->parts[1] = (struct iovec){echo ? c->buffer + length - answer_bytes : zeros, answer_bytes};
                c->at = 0;
                c->filled = c->continued = 0;
            }
            int done = flush(c);
            if (done < 0) {
                drop(c);
                continue;
            }
            event.events = done ? EPOLLIN : EPOLLOUT;
            event.data.ptr = c;
            if (!done || events[i].events & EPOLLOUT) epoll_ctl(epoll, EPOLL_CTL_MOD, c->fd, &event);
        }
    }
}
