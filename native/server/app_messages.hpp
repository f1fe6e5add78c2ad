// The queue of messages for the Falcon app. Its threads are in Python.
//
// Strategy: a thread gets a message when it need not wait for the client. A short body is received first. For a longer
// body, or one whose sender waits for 100 Continue, a thread first asks the app whether it wants the body: this checks
// the caller, the route and the announced length. Then the body is received by the I/O threads, while the thread
// continues with other messages, and the app is called when the body is complete. So the app is called once for a
// message.
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
        list.come.notify_one();
    }

    // Waits for a message. Null once `stop` was called and the queue is empty.
    Connection *pop(AppQueueKind kind) noexcept {
        List &list = lists_[static_cast<int>(kind)];
        std::unique_lock<std::mutex> lock(mutex_);
        list.come.wait(lock, [&] { return stopped_ || !list.messages.empty(); });
        return list.messages.pop();
    }

    void stop() noexcept {
        std::lock_guard<std::mutex> guard(mutex_);
        stopped_ = true;
        for (List &list : lists_) list.come.notify_all();
    }

  private:
    struct List {
        RunQueue<Connection, &Connection::next> messages;
        std::condition_variable come;
    };

    std::mutex mutex_;
    bool stopped_ = false;
    List lists_[2];
};

}  // namespace ksrv
