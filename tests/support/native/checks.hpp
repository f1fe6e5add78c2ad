// How the programs of tests say what is wrong: in a line on standard output, with exit status 1.

#pragma once

#include <cstdio>
#include <cstdlib>

// `so`: what holds where all is well.
inline void check(bool holds, const char *so) {
    if (holds) return;
    std::printf("not so: %s\n", so);
    std::exit(1);
}

// `fault`: the message if the condition is false.
inline void require(bool holds, const char *fault) {
    if (holds) return;
    std::printf("%s\n", fault);
    std::exit(1);
}
