// Frames of a wrong size after a fault that ended the connection. libnghttp2 before 1.68.1 aborts the program
// (CVE-2026-27135) if a callback ends the session, or if PRIORITY_UPDATE or frames of extensions are switched on.
// Sessions of the server do neither, so each pair of faults leaves the program running. The last session does, in a
// child process: it shows whether the library has the defect.

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "http2/library.hpp"
#include "http2/session.hpp"
#include "../../support/native/checks.hpp"
#include "../../support/native/http2_frames.hpp"

using namespace ksrv;
using namespace ksrv::http2;

namespace {

constexpr int ACKNOWLEDGES = 1, ENDS_STREAM = 1, ENDS_HEADERS = 4, PADDED = 8, PRIORITIZED = 32;
constexpr int FLAGS[] = {0, ENDS_STREAM, ENDS_HEADERS, PADDED, PRIORITIZED, ENDS_STREAM | ENDS_HEADERS, 0xff};
constexpr int PRIORITY_UPDATE = 0x10, ORIGIN = 12, UNKNOWN = 0xbe;
constexpr int SETTING_NO_PRIORITY_TREE = 9;  // RFC 9218 2.1
const std::string PREFACE = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(FRAME_SETTINGS, 0, 0, "");

struct Streams final : SessionEvents {
    void *opened(int32_t) noexcept override { return this; }
    void field(void *, const char *, size_t, const char *, size_t) noexcept override {}
    void fields_over(void *, bool) noexcept override {}
    void data(void *, const unsigned char *, size_t) noexcept override {}
    void peer_over(void *) noexcept override {}
    void answer_over(void *) noexcept override {}
    void closed(void *, uint32_t) noexcept override {}
    bool has_lived(void *) noexcept override { return false; }
    size_t offer(void *, size_t, Behind *) noexcept override { return 0; }
    bool take(void *, size_t, OutgoingBytes *) noexcept override { return true; }
};

std::string open_stream(uint32_t id) {
    return frame(FRAME_HEADERS, ENDS_HEADERS, id,
                 field(":method", "POST") + field(":scheme", "http") + field(":path", "/") + field(":authority", "x"));
}

// Frames of each type, with lengths around the right length, on the connection, an open stream and idle streams.
std::vector<std::string> faults() {
    std::vector<std::string> made;
    for (int type : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ORIGIN, PRIORITY_UPDATE, UNKNOWN})
        for (uint32_t stream : {0u, 1u, 2u, 9u})
            for (size_t length : {0u, 1u, 4u, 5u, 7u, 8u, 9u})
                for (int flags : FLAGS) made.push_back(frame(type, flags, stream, std::string(length, '\xff')));
    return made;
}

std::vector<std::string> wrong_sizes() {
    return {frame(FRAME_DATA, PADDED, 1, ""),           frame(FRAME_HEADERS, PRIORITIZED, 3, "x"),
            frame(FRAME_PRIORITY, 0, 1, "x"),           frame(FRAME_RST_STREAM, 0, 1, ""),
            frame(FRAME_SETTINGS, 0, 0, "x"),           frame(FRAME_SETTINGS, ACKNOWLEDGES, 0, "x"),
            frame(FRAME_PING, 0, 0, "x"),               frame(FRAME_GOAWAY, 0, 0, "x"),
            frame(FRAME_WINDOW_UPDATE, 0, 0, "x"),      frame(FRAME_CONTINUATION, 0, 1, "")};
}

void receive(const std::string &bytes, size_t piece) {
    Streams streams;
    OutgoingBytes out;
    Session session(&streams, &out);
    require(session.open(SessionLimits{}), "no session opens");
    for (size_t at = 0; at < bytes.size(); at += piece) {
        const std::string part = bytes.substr(at, piece);
        session.receive(reinterpret_cast<const unsigned char *>(part.data()), part.size(), 1);
    }
    session.produce(1u << 20, 1u << 20);
}

// Whether a child lives that takes PRIORITY_UPDATE, as the server does not. It is sent a wrong PRIORITY_UPDATE, then
// a frame of a wrong size.
bool lives_with_priority_updates(const Library *of) {
    void *loaded = dlopen("libnghttp2.so.14", RTLD_NOW);
    const auto take = reinterpret_cast<void (*)(NgOption *, uint8_t)>(
        dlsym(loaded, "nghttp2_option_set_builtin_recv_extension_type"));
    const pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(2);
        NgCallbacks *callbacks = nullptr;
        NgOption *option = nullptr;
        NgSession *session = nullptr;
        of->session_callbacks_new(&callbacks);
        of->option_new(&option);
        take(option, PRIORITY_UPDATE);
        of->session_server_new2(&session, callbacks, nullptr, option);
        const Setting without_tree[] = {{SETTING_NO_PRIORITY_TREE, 1}};
        of->submit_settings(session, 0, without_tree, 1);
        const std::string bytes = PREFACE + frame(PRIORITY_UPDATE, 0, 1, std::string(4, '\0') + "u=1") +
                                  frame(FRAME_RST_STREAM, 0, 1, "");
        of->session_mem_recv(session, reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
        _exit(0);
    }
    int status = 0;
    require(child > 0 && waitpid(child, &status, 0) == child, "no child runs");
    return status == 0;
}

}  // namespace

int main() {
    const Library *of = library();
    if (!of) {
        std::printf("libnghttp2 is missing\n");
        return 0;
    }
    const std::string begun = PREFACE + open_stream(1);
    size_t sessions = 0;
    for (const std::string &first : faults())
        for (const std::string &second : wrong_sizes()) {
            const std::string bytes = begun + first + second + second;
            receive(bytes, bytes.size());
            ++sessions;
        }
    for (const std::string &second : wrong_sizes()) receive(begun + second + second, 1);
    std::printf("%zu sessions end without an abort; with PRIORITY_UPDATE one would %s\n", sessions,
                lives_with_priority_updates(of) ? "not abort either" : "abort");
    return 0;
}
