// A socket that listens on a port of this machine that the kernel chooses, and its clients.

#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.hpp"

namespace ksrv {

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
