// libFuzzer target for native/images/image_input.hpp and native/images/resize/jpeg_batch.hpp: the images of a message on
// their way into the rows of a batch. For any bytes: an image that is accepted lies inside of the message and
// within the limits, no byte outside of its row is written, a row that is not decoded is zero, a row that is
// decoded is the same alone and beside others, and no byte of the memory budget stays taken.
//
// The first bytes choose the limits, the window, and how the rest is cut into images.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "images/decode/memory.hpp"
#include "images/image_input.hpp"
#include "images/resize/jpeg_batch.hpp"
#include "tensor/datatype.hpp"
#include "../require.hpp"

namespace {

constexpr std::size_t IMAGES = 4, MARGIN = 64, CHANNELS = 3;
constexpr unsigned char UNTOUCHED = 0xA5;

struct Rows {
    std::vector<unsigned char> memory;
    std::size_t row_bytes;

    Rows(std::size_t nbytes) : memory(2 * MARGIN + IMAGES * nbytes, UNTOUCHED), row_bytes(nbytes) {}
    unsigned char *row(std::size_t index) { return memory.data() + MARGIN + index * row_bytes; }
    bool is(std::size_t index, unsigned char value) {
        for (std::size_t i = 0; i < row_bytes; ++i)
            if (row(index)[i] != value) return false;
        return true;
    }
    bool has_margins() const {
        for (std::size_t i = 0; i < MARGIN; ++i)
            if (memory[i] != UNTOUCHED || memory[memory.size() - 1 - i] != UNTOUCHED) return false;
        return true;
    }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static ksrv::DecodePool pool(3);
    static const ksrv::Coefficients coefficients;
    if (size < 8) return 0;
    const std::size_t out_height = 1 + data[0] % 24, out_width = 1 + data[1] % 24;
    const unsigned choice = data[2], ended = data[3], limits = data[4];
    const std::size_t count = 1 + data[5] % IMAGES;
    // Bytes of the file, as a share of it, decide where every image but the first begins.
    std::size_t borders[IMAGES + 1] = {};
    // A copy of the exact size, so that the sanitizer sees a read of one byte too many.
    const std::vector<unsigned char> body(data + 8, data + size);
    for (std::size_t i = 1; i < count; ++i) {
        const std::size_t at = body.size() * ((data[6 + i % 2] >> (2 * (i - 1)) & 3) + 1) / 5;
        borders[i] = at < borders[i - 1] ? borders[i - 1] : at;
    }
    borders[count] = body.size();

    ksrv::ImageRules rules;
    rules.accepted = true;
    rules.channels = CHANNELS;
    rules.strict = (limits & 1) != 0;
    rules.upright = (limits & 2) != 0;
    rules.resized = true;
    rules.height = static_cast<std::uint32_t>(out_height);
    rules.width = static_cast<std::uint32_t>(out_width);
    rules.image_pixels = limits & 4 ? 4096 : 1u << 18;
    rules.request_pixels = limits & 8 ? 8192 : 1u << 19;
    rules.scans = 4;
    rules.scans_per_component = 2;
    ksrv::ImageInputReader reader(rules, body.data());
    std::vector<ksrv::EncodedImage> images;
    std::uint64_t pixels = 0;
    for (std::size_t i = 0; i < count; ++i) {
        ksrv::EncodedImage one;
        // A message with one image that is left to Python goes there as a whole; here the others are decoded.
        if (!reader.read(borders[i], borders[i + 1] - borders[i], &one)) continue;
        require(one.offset == borders[i] && one.length == borders[i + 1] - borders[i]);
        const std::uint64_t here = std::uint64_t{one.width} * one.height;
        require(here > 0 && here <= rules.image_pixels);
        require(one.channels == 1 || one.channels == 3);
        require(!rules.strict || one.channels == CHANNELS);
        require(one.decode_ns > 0 && one.decoder_bytes > 0);
        pixels += here;
        images.push_back(one);
    }
    require(pixels <= rules.request_pixels);

    const auto kind = static_cast<ksrv::ResizeKind>(choice % 4);
    const std::size_t row_bytes = out_height * out_width * CHANNELS * sizeof(float);
    Rows together(row_bytes), alone(row_bytes);
    std::atomic<std::int32_t> is_ended{1}, is_open{0};
    const auto fill = [&](const ksrv::EncodedImage &one, std::size_t index, Rows &rows, ksrv::JpegRow *job) {
        job->jpeg.data = body.data() + one.offset;
        job->jpeg.size = one.length;
        job->jpeg.order = choice & 4 ? ksrv::PixelOrder::rgb : ksrv::PixelOrder::bgr;
        job->jpeg.reduction = 1;
        job->jpeg.height = one.height;
        job->jpeg.width = one.width;
        job->kind = kind;
        job->window = {one.height, one.width, CHANNELS, out_height, out_width, 0, 0, out_height, out_width};
        if (!ksrv::resizes_by_rows(kind, job->window)) return false;
        job->target.datatype = ksrv::DT_FP32;
        job->target.channels = CHANNELS;
        for (std::size_t c = 0; c < CHANNELS; ++c) job->target.from[c] = static_cast<int>(c);
        job->target.row_bytes = static_cast<std::ptrdiff_t>(out_width * CHANNELS * sizeof(float));
        job->target.data = job->row = rows.row(index);
        job->row_bytes = row_bytes;
        job->coefficients = &coefficients;
        job->decode_ns = choice & 8 ? one.decode_ns : 1000000;  // so that threads share small files as well
        job->decoder_bytes = one.decoder_bytes;
        if (choice & 16) {  // a border, which the picture then covers
            job->border_bytes = CHANNELS * sizeof(float);
            std::memset(job->border, 7, job->border_bytes);
        }
        job->ended = ended >> index & 1 ? &is_ended : &is_open;
        return true;
    };
    ksrv::process_budget().set_bound(choice & 32 ? 200000 : UINT64_MAX);
    ksrv::DecodeMemory memory;
    std::vector<ksrv::JpegRow> jobs;
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < images.size(); ++i) {
        ksrv::JpegRow job;
        if (!fill(images[i], i, together, &job)) continue;
        jobs.push_back(job);
        rows.push_back(i);
    }
    if (!jobs.empty()) ksrv::decode_jpegs(pool, memory, jobs.data(), jobs.size());
    for (std::size_t k = 0; k < jobs.size(); ++k) {
        const std::size_t i = rows[k];
        const bool whole = jobs[k].result == ksrv::Decoded::whole;
        if (!whole) require(together.is(i, 0));
        if (whole) require((ended >> i & 1) == 0);
        ksrv::JpegRow job;
        require(fill(images[i], i, alone, &job));
        job.ended = nullptr;
        ksrv::decode_jpegs(pool, memory, &job, 1);
        if (whole && job.result == ksrv::Decoded::whole)
            require(std::memcmp(together.row(i), alone.row(i), row_bytes) == 0);
        // Alone there is at least as much room.
        if (whole) require(job.result != ksrv::Decoded::elsewhere);
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < IMAGES; ++i) {
        if (next < rows.size() && rows[next] == i) {
            ++next;
        } else {
            require(together.is(i, UNTOUCHED));
        }
    }
    require(together.has_margins() && alone.has_margins());
    require(ksrv::process_budget().held() == 0);
    return 0;
}
