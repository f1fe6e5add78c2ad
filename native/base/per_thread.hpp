// A separate object for each thread, created on first use and deleted when the thread ends.
//
// A thread_local with a destructor would terminate the process if memory is short, because glibc allocates memory to
// register the destructor.

#pragma once

#include <pthread.h>

#include <new>

namespace ksrv {

// Instances must be static, because the pthread key is never freed.
template <typename Object> class PerThread {
  public:
    // Returns the calling thread's object, or null if memory is short.
    Object *get() noexcept {
        if (!made_) return nullptr;
        if (void *object = pthread_getspecific(key_)) return static_cast<Object *>(object);
        Object *const object = new (std::nothrow) Object;
        if (!object || pthread_setspecific(key_, object) == 0) return object;
        delete object;
        return nullptr;
    }

  private:
    static void end(void *object) noexcept { delete static_cast<Object *>(object); }

    pthread_key_t key_ = 0;
    const bool made_ = pthread_key_create(&key_, end) == 0;
};

}  // namespace ksrv
