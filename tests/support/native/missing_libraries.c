// A machine without some libraries: dlopen does not find the libraries that MISSING_LIBRARIES names, separated by commas.
//
//     cc -O2 -shared -fPIC missing_libraries.c -o missing_libraries.so
//     MISSING_LIBRARIES=libssl.so.3,libnghttp2.so.14 LD_PRELOAD=./missing_libraries.so PROGRAM

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *dlopen(const char *name, int flags) {
    static void *(*next)(const char *, int);
    if (!next) next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    const char *missing = getenv("MISSING_LIBRARIES");
    const size_t length = name ? strlen(name) : 0;
    for (const char *at = missing; length && at && *at;) {
        const size_t span = strcspn(at, ",");
        if (span == length && !strncmp(at, name, span)) return next("/nonexistent", flags);  // for dlerror
        at += span + (at[span] == ',');
    }
    return next(name, flags);
}
