// Drives native/queue/ from many threads at once, without Python, for the sanitizers.
//
// Producers push, cancel and wait; instances take, run and have their slots claimed; a prefetcher works ahead; the
// timer expires; a watcher cancels what may not even be pushed yet; batches are finished a second time. In every
// other round the requests belong to sequences, which run in order on their instances.
// Every request must end exactly once and be freed. Exits 1, or aborts, when not.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "queue/deadline_timer.hpp"

using namespace ksrv;

namespace {

constexpr std::size_t ROOM = 32, MOST_ROWS = 8, INSTANCES = 3, PRODUCERS = 4, SEQUENCES = 7;

std::atomic<long> alive_requests{0}, ended_requests{0}, answered_entries{0};

struct Payload {
    std::atomic<int> ends{0};
    std::atomic<int> *running = nullptr;  // of its sequence: how many of its requests a batch has
};

struct Sequences {
    Sequence *all[SEQUENCES] = {};
    std::atomic<int> running[SEQUENCES] = {};

    Sequences() {
        for (std::size_t n = 0; n < SEQUENCES; ++n) all[n] = new Sequence(n % INSTANCES);
    }
    ~Sequences() {
        for (Sequence *one : all) release(one);
    }
};

Payload *payload(Request *request) { return static_cast<Payload *>(request->payload); }

void ended(Request *request) {
    payload(request)->ends.fetch_add(1);
    ended_requests.fetch_add(1);
}

void freed(Request *request) {
    if (request->queue != nullptr && payload(request)->ends.load() != 1) {
        std::printf("a request ended %d times\n", payload(request)->ends.load());
        std::abort();
    }
    delete payload(request);
    delete request;
    alive_requests.fetch_sub(1);
}

// Counts the requests of a batch as running in their sequences, or as no longer running.
void note_running(const std::vector<Request *> &batch, std::size_t slot, int change) {
    for (Request *request : batch) {
        if (request->sequence == nullptr) continue;
        const int now = payload(request)->running->fetch_add(change) + change;
        if (request->sequence->slot != slot || now < 0 || now > 1) {
            std::printf("%d requests of a sequence run at once, on slot %zu\n", now, slot);
            std::abort();
        }
    }
}

void run_batch(Queue *queue, const std::vector<Request *> &batch, std::size_t slot) {
    std::vector<Request *> requests = batch, running;
    std::vector<unsigned char> alive(requests.size()), won;
    queue->start(requests.data(), requests.size(), alive.data());
    for (std::size_t i = 0; i < requests.size(); ++i)
        if (alive[i]) running.push_back(requests[i]);
    won.resize(running.size());
    std::vector<unsigned char> again(running.size());
    note_running(running, slot, 1);
    for (Request *request : running) retain(request);  // as a thread does that pushes requests
    note_running(running, slot, -1);
    queue->finish(running.data(), running.size(), won.data());
    queue->finish(running.data(), running.size(), again.data());
    queue->start(running.data(), running.size(), again.data());
    for (std::size_t i = 0; i < running.size(); ++i) {
        if (again[i]) std::abort();
        release(running[i]);
    }
    for (std::size_t i = 0; i < running.size(); ++i) {
        if (won[i]) {
            payload(running[i])->ends.fetch_add(1);
            answered_entries.fetch_add(1);
            publish(running[i]);
            release(running[i]);
        }
    }
}

// Cancels requests that are shown to it before they are pushed, as an HTTP server does when their
// clients have left.
struct Watcher {
    std::atomic<Request *> watched{nullptr};
    std::atomic<bool> over{false};

    void watch(Request *request) {
        Request *none = nullptr;
        retain(request);
        if (!watched.compare_exchange_strong(none, request)) release(request);
    }
    void run() {
        for (;;) {
            const bool last = over.load();
            Request *request = watched.exchange(nullptr);
            if (request == nullptr && last) return;
            if (request == nullptr) continue;
            cancel(request);
            release(request);
        }
    }
};

struct ReadyBatches {
    std::mutex mutex;
    std::deque<std::vector<Request *>> batches;

