#include "images/jpeg/scan_bytes.hpp"

#include <algorithm>
#include <cstring>

namespace ksrv {

void ScanBytes::start(const unsigned char *begin, const unsigned char *end) noexcept {
    file_ = begin;
    file_end_ = end;
    end_ = window_;
    is_whole_ = false;
}

const std::uint8_t *ScanBytes::refill(const std::uint8_t *at) noexcept {
    if (is_whole_) return at;
    const std::size_t kept = static_cast<std::size_t>(end_ - at);
    std::memmove(window_, at, kept);
    std::uint8_t *out = window_ + kept;
    std::uint8_t *const full = window_ + WINDOW;
    while (out < full && file_ < file_end_) {
        const std::size_t most = std::min(full - out, file_end_ - file_);
        const void *const found = std::memchr(file_, 0xFF, most);
        const std::size_t plain =
            found ? static_cast<std::size_t>(static_cast<const unsigned char *>(found) - file_) : most;
        std::memcpy(out, file_, plain);
        out += plain;
        file_ += plain;
        if (!found) continue;
        if (file_end_ - file_ < 2 || file_[1] != 0) {  // a marker, or the end of a truncated file
            is_whole_ = true;
            break;
        }
        *out++ = 0xFF;
        file_ += 2;
    }
    if (file_ == file_end_) is_whole_ = true;
    if (is_whole_) std::memset(out, 0, ZEROS);
    end_ = out;
    return window_;
}

}  // namespace ksrv
