// A queue in front of the GIL, for threads of the event loop and of instances.
//
// CPython's GIL has no queue. A thread that releases it wakes a waiting thread, but may take it again before that thread
// runs. A waiting thread makes another thread give up the GIL only after that thread held it for a whole switch interval.
// So two instances that compute in Python for less than the interval would pass the GIL between them, and a request for
// another model would wait for up to a second. With the gate only one thread waits for the GIL. A thread that has
// released the GIL and wants it again queues after the waiting thread.

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
