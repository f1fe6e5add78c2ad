// Base64 as RFC 4648 defines it, strictly: its standard alphabet, padded, no other character, and no bits
// set that belong to no byte. So each sequence of bytes has one text.
//
// Strategy: four tables give the bits of a character at its place in a group, so that three bytes are four
// loads and an or; a character that is none has a bit that no sum of the others can have.

#pragma once

#include <cstddef>

namespace ksrv {

// The bytes that a text of that length stands for at the most; `text` is only looked at for its padding.
// False: no text has that length.
bool base64_decoded_size(const unsigned char *text, std::size_t length, std::size_t *size) noexcept;

// Decodes into `out`, of exactly the size that `base64_decoded_size` gave. Returns `length`, or where the
// first group begins that is wrong.
std::size_t decode_base64(const unsigned char *text, std::size_t length, unsigned char *out) noexcept;

}  // namespace ksrv
