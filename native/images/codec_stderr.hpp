// Keeps the complaints of image codecs about damaged files, which go to the C library's `stderr`, from the log.
//
// libjpeg and libpng print a line or more for a damaged file, and nothing in cv2's interface stops
// them, so clients could fill the log with uploads. Redirecting descriptor 2 would take the last words
// of a dying process along. So only the *variable* `stderr` is set to a stream of our own, only while
// some thread decodes, and the stream asks who writes: a thread within `begin` and `end` writes into
// its own small buffer, every other thread straight to descriptor 2, unbuffered as before.
//
// glibc lets `stderr` be assigned and its streams have user-given functions; elsewhere this does
// nothing, and the lines come as they do. Nothing here throws or knows Python.

#pragma once

#include <cstddef>

namespace ksrv {

inline constexpr std::size_t NOISE_BYTES = 200;

struct Noise {
    bool listening = false;
    std::size_t length = 0;  // of the kept text, the beginning
    char text[NOISE_BYTES];
};

// Keeps what this thread writes to `stderr` from now on; not nested.
void begin_noise() noexcept;

// Ends it. The kept text stays readable until the next beginning.
const Noise &end_noise() noexcept;

}  // namespace ksrv
