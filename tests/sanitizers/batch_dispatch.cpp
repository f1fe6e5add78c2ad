// Requests from sockets to a handler process's ring and back, without Python: native/process driven by the
// HTTP server's threads, an instance's thread, and a thread that plays the process. It sometimes answers over the
// channel, dies and is replaced, and gives wrong answers. Rows have a few bytes, or are so long that they are in large
// places, and the process keeps some of them for a while.
//
// Arguments: requests of each client. Prints how many were answered and exits 1 when something is wrong.

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "process/batch_dispatcher.hpp"
#include "queue/deadline_timer.hpp"
#include "server/server.hpp"
#include "../support/native/sockets.hpp"
#include "../support/native/rows_model.hpp"

using namespace ksrv;

namespace {

// How a stand-in for a process ends.
enum class End { channel_closed, garbage };

constexpr std::size_t ANSWERED = 16;  // bytes of a row
constexpr std::uint64_t LONGER_THAN_TRUE = UINT64_MAX / 3;  // no number of them adds up to a short time

// One life of a process: echoes the first bytes of rows until `batches` were run.
void live(Ring &ring, int channel, int batches, End end, std::size_t row_bytes) {
    int kept = -1;
    std::uint64_t completed = 0;
    while (batches-- > 0) {
        const Bell bell = wait_for_batch(ring, channel, completed, 2000);
        if (bell == BELL_INTERRUPTED) continue;
        if (bell != BELL_RANG) return;
        const std::uint64_t number = completed + 1;
        const unsigned char *place = ring.batch(number);
        RingRun head;
        std::memcpy(&head, place, sizeof head);
        check(head.number == number && head.inputs == 1, "a batch is the next batch");
        const unsigned char *rows = place + head.first_row;
        if (head.large != 0) {
            const int large = static_cast<int>(head.large) - 1;
            check(large < RING_LARGE_SLOTS && large != kept, "a place that is kept is not filled");
            ring.control().held[large].store(1);
            if (kept >= 0) ring.control().held[kept].store(0);
            kept = large;
            rows = ring.large(large);
        }
        RingAnswer *answer = reinterpret_cast<RingAnswer *>(ring.answer(number));
        if (number % 23 == 0) usleep(8000);  // so that later batches are taken back
        answer->number = number;
        answer->began_ns = now_ns();
        answer->outputs = answer->stages = 1;
        answer->form = number % 37 == 0 ? RING_ON_CHANNEL : RING_OUTPUTS_HERE;
        std::strcpy(answer->stage[0].name, "inference");
        answer->stage[0].ns = number % 5 == 0 ? LONGER_THAN_TRUE : 1;
        if (number % 10 == 0) answer->began_ns = INT64_MIN;
        RingOutput &output = answer->output[0];
        output.datatype = DT_FP32;
        output.rank = 2;
        output.shape[0] = static_cast<std::int64_t>(head.rows);
        output.shape[1] = 4;
        output.offset = 0;
        output.nbytes = head.rows * ANSWERED;
        output.name_length = 1;
        output.name[0] = 'y';
        for (std::size_t i = 0; i < head.rows; ++i)
            std::memcpy(ring.answer(number) + RING_ANSWER_HEAD + i * ANSWERED, rows + i * row_bytes, ANSWERED);
        if (batches == 0 && end == End::garbage) output.offset = RING_ANSWER_BYTES - 8;
        if (batches == 0 && end == End::channel_closed) break;
        if (answer->form == RING_ON_CHANNEL)
            check(send(channel, "failed", 6, MSG_NOSIGNAL) == 6, "a message is sent");
        answer->ended_ns = now_ns();
        completed = number;
        complete_batch(ring, channel, number);
    }
    shutdown(channel, SHUT_RDWR);
}

struct World {
    Queue *queue = new Queue(4096);
    ModelSignature *signature;
    const std::size_t columns;
    EventLoop events{2};
    HttpServer server;
    const Loopback listener;
    std::atomic<int> good{0}, failed{0}, lives{0};
    Sums sums;

    World(std::uint64_t max_rows, std::size_t columns, const HttpServerConfig &config)
        : columns(columns), server(&events, config, [](void *) {}, nullptr) {
        for (PreparedAnswer &made : server.answers.prepared)
            made = {500, "500 Failed", "content-length: 0\r\n", ""};
        signature = route_rows(&server, queue, columns, max_rows, 60'000'000'000);
        check(process_timer().watch(queue), "deadlines are watched");
        check(server.listen_on(&listener.fd, 1), "the server listens");
    }

    ~World() {
        process_timer().forget(queue);
        signature->release();
        release(queue);
    }

    // The part of an instance that is Python's: ends what `serve` brings home.
    void end(DispatchedRun &batch) {
        std::vector<unsigned char> won(batch.requests.size());
        queue->finish(batch.requests.data(), batch.requests.size(), won.data());
        for (std::size_t i = 0; i < won.size(); ++i) {
            if (!won[i]) continue;
            server.answers.fail(static_cast<FastRequest *>(batch.requests[i])->turn);
            publish(batch.requests[i]);
            release(batch.requests[i]);
        }
        batch.release_requests();
    }

    void instance(std::size_t slot, std::uint64_t max_rows) {
        for (bool closed = false; !closed;) {
            int ends[2];
            check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "there are sockets");
            std::unique_ptr<Ring> ring(Ring::make());
            check(ring != nullptr, "there is memory");
            const int number = lives.fetch_add(1);
            std::thread process([&] {
                live(*ring, ends[1], 200, number % 2 ? End::garbage : End::channel_closed, 4 * columns);
            });
            {
                RingDispatcher dispatcher(queue, ring.get(), ends[0], &sums, max_rows ? 64 : 1);
                const DispatchTerms terms = {slot, max_rows, 0, 0, false};
                bool dead = false;
                while (!dead && !closed) {
                    const Served served = dispatcher.serve(terms);
                    closed = served == Served::closed;
                    if (served == Served::requests) end(dispatcher.batch);  // all large places are kept
                    if (served != Served::started) continue;
                    char room[64];
                    dead = dispatcher.why == HandBack::malformed;
                    while (!dead && dispatcher.why == HandBack::on_channel) {
                        const ssize_t length = recv(ends[0], room, sizeof room, 0);
                        dead = length <= 0;
                        if (length != 1) break;
                    }
                    end(dispatcher.batch);
                }
            }
            shutdown(ends[0], SHUT_RDWR);
            process.join();
            close(ends[0]);
            close(ends[1]);
        }
    }

