// Lists of pending decrefs. A thread adds to them and sweeps, while another thread takes them: an empty list must not ask for a
// visit to Python, and no item may be lost.
//
//     pending_decrefs ROUNDS
//
// In each round the two threads go through many lists, in one order. Prints how many empty lists asked for a visit after that, and
// how many items were lost.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "reactor/pending_decrefs.hpp"

using namespace ksrv;

namespace {

struct Item {
    Item *next = nullptr;
};

constexpr int LISTS = 1000;
constexpr uint64_t LARGE = 2u << 20;  // bytes of an item, which alone is worth a visit

PendingDecrefs<Item> lists[LISTS];
Item items[LISTS];
std::atomic<uint64_t> begun{0}, ended{0};

void wait_for(const std::atomic<uint64_t> &count, uint64_t round) {
    while (count.load() < round) std::this_thread::yield();
}

void add_and_sweep(uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; ++round) {
        wait_for(begun, round);
        for (int i = 0; i < LISTS; ++i) {
            items[i].next = nullptr;
            lists[i].add(&items[i], LARGE);
            lists[i].sweep();
        }
        ended.store(round);
    }
}

// Takes each list as soon as it has an item, after `looks` at most.
uint64_t take_all(int looks) {
    uint64_t count = 0;
    for (PendingDecrefs<Item> &list : lists) {
        for (int i = 0; i < looks && !list.any(); ++i) {
        }
        for (const Item *item = list.take(); item; item = item->next) ++count;
    }
    return count;
}

}  // namespace

int main(int, char **arguments) {
    const uint64_t rounds = std::strtoull(arguments[1], nullptr, 10);
    std::thread other(add_and_sweep, rounds);
    uint64_t taken = 0, stuck = 0;
    for (uint64_t round = 1; round <= rounds; ++round) {
        begun.store(round);
        taken += take_all(1000);
        wait_for(ended, round);
        taken += take_all(1);
        for (const PendingDecrefs<Item> &list : lists) stuck += list.are_many();
    }
    other.join();
    std::printf("%llu stuck, %llu lost\n", static_cast<unsigned long long>(stuck),
                static_cast<unsigned long long>(rounds * LISTS - taken));
    return 0;
}
