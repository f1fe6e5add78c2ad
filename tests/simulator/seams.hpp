// The seams: the program's versions of functions of the C library, of threads and of memory that the native core and its
// libraries call. The dynamic linker finds these first, so that the core runs unchanged.
//
// Outside of a simulation, and for descriptors of the kernel's, each calls the real function. A program includes this once.

#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <time.h>

#include <cstddef>
#include <new>

#include "network.hpp"

namespace sim {

inline bool machine_is_made = false;  // set by main: what runs before asks for no machine

template <typename Function> Function *real(const char *name) {
    return reinterpret_cast<Function *>(dlsym(RTLD_NEXT, name));
}
inline bool ours(int fd) { return Network::is_ours(fd); }
inline int failed(int error) {
    errno = error;
    return -1;
}
inline LinkPointer hurt(File &file) {
    file.link->hurt = true;
    return file.link;
}
// A failure of a call on a connection, by which the process's system has lost it or not.
inline bool interrupts(File &file, int error) {
    if (error == ECONNRESET) {
        file.link->reset = true;
        file.link->refused = true;
        if (file.link->tell_client) file.link->tell_client();
    }
    return true;
}

}  // namespace sim

using sim::machine;
using sim::machine_is_made;
using sim::network;
using sim::ours;

// ---- the clock ---------------------------------------------------------------------------------------

extern "C" int clock_gettime(clockid_t clock, timespec *out) noexcept {
    if (!machine_is_made || !machine().on || !sim::Machine::self()) return static_cast<int>(syscall(SYS_clock_gettime, clock, out));
    machine().seam();
    const int64_t base = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? 1700000000ll * sim::SECOND : 0;
    out->tv_sec = (base + machine().now) / sim::SECOND;
    out->tv_nsec = (base + machine().now) % sim::SECOND;
    return 0;
}

// Of the field `date`, whose code in HPACK is longer at some times than at others.
extern "C" time_t time(time_t *out) noexcept {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

extern "C" ssize_t getrandom(void *out, size_t length, unsigned flags) {
    if (!machine_is_made || !machine().on || !sim::Machine::self()) return syscall(SYS_getrandom, out, length, flags);
    for (size_t i = 0; i < length; ++i) static_cast<unsigned char *>(out)[i] = static_cast<unsigned char>(machine().random.next());
    return static_cast<ssize_t>(length);
}

// ---- threads -----------------------------------------------------------------------------------------

extern "C" int pthread_mutex_lock(pthread_mutex_t *mutex) noexcept {
    static auto *const lock = sim::real<int(pthread_mutex_t *)>("pthread_mutex_lock");
    static auto *const try_lock = sim::real<int(pthread_mutex_t *)>("pthread_mutex_trylock");
    if (!machine_is_made || !machine().active()) return lock(mutex);
    machine().seam();
    int got;
    while ((got = try_lock(mutex)) == EBUSY) machine().wait(sim::Thread::locking, mutex, sim::FOREVER);
    ++sim::Machine::self()->held;
    return got;
}

extern "C" int pthread_mutex_unlock(pthread_mutex_t *mutex) noexcept {
    static auto *const unlock = sim::real<int(pthread_mutex_t *)>("pthread_mutex_unlock");
    if (!machine_is_made || !machine().active()) return unlock(mutex);
    const int done = unlock(mutex);
    --sim::Machine::self()->held;
    machine().wake(sim::Thread::locking, mutex, true);
    machine().seam();
    return done;
}

namespace sim {

inline int wait_for(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until) {
    static auto *const unlock = real<int(pthread_mutex_t *)>("pthread_mutex_unlock");
    const bool spurious = machine().random.chance(5000);
    unlock(mutex);
    --Machine::self()->held;
    if (Machine::self()->held) machine().fail("a thread that holds %d more locks waits for a condition", Machine::self()->held);
    machine().wake(Thread::locking, mutex, true);
    const bool woken = machine().wait(Thread::waiting, condition, spurious ? machine().now : until);
    pthread_mutex_lock(mutex);
    if (machine().leader == Machine::self()) machine().lead();  // others are served while it waits
    return woken || spurious ? 0 : ETIMEDOUT;
}

}  // namespace sim

extern "C" int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    static auto *const wait = sim::real<int(pthread_cond_t *, pthread_mutex_t *)>("pthread_cond_wait");
    return machine().active() ? sim::wait_for(condition, mutex, sim::FOREVER) : wait(condition, mutex);
}

