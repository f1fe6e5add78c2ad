// Calls into Python from native frames that are safe during interpreter shutdown.
//
// Strategy: while CPython (up to 3.13) finalizes, it ends every thread that asks for the GIL with pthread_exit. This
// unwinds the stack, and a `noexcept` frame turns the unwinding into an abort of the whole process. Therefore such a
// thread stops at the native frame that called Python, and sleeps until the process is gone. It holds neither the GIL
// nor a lock at that point.

#pragma once

#include <cxxabi.h>
#include <unistd.h>

namespace ksrv {

// A forced unwind has no exception object, which the sanitizer would report.
template <typename Call> __attribute__((no_sanitize_undefined)) void call_python(Call call) noexcept {
    try {
        call();
    } catch (abi::__forced_unwind &) {
        for (;;) pause();
    }
}

}  // namespace ksrv
