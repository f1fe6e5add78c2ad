// The machine that the simulator runs the native core on: its clock, its threads and its faults.
//
// Strategy: threads are real threads, so that each has a stack and thread_locals, but only one runs at any moment. At a seam (a
// system call, a lock, a wait; seams.hpp) a thread may hand over to another thread, which the seed chooses. The clock advances
// by the cost of seams, and jumps when every thread waits. The outside of the process (network.hpp, clients) is made of events
// on the same clock. The thread that reaches a seam runs the events that are due; seams within events do nothing.

#pragma once

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace sim {

constexpr int64_t US = 1000, MS = 1000000, SECOND = 1000000000, FOREVER = INT64_MAX;

// splitmix64: the same numbers from the same seed, everywhere.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t bound) { return bound ? next() % bound : 0; }
    uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
    bool chance(uint64_t in_a_million) { return in_a_million && below(1000000) < in_a_million; }
    template <typename T, size_t N> T one_of(const T (&choices)[N]) { return choices[below(N)]; }

  private:
    uint64_t state_;
};

// The names of what can fail, one for each seam that can.
enum Fault : int {
    FAULT_MALLOC, FAULT_ACCEPT, FAULT_RECEIVE, FAULT_SEND, FAULT_EPOLL_WAIT, FAULT_EPOLL_CTL, FAULT_SOCKET_OPTION,
    FAULT_WAKE, FAULT_MMAP, FAULT_MEMFD,
    FAULT_PAGES, FAULT_CHANNEL, FAULTS,  // only with a handler process
};

struct Thread {
    enum State : uint8_t { ready, locking, waiting, polling, joining, over };
    State state = ready;
    const void *on = nullptr;  // the mutex, condition, epoll or thread that it waits for
    int64_t until = FOREVER, frozen_until = 0;
    bool timed_out = false;
    int held = 0;          // mutexes
    int64_t spent = 0;     // of the clock, by the thread's seams
    jmp_buf *end = nullptr;  // of a thread of another process: it continues here when it is killed
    bool killed = false;
    sem_t baton;
    pthread_t real{};
    void *(*run)(void *) = nullptr;
    void *argument = nullptr, *result = nullptr;
};

class Machine {
  public:
    static Machine &the() {
        static Machine *made = new Machine;
        return *made;
    }
    static Thread *&self() {
        static thread_local Thread *mine = nullptr;
        return mine;
    }

    // ---- a simulation ----
    void begin(uint64_t its_seed) {
        seed = its_seed;
        random = Random(its_seed);
        now = 1000 * SECOND;
        events_.clear();
        trace = 1469598103934665603u;
        faults_allowed = true;
        for (uint64_t &one : rates) one = 0;
        preempts = 20000;
        stalls = word_stalls = 0;
        cost = US;
        faults_until = FOREVER;
        nth = 0;
        faults_seen = faults_made = longest_stall = seams = 0;
        leader = nullptr;
        follower_ = followed_ = nullptr;
        clear_threads();
        threads_.push_back(new Thread);
        self() = threads_[0];
        sem_init(&self()->baton, 0, 0);
        on = true;
        outside_ = 0;
    }
    void end() {
        on = false;
        clear_threads();
        self() = nullptr;
        events_.clear();
    }

    bool active() const { return on && outside_ == 0 && self() != nullptr; }

    // While an object exists, the outside of the process runs: seams neither cost, fail nor hand over.
    struct Outside {
        Outside() { ++the().outside_; }
        ~Outside() { --the().outside_; }
    };

    // ---- the world ----
    void at(int64_t when, std::function<void()> event) {
        Outside outside;  // a read of a socket notifies its client, within the server's call
        events_.emplace(std::max(when, now), std::move(event));
    }
    void after(int64_t delay, std::function<void()> event) { at(now + delay, std::move(event)); }

    // ---- seams ----
    void seam() {
        if (!active()) return;
        const int64_t took = 50 + static_cast<int64_t>(random.below(static_cast<uint64_t>(cost)));
        spend(took);
        if (++seams > MOST_SEAMS) fail("a simulation does not end");
        run_due();
        if (followed_ == self() && --seams_left_ == 0) {
            followed_ = nullptr;
            hand_to(follower_);
        } else if (random.chance(stalls)) {
            stall();
        } else if (random.chance(preempts)) {
            hand_over();
        }
        end_if_killed();
    }
    // The seam before an access to a word that threads share without a lock. Between two of them a thread may stand so long that
    // the others do all that they can.
    void word_seam() {
        if (active() && random.chance(word_stalls)) stall();
        seam();
    }
    void spend(int64_t some) {
        now += some;
        self()->spent += some;
        if (leader == self() && leader->spent - turn_begun_ > MOST_TURN)
            fail("one turn of the loop takes more than 50 ms, in which nobody else is served");
    }

    // The calling thread was the last to wait for events, so no other thread serves the next events. While this thread is in
    // Python, another thread may wait in its place.
    void lead() {
        leader = self();
        turn_begun_ = leader->spent;
    }