// MonotonicCondition alone waits so, by the clock that counts here.
extern "C" int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *until) {
    static auto *const wait = sim::real<int(pthread_cond_t *, pthread_mutex_t *, const timespec *)>("pthread_cond_timedwait");
    if (!machine().active()) return wait(condition, mutex, until);
    return sim::wait_for(condition, mutex, until->tv_sec * sim::SECOND + until->tv_nsec);
}

extern "C" int pthread_cond_signal(pthread_cond_t *condition) noexcept {
    static auto *const signal = sim::real<int(pthread_cond_t *)>("pthread_cond_signal");
    if (!machine().active()) return signal(condition);
    machine().wake(sim::Thread::waiting, condition, false);
    return 0;
}

extern "C" int pthread_cond_broadcast(pthread_cond_t *condition) noexcept {
    static auto *const broadcast = sim::real<int(pthread_cond_t *)>("pthread_cond_broadcast");
    if (!machine().active()) return broadcast(condition);
    machine().wake(sim::Thread::waiting, condition, true);
    return 0;
}

// Advances the clock by more than a seam, so that another thread gets to finish its work.
extern "C" int sched_yield() noexcept {
    if (!machine().active()) return static_cast<int>(syscall(SYS_sched_yield));
    machine().wait(sim::Thread::waiting, &machine(), machine().now + sim::US);
    return 0;
}

extern "C" int pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) noexcept {
    static auto *const create =
        sim::real<int(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)>("pthread_create");
    if (!machine().active()) return create(out, attributes, run, argument);
    sim::Machine::Outside outside;
    sim::Thread *made = machine().add_thread(run, argument);
    const int done = create(&made->real, attributes, sim::Machine::begin_thread, made);
    *out = sim::Machine::identity_of(made);
    return done;
}

// It is joined all the same when it has ended (await_ending).
extern "C" int pthread_detach(pthread_t thread) noexcept {
    static auto *const detach = sim::real<int(pthread_t)>("pthread_detach");
    return machine().active() && machine().thread_of(thread) ? 0 : detach(thread);
}

extern "C" int pthread_join(pthread_t thread, void **result) {
    static auto *const join = sim::real<int(pthread_t, void **)>("pthread_join");
    sim::Thread *other = machine().active() ? machine().thread_of(thread) : nullptr;
    if (!other) return join(thread, result);
    while (other->state != sim::Thread::over) machine().wait(sim::Thread::joining, other, sim::FOREVER);
    other->run = nullptr;
    if (result) *result = other->result;
    return 0;  // it was joined when it had ended (await_ending)
}

// ---- memory ------------------------------------------------------------------------------------------

#if defined(__SANITIZE_ADDRESS__)
#define SIM_REAL(name) __interceptor_##name
extern "C" {
void *__interceptor_malloc(size_t);
void *__interceptor_calloc(size_t, size_t);
void *__interceptor_realloc(void *, size_t);
int __interceptor_posix_memalign(void **, size_t, size_t);
void *__interceptor_aligned_alloc(size_t, size_t);
}
#else
#define SIM_REAL(name) __libc_##name
extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
}
#endif

