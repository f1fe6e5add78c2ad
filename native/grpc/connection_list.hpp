// Connections that wait for the end of a turn, or for the next turn.

#pragma once

#include <atomic>

#include "grpc/connection.hpp"

namespace ksrv::grpc {

// A list linked through each connection. Any thread adds. The leader of the event loop, or the thread in Python, takes
// all.
template <ListPlace Connection::*place> class ConnectionList {
  public:
    // False if the connection is in the list already.
    bool add(Connection *connection) noexcept {
        if ((connection->*place).listed.exchange(true, std::memory_order_acq_rel)) return false;
        connection->retain();
        Connection *seen = first_.load(std::memory_order_relaxed);
        do {
            (connection->*place).next = seen;
        } while (!first_.compare_exchange_weak(seen, connection));
        return true;
    }

    template <typename Visit> void empty(Visit visit) noexcept {
        if (!any()) return;
        Connection *connection = first_.exchange(nullptr, std::memory_order_acquire);
        while (connection) {
            Connection *following = (connection->*place).next;
            (connection->*place).listed.store(false, std::memory_order_release);
            visit(connection);
            connection->release();
            connection = following;
        }
    }

    bool any() const noexcept { return first_.load() != nullptr; }

  private:
    std::atomic<Connection *> first_{nullptr};
};

}  // namespace ksrv::grpc
