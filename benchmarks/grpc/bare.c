// The limit: a single-threaded gRPC server on libnghttp2 that validates nothing and answers constant bytes.
//
//     cc -O2 bare.c -lnghttp2 -o bare && ./bare PORT W1|W2|W4

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define NV(n, v) {(uint8_t *)n, (uint8_t *)v, sizeof n - 1, sizeof v - 1, \
                  NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE}

static unsigned char *answer, *sink, *out;
static size_t answer_length;
static size_t out_room = 8u << 20;

typedef struct {
    int fd;
    nghttp2_session *session;
} Peer;

static ssize_t read_answer(nghttp2_session *session, int32_t id, uint8_t *to, size_t room, uint32_t *flags,
                           nghttp2_data_source *source, void *user) {
    size_t at = (size_t)source->ptr, some = answer_length - at < room ? answer_length - at : room;
    (void)user;
    memcpy(to, answer + at, some);
    source->ptr = (void *)(at + some);
    if (at + some == answer_length) {
        static const nghttp2_nv trailers[] = {NV("grpc-status", "0")};
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        nghttp2_submit_trailer(session, id, trailers, 1);
    }
    return (ssize_t)some;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user) {
    static const nghttp2_nv head[] = {NV(":status", "200"), NV("content-type", "application/grpc")};
    nghttp2_data_provider body = {{.ptr = 0}, read_answer};
    (void)user;
    if (frame->hd.type == NGHTTP2_DATA && frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
        nghttp2_submit_response(session, frame->hd.stream_id, head, 2, &body);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t length,
                   void *user) {
    (void)session, (void)flags, (void)id, (void)user;
    memcpy(sink, data, length);
    return 0;
}

static ssize_t frame_length(nghttp2_session *s, uint8_t type, int32_t id, int32_t connection, int32_t stream,
                            uint32_t most, void *user) {
    int32_t window = connection < stream ? connection : stream;
    (void)s, (void)type, (void)id, (void)user;
    return window < (int32_t)most ? window : (int32_t)most;
}

static void flush(Peer *peer) {
    const uint8_t *data;
    ssize_t made;
    size_t length = 0;
    while ((made = nghttp2_session_mem_send(peer->session, &data)) > 0) {
        if (length + (size_t)made > out_room) out = realloc(out, out_room = 2 * (length + (size_t)made));
        memcpy(out + length, data, (size_t)made);
        length += (size_t)made;
    }
    for (size_t at = 0; at < length;) {
        ssize_t sent = send(peer->fd, out + at, length - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return;
        at += (size_t)sent;
    }
}

static void put_answer(const char *workload) {
    static const unsigned char fields[] = {0x0a, 2, 'w', '1', 0x12, 1, '1', 0x2a, 13, 0x0a, 1, 'y', 0x12, 4,
                                           'F', 'P', '3', '2', 0x1a, 2, 1, 16, 0x32};
    size_t tensor = strcmp(workload, "W1") == 0 ? 64 : strcmp(workload, "W2") == 0 ? 40 : 64u << 20;
    unsigned char length[10];
    size_t digits = 0;
    for (size_t left = tensor; left || !digits; left >>= 7)
        length[digits++] = (unsigned char)((left & 127) | (left > 127 ? 128 : 0));
    size_t message = sizeof fields + digits + tensor;
    answer_length = 5 + message;
    answer = calloc(1, answer_length);
    for (int i = 0; i < 4; ++i) answer[1 + i] = (unsigned char)(message >> (24 - 8 * i));
    memcpy(answer + 5, fields, sizeof fields);
    memcpy(answer + 5 + sizeof fields, length, digits);
}

int main(int count, char **arguments) {
    static unsigned char buffer[256u << 10];
    if (count != 3) return 2;
    put_answer(arguments[2]);
    sink = malloc(1u << 20);
    out = malloc(out_room);
    nghttp2_session_callbacks *callbacks;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, frame_length);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(arguments[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128)) return 1;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[64];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < ready; ++i) {
            Peer *peer = events[i].data.ptr;
            if (!peer) {
                static const nghttp2_settings_entry settings[] = {
                    {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 128},
                    {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 8 << 20},
                    {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, 1 << 20}};
                peer = calloc(1, sizeof *peer);
                peer->fd = accept(listener, NULL, NULL);
                setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                nghttp2_session_server_new(&peer->session, callbacks, peer);
                nghttp2_submit_settings(peer->session, 0, settings, 3);
                nghttp2_session_set_local_window_size(peer->session, 0, 0, 64 << 20);
                event.data.ptr = peer;
                epoll_ctl(epoll, EPOLL_CTL_ADD, peer->fd, &event);
            } else {
                ssize_t got = recv(peer->fd, buffer, sizeof buffer, 0);
                if (got <= 0 || nghttp2_session_mem_recv(peer->session, buffer, (size_t)got) < 0) {
                    close(peer->fd);
                    nghttp2_session_del(peer->session);
                    free(peer);
                    continue;
                }
            }
            flush(peer);
        }
    }
}