namespace sim {

// OpenSSL's own allocations do not fail: what 3.0 does then is not the core's to mend. `find_openssl` is called when its libraries
// are loaded, and before any simulation, because it allocates itself.
inline std::pair<uintptr_t, uintptr_t> openssl_ranges[2];
inline void find_openssl() {
    FILE *maps = std::fopen("/proc/self/maps", "r");
    char line[512];
    while (maps && std::fgets(line, sizeof line, maps)) {
        const int which = strstr(line, "libssl") ? 0 : strstr(line, "libcrypto") ? 1 : -1;
        if (which < 0) continue;
        unsigned long from = 0, to = 0;
        std::sscanf(line, "%lx-%lx", &from, &to);
        if (!openssl_ranges[which].first) openssl_ranges[which].first = from;
        openssl_ranges[which].second = to;
    }
    if (maps) std::fclose(maps);
}
inline bool is_openssl(const void *caller) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(caller);
    for (const auto &one : openssl_ranges)
        if (at >= one.first && at < one.second) return true;
    return false;
}

inline bool no_memory(const void *caller) {
    if (!machine().on || !machine().active() || is_openssl(caller)) return false;
    return machine().fails(FAULT_MALLOC);
}

}  // namespace sim

#define SIM_NO_MEMORY sim::no_memory(__builtin_return_address(0))

extern "C" void *malloc(size_t size) noexcept {
    if (machine_is_made && SIM_NO_MEMORY) {
        errno = ENOMEM;
        return nullptr;
    }
    return SIM_REAL(malloc)(size);
}

extern "C" void *calloc(size_t count, size_t size) noexcept {
    if (machine_is_made && SIM_NO_MEMORY) {
        errno = ENOMEM;
        return nullptr;
    }
    return SIM_REAL(calloc)(count, size);
}

extern "C" void *realloc(void *before, size_t size) noexcept {
    if (machine_is_made && SIM_NO_MEMORY) {
        errno = ENOMEM;
        return nullptr;
    }
    return SIM_REAL(realloc)(before, size);
}

extern "C" int posix_memalign(void **out, size_t alignment, size_t size) noexcept {
    if (machine_is_made && SIM_NO_MEMORY) return ENOMEM;
#if defined(__SANITIZE_ADDRESS__)
    return __interceptor_posix_memalign(out, alignment, size);
#else
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : ENOMEM;
#endif
}

static void *new_memory(size_t size, size_t alignment, const void *caller) noexcept {
    if (machine_is_made && sim::no_memory(caller)) return nullptr;
    if (alignment <= alignof(max_align_t)) return SIM_REAL(malloc)(size ? size : 1);
#if defined(__SANITIZE_ADDRESS__)
    return __interceptor_aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
#else
    return __libc_memalign(alignment, size);
#endif
}

#define SIM_NEW(arguments, alignment)                                                      \
    void *operator new arguments {                                                         \
        if (void *made = new_memory(size, alignment, __builtin_return_address(0))) return made; \
        throw std::bad_alloc();                                                            \
    }                                                                                      \
    void *operator new[] arguments {                                                       \
        if (void *made = new_memory(size, alignment, __builtin_return_address(0))) return made; \
        throw std::bad_alloc();                                                            \
    }
