// A model whose handler runs in processes: its queue and route, and for each instance a thread that does what Python does around a
// RingDispatcher (ksrv/engine/instances, ksrv/engine/processes): it ends returned batches, sends batches on the channel if they do
// not fit into the ring, kills a process that is late or gives wrong answers, and replaces a process that has died.

#pragma once

#include "queue/deadline_timer.hpp"
#include "server/server.hpp"
#include "../../support/native/rows_model.hpp"
#include "handler_process.hpp"

namespace sim {

struct ModelRules {
    int instances = 1;
    bool looks = false;  // set if batches call other models
    uint64_t max_rows = 8;
    size_t capacity = 256, channel_room = 64;
    int64_t delay_ns = 0, timeout_ns = 0, run_timeout_ns = 0;
    HandlerRules handler;
};

class Model {
  public:
    Model(HttpServer *http, const ModelRules &given) : queue(new Queue(given.capacity)), rules(given), http_(http) {
        signature_ = route_rows(http_, queue, rules.handler.row_bytes / 4, rules.max_rows, rules.timeout_ns);
        if (!process_timer().watch(queue)) machine().fail("deadlines are not watched");
        for (int i = 0; i < rules.instances; ++i) threads_.emplace_back([this, slot = queue->add_slot()] { serve(slot); });
    }

    // Takes no more requests; waiting requests are still served.
    void close() { queue->close(); }
    void join() {
        for (std::thread &one : threads_) one.join();
        machine().tell("%llu processes, %llu batches on channels, %llu requests without an answer", (unsigned long long)lives_, (unsigned long long)by_message_,
                       (unsigned long long)failed);
        // The timer, or the thread that looks for clients that have left, may hold a request for a moment, and so does a request that
        // a client sends now, until it is refused: so each of the two numbers must be 0 once.
        const int64_t until = machine().now + SECOND;
        while (queue->open())
            if (machine().now > until) machine().fail("%zu requests are left in the queue", queue->open());
            else machine().sleep_until(machine().now + MS);
        while (const long left = http_->answers.open_fast_requests.load())
            if (machine().now > until) machine().fail("%ld requests are left", left);
            else machine().sleep_until(machine().now + MS);
    }
    ~Model() {
        http_->routes.tables.replace(nullptr);
        process_timer().forget(queue);
        signature_->release();
        release(queue);
    }

    Queue *const queue;
    const ModelRules rules;
    uint64_t failed = 0;  // requests of batches that had no answer

  private:
    enum class Next { batch, process, nothing };

    void serve(size_t slot) {
        while (serve_process(slot) != Next::nothing) machine().sleep_until(machine().now + static_cast<int64_t>(machine().random.below(200)) * MS);
    }

    // One life of a process. Without memory for a ring no process starts, and the caller tries again later.
    Next serve_process(size_t slot) {
        const std::unique_ptr<Ring> ring(Ring::make());
        Ring *const mapped = ring ? Ring::map(ring->fd()) : nullptr;
        if (!mapped || !ring->seal()) {
            delete mapped;
            return Next::process;
        }
        ring->close_fd();
        int ends[2];
        network().open_channel(ends, rules.channel_room);
        ++lives_;
        Next next = Next::process;
        {
            HandlerProcess process(mapped, ends[1], rules.handler);
            try {
                RingDispatcher dispatcher(queue, ring.get(), ends[0], &sums_, rules.max_rows ? 64 : 1);
                do next = serve_batch(dispatcher, process, ends[0], slot);
                while (next == Next::batch);
            } catch (const std::bad_alloc &) {
            }
            if (next == Next::nothing) say(ends[0], {ChannelMessage::close, 0, 0, {}});
        }
        ::close(ends[0]);
        return next;
    }

    Next serve_batch(RingDispatcher &dispatcher, HandlerProcess &process, int channel, size_t slot) {
        ChannelMessage message{};
        switch (dispatcher.serve({slot, rules.max_rows, rules.delay_ns, rules.run_timeout_ns, rules.looks})) {
        case Served::closed: return Next::nothing;
        case Served::requests: return run_on_channel(dispatcher.batch, process, channel);
        case Served::message: {
            const ssize_t length = recv(channel, &message, sizeof message, MSG_DONTWAIT);
            if (length < 0 && (errno == EAGAIN || errno == EINTR)) return Next::batch;
            if (length == 1 || (length > 1 && message.kind == ChannelMessage::chat)) return Next::batch;
            if (length <= 0) message.kind = ChannelMessage::failure;
            const bool owns = length > 0 && message.number == dispatcher.running().number;
            dispatcher.hand_over(HandBack::on_channel);
            return end(dispatcher.batch, owns ? message : ChannelMessage{}, process);
        }
        case Served::started:
            if (dispatcher.why == HandBack::malformed && !rules.handler.lies)
                machine().fail("the worker takes a true answer for a lie: %s", dispatcher.fault);
            if (dispatcher.why == HandBack::on_channel) message = await(channel, dispatcher.batch.number, dispatcher.batch.deadline_ns);
            if (dispatcher.why == HandBack::outputs) message.kind = ChannelMessage::failure;  // they are not the model's
            return end(dispatcher.batch, message, process);
        default: machine().fail("the dispatcher brings home what there is not");
        }
    }