    // Whether the seam is to fail now.
    bool fails(Fault which) {
        if (!active() || !faults_allowed) return false;
        if (nth) {
            if (!(nth_of & 1u << which) || ++faults_seen != nth) return false;
        } else if (now > faults_until || !random.chance(rates[which])) {
            return false;
        }
        ++faults_made;
        tell("fault %d", int(which));
        note(0xfa000000u + which);
        return true;
    }

    // The calling thread waits until `wakes` others, or the clock.
    bool wait(Thread::State state, const void *for_what, int64_t until) {
        Thread *me = self();
        me->state = state;
        me->on = for_what;
        me->until = until;
        me->timed_out = false;
        hand_over();
        return !me->timed_out;
    }
    void wake(Thread::State state, const void *on, bool all) {
        Outside outside;
        std::vector<Thread *> those;
        for (Thread *one : threads_)
            if (one->state == state && one->on == on) those.push_back(one);
        if (those.empty()) return;
        if (all) {
            for (Thread *one : those) one->state = Thread::ready;
        } else {
            those[random.below(those.size())]->state = Thread::ready;
        }
    }

    void sleep_until(int64_t when) {
        while (now < when) wait(Thread::waiting, &now, when);
    }

    // The calling thread waits until another thread reports `what` by `happened`, or until a time, and takes over from that thread
    // `seams_behind` seams later. So every sixth try meets a state that lasts for two of twelve seams.
    void take_over(const void *what, uint64_t seams_behind, int64_t until) {
        follower_ = self();
        seams_left_ = seams_behind;
        wait(Thread::waiting, what, until);
        follower_ = followed_ = nullptr;
    }
    void happened(const void *what) {
        if (follower_ && follower_->on == what && !followed_) followed_ = self();
    }

    // Stops a thread of another process at once: by SIGKILL for good, by SIGSTOP until SIGCONT.
    void kill(Thread *one) {
        if (one->state == Thread::over || one->killed) return;
        if (follower_ == one) follower_ = followed_ = nullptr;
        one->killed = true;
        one->frozen_until = 0;
        one->state = Thread::ready;
    }
    void stop(Thread *one, int64_t until) {
        if (one->state != Thread::over && !one->killed) one->frozen_until = std::max(one->frozen_until, until);
    }

    // Lets another thread run, or the same thread continue; the clock jumps when all wait.
    void hand_over() { hand_to(choose()); }

    // ---- threads ----
    Thread *add_thread(void *(*run)(void *), void *argument) {
        Outside outside;
        Thread *made = new Thread;
        made->run = run;
        made->argument = argument;
        sem_init(&made->baton, 0, 0);
        threads_.push_back(made);
        return made;
    }
    static void *begin_thread(void *of) {
        Thread *mine = static_cast<Thread *>(of);
        take_baton(mine);
        self() = mine;
        mine->result = mine->run(mine->argument);
        the().note(0x7d);
        if (mine->held) the().fail("a thread ends and holds %d locks", mine->held);
        mine->state = Thread::over;
        the().wake(Thread::joining, mine, true);
        Thread *following = the().choose();
        the().ending_ = mine;
        self() = nullptr;
        sem_post(&following->baton);
        return mine->result;
    }
    // The identity that pthread_create returned. The system may give its identity to another thread once this thread has ended.
    static pthread_t identity_of(const Thread *one) { return reinterpret_cast<pthread_t>(one); }
    Thread *thread_of(pthread_t identity) {
        for (Thread *one : threads_)
            if (one->run && identity_of(one) == identity) return one;
        return nullptr;
    }
    size_t running() const {
        size_t count = 0;
        for (const Thread *one : threads_) count += one->state != Thread::over;
        return count;
    }
    // Whether an epoll has something to report, which network.hpp knows.
    std::function<bool(const void *)> is_ready = [](const void *) { return false; };

    // ---- what a run shows ----
    void note(uint64_t what) {  // one simulation is the same as another if their traces are
        trace = (trace ^ what) * 1099511628211u;
        trace = (trace ^ static_cast<uint64_t>(now)) * 1099511628211u;
    }
    // Prints a line for an event if SIMULATOR_TRACE is set.
    __attribute__((format(printf, 2, 3))) void tell(const char *format, ...) {
        static const bool wanted = std::getenv("SIMULATOR_TRACE") != nullptr;
        if (!wanted) return;
        Outside outside;
        size_t which = 0;
        while (which < threads_.size() && threads_[which] != self()) ++which;
        std::fprintf(stderr, "%.6f thread %zu: ", elapsed(), which);
        va_list rest;
        va_start(rest, format);
        std::vfprintf(stderr, format, rest);
        va_end(rest);
        std::fprintf(stderr, "\n");
    }
    [[noreturn]] __attribute__((format(printf, 2, 3))) void fail(const char *format, ...) {
        on = false;
        std::fprintf(stderr, "seed %llu, %.6f s: ", static_cast<unsigned long long>(seed), elapsed());
        va_list rest;
        va_start(rest, format);
        std::vfprintf(stderr, format, rest);
        va_end(rest);
        std::fprintf(stderr, "\n");
        if (nth) std::fprintf(stderr, "the failure was number %llu of the possible failures\n", (unsigned long long)nth);
        std::abort();
    }
    double elapsed() const { return static_cast<double>(now - 1000 * SECOND) / 1e9; }

