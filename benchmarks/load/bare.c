/* The least that an HTTP inference request can cost: a single-threaded epoll server that reads the
 * whole body into one reused buffer per connection and sends a fixed answer with one sendmsg.
 * It validates nothing. Every transport figure of ksrv is a ratio to this one.
 *
 *   cc -O2 -o bare bare.c && ./bare PORT ANSWER_BYTES [echo|NANOSECONDS]
 *
 * With `echo` the answer's tensor is the body's last ANSWER_BYTES bytes. With a number it is busy for so
 * long before each answer, as a server is that calls a handler. That costs more than the time itself: a
 * client that was not answered at once has gone to sleep and must be woken.
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

struct connection {
    int fd;
    char *buffer;
    size_t capacity, filled;
    struct iovec parts[2];
    int at; /* first part that is not fully sent */
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
    close(c->fd);
    free(c->buffer);
    free(c);
}

/* Sends what is left of the answer; 1 done, 0 later, -1 broken. */
static int flush(struct connection *c) {
    while (c->at < 2) {
        struct msghdr message = {.msg_iov = c->parts + c->at, .msg_iovlen = 2 - c->at};
        ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
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
                event.events = EPOLLIN;
                event.data.ptr = c;
                epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            if (c->at == 2) {
                ssize_t got = recv(c->fd, c->buffer + c->filled, c->capacity - c->filled, 0);
                if (got < 0 && errno == EAGAIN) continue;
                if (got <= 0) {
                    drop(c);
                    continue;
                }
                c->filled += got;
                size_t head_end = 0, length = message_length(c, &head_end);
                if (!length || c->filled < length) {
                    if (!reserve(c, length > 65536 ? length : 65536)) drop(c);
                    continue;
                }
                for (long long until = busy_ns ? now_ns() + busy_ns : 0; until && now_ns() < until;) continue;
                c->parts[0] = (struct iovec){head, head_length};
                c->parts[1] = (struct iovec){echo ? c->buffer + length - answer_bytes : zeros, answer_bytes};
                c->at = 0;
                c->filled = 0;
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
