// Whether the libjpeg that runs lets itself be told who decodes an MCU, as the header says it does.
//
// That place lies in a structure of the library's own, which its public interface does not promise. A system may
// bring a newer library under the same name after ksrv was compiled. So the library decodes a small picture once,
// with a decoder in that place that counts and calls the library's.

#pragma once

namespace ksrv {

// Tried once; false without the library as well.
bool library_tells_mcus() noexcept;

}  // namespace ksrv
