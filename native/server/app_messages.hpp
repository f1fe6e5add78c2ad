// The queue of messages for the Falcon app. Its threads are in Python.
//
// Strategy: a thread of the app gets a message only when the thread need not wait for the client. A short body is
// received first. If the body is longer, or its sender waits for 100 Continue, a thread first checks the caller, the
// route and the announced length. Then the I/O threads receive the body, while the thread continues with other
// messages, and a thread calls the app when the body is complete. So the app is called once for a message.
//
// The server owns the queue. Any thread pushes, and Python threads pop. A mutex guards it.

#pragma once

#include <condition_variable>
#include <mutex>

#include "http/connection.hpp"
#include "reactor/run_queue.hpp"

namespace ksrv {

enum class AppQueueKind : int { metadata, others };  // metadata: messages that need no handler

class AppQueue {
  public:
    void push(AppQueueKind kind, Connection *connection) noexcept {
        List &list = lists_[static_cast<int>(kind)];
        std::lock_guard<std::mutex> guard(mutex_);
        list.messages.push(connection);
        list.arrived.notify_one();
    }

    // Waits for a message. Null once `stop` was called and the queue is empty.
    Connection *pop(AppQueueKind kind) noexcept {
        List &list = lists_[static_cast<int>(kind)];
        std::unique_lock<std::mutex> lock(mutex_);
        list.arrived.wait(lock, [&] { return stopped_ || !list.messages.empty(); });
        return list.messages.pop();
    }

    void stop() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        stopped_ = true;
        for (List &list : lists_) list.arrived.notify_all();
    }

  private:
    struct List {
        RunQueue<Connection, &Connection::next> messages;
        std::condition_variable arrived;
    };

    std::mutex mutex_;
    bool stopped_ = false;
    List lists_[2];  // by AppQueueKind
};

}  // namespace ksrv
