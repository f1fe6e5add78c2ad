// Clients of gRPC's server without an address: a pair of sockets, of which the server gets one.

#pragma once

#include <sys/socket.h>

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

}  // namespace ksrv