    // The answer, or failure, of a batch in a message; of no kind if no message arrives in time, or another batch's.
    ChannelMessage await(int channel, uint64_t number, int64_t deadline_ns) {
        ChannelMessage message{};
        for (;;) {
            const Bell bell = wait_for_bell(channel, deadline_ns);
            if (bell == BELL_PASSED || bell == BELL_CLOSED) return {};
            if (bell != BELL_MESSAGE) continue;
            const ssize_t length = recv(channel, &message, sizeof message, MSG_DONTWAIT);
            if (length < 0 && errno != EAGAIN && errno != EINTR) return {};
            if (length <= 1 || message.kind == ChannelMessage::chat) continue;
            return message.number == number ? message : ChannelMessage{};
        }
    }

    Next run_on_channel(DispatchedRun &batch, HandlerProcess &process, int channel) {
        ChannelMessage message{ChannelMessage::run, 0, UINT64_MAX, {}};
        std::vector<unsigned char> alive = marks(batch);
        queue->start(batch.requests.data(), batch.requests.size(), alive.data());
        int64_t deadline = rules.timeout_ns || rules.run_timeout_ns ? machine().now + std::max(rules.timeout_ns, rules.run_timeout_ns) : NEVER;
        for (const Request *request : batch.requests) {
            const FastRequest &one = *static_cast<const FastRequest *>(request);
            if (!read_tags(one.body() + one.layout.offsets[0], one.rows, rules.handler.row_bytes, message.tags + message.rows))
                machine().fail("a request has torn rows");
            message.rows += one.rows;
        }
        say(channel, message);
        ++by_message_;
        return end(batch, await(channel, UINT64_MAX, deadline), process);
    }

    // Ends a batch. A process without an answer for it is killed and replaced.
    Next end(DispatchedRun &batch, const ChannelMessage &message, HandlerProcess &process) {
        if (message.kind == ChannelMessage::answer && answer(batch, message)) {
            batch.release_requests();
            return Next::batch;
        }
        std::vector<unsigned char> won = marks(batch);
        queue->finish(batch.requests.data(), batch.requests.size(), won.data());
        for (size_t i = 0; i < batch.requests.size(); ++i) {
            if (!won[i]) continue;
            ++failed;
            fail_fast_request(static_cast<FastRequest *>(batch.requests[i]));
            publish(batch.requests[i]);
            release(batch.requests[i]);
        }
        batch.release_requests();
        if (message.kind == ChannelMessage::answer || message.kind == ChannelMessage::failure) return Next::batch;
        process.kill();
        return Next::process;
    }
    bool answer(DispatchedRun &batch, const ChannelMessage &message) {
        const std::ptrdiff_t shape[] = {static_cast<std::ptrdiff_t>(message.rows), 4};
        const ReplyPart part{"y", "FP32", 1, 4, DT_FP32, reinterpret_cast<const unsigned char *>(message.tags), shape, 2, TAG_BYTES};
        const ReplyStage stage{"assemble", 8, 1};
        return answer_batch(queue, &sums_, batch.requests.data(), batch.requests.size(), marks(batch).data(), {&part, 1, &stage, 1, 1});
    }
    static std::vector<unsigned char> marks(const DispatchedRun &batch) {
        Machine::Outside outside;
        return std::vector<unsigned char>(batch.requests.size());
    }
    static void say(int channel, const ChannelMessage &message) {
        while (send(channel, &message, sizeof message, MSG_NOSIGNAL) < 0 && errno != EPIPE) machine().sleep_until(machine().now + MS);
    }

    HttpServer *const http_;
    ModelSignature *signature_;
    Sums sums_;
    std::vector<std::thread> threads_;
    uint64_t lives_ = 0, by_message_ = 0;
};

}  // namespace sim
