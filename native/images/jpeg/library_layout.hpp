// Checks that the loaded libjpeg has the structure layout of the header that ksrv was compiled with.
//
// The pointer to the MCU decoder is in an internal structure, whose layout the public interface does not guarantee. A
// system may replace the library by a newer version after ksrv was compiled. Therefore the library decodes a small
// picture once with a replaced MCU decoder, which counts the calls and calls the original decoder.

#pragma once

namespace ksrv {

// Tested once. Also false without the library.
bool library_tells_mcus() noexcept;

}  // namespace ksrv