SIM_NEW((size_t size), 0)
SIM_NEW((size_t size, std::align_val_t wanted), static_cast<size_t>(wanted))
#undef SIM_NEW
void *operator new(size_t size, const std::nothrow_t &) noexcept { return new_memory(size, 0, __builtin_return_address(0)); }
void *operator new[](size_t size, const std::nothrow_t &) noexcept { return new_memory(size, 0, __builtin_return_address(0)); }
void *operator new(size_t size, std::align_val_t wanted, const std::nothrow_t &) noexcept {
    return new_memory(size, static_cast<size_t>(wanted), __builtin_return_address(0));
}
void *operator new[](size_t size, std::align_val_t wanted, const std::nothrow_t &) noexcept {
    return new_memory(size, static_cast<size_t>(wanted), __builtin_return_address(0));
}
void operator delete(void *memory) noexcept { free(memory); }
void operator delete[](void *memory) noexcept { free(memory); }
void operator delete(void *memory, size_t) noexcept { free(memory); }
void operator delete[](void *memory, size_t) noexcept { free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { free(memory); }
void operator delete[](void *memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void *memory, size_t, std::align_val_t) noexcept { free(memory); }
void operator delete[](void *memory, size_t, std::align_val_t) noexcept { free(memory); }

extern "C" void *mmap(void *where, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
    if (machine_is_made && machine().on && machine().fails(sim::FAULT_MMAP)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return reinterpret_cast<void *>(syscall(SYS_mmap, where, length, protection, flags, fd, offset));
}

extern "C" int memfd_create(const char *name, unsigned flags) noexcept {
    if (machine().fails(sim::FAULT_MEMFD)) return sim::failed(EMFILE);
    return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}

extern "C" int posix_fallocate(int fd, off_t offset, off_t length) {
    if (machine().fails(sim::FAULT_PAGES)) return machine().random.chance(500000) ? EINTR : ENOSPC;
    return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}

extern "C" int ftruncate(int fd, off_t length) noexcept {
    if (machine().fails(sim::FAULT_PAGES)) return sim::failed(EINTR);
    return static_cast<int>(syscall(SYS_ftruncate, fd, length));
}

extern "C" int madvise(void *where, size_t length, int advice) noexcept {
    constexpr int POPULATE_WRITE = 23;  // MADV_POPULATE_WRITE
    if (machine_is_made && advice == POPULATE_WRITE && machine().fails(sim::FAULT_PAGES)) return sim::failed(EFAULT);
    return static_cast<int>(syscall(SYS_madvise, where, length, advice));
}

// ---- descriptors -------------------------------------------------------------------------------------

extern "C" int epoll_create1(int flags) noexcept {
    return machine().active() ? network().add(sim::File::epoll) : static_cast<int>(syscall(SYS_epoll_create1, flags));
}

extern "C" int eventfd(unsigned count, int flags) noexcept {
    return machine().active() ? network().add(sim::File::event) : static_cast<int>(syscall(SYS_eventfd2, count, flags));
}

extern "C" int epoll_ctl(int epoll, int what, int fd, epoll_event *event) noexcept {
    if (!ours(epoll)) return static_cast<int>(syscall(SYS_epoll_ctl, epoll, what, fd, event));
    machine().seam();
    if (what != EPOLL_CTL_DEL && machine().fails(sim::FAULT_EPOLL_CTL)) {
        sim::File &file = network().at(fd, "epoll_ctl");
        if (file.kind == sim::File::server_end) sim::hurt(file);
        return sim::failed(ENOMEM);
    }
    return network().control(network().at(epoll, "epoll_ctl"), what, fd, event);
}

extern "C" int epoll_wait(int epoll, epoll_event *events, int most, int timeout) {
    if (!ours(epoll)) return static_cast<int>(syscall(SYS_epoll_pwait, epoll, events, most, timeout, nullptr, 8));
    sim::Thread *me = sim::Machine::self();
    if (me->held) machine().fail("the loop waits for events and holds %d locks", me->held);
    machine().leader = nullptr;
    machine().seam();
    if (machine().fails(sim::FAULT_EPOLL_WAIT)) return sim::failed(EINTR);
    sim::File &file = network().at(epoll, "epoll_wait");
    if (timeout != 0 && !network().has_events(&file))
        machine().wait(sim::Thread::polling, &file, timeout < 0 ? sim::FOREVER : machine().now + timeout * sim::MS);
    const int count = network().collect(file, events, most);
    machine().lead();
    return count;
}

extern "C" int close(int fd) {
    if (!ours(fd)) return static_cast<int>(syscall(SYS_close, fd));
    machine().seam();
    network().closed(fd);
    return 0;
}

extern "C" int accept4(int fd, sockaddr *peer, socklen_t *length, int flags) {
    if (!ours(fd)) return static_cast<int>(syscall(SYS_accept4, fd, peer, length, flags));
    machine().seam();
    sim::File &file = network().at(fd, "accept");
    if (!file.listening.backlog.empty() && machine().fails(sim::FAULT_ACCEPT)) {
        const int errors[] = {EINTR, ECONNABORTED, EMFILE, ENFILE, ENOBUFS, ENOMEM};
        const int error = machine().random.one_of(errors);
        if (error == ECONNABORTED) {
            sim::LinkPointer gone = file.listening.backlog.front();
            file.listening.backlog.pop_front();
            gone->hurt = gone->refused = true;
            if (gone->tell_client) gone->tell_client();
        }
        return sim::failed(error);
    }
    const int made = network().accept(file);
    if (made >= 0) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<uint16_t>(made & 0xffff));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        memcpy(peer, &address, std::min<size_t>(sizeof address, *length));
        *length = sizeof address;
    }
    return made;
}

