// TLS on sockets that take and give little at a time, and on a line that breaks bytes.
//
//     tls_records KEY CERTIFICATE [ROUNDS]
//
// A server's transport and a client of OpenSSL's talk over pairs of sockets in one thread. A round sends an
// answer of random parts and a request of random pieces and compares what came; every third round flips a byte
// on the way, after which both ends must come to an end by themselves. A client that sends records without data is
// served up to a bound.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "http/transport.hpp"
#include "tls/tls_context.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/tls_peer.hpp"

using namespace ksrv;

namespace {

std::mt19937 chance(1);

size_t below(size_t end) { return chance() % end; }

struct Client {
    SSL *ssl = nullptr;
    std::string received;
    bool ended = false;

    // Reads what there is; the end is an end of any kind.
    void read_some() {
        char piece[5000];
        openssl.ERR_clear_error();
        const int got = openssl.SSL_read(ssl, piece, static_cast<int>(1 + below(sizeof piece)));
        if (got > 0) {
            received.append(piece, static_cast<size_t>(got));
        } else {
            const int error = openssl.SSL_get_error(ssl, got);
            ended = error != openssl_value::ERROR_WANT_READ && error != openssl_value::ERROR_WANT_WRITE;
        }
    }
};

// Two pairs of sockets with a line between them, which passes on some bytes at a time.
struct Line {
    int server[2], client[2];
    long until_flip;  // bytes to the server before one is flipped; -1: none is

    explicit Line(long flip) : until_flip(flip) {
        const int small = 4096;
        for (int *pair : {server, client}) {
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) _exit(2);
            for (int i = 0; i < 2; ++i) setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        }
    }
    ~Line() {
        close(server[1]);
        close(client[0]);
        close(client[1]);
    }

    void move(int from, int to, bool flips) {
        pollfd room{to, POLLOUT, 0};
        if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT)) return;
        unsigned char piece[997];
        const ssize_t got = recv(from, piece, 1 + below(sizeof piece), 0);
        if (got == 0) shutdown(to, SHUT_WR);
        if (got <= 0) return;
        if (flips && until_flip >= 0 && until_flip < got) piece[until_flip] ^= 1u << below(8);
        if (flips && until_flip >= 0) until_flip -= got;
        ssize_t sent = 0;
        for (int tries = 0; sent < got && tries < 1000; ++tries) {
            const ssize_t taken = send(to, piece + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
            if (taken < 0 && errno != EAGAIN) return;  // its reader has gone
            if (taken > 0) sent += taken;
        }
    }
    void pump() {
        move(client[1], server[1], true);
        move(server[1], client[1], false);
    }
};

