// The user and group of a client on a unix socket, as they were when it connected. They are stored in the `sockaddr` of
// the connection's peer, in place of the path of the client's socket, which is not needed.

#pragma once

#include <sys/socket.h>

#include <cstring>

namespace ksrv {

struct UnixPeer {
    sa_family_t family = AF_UNIX;  // first, as in a sockaddr_storage
    bool known = false;
    uid_t uid = 0;
    gid_t gid = 0;
};

// If the socket is a unix socket, stores who connected to it (unix(7): SO_PEERCRED).
inline void note_unix_peer(int socket, sockaddr_storage *address) noexcept {
    if (address->ss_family != AF_UNIX) return;
    ucred credentials;
    socklen_t size = sizeof credentials;
    UnixPeer peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
        peer.known = true;
        peer.uid = credentials.uid;
        peer.gid = credentials.gid;
    }
    memcpy(address, &peer, sizeof peer);
}

// The identity that is stored in the address of a unix socket's client. Empty for other addresses.
inline UnixPeer unix_peer(const sockaddr_storage &address) noexcept {
    UnixPeer peer;
    if (address.ss_family == AF_UNIX) memcpy(static_cast<void *>(&peer), &address, sizeof peer);
    return peer;
}

}  // namespace ksrv
