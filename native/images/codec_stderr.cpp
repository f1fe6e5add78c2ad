#include "images/codec_stderr.hpp"

#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace ksrv {

namespace {

Noise &thread_noise() noexcept {
    static thread_local Noise noise;
    return noise;
}

#ifdef __GLIBC__

// The write function of the stream that replaces `stderr`. Keeps the beginning of the text if this thread captures its
// output; otherwise writes to descriptor 2.
ssize_t keep_or_write(void *, const char *data, std::size_t size) noexcept {
    Noise &noise = thread_noise();
    if (!noise.captures) {
        std::size_t sent = 0;
        while (sent < size) {
            const ssize_t n = write(2, data + sent, size - sent);
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
    long capturing_threads = 0;
    FILE *capture = nullptr;   // created once and never closed, because a writer may still use it
    FILE *original = nullptr;  // the value of `stderr` to restore when the last thread stops capturing
};

Redirection &redirection() noexcept {
    static Redirection instance;
    return instance;
}

}  // namespace

void begin_noise() noexcept {
    Noise &noise = thread_noise();
    noise.captures = true;
    noise.length = 0;
    Redirection &shared = redirection();
    const std::lock_guard<std::mutex> hold(shared.mutex);
    if (shared.capture == nullptr) {
        cookie_io_functions_t functions = {};
        functions.write = keep_or_write;
        shared.capture = fopencookie(nullptr, "w", functions);
        if (shared.capture != nullptr) setvbuf(shared.capture, nullptr, _IONBF, 0);
    }
    if (shared.capturing_threads++ == 0 && shared.capture != nullptr) {
        shared.original = stderr;
        // Atomic, because other threads read the variable without the mutex.
        __atomic_store_n(&stderr, shared.capture, __ATOMIC_RELEASE);
    }
}

const Noise &end_noise() noexcept {
    Noise &noise = thread_noise();
    noise.captures = false;
    Redirection &shared = redirection();
    const std::lock_guard<std::mutex> hold(shared.mutex);
    if (--shared.capturing_threads == 0 && shared.capture != nullptr)
        __atomic_store_n(&stderr, shared.original, __ATOMIC_RELEASE);
    return noise;
}

#else

}  // namespace

void begin_noise() noexcept { thread_noise().length = 0; }
const Noise &end_noise() noexcept { return thread_noise(); }

#endif

}  // namespace ksrv
