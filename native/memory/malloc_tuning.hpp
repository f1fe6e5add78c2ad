// Settings of glibc's malloc, for worker and handler processes. They do nothing with other C libraries.

#pragma once

namespace ksrv {

// Keeps `kept_bytes` free bytes at the end of each heap, and limits the number of heaps. Allocations of at least 32 MiB get a
// separate mapping, which is returned to the system when they are freed; with `no_mmap`, they are in a heap, too.
// Returns whether the C library accepted the settings.
bool tune_malloc(int kept_bytes, bool no_mmap, int heaps) noexcept;

// Changes how many free bytes each heap keeps at its end.
bool keep_freed(int kept_bytes) noexcept;

// Returns the free memory of all heaps to the system. False if there was none to return.
bool trim_malloc() noexcept;

}  // namespace ksrv
