// Messages for the Falcon app: they wait here for a thread of Python's, and go on receiving where the app wants
// their body.
//
// Strategy: a thread gets a message when no more of it is waited for, so that it never waits for a client. A
// body that is short comes before. Of a longer body, or one whose sender waits for 100 Continue, a thread asks the app
// first whether it is wanted: that looks at the caller, the route and the announced length. Then the body is received
// here, while the thread goes on to other messages, and the app is called when it is there. So the app is called
// once for a message.
//
// The server owns the queue; any thread pushes, and threads of Python's pop. It has a lock.

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
