// Simulates a worker's native core, again and again, each time by another seed.
//
//     simulate KEY CERTIFICATE FIRST_SEED COUNT [SECONDS]     as many simulations, or until the seconds are over; 0 for no bound
//     simulate KEY CERTIFICATE full FIRST_SEED COUNT [SECONDS]    the same, and the server is always at a limit
//     simulate KEY CERTIFICATE nth KIND memory|calls [FIRST [STEP]]
//
// With `full`, more clients come than the server takes connections, or the queue has room for, and nothing else goes wrong.
// With `nth` there is one client of a KIND (0: HTTP/1.1, 1: the same over TLS, 2: gRPC), and each of its allocations, or
// system calls, fails once: the FIRST, and each STEP-th from there on.
//
// Prints how many it has made, and ends by abort() if one finds a fault: its seed, which repeats it, is in the message.

#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "seams.hpp"
#include "http2_client.hpp"
#include "http_client.hpp"
#include "processes/instance.hpp"
#include "processes/model_client.hpp"
#include "storm_client.hpp"
#include "worker.hpp"

extern "C" {
int __lsan_do_recoverable_leak_check() __attribute__((weak));
void __sanitizer_print_stack_trace() __attribute__((weak));
}

namespace {

using namespace sim;

constexpr uint64_t PROCESSES_EACH = 4;  // one of so many seeds simulates a model whose handler runs in processes

TlsRules tls_rules;
std::shared_ptr<const TlsContext> tls_context;

// Sets a context up anew; false if it cannot be, after saying why. Its keys of session tickets are in memory that forked
// processes share.
bool make_tls_context() {
    std::string why;
    auto made = std::make_shared<TlsContext>();
    if (!made->set_up(tls_rules, &why)) {
        std::printf("%s\n", why.c_str());
        return false;
    }
    tls_context = made;
    return true;
}

// OpenSSL's numbers are the seed's as well: which bytes come does not depend on when.
void replace_randomness() {
    struct Method {
        int (*seed)(const void *, int);
        int (*bytes)(unsigned char *, int);
        void (*cleanup)();
        int (*add)(const void *, int, double);
        int (*pseudo)(unsigned char *, int);
        int (*status)();
    };
    static Random numbers(1);
    static Method method{nullptr,
                         [](unsigned char *out, int length) {
                             Random &from = machine().on ? machine().random : numbers;
                             if (machine().on) machine().tell("%d random bytes", length);
                             for (int i = 0; i < length; ++i) out[i] = static_cast<unsigned char>(from.next());
                             return 1;
                         },
                         nullptr, nullptr, nullptr, [] { return 1; }};
    method.pseudo = method.bytes;
    void *library = dlopen("libcrypto.so.3", RTLD_NOW);
    auto *set = reinterpret_cast<int (*)(const Method *)>(dlsym(library, "RAND_set_rand_method"));
    if (set) set(&method);
}

// A simulation that takes so much of the processor's time goes round in circles, without a seam at which that would show.
void end_after(time_t seconds) {
    const itimerval left{{0, 0}, {seconds, 0}};
    setitimer(ITIMER_PROF, &left, nullptr);
}

void watch_for_circles() {
    signal(SIGABRT, [](int) {
        machine().on = false;
        char text[100];
        const int length = snprintf(text, sizeof text, "seed %llu: abort\n", static_cast<unsigned long long>(machine().seed));
        if (__sanitizer_print_stack_trace) __sanitizer_print_stack_trace();
        if (syscall(SYS_write, 2, text, length) < 0) _exit(3);
        _exit(1);
    });
    signal(SIGPROF, [](int) {
        char text[100];
        const int length = snprintf(text, sizeof text, "seed %llu: a thread runs in a circle\n", static_cast<unsigned long long>(machine().seed));
        if (__sanitizer_print_stack_trace) __sanitizer_print_stack_trace();
        if (syscall(SYS_write, 2, text, length) < 0) _exit(3);
        _exit(1);
    });
}

int real_descriptors() {
    Machine::Outside outside;
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

struct Simulation {
    Scene scene;
    std::vector<int> http, grpc;
    std::unique_ptr<Worker> worker;
    std::unique_ptr<Model> model;  // whose handler runs in processes; may be null
    std::vector<std::unique_ptr<Client>> clients;
    WorkerRules rules;
    size_t threads = 1;  // that stay: one's own, and the timer of the queues
    bool full = false;   // each client holds a connection until the server ends it
    const int descriptors = real_descriptors();

    explicit Simulation(const WorkerRules &wanted) : rules(wanted) {
        network().begin();
        Machine::Outside outside;
        http.push_back(network().add(File::listener));
        grpc.push_back(network().add(File::listener));
        scene.http = http[0];
        scene.grpc = grpc[0];
        scene.tls = rules.tls != nullptr;
    }
    void start() {
        worker = std::make_unique<Worker>(rules, http, grpc);
        worker->start();
    }

    void add(Client *made, int listener, const char *alpn) {
        clients.emplace_back(made);
        made->begin(listener, scene.tls, alpn);
    }
    void add_random(int number) {
        Random &random = machine().random;
        Temper temper;
        if (full) temper = random.chance(500000) ? Temper::stalls : Temper::takes_nothing;
        else temper = random.chance(450000) ? Temper::good : static_cast<Temper>(random.below(static_cast<uint64_t>(Temper::tempers)));
        const uint64_t kind = random.below(10);
        if (kind < 5) {
            add(new HttpClient(&scene, number, temper), scene.http, scene.tls && random.chance(500000) ? "http/1.1" : nullptr);
        } else {
            add(new Http2Client(&scene, number, temper), scene.grpc, "h2");
        }
    }

    // Has clients come, one after the other.
    void invite(int count, bool storms) {
        Machine::Outside outside;
        Random &random = machine().random;
        int64_t when = machine().now;
        for (int i = 0; i < count; ++i) {
            when += static_cast<int64_t>(random.below(random.chance(500000) ? 20 : 3000)) * MS;
            machine().at(when, [this, i] { add_random(i); });
        }
        if (!storms) return;
        machine().at(when, [this] {
            Random &numbers = machine().random;
            add(new StormClient(&scene, 99, numbers.between(20, 12000)), numbers.chance(500000) ? scene.http : scene.grpc, nullptr);
        });
    }

    bool all_over() const {
        for (const auto &client : clients)
            if (!client->is_over()) return false;
        return true;
    }
    // A client that takes 15 KB every 3 s, just above the least rate, needs 1,100 s for 13 answers of 400 KB.
    static constexpr int64_t LONGEST = 4000 * SECOND;
    void run_until_over(int64_t most = LONGEST) {
        const int64_t until = machine().now + most;
        while (!all_over() && machine().now < until) machine().sleep_until(machine().now + 100 * MS);
        if (all_over()) return;
        for (const auto &client : clients)
            if (!client->is_over()) machine().fail("a client does not end: %s", client->described().c_str());
    }

    // Whether the worker takes and answers somebody new.
    void check_health(const char *when) {
        machine().faults_until = 0;
        const Scene before = scene;
        scene.faults = scene.stops = false;
        {
            Machine::Outside outside;
            add(new HttpClient(&scene, 900, Temper::good, true), scene.http, nullptr);
            add(new Http2Client(&scene, 901, Temper::good, true), scene.grpc, "h2");
        }
        run_until_over(30 * SECOND);
        if (scene.answers < before.answers + 2 || (scene.lost != before.lost && !scene.tight)) machine().fail("%s, a new client is not served", when);
    }

    void close_listeners() {
        for (std::vector<int> *those : {&http, &grpc}) {
            for (int fd : *those) close(fd);
            those->clear();
        }
    }
    // Waits a while for a connection that begins, and takes over from the thread that serves it at one of its next seams: what is done to
    // all connections then meets one that is half open.
    void await_accept() {
        machine().preempts = 200000;
        machine().take_over(&network().accepted, machine().random.between(1, 12), machine().now + 3 * SECOND);
    }
    // All clients have left: the server sees it, and what it still has to do for them ends.
    void await_end() {
        const int64_t until = machine().now + 15 * SECOND;
        while (machine().now < until && (worker->http.connections.open() || worker->server.connections.count()))
            machine().sleep_until(machine().now + 100 * MS);
        if (worker->http.connections.open() || worker->server.connections.count())
            machine().fail("%u connections of HTTP/1.1 and %u of HTTP/2 are open still, whose clients have left", worker->http.connections.open(),
                           worker->server.connections.count());
    }

    void stop() {
        if (model) {
            model->close();
            model->join();
        }
        worker->stop();
        Machine::Outside outside;
        for (const auto &client : clients) client->part();
    }
    // Everything is given back.
    void check_left() {
        HttpServer &server = worker->http;
        if (server.counts.counted(ServerCounter::stray)) machine().fail("a message was answered twice");
        if (worker->server.connections.count()) machine().fail("%u connections of HTTP/2 are open still", worker->server.connections.count());
        if (worker->server.unfinished.load() || worker->server.open_calls.load() || worker->server.undelivered.load())
            machine().fail("calls are counted that have gone: %u unfinished, %u open, %u undelivered",
                           worker->server.unfinished.load(), worker->server.open_calls.load(),
                           worker->server.undelivered.load());
        model.reset();
        worker.reset();
        close_listeners();
        if (network().open() || real_descriptors() != descriptors)
            machine().fail("%zu descriptors are left open, and of the kernel's %d", network().open(), real_descriptors() - descriptors);
        if (process_budget().held()) machine().fail("%llu bytes are held of the budget", static_cast<unsigned long long>(process_budget().held()));
        if (process_pool().statistics().leased_blocks) machine().fail("%llu blocks are not given back", static_cast<unsigned long long>(process_pool().statistics().leased_blocks));
        if (Held::alive()) machine().fail("%d objects of Python's are not given back", Held::alive());
        if (machine().running() > threads) machine().fail("%zu threads are left", machine().running() - threads);
    }
};

struct Totals {
    uint64_t seeds = 0, answers = 0, refusals = 0, lost = 0, faults = 0, seams = 0, trace = 0;
    double seconds = 0;

    void add(const Totals &more) {
        seeds += more.seeds;
        answers += more.answers;
        refusals += more.refusals;
        lost += more.lost;
        faults += more.faults;
        seams += more.seams;
        seconds += more.seconds;
    }
} totals;

// Ends the machine; the trace of what it did.
uint64_t count_totals(const Simulation &one) {
    ++totals.seeds;
    totals.answers += one.scene.answers;
    totals.refusals += one.scene.refusals;
    totals.lost += one.scene.lost;
    totals.faults += machine().faults_made;
    totals.seams += machine().seams;
    totals.seconds += machine().elapsed();
    const uint64_t trace = machine().trace;
    machine().end();
    return trace;
}

// One simulation: the seed decides the worker's settings, the clients, the failures and the stop.
uint64_t simulate(uint64_t seed, bool full) {
    machine().begin(seed);
    Random &random = machine().random;
    WorkerRules rules;
    rules.loops = static_cast<int>(random.between(1, 3));
    rules.log = random.chance(300000);
    rules.checks_callers = random.chance(150000);
    const bool tls = random.chance(350000);
    if (tls) rules.tls = tls_context;
    if (random.chance(200000)) rules.lendable_above = 10000;
    process_pool().cap_bytes.store(0);
    machine().cost = static_cast<int64_t>(random.one_of({200, 1000, 2000}));
    machine().preempts = random.one_of({500, 10000, 60000, 200000});
    if (random.chance(300000)) machine().stalls = random.one_of({20, 200});
    Simulation one(rules);
    one.scene.tight = random.chance(150000);
    if (one.scene.tight) {
        one.rules.connections = static_cast<uint32_t>(random.between(2, 8));
        one.rules.budget = random.between(100000, 400000);
        one.rules.calls = static_cast<uint32_t>(random.between(2, 6));
    }
    if (full) {
        one.full = one.scene.tight = true;
        one.rules.connections = 1;
    }
    if (!full && random.chance(350000)) {
        one.scene.faults = true;
        for (int which = 0; which < FAULT_PAGES; ++which)
            if (random.chance(400000)) machine().rates[which] = random.one_of({50, 500, 5000});
        machine().faults_until = machine().now + static_cast<int64_t>(random.between(100, 20000)) * MS;
    }
    machine().faults_allowed = false;
    one.start();
    machine().faults_allowed = true;
    const int count = full ? 7 : static_cast<int>(random.between(1, 7));
    one.scene.stops = !full && random.chance(250000);
    one.invite(count, tls && !full && random.chance(150000));
    machine().sleep_until(machine().now + (one.scene.stops ? static_cast<int64_t>(random.below(3000)) * MS : 25 * SECOND));
    if (one.scene.stops) {
        if (random.chance(500000)) one.await_accept();
        if (random.chance(500000)) one.worker->server.drain();
        one.worker->accept(false);
        one.close_listeners();  // no thread uses their numbers from here on
        one.worker->server.drain();
        one.worker->http.drain();
        machine().sleep_until(machine().now + static_cast<int64_t>(random.below(400)) * MS);
        if (random.chance(500000)) {
            one.run_until_over();
            one.await_end();
        }
    } else {
        one.run_until_over();
        one.check_health("when all have left");
        one.await_end();
    }
    one.stop();
    one.check_left();
    return count_totals(one);
}

// One simulation of a model whose handler runs in processes.
uint64_t simulate_processes(uint64_t seed, bool full) {
    machine().begin(seed);
    Random &random = machine().random;
    process_pool().cap_bytes.store(0);
    machine().cost = static_cast<int64_t>(random.one_of({200, 1000}));
    machine().preempts = random.one_of({500, 10000, 60000, 200000});
    if (random.chance(200000)) machine().stalls = random.one_of({20, 200});
    if (random.chance(700000)) machine().word_stalls = random.one_of({20000, 100000});
    WorkerRules rules;
    rules.loops = static_cast<int>(random.between(1, 2));
    ModelRules model;
    HandlerRules &handler = model.handler;
    for (uint64_t *rate : {&handler.fails, &handler.on_channel, &handler.lies, &handler.chats, &handler.rings})
        if (random.chance(250000)) *rate = random.one_of({5000, 50000, 200000});
    if (random.chance(500000)) handler.slow = random.one_of({5000, 50000, 200000});
    for (uint64_t *rate : {&handler.keeps, &handler.dies, &handler.stops})
        if (random.chance(300000)) *rate = random.one_of({200000, 700000});
    handler.quick_ns = static_cast<int64_t>(random.one_of({5, 40, 2000})) * US;
    handler.slow_ns = static_cast<int64_t>(random.one_of({8, 8, 300})) * MS;
    handler.spin_ns = static_cast<int64_t>(random.one_of({0, 1000, 5000}));
    handler.row_bytes = TAG_BYTES * static_cast<size_t>(random.one_of({1, 1, 20, 5000}));
    model.instances = static_cast<int>(random.between(1, 2));
    model.max_rows = random.one_of({0, 3, 8, 8});
    model.looks = random.chance(100000);
    model.channel_room = random.one_of({4, 64});
    if (random.chance(150000)) model.delay_ns = MS;
    if (random.chance(100000)) model.capacity = 4;
    if (handler.lies || random.chance(200000)) model.timeout_ns = static_cast<int64_t>(random.one_of({20, 2000})) * MS;
    if (random.chance(150000)) model.run_timeout_ns = static_cast<int64_t>(random.one_of({2, 500})) * MS;
    if (full) {
        model = ModelRules();
        model.capacity = 2;
        handler.row_bytes = TAG_BYTES * 5000;
    }
    Simulation one(rules);
    one.scene.tight = model.capacity < 64;
    one.scene.stops = !full && random.chance(200000);
    const bool hurries = !full && (model.timeout_ns || random.chance(200000));
    one.scene.faults = handler.harms() || model.run_timeout_ns || hurries;
    machine().faults_allowed = false;
    one.start();
    one.model = std::make_unique<Model>(&one.worker->http, model);
    one.threads = 2;
    machine().faults_allowed = true;
    if (!full && random.chance(250000)) {
        one.scene.faults = true;
        for (const Fault which : {FAULT_MALLOC, FAULT_RECEIVE, FAULT_SEND, FAULT_WAKE, FAULT_MMAP, FAULT_MEMFD, FAULT_PAGES, FAULT_CHANNEL})
            if (random.chance(400000)) machine().rates[which] = random.one_of({500, 5000, 50000});
        machine().faults_until = machine().now + static_cast<int64_t>(random.between(100, 5000)) * MS;
    }
    {
        Machine::Outside outside;
        for (int i = 0, count = full ? 7 : static_cast<int>(random.between(1, 7)); i < count; ++i) {
            const Temper temper = random.chance(150000) ? Temper::resets : Temper::good;
            machine().after(static_cast<int64_t>(random.below(3) * random.below(60)) * MS, [&one, i, temper, hurries, bytes = handler.row_bytes] {
                one.add(new ModelClient(&one.scene, i, temper, bytes, hurries), one.scene.http, nullptr);
            });
        }
    }
    machine().sleep_until(machine().now + 150 * MS);
    if (one.scene.stops) {
        one.worker->accept(false);
        one.close_listeners();
        if (random.chance(500000)) one.model->close();
        if (random.chance(500000)) one.worker->http.drain();
        if (random.chance(500000)) one.run_until_over();
    } else {
        one.run_until_over();
        one.await_end();
    }
    one.stop();
    // A lie, a failure or a death costs the batch that the process had begun.
    if (!machine().faults_made && one.scene.failures > one.model->failed)
        machine().fail("%llu requests have failed, of which %llu were of such batches", (unsigned long long)one.scene.failures, (unsigned long long)one.model->failed);
    one.check_left();
    return count_totals(one);
}

// One client of a kind, and one call that fails. Every byte that the client gets is its answer's, and the next clients are served.
enum Kind : int { rest, tls_rest, grpc_calls };
uint64_t fail_one(Kind kind, uint64_t nth, uint64_t kinds) {
    machine().begin(1 + static_cast<uint64_t>(kind));
    WorkerRules rules;
    rules.log = true;
    rules.lendable_above = 10000;
    if (kind == tls_rest) rules.tls = tls_context;
    process_pool().cap_bytes.store(0);
    machine().nth = nth;
    machine().nth_of = kinds;
    machine().faults_allowed = false;
    Simulation one(rules);
    one.scene.faults = true;
    one.start();
    machine().faults_allowed = true;
    {
        Machine::Outside outside;
        if (kind == grpc_calls)
            one.add(new Http2Client(&one.scene, 0, Temper::good), one.scene.grpc, "h2");
        else
            one.add(new HttpClient(&one.scene, 0, Temper::good), one.scene.http, "http/1.1");
    }
    one.run_until_over();
    totals.faults = machine().faults_seen;
    machine().faults_allowed = false;
    one.check_health("after one call that failed");
    one.await_end();
    one.stop();
    one.check_left();
    totals.seeds = 1;
    totals.answers = one.scene.answers;
    machine().end();
    return machine().trace;
}

// Each simulation runs in a separate process, so that it finds nothing of another simulation, and its memory is checked alone.
bool in_process(uint64_t seed, const std::function<uint64_t()> &run, Totals *out) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        end_after(60);
        if (!make_tls_context()) _exit(2);
        const uint64_t trace = run();
        end_after(0);
        if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
            std::fprintf(stderr, "seed %llu: memory is left\n", static_cast<unsigned long long>(seed));
            _exit(1);
        }
        totals.trace = trace;
        *out = totals;
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int run_seeds(uint64_t first, uint64_t count, unsigned seconds, bool full) {
    timespec began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    auto *shared = static_cast<Totals *>(mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    uint64_t seed = first;
    Totals all;
    while (seed < first + count) {
        if (!in_process(seed, [=] { return seed % PROCESSES_EACH == 1 ? simulate_processes(seed, full) : simulate(seed, full); }, shared)) {
            std::fprintf(stderr, "seed %llu has found a fault\n", static_cast<unsigned long long>(seed));
            return 1;
        }
        if (count == 1) std::printf("trace %016llx\n", static_cast<unsigned long long>(shared->trace));
        all.add(*shared);
        ++seed;
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (seconds && now.tv_sec - began.tv_sec >= static_cast<time_t>(seconds)) break;
    }
    std::printf("%llu simulations of %.0f s, %llu answers, %llu refusals, %llu lost, %llu faults made, %llu seams; the next seed is %llu\n",
                (unsigned long long)all.seeds, all.seconds, (unsigned long long)all.answers, (unsigned long long)all.refusals,
                (unsigned long long)all.lost, (unsigned long long)all.faults, (unsigned long long)all.seams, (unsigned long long)seed);
    return 0;
}

// Fails each call of the kinds once, every `step`-th of them from `first` on.
int run_nth(Kind kind, bool memory, uint64_t first, uint64_t step) {
    const uint64_t kinds = memory ? 1u << FAULT_MALLOC : (1u << FAULTS) - 1 - (1u << FAULT_MALLOC);
    auto *shared = static_cast<Totals *>(mmap(nullptr, sizeof(Totals), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    const uint64_t seed = 1 + static_cast<uint64_t>(kind);
    if (!in_process(seed, [=] { return fail_one(kind, UINT64_MAX, kinds); }, shared)) return 1;
    const uint64_t most = shared->faults;
    uint64_t found = 0;
    for (uint64_t nth = first; nth <= most; nth += step)
        if (!in_process(seed, [=] { return fail_one(kind, nth, kinds); }, shared)) {
            std::fprintf(stderr, "the fault is found if call %llu of %llu fails\n", (unsigned long long)nth, (unsigned long long)most);
            if (++found == 5) break;
        }
    std::printf("%llu calls can fail, %llu faults\n", (unsigned long long)most, (unsigned long long)found);
    return found != 0;
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 5) return 2;
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    tls_rules.key = arguments[1];
    tls_rules.chain = arguments[2];
    tls_rules.protocols = {"h2", "http/1.1"};
    if (!make_tls_context()) return 2;
    if (!http2::library()) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    replace_randomness();
    find_openssl();
    process_pool();
    machine();
    machine_is_made = true;
    watch_for_circles();
    if (std::string(arguments[3]) == "nth" && count > 5)
        return run_nth(static_cast<Kind>(atoi(arguments[4])), std::string(arguments[5]) == "memory",
                       count > 6 ? strtoull(arguments[6], nullptr, 10) : 1, count > 7 ? strtoull(arguments[7], nullptr, 10) : 1);
    const bool full = std::string(arguments[3]) == "full" && count > 5;
    const int at = full ? 4 : 3;
    const unsigned seconds = count > at + 2 ? atoi(arguments[at + 2]) : 0;
    return run_seeds(strtoull(arguments[at], nullptr, 10), strtoull(arguments[at + 1], nullptr, 10), seconds, full);
}
