/* The load of conditions.py: connections that send one request again and again, each on a thread.
 *
 *   cc -O2 -o client client.c -lssl -lcrypto -lpthread
 *   ./client PORT CONNECTIONS SECONDS FILE keep|close|expect plain|tls
 *
 * FILE holds the request's bytes. `close` makes a connection for each request; `expect` sends the head,
 * waits for 100 Continue, and sends the rest. Answers need a Content-Length. It prints how many requests
 * were answered with 200; another status or a broken answer ends it with status 1.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 23 };

static int port, closes, expects;
static SSL_CTX *tls;
static char *request;
static size_t request_length, head_length;
static double until;
static atomic_long answered;

struct link {
    int fd;
    SSL *ssl;
};

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "client: %s\n", what);
    _exit(1);
}

static struct link begin(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct link made = {socket(AF_INET, SOCK_STREAM, 0), NULL};
    int one = 1;
    if (connect(made.fd, (struct sockaddr *)&address, sizeof address)) fail("no connection");
    setsockopt(made.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (tls) {
        made.ssl = SSL_new(tls);
        SSL_set_fd(made.ssl, made.fd);
        if (SSL_connect(made.ssl) != 1) fail("no TLS handshake");
    }
    return made;
}

static void end(struct link *link) {
    if (link->ssl) SSL_free(link->ssl);
    close(link->fd);
}

static void put(struct link *link, const char *data, size_t length) {
    while (length) {
        ssize_t sent = link->ssl ? SSL_write(link->ssl, data, (int)length)
                                 : send(link->fd, data, length, MSG_NOSIGNAL);
        if (sent <= 0) fail("the server took no more");
        data += sent;
        length -= sent;
    }
}

static size_t get(struct link *link, char *room, size_t length) {
    ssize_t got = link->ssl ? SSL_read(link->ssl, room, (int)length) : recv(link->fd, room, length, 0);
    if (got <= 0) fail("the server closed the connection");
    return got;
}

/* Receives one answer, drops its body and returns its status. */
static int answer(struct link *link, char *room) {
    size_t filled = 0, length;
    char *end;
    do {
        filled += get(link, room + filled, ROOM - filled);
        room[filled] = 0;
    } while (!(end = memmem(room, filled, "\r\n\r\n", 4)));
    int status = atoi(room + 9);
    if (status == 100) {
        if ((size_t)(end + 4 - room) != filled) fail("bytes after 100 Continue");
        return status;
    }
    char *field = strcasestr(room, "\r\ncontent-length:");
    if (!field || field > end) fail("an answer without a length");
    length = end + 4 - room + strtoull(field + 17, NULL, 10);
    while (filled < length) filled += get(link, room, length - filled < ROOM ? length - filled : ROOM);
    return status;
}

static void *load(void *unused) {
    char *room = malloc(ROOM + 1);
    struct link link = begin();
    long count = 0;
    while (now() < until) {
        if (expects) {
            put(&link, request, head_length);
            if (answer(&link, room) != 100) fail("no 100 Continue");
            put(&link, request + head_length, request_length - head_length);
        } else {
            put(&link, request, request_length);
        }
        if (answer(&link, room) != 200) fail(room);
        ++count;
        if (closes) {
            end(&link);
            link = begin();
        }
    }
    atomic_fetch_add(&answered, count);
    end(&link);
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    port = atoi(argv[1]);
    int connections = atoi(argv[2]);
    FILE *file = fopen(argv[4], "rb");
    if (!file) fail("no request");
    fseek(file, 0, SEEK_END);
    request_length = ftell(file);
    rewind(file);
    request = malloc(request_length);
    if (fread(request, 1, request_length, file) != request_length) fail("no request");
    head_length = (char *)memmem(request, request_length, "\r\n\r\n", 4) + 4 - request;
    closes = strcmp(argv[5], "close") == 0;
    expects = strcmp(argv[5], "expect") == 0;
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[6], "tls") == 0) tls = SSL_CTX_new(TLS_client_method());
    until = now() + atof(argv[3]);
    pthread_t *threads = calloc(connections, sizeof *threads);
    for (int i = 0; i < connections; ++i) pthread_create(&threads[i], NULL, load, NULL);
    for (int i = 0; i < connections; ++i) pthread_join(threads[i], NULL);
    printf("%ld\n", (long)answered);
    return 0;
}
