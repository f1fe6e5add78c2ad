// The sockets of tests: clients of gRPC's server without an address, and listeners on loopback.

#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.hpp"
#include "grpc/server.hpp"

namespace ksrv {

// The client's end. Neither end blocks. The server's end sends by a buffer of about so many bytes, if that is not 0.
inline int connect_to(grpc::Server *server, int send_buffer = 0) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "no sockets");
    if (send_buffer) setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    server->accepted(nullptr, {ends[1], 0, {}}, true);
    return ends[0];
}

// Listens on a port that the kernel chooses.
struct Loopback {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in address{};

    Loopback() {
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        require(bind(fd, reinterpret_cast<sockaddr *>(&address), length) == 0 && listen(fd, 64) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr *>(&address), &length) == 0,
                "it does not listen");
    }
    ~Loopback() { close(fd); }

    int connected() const {
        const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        require(connect(client, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0, "no connection");
        return client;
    }
};

}  // namespace ksrv
