#include "images/codec_stderr.hpp"

#include <stdio.h>
#include <unistd.h>

#include <atomic>
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

ssize_t keep_or_write(void *, const char *data, std::size_t size) noexcept {
    Noise &noise = thread_noise();
    if (!noise.listening) {
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
    long decoding = 0;          // threads between begin and end
    FILE *own = nullptr;        // created once and never closed, because a writer may still use it
    FILE *before = nullptr;
};

Redirection &redirection() noexcept {
    static Redirection one;
    return one;
}

}  // namespace

void begin_noise() noexcept {
    Noise &noise = thread_noise();
    noise.listening = true;
    noise.length = 0;
    Redirection &all = redirection();
    const std::lock_guard<std::mutex> hold(all.mutex);
    if (all.own == nullptr) {
        cookie_io_functions_t functions = {};
        functions.write = keep_or_write;
        all.own = fopencookie(nullptr, "w", functions);
        if (all.own != nullptr) setvbuf(all.own, nullptr, _IONBF, 0);
    }
    if (all.decoding++ == 0 && all.own != nullptr) {
        all.before = stderr;
        __atomic_store_n(&stderr, all.own, __ATOMIC_RELEASE);
    }
}

const Noise &end_noise() noexcept {
    Noise &noise = thread_noise();
    noise.listening = false;
    Redirection &all = redirection();
    const std::lock_guard<std::mutex> hold(all.mutex);
    if (--all.decoding == 0 && all.own != nullptr)
        __atomic_store_n(&stderr, all.before, __ATOMIC_RELEASE);
    return noise;
}

#else

}  // namespace

void begin_noise() noexcept { thread_noise().length = 0; }
const Noise &end_noise() noexcept { return thread_noise(); }

#endif

}  // namespace ksrv
