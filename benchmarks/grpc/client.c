// A client that sends each call in a separate write, as soon as the stream's last answer has arrived.
//
//     cc -O2 client.c -lnghttp2 -o client && ./client PORT STREAMS CALLS FILE MICROSECONDS
//
// h2load sends the calls of all streams whose answers arrived together in one packet. This client computes for some
// microseconds before each call, as other clients do, so that the server gets calls one by one. FILE has a call's prefix and
// message. An answer without the status 0 ends the client with status 1.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NV(n, v) {(uint8_t *)n, (uint8_t *)v, sizeof n - 1, sizeof v - 1, \
                  NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}

enum { ROOM = 1 << 20 };

static unsigned char message[ROOM], buffer[ROOM];
static size_t length;
static long ended, good, begun, calls, pause_ns;
static int fd;

static void fail(const char *what) {
    fprintf(stderr, "client: %s\n", what);
    exit(1);
}

static ssize_t read_message(nghttp2_session *session, int32_t id, uint8_t *to, size_t room, uint32_t *flags,
                            nghttp2_data_source *source, void *user) {
    size_t at = (size_t)source->ptr, some = length - at < room ? length - at : room;
    (void)session, (void)id, (void)user;
    memcpy(to, message + at, some);
    source->ptr = (void *)(at + some);
    if (at + some == length) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)some;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name, size_t name_length,
                     const uint8_t *value, size_t value_length, uint8_t flags, void *user) {
    (void)session, (void)frame, (void)flags, (void)user;
    if (name_length == 11 && !memcmp(name, "grpc-status", 11) && value_length == 1 && *value == '0') ++good;
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error, void *user) {
    (void)session, (void)id, (void)error, (void)user;
    ++ended;
    return 0;
}

static void send_all(nghttp2_session *session) {
    unsigned char out[65536];
    const uint8_t *data;
    size_t made = 0;
    for (ssize_t some; (some = nghttp2_session_mem_send(session, &data)) > 0; made += (size_t)some) {
        if (made + (size_t)some > sizeof out) fail("a call is too large");
        memcpy(out + made, data, (size_t)some);
    }
    for (size_t at = 0; at < made;) {
        ssize_t sent = send(fd, out + at, made - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) fail("the connection broke");
        at += (size_t)sent;
    }
}

static void compute(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    const long until = at.tv_sec * 1000000000 + at.tv_nsec + pause_ns;
    do {
        clock_gettime(CLOCK_MONOTONIC, &at);
    } while (at.tv_sec * 1000000000 + at.tv_nsec < until);
}

static void begin(nghttp2_session *session) {
    if (pause_ns) compute();
    static const nghttp2_nv head[] = {NV(":method", "POST"),
                                      NV(":scheme", "http"),
                                      NV(":path", "/inference.GRPCInferenceService/ModelInfer"),
                                      NV(":authority", "localhost"),
                                      NV("content-type", "application/grpc"),
                                      NV("te", "trailers")};
    nghttp2_data_provider body = {{.ptr = 0}, read_message};
    if (nghttp2_submit_request(session, NULL, head, sizeof head / sizeof *head, &body, NULL) < 0) fail("no call");
    ++begun;
    send_all(session);
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    FILE *file = fopen(arguments[4], "rb");
    if (!file || !(length = fread(message, 1, sizeof message, file))) fail("no message");
    fclose(file);
    const long streams = atol(arguments[2]);
    calls = atol(arguments[3]);
    pause_ns = 1000 * atol(arguments[5]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int on = 1;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    nghttp2_session_callbacks *callbacks;
    nghttp2_session *session;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    nghttp2_session_client_new(&session, callbacks, NULL);
    nghttp2_submit_settings(session, 0, NULL, 0);
    nghttp2_session_set_local_window_size(session, 0, 0, 64 << 20);
    send_all(session);
    while (begun < streams && begun < calls) begin(session);
    while (ended < calls) {
        const ssize_t got = recv(fd, buffer, sizeof buffer, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 || nghttp2_session_mem_recv(session, buffer, (size_t)got) < 0) fail("the connection broke");
        while (begun < calls && begun - ended < streams) begin(session);
        send_all(session);  // what the library itself has to say
    }
    if (good != calls) fail("a call failed");
    return 0;
}
