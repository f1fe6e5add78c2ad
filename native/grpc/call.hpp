// One call: its metadata, its messages in and out, and its end.
//
// Strategy: the connection's owner receives; once a message is complete, the call goes to the run queue, and
// from there on any thread may answer. What both sides touch lies under the call's mutex. A call is counted:
// by its connection while the stream is open, by the run queue, and by whoever answers it.

#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/monotonic_condition.hpp"
#include "base/request_id.hpp"
#include "base/small_vector.hpp"
#include "grpc/payload.hpp"
#include "grpc/status.hpp"
#include "memory/buffer_pool.hpp"
#include "memory/memory_budget.hpp"
#include "queue/request_queue.hpp"

namespace ksrv {

struct FastRequest;

}  // namespace ksrv

namespace ksrv::grpc {

class Connection;

// What the server knows of a method before it asks Python.
struct Method {
    std::string path;
    bool streams = false;  // messages are taken one by one; the call begins with its metadata
    bool small = false;    // its messages can only be small ones
    bool infer = false;    // ModelInfer, whose tensors are to lie aligned
    bool is_open = false;  // everybody may call
    bool control = false;  // changes models: the control token is asked for, where there is one
};

struct Message {
    Block *block = nullptr;  // null for an empty one
    size_t offset = 0, length = 0;
    bool compressed = false;
    uint64_t counted = 0;
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

void free_message(Message *message, MemoryBudget *budget) noexcept;

// Why a call goes into Python.
enum RunReason : int { RUN_READY = 1, RUN_ENDED = 2, RUN_CHECK = 4 };

enum class Next : int { message, over, ended, late };

struct Call {
    Call(Connection *its, int32_t id, uint64_t now) noexcept : connection(its), stream(id), opened_ns(now) {}
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    void retain() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;  // connection.cpp

    // ---- for whoever answers; any thread ----
    void write(Payload *payload) noexcept;  // takes the caller's reference
    // Ends the call, with a last message if there is one; takes what the text and the metadata hold.
    void finish(int status, std::string &text, Metadata &metadata, Payload *last = nullptr) noexcept;
    void cancel() noexcept;  // resets the stream without a status
    void queue(Payload *payload) noexcept;  // takes the caller's reference; under the mutex
    void drop_answer() noexcept;  // what was not sent of it; under the mutex
    void free_untaken() noexcept;  // the messages that nobody has taken; under the mutex
    bool wait_for_room(size_t most) noexcept;  // false: the call has ended
    // Waits for the next message of a stream until the clock passes `until_ns`.
    Next next_message(Message *out, int64_t until_ns) noexcept;
    void note_model(const std::string &its_model, const std::string &its_version) noexcept;
    // Chooses the call's id by its metadata, and takes the entries that name one out.
    void identify() noexcept;
    void unwatch() noexcept;
    void watch(Request *request) noexcept;  // cancelled when the call ends before it is answered
    bool take_message(Message *out) noexcept;  // the only one of a unary call
    void admit() noexcept;  // its caller may call
    // Has a Python object told of the end; false when the call has ended.
    bool tell_of_end(void *object) noexcept {
        std::lock_guard<std::mutex> guard(lock);
        if (!ended) callbacks = object;
        return !ended;
    }
    bool is_active() noexcept {
        std::lock_guard<std::mutex> guard(lock);
        return !ended && !finished;
    }

    Connection *const connection;  // held
    int32_t stream;                // the owner's
    std::atomic<int> refs{1};
    const Method *method = nullptr;

    // Metadata: lines of "name: value" in `text`; written before the call is shown to others.
    struct Entry {
        uint32_t name, name_length, value, value_length;
    };
    std::string_view name_of(const Entry &entry) const noexcept { return {text.data() + entry.name, entry.name_length}; }
    std::string_view value_of(const Entry &entry) const noexcept {
        return {text.data() + entry.value, entry.value_length};
    }
    SmallVector<char, 192> text;
    SmallVector<Entry, 6> entries;
    std::string authorization;
    RequestId request_id;  // chosen when the metadata is complete
    enum class Encoding : uint8_t { identity, gzip, deflate, other } encoding = Encoding::identity;
    std::string verb, authority;
    bool is_grpc = false, is_other = false, head_too_large = false, bad_timeout = false;
    bool head_lost = false;  // there was no memory for it
    bool has_authorization = false, repeats_authorization = false;
    uint64_t timeout_ns = 0;
    bool has_timeout = false;
    std::string path;
    uint64_t deadline_ns = 0;  // 0: none

    // ---- receiving; the owner's ----
    unsigned char prefix[PREFIX];
    size_t prefix_got = 0, got = 0;
    Message incoming;
    bool discards = false;      // what still comes is not wanted
    bool fields_done = false;
    bool waits_for_first = false;  // no message has come
    std::atomic<bool> admitted{false};  // whether more than the first window may come
    size_t unconsumed = 0;      // of the window
    uint64_t opened_ns, message_ns = 0;  // since when the message is waited for
    uint64_t progress_ns = 0;

    // ---- the run queue's ----
    std::atomic<int> run{0};
    Call *run_next = nullptr;
    FastRequest *fast = nullptr;  // in the run queue, and not in its model's queue yet
    bool sampled = false;  // it left the fast path, because Python shall record it; written before Python has the call
    bool held = false;  // counts among the calls that Python has, or will have; the owner's from its answer on
    std::atomic<bool> mailed{false};
    Call *mail_next = nullptr;

    // ---- under the mutex ----
    std::mutex lock;
    MonotonicCondition changed;
    SmallVector<Message, 1> messages;  // complete ones, in order
    size_t messages_taken = 0;
    bool peer_over = false, ended = false, finished = false, cancelled = false;
    Payload *out_first = nullptr, *out_last = nullptr;
    size_t out_bytes = 0;
    int status = OK;
    std::string status_text;
    std::string model, version;  // for the access log
    Metadata metadata;
    Request *watched = nullptr;
    void *callbacks = nullptr;  // a Python object to be told of the end; held

    // ---- answering; the owner's ----
    bool answered = false;   // the response's headers were submitted
    bool trailed = false;    // and its trailers
    bool overdue = false;    // the answer has been whole, and waited for its client, for long
    uint64_t whole_ns = 0;   // since when it is whole and waits; 0: it does not
    uint64_t answer_ns = 0, answer_sent = 0, answer_before = 0, answer_looked = 0;
    Call *previous = nullptr, *next = nullptr;  // in the connection's list

  private:
    ~Call();
};

}  // namespace ksrv::grpc