void round_of(const TlsContext &context, SSL_CTX *clients, void (*connect_state)(SSL *), bool breaks) {
    Line line(breaks ? static_cast<long>(below(6000)) : -1);
    Transport transport;
    transport.fd = line.server[0];
    check(transport.tls.begin(context, transport.fd), "a session begins");
    Client client;
    client.ssl = openssl.SSL_new(clients);
    openssl.SSL_set_fd(client.ssl, line.client[0]);
    connect_state(client.ssl);

    bool shaken = false, connected = false, over = false;
    for (int i = 0; i < 100000 && !(shaken && connected) && !over; ++i) {
        if (!connected) {
            openssl.ERR_clear_error();
            const int done = openssl.SSL_do_handshake(client.ssl);
            connected = done == 1;
            const int error = openssl.SSL_get_error(client.ssl, done);
            if (!connected && error != openssl_value::ERROR_WANT_READ && error != openssl_value::ERROR_WANT_WRITE)
                over = true;
        }
        if (!shaken) {
            const Handshake found = transport.tls.shake_hands();
            shaken = found == Handshake::done;
            if (found == Handshake::failed || found == Handshake::plain_http) over = true;
        }
        line.pump();
    }
    check(breaks || (shaken && connected), "hands are shaken");

    // An answer of random parts, after no interim answer or so many that the answer meets a full socket.
    static const size_t sizes[] = {1, 100, 5000, 16383, 16384, 16385, 60000};
    std::vector<std::string> parts;
    std::string expected, request, arrived;
    for (size_t i = 0, count = 1 + below(8); i < count; ++i)
        parts.emplace_back(sizes[below(7)], static_cast<char>('a' + i));
    Outgoing out;
    forget_outgoing(&out);
    check(reserve_parts(&out, static_cast<int>(parts.size())), "there is room for the parts");
    for (const std::string &part : parts) add_part(&out, part.data(), part.size());
    const bool interim = below(2) != 0;
    std::string before;
    for (const std::string &part : parts) expected += part;
    out.sent = out.taken = 0;
    for (size_t i = below(40000); i > 0; --i) request += static_cast<char>(i * 7);

    size_t asked = 0;
    bool answered = false, began = false;
    over = over || !(shaken && connected);
    for (int i = 0; i < 1000000 && !over; ++i) {
        if (asked < request.size()) {
            openssl.ERR_clear_error();
            const int put = openssl.SSL_write(client.ssl, request.data() + asked,
                                              static_cast<int>(std::min<size_t>(request.size() - asked, 9000)));
            if (put > 0) asked += static_cast<size_t>(put);
        }
        char piece[20000];
        const size_t room = 1 + below(sizeof piece);
        const ssize_t got = receive_some(&transport, piece, room);
        if (got > 0) {
            arrived.append(piece, static_cast<size_t>(got));
            if (!has_emptied(&transport, static_cast<size_t>(got), room))
                check(look_for_unread(&transport) == Unread::some, "what is left is unread");
        } else if (got == 0 || errno != EAGAIN) {
            over = true;
        }
        if (!answered && !over && arrived.size() == request.size()) {
            while (interim && !began && !over && !transport.tls.interim_waits) {
                if (!send_continue(&transport)) over = true;
                before += "HTTP/1.1 100 Continue\r\n\r\n";
            }
            began = true;
            const Sent sent = send_now(&transport, &out);
            if (sent == Sent::broken) over = true;
            if (sent == Sent::all) {
                answered = true;
                end_sending(&transport);
                check(!transport.tls, "a session ends with its farewell");
            }
        }
        line.pump();
        client.read_some();
        if (answered) break;
    }
    if (!answered) close_transport(&transport);
    for (int i = 0; i < 1000000 && !client.ended; ++i) {
        line.pump();
        if (connected) client.read_some();
        if (!connected) break;
    }
    expected.insert(0, before);
    if (breaks) {
        check(client.received == expected.substr(0, client.received.size()), "nothing false came");
        check(arrived == request.substr(0, arrived.size()), "nothing false was received");
    } else {
        check(client.received == expected, "the answer came whole");
        check(arrived == request, "the request came whole");
    }
    close_transport(&transport);
    forget_outgoing(&out);
    openssl.SSL_free(client.ssl);
}

// Sends so many records without data, then a byte of data. Returns whether the byte arrives.
bool is_received(const TlsContext &context, int version, uint32_t records) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) _exit(2);
    Transport transport;
    transport.fd = ends[0];
    check(transport.tls.begin(context, transport.fd), "a session begins");
    TlsPeer peer(ends[1], version);
    for (bool shaken = false, connected = false; !shaken || !connected;) {
        connected = connected || peer.shake_hands();
        shaken = shaken || transport.tls.shake_hands() == Handshake::done;
    }
    std::string sent;
    for (uint32_t i = 0; i < records; ++i)  // TLS 1.2 has no update of keys, and its renegotiation is refused
        sent += version == 0x0304 ? peer.key_update()
                                  : peer.record(RECORD_HANDSHAKE, std::string("\1\0\0\2\3\3", 6));
    peer.send_all(sent + peer.data("x"));
    char piece[10];
    const ssize_t got = receive_some(&transport, piece, sizeof piece);
    check(transport.tls.turn_records <= TlsSession::MOST_EMPTY_RECORDS + 2, "one call takes no more records");
    check(got == 1 || (got < 0 && errno == EPROTO), "the byte arrives, or the session fails");
    close_transport(&transport);
    return got == 1;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    TlsRules rules;
    rules.key = argv[1];
    rules.chain = argv[2];
    TlsContext context;
    std::string why;
    require(context.set_up(rules, &why), why.c_str());
    auto *connect_state = from_library<void(SSL *)>("SSL_set_connect_state");
    const int rounds = argc > 3 ? atoi(argv[3]) : 60;
    for (int version : {0x0303, 0x0304}) {
        SSL_CTX *clients = client_rules(version);
        openssl.SSL_CTX_ctrl(clients, openssl_value::CTRL_MODE,
                             openssl_value::MODE_PARTIAL_WRITE | openssl_value::MODE_MOVING_WRITE_BUFFER, nullptr);
        for (int i = 0; i < rounds; ++i) round_of(context, clients, connect_state, i % 3 == 2);
        openssl.SSL_CTX_free(clients);
        check(is_received(context, version, 0), "data arrives");
        check(is_received(context, version, TlsSession::MOST_EMPTY_RECORDS), "some records without data are taken");
        check(!is_received(context, version, TlsSession::MOST_EMPTY_RECORDS + 1), "more end the session");
        check(!is_received(context, version, 500), "so do many more");
    }
    printf("0 faults\n");
    return 0;
}