    void put(std::vector<Request *> batch) {
        std::lock_guard<std::mutex> guard(mutex);
        batches.push_back(std::move(batch));
    }
    std::vector<Request *> get() {
        std::lock_guard<std::mutex> guard(mutex);
        std::vector<Request *> batch = std::move(batches.front());
        batches.pop_front();
        return batch;
    }
};

void instance(Queue *queue, std::size_t slot, std::int64_t delay, ReadyBatches *ready) {
    std::mt19937 random(static_cast<unsigned>(slot));
    for (;;) {
        Request *out[ROOM];
        std::size_t count = 0;
        const Take taken = queue->take(slot, out, ROOM, &count, MOST_ROWS, delay);
        if (taken == TAKE_CLOSED) return;
        std::vector<Request *> batch(out, out + count);
        if (taken == TAKE_READY_BATCH) batch = ready->get();
        if (random() % 4 == 0) usleep(random() % 300);
        if (!batch.empty()) run_batch(queue, batch, slot);
    }
}

void prefetcher(Queue *queue, std::int64_t delay, ReadyBatches *ready) {
    for (;;) {
        Request *out[ROOM];
        std::size_t count = 0;
        if (queue->prefetch(out, ROOM, &count, MOST_ROWS, 0, 0, delay) == TAKE_CLOSED) return;
        std::vector<Request *> batch(out, out + count);
        for (;;) {
            std::uint64_t rows = batch.size() == ROOM ? MOST_ROWS : 0;
            for (Request *request : batch) rows += request->rows;
            const std::size_t room = batch.size() < ROOM ? ROOM - batch.size() : 1;
            count = 0;
            const Take taken = queue->prefetch(out, room, &count, MOST_ROWS, rows,
                                                 batch[0]->enqueued_ns, delay);
            if (taken == TAKE_INSTANCE_IDLE) break;
            batch.insert(batch.end(), out, out + count);
        }
        ready->put(std::move(batch));
        queue->close_open_batch(true);
    }
}

Request *make_entry(std::mt19937 &random, Sequences *sequences) {
    Request *request = new Request;
    alive_requests.fetch_add(1);
    request->payload = new Payload;
    request->ended = ended;
    request->freed = freed;
    request->rows = 1 + random() % 3;
    request->batch_key = random() % 2;
    request->priority = random() % 3;
    request->nbytes = 10;
    if (sequences != nullptr) {
        const std::size_t n = random() % SEQUENCES;
        request->priority = 0;
        request->sequence = sequences->all[n];
        retain(request->sequence);
        payload(request)->running = &sequences->running[n];
    }
    if (random() % 3 == 0) request->deadline_ns = now_ns() + random() % 500000;
    return request;
}

// Requests that arrived together: the first may run on a claimed slot, as one batch.
void push_together(Queue *queue, std::mt19937 &random, Sequences *sequences) {
    std::vector<Request *> requests, inlined;
    for (std::size_t n = 1 + random() % 6; n > 0; --n) requests.push_back(make_entry(random, sequences));
    std::vector<Push> results(requests.size());
    std::size_t slot = 0;
    const std::size_t count =
        queue->push_some(requests.data(), requests.size(), MOST_ROWS, results.data(), &slot);
    std::uint64_t rows = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        if (results[i] != PUSH_INLINE) continue;
        inlined.push_back(requests[i]);
        rows += requests[i]->rows;
        if (requests[i]->batch_key != inlined[0]->batch_key) std::abort();
    }
    if (inlined.size() != count || rows > MOST_ROWS) std::abort();
    if (count > 0) {
        run_batch(queue, inlined, slot);
        queue->return_slot(slot);
    }
    for (Request *request : requests) release(request);
}

void producer(Queue *queue, unsigned seed, Watcher *watcher, Sequences *sequences) {
    std::mt19937 random(seed);
    for (int i = 0; i < 2000; ++i) {
        if (random() % 4 == 0) {
            push_together(queue, random, sequences);
            continue;
        }
        Request *request = make_entry(random, sequences);
        if (random() % 3 == 0) watcher->watch(request);
        std::size_t slot = 0;
        const Push pushed = queue->push(request, random() % 2 ? &slot : nullptr);
        if (pushed == PUSH_INLINE) {
            run_batch(queue, {request}, slot);
            queue->return_slot(slot);
        } else if (pushed == PUSH_OK) {
            if (random() % 5 == 0) {
                queue->cancel(request);
            } else if (random() % 3 == 0) {
                wait_done(request, now_ns() + 1000000000ll);
            }
        }
        release(request);
        if (random() % 8 == 0) usleep(random() % 100);
        if (i % 500 == 0) queue->nudge(random() % INSTANCES);
    }
}

bool round_of(unsigned number, Sequences *sequences) {
    Queue *queue = new Queue(64);
    process_timer().watch(queue);
    queue->may_prefetch = true;
    queue->inline_for_all = number % 2 == 1;
    const std::int64_t delay = number % 3 == 2 ? 200000 : 0;
    ReadyBatches ready;
    std::vector<std::thread> takers, makers;
    Watcher watcher;
    std::thread watching([&watcher] { watcher.run(); });
    for (std::size_t n = 0; n < INSTANCES; ++n) queue->add_slot();
    for (std::size_t n = 0; n < INSTANCES; ++n)
        takers.emplace_back(instance, queue, n, delay, &ready);
    takers.emplace_back(prefetcher, queue, delay, &ready);
    for (unsigned n = 0; n < PRODUCERS; ++n)
        makers.emplace_back(producer, queue, number * 10 + n, &watcher, sequences);
    for (std::thread &thread : makers) thread.join();
    watcher.over.store(true);
    watching.join();
    queue->close();
    const bool empty = queue->wait_empty(now_ns() + 60000000000ll);
    for (std::thread &thread : takers) thread.join();
    process_timer().forget(queue);
    release(queue);
    return empty;
}

}  // namespace

int main(int argc, char **argv) {
    const unsigned rounds = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 3;
    Sequences sequences;
    for (unsigned number = 0; number < rounds; ++number)
        if (!round_of(number, nullptr) || !round_of(number, &sequences)) return 1;
    for (int i = 0; i < 1000 && alive_requests.load() != 0; ++i) usleep(1000);  // the timer's last
    std::printf("%ld ended, %ld answered, %ld left\n", ended_requests.load(),
                answered_entries.load(), alive_requests.load());
    return alive_requests.load() != 0 || process_budget().held() != 0 || ended_requests.load() == 0;
}