namespace sim {

inline ssize_t receive(int fd, void *out, size_t length, int flags) {
    machine().seam();
    File &file = network().at(fd, "a read");
    if (file.kind == File::event) {
        if (!file.count) return failed(EAGAIN);
        *static_cast<uint64_t *>(out) = file.count;
        file.count = 0;
        return sizeof file.count;
    }
    if (file.kind == File::channel)
        return machine().fails(FAULT_CHANNEL) ? failed(EINTR) : network().receive_message(file, out, length, flags);
    if (file.kind == File::server_end && machine().fails(FAULT_RECEIVE)) {
        const int errors[] = {EINTR, EINTR, EINTR, ECONNRESET};
        const int error = machine().random.one_of(errors);
        hurt(file);
        interrupts(file, error);
        return failed(error);
    }
    return network().receive(file, out, length, flags & MSG_PEEK, flags & MSG_TRUNC);
}

inline ssize_t send_parts(int fd, const iovec *parts, size_t count) {
    machine().seam();
    File &file = network().at(fd, "a write");
    if (file.kind == File::event) {
        if (machine().fails(FAULT_WAKE)) return failed(EINTR);
        file.count += *static_cast<const uint64_t *>(parts[0].iov_base);
        network().touch(&file, EPOLLIN);
        return sizeof file.count;
    }
    if (file.kind == File::channel && machine().fails(FAULT_CHANNEL)) {
        const int errors[] = {EINTR, ENOBUFS};  // no memory for the message, which waiting may find
        return failed(machine().random.one_of(errors));
    }
    if (file.kind == File::server_end && machine().fails(FAULT_SEND)) {
        const int errors[] = {EINTR, EINTR, ENOBUFS, ECONNRESET};
        const int error = machine().random.one_of(errors);
        hurt(file);
        interrupts(file, error);
        return failed(error);
    }
    Machine::Outside outside;
    std::string bytes;
    for (size_t i = 0; i < count; ++i) bytes.append(static_cast<const char *>(parts[i].iov_base), parts[i].iov_len);
    if (file.kind == File::channel) return network().send_message(file, bytes);
    size_t length = bytes.size();
    if (file.kind == File::server_end && length > FEW_BYTES && machine().random.chance(20000)) length = machine().random.between(1, length);
    return network().send_some(file, bytes.data(), length);
}

}  // namespace sim

extern "C" ssize_t recv(int fd, void *out, size_t length, int flags) {
    return ours(fd) ? sim::receive(fd, out, length, flags) : syscall(SYS_recvfrom, fd, out, length, flags, nullptr, nullptr);
}
extern "C" ssize_t read(int fd, void *out, size_t length) {
    return ours(fd) ? sim::receive(fd, out, length, 0) : syscall(SYS_read, fd, out, length);
}
extern "C" ssize_t readv(int fd, const iovec *parts, int count) {
    if (!ours(fd)) return syscall(SYS_readv, fd, parts, count);
    ssize_t whole = 0;
    for (int i = 0; i < count; ++i) {
        if (i > 0 && network().at(fd, "readv").link->up.empty()) break;
        const ssize_t got = i ? network().receive(network().at(fd, "readv"), parts[i].iov_base, parts[i].iov_len, false, false)
                              : sim::receive(fd, parts[i].iov_base, parts[i].iov_len, 0);
        if (got < 0) return whole ? whole : got;
        whole += got;
        if (static_cast<size_t>(got) < parts[i].iov_len) break;
    }
    return whole;
}
extern "C" ssize_t send(int fd, const void *data, size_t length, int flags) {
    const iovec part{const_cast<void *>(data), length};
    return ours(fd) ? sim::send_parts(fd, &part, 1) : syscall(SYS_sendto, fd, data, length, flags, nullptr, 0);
}
extern "C" ssize_t write(int fd, const void *data, size_t length) {
    const iovec part{const_cast<void *>(data), length};
    return ours(fd) ? sim::send_parts(fd, &part, 1) : syscall(SYS_write, fd, data, length);
}
extern "C" ssize_t sendmsg(int fd, const msghdr *message, int flags) {
    return ours(fd) ? sim::send_parts(fd, message->msg_iov, message->msg_iovlen) : syscall(SYS_sendmsg, fd, message, flags);
}

