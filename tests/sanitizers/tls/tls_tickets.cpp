// The keys of session tickets by a clock that the program moves: how long a session resumes, in which processes, and with
// threads that renew the keys at the same time.
//
//     tls_tickets KEY CERTIFICATE

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tls/tls_context.hpp"
#include "tls/tls_session.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/tls_peer.hpp"

using namespace ksrv;

namespace {

constexpr int64_t SECOND = 1000000000, PERIOD = TicketKeys::PERIOD_S * SECOND;

std::atomic<int64_t> time_ns{SECOND};

int64_t moved_clock() noexcept { return time_ns.load(); }

struct Session {  // SSL_SESSION
    void *kept = nullptr;

    Session() = default;
    Session(const Session &) = delete;
    Session &operator=(const Session &) = delete;
    ~Session() {
        if (kept) from_library<void(void *)>("SSL_SESSION_free")(kept);
    }
};

// Whether the server resumes the session; `given` becomes the connection's session.
bool resumes(const TlsContext &context, SSL_CTX *client_context, const Session &offered, Session *given = nullptr) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) _exit(2);
    TlsSession server;
    check(server.begin(context, ends[0]), "a session begins");
    SSL *client = openssl.SSL_new(client_context);
    openssl.SSL_set_fd(client, ends[1]);
    from_library<void(SSL *)>("SSL_set_connect_state")(client);
    if (offered.kept) from_library<int(SSL *, void *)>("SSL_set_session")(client, offered.kept);
    bool shaken = false, connected = false;
    for (int i = 0; i < 100 && !(shaken && connected); ++i) {
        openssl.ERR_clear_error();
        connected = connected || openssl.SSL_do_handshake(client) == 1;
        shaken = shaken || server.shake_hands() == Handshake::done;
    }
    check(shaken && connected, "hands are shaken");
    char none;
    openssl.ERR_clear_error();
    openssl.SSL_read(client, &none, 1);  // TLS 1.3 sends its tickets after the handshake
    const bool resumed = server.resumed();
    if (given) given->kept = from_library<void *(SSL *)>("SSL_get1_session")(client);
    openssl.SSL_shutdown(client);  // otherwise its session is invalid
    openssl.SSL_free(client);
    server.end();
    close(ends[0]);
    close(ends[1]);
    return resumed;
}

void sessions_end_with_their_keys(const TlsRules &rules, SSL_CTX *client_context) {
    TlsContext context, other;
    std::string why;
    check(context.set_up(rules, &why) && other.set_up(rules, &why), "a context is made");
    Session none, first, second, third;
    check(!resumes(context, client_context, none, &first), "a first session is new");
    check(resumes(context, client_context, first), "a session resumes");
    check(resumes(other, client_context, first), "and in another context with the same keys");
    time_ns += PERIOD - SECOND;
    check(resumes(context, client_context, first), "it resumes with the key that made it");
    time_ns += SECOND;
    check(resumes(context, client_context, first, &second), "it resumes with the key before");
    time_ns += PERIOD;
    check(!resumes(context, client_context, first), "it ends with its key");
    check(resumes(other, client_context, second, &third), "a session that was resumed has got a ticket of the next key");
    time_ns += 2 * PERIOD;
    check(!resumes(context, client_context, third), "no key survives two periods without a client");
}

void processes_share_keys(const TlsRules &rules, SSL_CTX *client_context) {
    TlsContext context;
    std::string why;
    check(context.set_up(rules, &why), "a context is made");
    Session none, first;
    resumes(context, client_context, none, &first);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        check(resumes(context, client_context, first), "a session resumes in another process");
        time_ns += PERIOD;
        resumes(context, client_context, none);  // renews the key
        fflush(stdout);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    check(status == 0, "the child found no fault");
    time_ns += PERIOD + SECOND;
    check(resumes(context, client_context, first), "one process renews the key for all");
    time_ns += PERIOD;
    check(!resumes(context, client_context, first), "and the old key ends everywhere");
}

void threads_renew_keys(const TlsRules &rules, int version) {
    TlsContext context;
    std::string why;
    check(context.set_up(rules, &why), "a context is made");
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&context, version] {
            SSL_CTX *client = client_rules(version);
            for (int round = 0; round < 25; ++round) {
                Session none, given;
                resumes(context, client, none, &given);
                time_ns += PERIOD / 3;
                resumes(context, client, given);
            }
            openssl.SSL_CTX_free(client);
        });
    for (std::thread &each : threads) each.join();
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3 || load_openssl()) return 2;
    signal(SIGPIPE, SIG_IGN);
    TlsRules rules;
    rules.key = argv[1];
    rules.chain = argv[2];
    for (int version : {0x0303, 0x0304}) {
        SSL_CTX *client = client_rules(version);
        rules.ticket_keys = TicketKeys::make(moved_clock);
        sessions_end_with_their_keys(rules, client);
        rules.ticket_keys = TicketKeys::make(moved_clock);
        processes_share_keys(rules, client);
        rules.ticket_keys = TicketKeys::make(moved_clock);
        threads_renew_keys(rules, version);
        openssl.SSL_CTX_free(client);
    }
    printf("0 faults\n");
    return 0;
}
