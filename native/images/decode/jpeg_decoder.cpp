#include "images/decode/jpeg_decoder.hpp"

#ifdef KSRV_HAS_JPEG
#include <cstddef>
#include <cstdio>

#include <jpeglib.h>
#include <jerror.h>
#endif

// Defined only by libjpeg-turbo. From this version on, skipping and cropping do not change the remaining pixels.
#if LIBJPEG_TURBO_VERSION_NUMBER >= 2001000

#include <csetjmp>

#include "base/per_thread.hpp"
#include "images/decode/row_memory.hpp"
#include "images/jpeg/mcu_decoder.hpp"

namespace ksrv {
namespace {

// Rows to request in one call: as many as the decoder makes at once if colours have half the height. More rows would
// evict the decoder's tables from the first-level cache.
constexpr unsigned ROWS_PER_READ = 2;

// Rows are deliberately unaligned by this many bytes. To aligned rows the library uses non-temporal stores, which suits
// a picture in memory, but makes decoding 10 % slower if each row is read at once.
constexpr std::size_t MISALIGNMENT = 1;
constexpr std::size_t VECTOR = 64;

// Cropping pays only if it skips at least this many blocks of columns.
constexpr unsigned LEAST_CROPPED_BLOCKS = 4;

struct ErrorManager {
    jpeg_error_mgr base;
    std::jmp_buf back;
    bool out_of_memory;
};

// Called by the library after an error. Does not return: jumps to the setjmp in `decode_with`.
void leave(j_common_ptr common) {
    ErrorManager *errors = reinterpret_cast<ErrorManager *>(common->err);
    errors->out_of_memory = errors->base.msg_code == JERR_OUT_OF_MEMORY;
    std::longjmp(errors->back, 1);
}

// Negative levels are warnings: after a warning the pixels are partly guessed, so the file is left to cv2.
void leave_at_warning(j_common_ptr common, int level) {
    if (level < 0) leave(common);
}

void say_nothing(j_common_ptr) {}

struct Decompressor {
    jpeg_decompress_struct state;
    ErrorManager errors;
    RowMemory rows;
    McuDecoder codes;
};

J_COLOR_SPACE color_space(PixelOrder order) noexcept {
    switch (order) {
    case PixelOrder::grey: return JCS_GRAYSCALE;
    case PixelOrder::bgr: return JCS_EXT_BGR;
    case PixelOrder::rgb: return JCS_EXT_RGB;
    }
    return JCS_UNKNOWN;
}

// Whether the scans of a progressive file leave out bits of coefficients. The library then smooths them from
// neighbouring blocks, in a way that depends on its version and on cropping.
bool lacks_coefficients(const jpeg_decompress_struct &state) noexcept {
    if (!state.coef_bits) return false;  // the file is not progressive
    for (int component = 0; component < state.num_components; ++component)
        for (const int bits_below : state.coef_bits[component])
            if (bits_below != 0) return true;
    return false;
}

// Makes the decoder skip columns outside of the box if there are many. Returns the first column that it outputs. One
// more block is kept on each side, because chroma upsampling reads neighbours.
JDIMENSION crop_columns(j_decompress_ptr state, const PixelBox &box, unsigned width) noexcept {
    const unsigned block = static_cast<unsigned>(state->max_h_samp_factor) * DCTSIZE;
    JDIMENSION left = box.left > block ? box.left - block : 0;
    const unsigned right = width - box.left - box.width > block ? box.left + box.width + block : width;
    JDIMENSION wanted = right - left;
    if (state->scale_denom != 1 || wanted + LEAST_CROPPED_BLOCKS * block > width) return 0;
    jpeg_crop_scanline(state, &left, &wanted);
    return left;
}

void skip_rows(j_decompress_ptr state, unsigned count) noexcept {
    while (count) {
        const unsigned skipped = jpeg_skip_scanlines(state, count);
        if (!skipped) leave(reinterpret_cast<j_common_ptr>(state));
        count -= skipped;
    }
}

// Reads the header and prepares the output of rows. Leaves if the file is not of a supported kind, or its size is not
// the size that the job expects.
void start_decoder(Decompressor &decompressor, const JpegJob &job) noexcept {
    jpeg_decompress_struct *const state = &decompressor.state;
    jpeg_mem_src(state, job.data, static_cast<unsigned long>(job.size));
    if (jpeg_read_header(state, TRUE) != JPEG_HEADER_OK) leave(reinterpret_cast<j_common_ptr>(state));
    const bool grey = state->num_components == 1 && state->jpeg_color_space == JCS_GRAYSCALE;
    const bool colour = state->num_components == 3 && state->jpeg_color_space == JCS_YCbCr;
    if (state->data_precision != 8 || !(grey || colour)) leave(reinterpret_cast<j_common_ptr>(state));
    state->out_color_space = color_space(job.order);
    state->scale_num = 1;
    state->scale_denom = job.reduction;
    state->buffered_image = FALSE;
    jpeg_start_decompress(state);  // reads all scans of a progressive file
    if (lacks_coefficients(*state)) leave(reinterpret_cast<j_common_ptr>(state));
    if (!job.codes_by_library) decompressor.codes.take_over(state);  // if false, the library decodes the codes
    if (state->output_height != job.height || state->output_width != job.width ||
        state->output_components != (job.order == PixelOrder::grey ? 1 : 3))
        leave(reinterpret_cast<j_common_ptr>(state));
}

// Passes the rows of the receiver's box on. False if memory is short.
bool pass_rows(Decompressor &decompressor, RowReceiver &receiver) noexcept {
    jpeg_decompress_struct *const state = &decompressor.state;
    const unsigned height = state->output_height, width = state->output_width;
    const unsigned channels = static_cast<unsigned>(state->output_components);
    const PixelBox box = receiver.box(height, width);
    const JDIMENSION left = crop_columns(state, box, width);
    const std::size_t stride = (static_cast<std::size_t>(width) * channels + VECTOR - 1) / VECTOR * VECTOR;
    std::uint8_t *const buffer = decompressor.rows.reserve(stride * ROWS_PER_READ + MISALIGNMENT);
    if (!buffer) return false;
    if (box.top) skip_rows(state, box.top);
    JSAMPROW lines[ROWS_PER_READ];
    const unsigned end = box.top + box.height;
    while (state->output_scanline < end) {
        const unsigned first = state->output_scanline;
        const unsigned wanted = end - first < ROWS_PER_READ ? end - first : ROWS_PER_READ;
        for (unsigned i = 0; i < wanted; ++i) {
            std::uint8_t *const place = receiver.place(first + i);
            // The decoder begins with column `left`, but `take` gets the row's first pixel.
            lines[i] = (place ? place : buffer + MISALIGNMENT + i * stride) + left * channels;
        }
        const unsigned got = jpeg_read_scanlines(state, lines, wanted);
        for (unsigned i = 0; i < got; ++i) receiver.take(first + i, lines[i] - left * channels);
    }
    // Codes below the box, including the last row, are read to detect damage there.
    if (end + 1 < height) skip_rows(state, height - 1 - end);
    lines[0] = buffer + MISALIGNMENT;
    if (end < height) jpeg_read_scanlines(state, lines, 1);
    jpeg_finish_decompress(state);
    return true;
}

// After setjmp, no object with a destructor may be created here or in a called function, because `leave` skips
// destructors.
Decoded decode_with(Decompressor &decompressor, const JpegJob &job, RowReceiver &receiver) noexcept {
    jpeg_decompress_struct *const state = &decompressor.state;
    ErrorManager &errors = decompressor.errors;
    *state = jpeg_decompress_struct{};
    state->err = jpeg_std_error(&errors.base);
    errors.base.error_exit = leave;
    errors.base.emit_message = leave_at_warning;
    errors.base.output_message = say_nothing;
    if (setjmp(errors.back) != 0) {
        jpeg_destroy_decompress(state);
        return errors.out_of_memory ? Decoded::no_memory : Decoded::elsewhere;
    }
    // A new decompressor for each picture: a reused decompressor would apply the tables of the previous file to a file
    // without tables.
    jpeg_create_decompress(state);
    start_decoder(decompressor, job);
    const bool passed = pass_rows(decompressor, receiver);
    jpeg_destroy_decompress(state);
    return passed ? Decoded::whole : Decoded::no_memory;
}

}  // namespace

const char *jpeg_decoder_version() noexcept {
#define KSRV_TEXT_OF(number) #number
#define KSRV_TEXT(number) KSRV_TEXT_OF(number)
    return KSRV_TEXT(LIBJPEG_TURBO_VERSION);
}

Decoded decode_jpeg(const JpegJob &job, RowReceiver &receiver) noexcept {
    static PerThread<Decompressor> threads;
    Decompressor *const decompressor = threads.get();
    if (!decompressor) return Decoded::no_memory;
    const Decoded result = decode_with(*decompressor, job, receiver);
    decompressor->rows.trim();
    return result;
}

}  // namespace ksrv

#else  // without libjpeg-turbo 2.1

namespace ksrv {

const char *jpeg_decoder_version() noexcept { return ""; }

Decoded decode_jpeg(const JpegJob &, RowReceiver &) noexcept { return Decoded::elsewhere; }

}  // namespace ksrv

#endif
