// Base64 as RFC 4648 defines it, strictly: the standard alphabet with padding, without other characters, and with
// unused bits zero (RFC 4648 3.5). So every sequence of bytes has exactly one text.
//
// Strategy: four tables give the bits of a character at each position of a group, so that three bytes are four loads
// and an or. Invalid characters have a bit that valid characters cannot set.

#pragma once

#include <cstddef>

namespace ksrv {

// The size of the decoded bytes. Looks only at the padding of `text`. False if no text has this length.
bool base64_decoded_size(const unsigned char *text, std::size_t length, std::size_t *size) noexcept;

// Decodes into `out`, which must have the size from `base64_decoded_size`. Returns `length`, or the offset of the first
// invalid group.
std::size_t decode_base64(const unsigned char *text, std::size_t length, unsigned char *out) noexcept;

}  // namespace ksrv
