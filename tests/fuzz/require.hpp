// How a harness says that something is wrong: it names the condition, and aborts.

#pragma once

#include <cstdio>
#include <cstdlib>

// A macro, so that a report names the condition.
#define require(condition)                                                \
    do {                                                                  \
        if (!(condition)) {                                               \
            std::fprintf(stderr, "the condition is false: %s\n", #condition); \
            std::abort();                                                 \
        }                                                                 \
    } while (false)
