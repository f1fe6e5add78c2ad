// What image codecs write to the C library's `stderr` about damaged files, kept from the log.
//
// libjpeg and libpng print a line or more for a damaged file, and nothing in cv2's interface stops
// them, so whoever may upload could fill the log. Redirecting descriptor 2 would take the last words
// of a dying process along. So only the *variable* `stderr` is set to a stream of our own, only while
// some thread decodes, and the stream asks who writes: a thread within `begin` and `end` writes into
// its own small buffer, every other thread straight to descriptor 2, unbuffered as before.
//
// glibc lets `stderr` be assigned and its streams have user-given functions; elsewhere this does
// nothing, and the lines come as they do. Nothing here throws or knows Python.

#pragma once

#include <stdio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>

namespace ksrv {

inline constexpr std::size_t NOISE_BYTES = 200;

struct Noise {
    bool listening = false;
    std::size_t length = 0;  // of what is kept, the beginning
    char text[NOISE_BYTES];
};

inline Noise &thread_noise() noexcept {
    static thread_local Noise noise;
    return noise;
}

#ifdef __GLIBC__

namespace noise_detail {

inline ssize_t write(void *, const char *data, std::size_t size) noexcept {
    Noise &noise = thread_noise();
    if (!noise.listening) {
        std::size_t sent = 0;
        while (sent < size) {
            const ssize_t n = ::write(2, data + sent, size - sent);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) return static_cast<ssize_t>(sent);
            sent += static_cast<std::size_t>(n);
        }
        return static_cast<ssize_t>(size);
    }
    const std::size_t room = NOISE_BYTES - noise.length;
    const std::size_t kept = size < room ? size : room;
    std::memcpy(noise.text + noise.length, data, kept);
    noise.length += kept;
    return static_cast<ssize_t>(size);
}

struct Redirection {
    std::mutex mutex;
    long decoding = 0;          // threads within begin and end
    FILE *own = nullptr;        // made once and never closed: a writer may still hold it
    FILE *before = nullptr;
};

inline Redirection &redirection() noexcept {
    static Redirection one;
    return one;
}

}  // namespace noise_detail

// Keeps what this thread writes to `stderr` from now on; not nested.
inline void begin_noise() noexcept {
    Noise &noise = thread_noise();
    noise.listening = true;
    noise.length = 0;
    noise_detail::Redirection &all = noise_detail::redirection();
    const std::lock_guard<std::mutex> hold(all.mutex);
    if (all.own == nullptr) {
        cookie_io_functions_t functions = {};
        functions.write = noise_detail::write;
        all.own = fopencookie(nullptr, "w", functions);
        if (all.own != nullptr) setvbuf(all.own, nullptr, _IONBF, 0);
    }
    if (all.decoding++ == 0 && all.own != nullptr) {
        all.before = stderr;
        __atomic_store_n(&stderr, all.own, __ATOMIC_RELEASE);
    }
}

// Ends what `begin_noise` began. What was kept stays readable until the next beginning.
inline const Noise &end_noise() noexcept {
    Noise &noise = thread_noise();
    noise.listening = false;
    noise_detail::Redirection &all = noise_detail::redirection();
    const std::lock_guard<std::mutex> hold(all.mutex);
    if (--all.decoding == 0 && all.own != nullptr)
        __atomic_store_n(&stderr, all.before, __ATOMIC_RELEASE);
    return noise;
}

#else

inline void begin_noise() noexcept { thread_noise().length = 0; }
inline const Noise &end_noise() noexcept { return thread_noise(); }

#endif

}  // namespace ksrv
