// A queue in front of the GIL, for threads of the event loop and of instances.
//
// CPython hands the GIL to nobody: a thread that releases it wakes a thread that waits, but may have it again before
// that thread runs. A thread that waits asks for the GIL only if it stayed with one thread for a whole switch interval.
// So two instances whose handler computes in Python for less than the interval would pass the GIL between them, and
// a request for another model would wait for up to a second. With the gate only one thread waits for the GIL; a thread
// that has released the GIL and wants it again queues after that thread.

#pragma once

#include <pthread.h>

#include <mutex>
#include <new>

namespace ksrv {

inline std::mutex gil_gate;
// In a forked child no thread is left that could leave the gate.
inline const int gil_gate_fork_handler = pthread_atfork(nullptr, nullptr, [] { new (&gil_gate) std::mutex; });

// Called without the GIL, before taking it.
inline void enter_gil_gate() noexcept { gil_gate.lock(); }
// Called with the GIL, once it is taken.
inline void leave_gil_gate() noexcept { gil_gate.unlock(); }

}  // namespace ksrv
