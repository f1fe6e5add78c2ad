#include "process/borrowed_pages.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace ksrv {

namespace {

// Of an entry, which is one page: where it is, and whether it is a file's or shared.
constexpr std::uint64_t IN_MEMORY = std::uint64_t{1} << 63, IN_SWAP = std::uint64_t{1} << 62,
                        OF_FILE = std::uint64_t{1} << 61;
constexpr std::size_t ENTRIES = 2048;  // that are read at once

bool is_copy(std::uint64_t entry) noexcept { return (entry & (IN_MEMORY | IN_SWAP)) && !(entry & OF_FILE); }

bool has_no_copy(int pagemap, std::uint64_t page, std::uint64_t end) noexcept {
    std::uint64_t entries[ENTRIES];
    while (page < end) {
        const std::size_t wanted = static_cast<std::size_t>(std::min<std::uint64_t>(end - page, ENTRIES));
        const ssize_t got = pread(pagemap, entries, wanted * sizeof *entries,
                                  static_cast<off_t>(page * sizeof *entries));
        if (got < static_cast<ssize_t>(sizeof *entries)) return false;
        const std::size_t count = static_cast<std::size_t>(got) / sizeof *entries;
        if (std::any_of(entries, entries + count, is_copy)) return false;
        page += count;
    }
    return true;
}

}  // namespace

bool is_unchanged(const void *data, std::size_t nbytes) noexcept {
    const std::uintptr_t size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(data);
    const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0) return false;
    const bool unchanged = has_no_copy(pagemap, first / size, (first + nbytes + size - 1) / size);
    close(pagemap);
    return unchanged;
}

}  // namespace ksrv
