// Whether this process has changed memory that another one has lent it.
//
// Strategy: such memory is mapped privately: the kernel makes a copy of each page that is written to, and
// /proc/self/pagemap tells the copies from the pages that are still the lender's.
//
// Nothing here throws or knows Python.

#pragma once

#include <cstddef>

namespace ksrv {

// False where a page was written to, and where that cannot be told.
bool is_unchanged(const void *data, std::size_t nbytes) noexcept;

}  // namespace ksrv
