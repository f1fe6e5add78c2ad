// The listening sockets of one protocol: accepts connections, pauses without capacity, and stops accepting.

#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ksrv {

struct Accepted {
    int fd;
    uint16_t listener;  // its index
    sockaddr_storage peer;
};

class Listeners {
  public:
    // The receiver of accepted sockets.
    struct Owner {
        // Reserves a slot for a connection. Null if none is free: accepting then pauses.
        virtual void *take_place() noexcept = 0;
        virtual void give_back_place(void *place) noexcept = 0;
        // `serves`: the caller is the event loop, and data that the client has sent may be served at once.
        virtual void accepted(void *place, const Accepted &accepted, bool serves) noexcept = 0;
        virtual bool has_room() const noexcept = 0;
        virtual void make_room() noexcept = 0;  // while accepting is paused; called within `use`
        virtual void accept_paused(bool lacks_descriptors) noexcept = 0;

      protected:
        ~Owner() = default;
    };

    explicit Listeners(Owner *owner) noexcept : owner_(owner) {}

    // Sets the sockets before accepting begins. Events of listener `i` have the tag `tag + i`. `shared`: other
    // processes accept from the same sockets.
    bool set(const int *fds, size_t count, int epoll, uint64_t tag, bool shared) noexcept;
    void accept_enabled(bool enabled) noexcept;
    void accept_some(uint16_t listener) noexcept;  // at an event of a listener
    void sweep(uint64_t now) noexcept;             // ends a pause if possible, and accepts waiting connections
    // A connection was closed: resumes accepting if it was paused at the connection limit.
    void note_closed(uint64_t now) noexcept {
        last_seen_ns_.store(now, std::memory_order_relaxed);
        if (is_paused()) resume(now);
    }
    // When a client last connected or left; 0 if no client did.
    uint64_t last_seen_ns() const noexcept { return last_seen_ns_.load(std::memory_order_relaxed); }
    bool is_paused() const noexcept { return paused_.load(std::memory_order_relaxed); }
    bool client_waits() const noexcept;  // called within `use`

    // Calls `work` if accepting is on, and keeps the descriptors open meanwhile.
    template <typename Work> void use(Work work) noexcept {
        using_.fetch_add(1);
        if (wanted_.load()) work();
        using_.fetch_sub(1);
    }

  private:
    static constexpr int ACCEPTS = 4;           // connections accepted per event
    // Connections accepted when accepting stops: the largest backlog of a kernel.
    static constexpr int LAST_ACCEPTS = 65536;
    static constexpr uint64_t DESCRIPTOR_PAUSE_NS = 200'000'000u;
    static constexpr uint64_t UNTIL_ROOM = UINT64_MAX;

    void accept_from(uint16_t listener, int most, bool serves) noexcept;
    void requeue(uint16_t listener) noexcept;
    void pause(uint64_t until) noexcept;
    void resume(uint64_t now) noexcept;
    // The caller holds the mutex.
    void watch_all(bool on) noexcept;
    void stop_watching(uint64_t until) noexcept;
    bool watch(size_t listener, bool on) noexcept;

    Owner *const owner_;
    std::vector<int> fds_;
    int epoll_ = -1;
    uint64_t tag_ = 0;
    bool shared_ = false;
    std::mutex mutex_;
    std::atomic<bool> wanted_{false};  // accepting is enabled
    std::atomic<int> using_{0};  // number of threads that use the descriptors
    bool watching_ = false;            // epoll watches the sockets; guarded by the mutex
    std::atomic<bool> paused_{false};  // changed only under the mutex, as is `paused_until_ns_`
    std::atomic<uint64_t> last_seen_ns_{0};
    uint64_t paused_until_ns_ = 0;
};

}  // namespace ksrv
