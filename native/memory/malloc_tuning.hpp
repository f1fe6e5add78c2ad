// Settings of glibc's malloc, for a process that ksrv owns. They do nothing with other C libraries.

#pragma once

namespace ksrv {

// Maps single allocations from 32 MiB on, keeps `keep` free bytes at the end of each heap, and limits the number of
// heaps. With `no_mmap` nothing is mapped. Returns whether the C library accepted the settings.
bool tune_malloc(int keep, bool no_mmap, int heaps) noexcept;

// Changes how many free bytes each heap keeps at its end.
bool keep_freed(int keep) noexcept;

// Returns the free memory of all heaps to the system. False if there was none to return.
bool trim_malloc() noexcept;

}  // namespace ksrv
