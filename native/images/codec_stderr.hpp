// Keeps messages of image codecs about damaged files out of the log. Codecs print them to the C library's `stderr`.
//
// libjpeg and libpng print at least a line for a damaged file, and cv2 cannot turn this off, so that clients could fill
// the log with uploads. Redirecting file descriptor 2 would lose the last message of a crashing process. Therefore only
// the *variable* `stderr` is set to a custom stream, and only while a thread decodes. The stream checks which thread
// writes: a thread between `begin` and `end` writes into a small thread-local buffer, all other threads write
// unbuffered to descriptor 2 as before.
//
// glibc allows assigning `stderr`, and streams with custom functions. With other C libraries nothing is captured,
// and the messages are printed. Nothing here throws or uses Python.

#pragma once

#include <cstddef>

namespace ksrv {

inline constexpr std::size_t NOISE_BYTES = 200;

// The text that the codecs of a thread wrote to `stderr`.
struct Noise {
    bool captures = false;
    std::size_t length = 0;  // of the stored text, which is the beginning of the output
    char text[NOISE_BYTES];
};

// Captures what this thread writes to `stderr` from now on. Calls do not nest.
void begin_noise() noexcept;

// Stops capturing. The text stays valid until the next call of `begin_noise`.
const Noise &end_noise() noexcept;

}  // namespace ksrv
