// Messages that wait for a thread of Python's, which calls the Falcon app.

#pragma once

#include <condition_variable>
#include <mutex>

#include "http/connection.hpp"

namespace ksrv {

enum class AppQueueKind : int { metadata, others };  // those that no handler has to answer, and the others

class AppQueue {
  public:
    void push(AppQueueKind kind, Connection *connection) noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        List &list = lists_[static_cast<int>(kind)];
        connection->next = nullptr;
        (list.last ? list.last->next : list.first) = connection;
        list.last = connection;
        list.come.notify_one();
    }

    // Waits for a message; null once `stop` was called and none is left.
    Connection *pop(AppQueueKind kind) noexcept {
        std::unique_lock<std::mutex> lock(mutex_);
        List &list = lists_[static_cast<int>(kind)];
        while (!list.first) {
            if (stopped_) return nullptr;
            list.come.wait(lock);
        }
        Connection *connection = list.first;
        list.first = connection->next;
        if (!list.first) list.last = nullptr;
        connection->next = nullptr;
        return connection;
    }

    void stop() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        stopped_ = true;
        for (List &list : lists_) list.come.notify_all();
    }

  private:
    struct List {
        Connection *first = nullptr, *last = nullptr;
        std::condition_variable come;
    };

    std::mutex mutex_;
    bool stopped_ = false;
    List lists_[2];
};

}  // namespace ksrv