extern "C" int shutdown(int fd, int how) noexcept {
    if (!ours(fd)) return static_cast<int>(syscall(SYS_shutdown, fd, how));
    machine().seam();
    sim::Machine::Outside outside;
    sim::File &file = network().at(fd, "shutdown");
    if (file.link->reset) return sim::failed(ENOTCONN);
    network().shut(file);
    return 0;
}

extern "C" int setsockopt(int fd, int level, int name, const void *value, socklen_t length) noexcept {
    if (!ours(fd)) return static_cast<int>(syscall(SYS_setsockopt, fd, level, name, value, length));
    machine().seam();
    sim::File &file = network().at(fd, "setsockopt");
    if (machine().fails(sim::FAULT_SOCKET_OPTION)) return sim::failed(ENOBUFS);
    if (level == SOL_SOCKET && name == SO_RCVLOWAT && file.link) {
        file.link->low_water = *static_cast<const int *>(value);
        network().touch(&file, EPOLLIN);
    }
    return 0;
}

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (!ours(fd)) return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
    machine().seam();
    const sim::Link &link = *network().at(fd, "ioctl").link;
    const size_t held = link.down.size();
    *static_cast<int *>(argument) = static_cast<int>(held - std::min(held, link.client_buffer));
    return 0;
}

extern "C" int poll(pollfd *those, nfds_t count, int timeout) {
    if (count == 0 || !ours(those->fd)) return static_cast<int>(syscall(SYS_poll, those, count, timeout));
    machine().seam();
    if (timeout > 0 && !(network().ready(network().at(those->fd, "poll")) & static_cast<uint32_t>(those->events)))
        machine().wait(sim::Thread::polling, &network().at(those->fd, "poll"), machine().now + timeout * sim::MS);
    int found = 0;
    for (nfds_t i = 0; i < count && those; ++i) {
        const uint32_t ready = network().ready(network().at(those[i].fd, "poll"));
        those[i].revents = static_cast<short>((ready & static_cast<uint32_t>(those[i].events)) | (ready & (EPOLLERR | EPOLLHUP)));
        found += those[i].revents != 0;
    }
    return found;
}

extern "C" int ppoll(pollfd *those, nfds_t count, const timespec *timeout, const sigset_t *mask) {
    timespec left = timeout ? *timeout : timespec{};
    if (count != 1 || !ours(those[0].fd)) return static_cast<int>(syscall(SYS_ppoll, those, count, timeout ? &left : nullptr, mask, 8));
    machine().seam();
    if (machine().fails(sim::FAULT_CHANNEL)) return sim::failed(EINTR);
    if (sim::Machine::self()->held) machine().fail("a thread waits for a channel and holds %d locks", sim::Machine::self()->held);
    const int64_t until = timeout ? machine().now + left.tv_sec * sim::SECOND + left.tv_nsec : sim::FOREVER;
    sim::File &file = network().at(those[0].fd, "ppoll");
    if (!network().has_events(&file) && until > machine().now) machine().wait(sim::Thread::polling, &file, until);
    those[0].revents = static_cast<short>(network().ready(file));
    return those[0].revents != 0;
}
