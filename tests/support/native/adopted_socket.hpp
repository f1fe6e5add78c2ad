// Clients of gRPC's server without an address: a pair of sockets, of which the server gets one.

#pragma once

#include <sys/socket.h>

#include "checks.hpp"
#include "grpc/server.hpp"

namespace ksrv {

// The client's end. Neither end blocks.
inline int connect_to(grpc::Server *server) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0, "no sockets");
    server->accepted(nullptr, {ends[1], 0, {}}, true);
    return ends[0];
}

}  // namespace ksrv
