// Calls into Python from native frames, safe at the interpreter's end.
//
// Strategy: while CPython (up to 3.13) finalizes, every thread that asks for the GIL is ended by
// pthread_exit, which unwinds its stack, and a frame that is `noexcept` turns that into an abort of the
// whole process. So a thread that is being ended so stops where native code called Python, and sleeps
// until the process is gone. It holds neither the GIL nor a lock then.

#pragma once

#include <cxxabi.h>
#include <unistd.h>

namespace ksrv {

// There is no object behind the reference when a thread is ended so, of which the sanitizer would tell.
template <typename Call> __attribute__((no_sanitize_undefined)) void call_python(Call call) noexcept {
    try {
        call();
    } catch (abi::__forced_unwind &) {
        for (;;) pause();
    }
}

}  // namespace ksrv
