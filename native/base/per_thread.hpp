// An object that each thread has of its own, made at the thread's first use and deleted at the thread's end.
//
// A thread_local whose destructor does something would end the process where there is no memory, because glibc notes the
// destructor in memory that it allocates.

#pragma once

#include <pthread.h>

#include <new>

namespace ksrv {

// One that is static, as the key is never given back.
template <typename Object> class PerThread {
  public:
    // The calling thread's; null where there is no memory.
    Object *get() noexcept {
        if (!made_) return nullptr;
        if (void *own = pthread_getspecific(key_)) return static_cast<Object *>(own);
        Object *const own = new (std::nothrow) Object;
        if (!own || pthread_setspecific(key_, own) == 0) return own;
        delete own;
        return nullptr;
    }

  private:
    static void end(void *own) noexcept { delete static_cast<Object *>(own); }

    pthread_key_t key_ = 0;
    const bool made_ = pthread_key_create(&key_, end) == 0;
};

}  // namespace ksrv
