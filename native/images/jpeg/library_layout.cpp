#include "images/jpeg/library_layout.hpp"

#if defined(KSRV_HAS_JPEG) && __has_include(<jpegint.h>)

#include <dlfcn.h>

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>
extern "C" {
#include <jpegint.h>
}

namespace ksrv {
namespace {

// The test picture: grey, a single value, quantisers of 1. Every block has only this coefficient.
constexpr unsigned WIDTH = 24, HEIGHT = 16, MCUS = 6;
constexpr JCOEF COEFFICIENT = 576;
constexpr unsigned char PICTURE[] = {
    0xff, 0xd8, 0xff, 0xdb, 0x00, 0x43, 0x00, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01,
    0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0x01, 0xff,
    0xc0, 0x00, 0x0b, 0x08, 0x00, 0x10, 0x00, 0x18, 0x01, 0x01, 0x11, 0x00, 0xff, 0xc4, 0x00, 0x15, 0x00, 0x01,
    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0xff,
    0xc4, 0x00, 0x14, 0x10, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0xff, 0xda, 0x00, 0x08, 0x01, 0x01, 0x00, 0x00, 0x3f, 0x00, 0xa4, 0x00, 0x01, 0xff, 0xd9};

struct Trial {
    jpeg_decompress_struct state;
    jpeg_error_mgr errors;
    std::jmp_buf back;
    boolean (*original)(j_decompress_ptr, JBLOCKROW *);
    bool compares;      // compare the blocks, which is safe once the calls are known to be for MCUs
    unsigned expected;  // number of calls with the expected arguments
};

Trial &trial_of(void *client_data) noexcept { return *static_cast<Trial *>(client_data); }

void leave(j_common_ptr state) { std::longjmp(trial_of(state->client_data).back, 1); }

void leave_at_warning(j_common_ptr state, int level) {
    if (level < 0) leave(state);
}

boolean count_mcu(j_decompress_ptr state, JBLOCKROW *blocks) {
    Trial &trial = trial_of(state->client_data);
    if (!trial.compares) {
        ++trial.expected;
        return trial.original(state, blocks);
    }
    const JCOEF *const block = *blocks[0];
    const bool is_zeroed = std::all_of(block, block + DCTSIZE2, [](JCOEF one) { return one == 0; });
    const boolean result = trial.original(state, blocks);
    if (is_zeroed && block[0] == COEFFICIENT) ++trial.expected;
    return result;
}

// If the layout differs, the field holds a function of another library, or no function.
bool is_of_library(void *function) noexcept {
    Dl_info one, library;
    return function && dladdr(function, &one) != 0 &&
           dladdr(reinterpret_cast<void *>(&jpeg_read_header), &library) != 0 &&
           one.dli_fbase == library.dli_fbase;
}

// Whether the decoder is called for each MCU of the picture. No object with a destructor may be created here.
bool run(Trial &trial, bool compares) noexcept {
    jpeg_decompress_struct *const state = &trial.state;
    *state = jpeg_decompress_struct{};
    state->err = jpeg_std_error(&trial.errors);
    trial.errors.error_exit = leave;
    trial.errors.emit_message = leave_at_warning;
    state->client_data = &trial;
    trial.compares = compares;
    trial.expected = 0;
    if (setjmp(trial.back) != 0) {
        jpeg_destroy_decompress(state);
        return false;
    }
    jpeg_create_decompress(state);
    jpeg_mem_src(state, PICTURE, sizeof PICTURE);
    jpeg_read_header(state, TRUE);
    jpeg_start_decompress(state);
    trial.original = state->entropy->decode_mcu;
    if (!is_of_library(reinterpret_cast<void *>(trial.original))) leave(reinterpret_cast<j_common_ptr>(state));
    state->entropy->decode_mcu = count_mcu;
    JSAMPLE pixels[WIDTH];
    JSAMPROW row = pixels;
    while (state->output_scanline < HEIGHT) jpeg_read_scanlines(state, &row, 1);
    jpeg_finish_decompress(state);
    jpeg_destroy_decompress(state);
    return trial.expected == MCUS;
}

}  // namespace

bool library_tells_mcus() noexcept {
    static const bool tells = [] {
        Trial trial{};
        return run(trial, false) && run(trial, true);
    }();
    return tells;
}

}  // namespace ksrv

#else

namespace ksrv {

bool library_tells_mcus() noexcept { return false; }

}  // namespace ksrv

#endif
