// Settings of glibc's malloc for a process that ksrv owns; for other C libraries these do nothing.

#pragma once

namespace ksrv {

// Maps single allocations from 32 MiB on, keeps `keep` free bytes at a heap's end and has at most
// `heaps` heaps; with `no_mmap` nothing is mapped. Whether the C library took the settings.
bool tune_malloc(int keep, bool no_mmap, int heaps) noexcept;

// Changes how much free memory a heap keeps at its end.
bool keep_freed(int keep) noexcept;

// Gives the free memory of all heaps back; whether there was any.
bool trim_malloc() noexcept;

}  // namespace ksrv