    void client(int number, int requests) {
        const int fd = listener.connected();
        for (int turn = 0; turn < requests; ++turn) {
            std::vector<float> row(columns);
            row[0] = static_cast<float>(number);
            row[1] = static_cast<float>(turn);
            row[3] = 1;
            const std::size_t nbytes = 4 * columns;
            const std::string json =
                R"({"id":"an-id","inputs":[{"name":"x","datatype":"FP32","shape":[1,)" + std::to_string(columns) +
                R"(],"parameters":{"binary_data_size":)" + std::to_string(nbytes) +
                R"(}}],"parameters":{"binary_data_output":true}}   )";
            const std::string text = json.substr(0, json.size() - json.size() % 4);
            std::string message =
                "POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: " +
                std::to_string(text.size()) + "\r\nContent-Length: " + std::to_string(text.size() + nbytes) +
                "\r\n\r\n" + text;
            message.append(reinterpret_cast<const char *>(row.data()), nbytes);
            check(send(fd, message.data(), message.size(), MSG_NOSIGNAL) ==
                      static_cast<ssize_t>(message.size()),
                  "a request is sent");
            std::string answer;
            std::size_t end = std::string::npos, whole = 1;
            while (end == std::string::npos || answer.size() < whole) {
                char room[4096];
                const ssize_t length = recv(fd, room, sizeof room, 0);
                check(length > 0, "an answer arrives");
                answer.append(room, static_cast<std::size_t>(length));
                end = answer.find("\r\n\r\n");
                if (end == std::string::npos) continue;
                const std::size_t at = answer.find("\r\ncontent-length: ");
                check(at != std::string::npos && at < end, "an answer has a length");
                whole = end + 4 + std::strtoul(answer.c_str() + at + 18, nullptr, 10);
            }
            check(answer.size() == whole, "an answer is one");
            const std::size_t timed = answer.find("inference;dur=");
            check(timed == std::string::npos || std::strtod(answer.c_str() + timed + 14, nullptr) < 600000,
                  "a stage took no longer than its batch");
            if (answer.compare(9, 3, "500") == 0) {
                failed.fetch_add(1);
                continue;
            }
            check(std::memcmp(answer.data() + whole - ANSWERED, row.data(), ANSWERED) == 0, "a row is the client's row");
            good.fetch_add(1);
        }
        close(fd);
    }
};

void run(std::uint64_t max_rows, int instances, int requests, std::size_t columns) {
    HttpServerConfig config;
    config.connections = 64;
    config.limits.body = 1 << 20;
    const auto owned = std::make_unique<World>(max_rows, columns, config);
    World *const world = owned.get();
    std::vector<std::thread> loops, served, clients;
    for (int i = 0; i < world->events.threads(); ++i) loops.emplace_back([world, i] { world->events.run(i); });
    world->server.accept_enabled(true);
    for (int i = 0; i < instances; ++i) {
        const std::size_t slot = world->queue->add_slot();
        served.emplace_back([=] { world->instance(slot, max_rows); });
    }
    for (int i = 0; i < 8; ++i) clients.emplace_back([=] { world->client(i, requests); });
    for (std::thread &one : clients) one.join();
    world->queue->close();
    for (std::thread &one : served) one.join();
    world->server.stop();
    world->events.stop();
    for (std::thread &one : loops) one.join();
    const int good = world->good.load(), failed = world->failed.load();
    std::printf("%d good, %d failed, %d lives, %lu open\n", good, failed, world->lives.load(),
                static_cast<unsigned long>(world->queue->open()));
    check(good + failed == 8 * requests && good > 7 * requests, "nearly all are answered");
    check(world->queue->open() == 0, "nothing is left");
    check(world->server.answers.open_fast_requests.load() == 0, "no request is left");
    check(world->sums.stages[STAGE_REQUEST].count == static_cast<std::uint64_t>(good),
          "answered requests are counted");
    check(world->sums.stages[STAGE_INFERENCE].ns <= world->sums.stages[STAGE_REQUEST].ns,
          "a stage took no longer than the requests of its batches");
    for (const auto &size : world->sums.sizes)
        check(size.second.infer_ns <= world->sums.stages[STAGE_REQUEST].ns, "nor did batches of a size");
}

}  // namespace

int main(int count, char **arguments) {
    const int requests = count > 1 ? std::atoi(arguments[1]) : 300;
    run(0, 1, requests, 4);
    run(8, 1, requests, 4);
    run(8, 2, requests, 4);
    run(8, 2, requests, 20000);
    return 0;
}