    uint64_t seed = 0;
    Random random{0};
    int64_t now = 1000 * SECOND;
    uint64_t trace = 0;
    bool on = false;
    uint64_t preempts = 0, stalls = 0;  // of a million seams
    uint64_t word_stalls = 0;           // of a million seams at words
    int64_t cost = US;                  // of a seam, at most
    uint64_t rates[FAULTS] = {};        // of a million seams
    bool faults_allowed = true;         // not while a worker begins, or its health is checked
    int64_t faults_until = FOREVER;
    uint64_t nth = 0, nth_of = 0;  // in place of rates: the only seam that fails, among seams of these kinds
    uint64_t faults_seen = 0, faults_made = 0, seams = 0;
    int64_t longest_stall = 0;
    const Thread *leader = nullptr;  // of the loop, from one wait for events to the next
    static constexpr int64_t MOST_STALL = 30 * MS;
    static constexpr int64_t MOST_TURN = 50 * MS;

  private:
    static constexpr uint64_t MOST_SEAMS = 30000000;

    void stall() {
        const int64_t length = static_cast<int64_t>(random.below(MOST_STALL));
        longest_stall = std::max(longest_stall, length);
        self()->frozen_until = now + length;
        hand_over();
    }
    void hand_to(Thread *chosen) {
        Thread *me = self();
        if (chosen != me) {
            chosen->state = Thread::ready;
            sem_post(&chosen->baton);
            if (me->state != Thread::over) take_baton(me);
        }
        end_if_killed();
    }
    static void end_if_killed() {
        Thread *me = self();
        if (!me->killed || !me->end) return;
        jmp_buf *end = me->end;
        me->end = nullptr;
        longjmp(*end, 1);
    }

    static void take_baton(Thread *mine) {
        while (sem_wait(&mine->baton) != 0) {
        }
        the().await_ending();
    }
    // Waits for the end of a thread that has handed over for the last time, because it still destroys its thread_locals.
    void await_ending() {
        static auto *const join = reinterpret_cast<int (*)(pthread_t, void **)>(dlsym(RTLD_NEXT, "pthread_join"));
        if (ending_) join(ending_->real, nullptr);
        ending_ = nullptr;
    }

    // Clients that run within a call of the process must not change errno. Otherwise OpenSSL, after a read that returns 0, would
    // see their EAGAIN and miss the end.
    void run_due() {
        Outside outside;
        const int error = errno;
        while (!events_.empty() && events_.begin()->first <= now) {
            std::function<void()> event = std::move(events_.begin()->second);
            events_.erase(events_.begin());
            event();
        }
        errno = error;
    }

    bool can_run(Thread *one) {
        if (one->state == Thread::over || one->frozen_until > now) return false;
        switch (one->state) {
        case Thread::ready: return true;
        case Thread::polling:
            if (is_ready(one->on)) return true;
            [[fallthrough]];
        case Thread::waiting:
            if (one->until > now) return false;
            one->timed_out = true;
            return true;
        default: return false;
        }
    }

    Thread *choose() {
        Outside outside;
        for (;;) {
            run_due();
            std::vector<Thread *> those;
            for (Thread *one : threads_)
                if (can_run(one)) those.push_back(one);
            if (!those.empty()) {
                Thread *chosen = those[random.below(those.size())];
                chosen->state = Thread::ready;
                return chosen;
            }
            int64_t next = events_.empty() ? FOREVER : events_.begin()->first;
            for (const Thread *one : threads_) {
                if (one->state == Thread::over) continue;
                if (one->frozen_until > now) {
                    next = std::min(next, one->frozen_until);
                } else if (one->state == Thread::waiting || one->state == Thread::polling) {
                    next = std::min(next, std::max(one->until, now + 1));
                }
            }
            if (next == FOREVER) fail("every thread waits, and nobody is left to wake one: a lock is held for ever");
            now = std::max(now, next);
        }
    }

    // But for the timer of the queues, which waits for ever.
    void clear_threads() {
        for (Thread *one : threads_) {
            if (one != self() && one->state != Thread::over) continue;
            sem_destroy(&one->baton);
            delete one;
        }
        threads_.clear();
    }

    std::vector<Thread *> threads_;
    Thread *ending_ = nullptr;
    Thread *follower_ = nullptr, *followed_ = nullptr;  // take_over()
    uint64_t seams_left_ = 0;                           // of the followed one
    std::multimap<int64_t, std::function<void()>> events_;
    int64_t turn_begun_ = 0;  // of what the leader had spent
    int outside_ = 0;
};

inline Machine &machine() { return Machine::the(); }

}  // namespace sim
