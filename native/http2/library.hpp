// Loads libnghttp2 when the server starts.
//
// Strategy: the library is loaded with dlopen by its stable name, and its functions and types are declared here. So one
// build serves on machines with and without the library, and building needs no headers.
// tests/sanitizers/nghttp2_layout.cpp compares the declarations with the real header.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace ksrv::http2 {

// nghttp2_session, nghttp2_session_callbacks and nghttp2_option, which are opaque.
struct NgSession;
struct NgCallbacks;
struct NgOption;

struct FrameHead {  // the beginning of every frame
    size_t length;
    int32_t stream_id;
    uint8_t type;
    uint8_t flags;
    uint8_t reserved;
};

struct ResetFrame {
    FrameHead head;
    uint32_t error;
};

struct Field {
    const uint8_t *name, *value;
    size_t name_length, value_length;
    uint8_t flags;
};

union DataSource {
    int fd;
    void *ptr;
};

using OnFrame = int (*)(NgSession *, const FrameHead *, void *);
using OnField = int (*)(NgSession *, const FrameHead *, const uint8_t *, size_t,
                        const uint8_t *, size_t, uint8_t, void *);
using OnData = int (*)(NgSession *, uint8_t, int32_t, const uint8_t *, size_t, void *);
using OnClose = int (*)(NgSession *, int32_t, uint32_t, void *);
using SendData = int (*)(NgSession *, const FrameHead *, const uint8_t *, size_t, DataSource *, void *);
using ReadLength = ssize_t (*)(NgSession *, uint8_t, int32_t, int32_t, int32_t, uint32_t, void *);
using ReadData = ssize_t (*)(NgSession *, int32_t, uint8_t *, size_t, uint32_t *, DataSource *, void *);

struct DataProvider {
    DataSource source;
    ReadData read;
};

struct Setting {
    int32_t id;
    uint32_t value;
};

enum FrameType : uint8_t {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_PRIORITY = 2,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW_UPDATE = 8,
    FRAME_CONTINUATION = 9,
};

constexpr uint8_t FLAG_END_STREAM = 1, FLAG_ACK = 1, FLAG_PADDED = 8;
constexpr uint8_t FIELD_NO_INDEX = 1;     // the field will not be repeated
constexpr uint8_t FIELD_NO_COPY = 2 | 4;  // of the name and of the value
constexpr uint32_t DATA_EOF = 1, DATA_NO_END_STREAM = 2, DATA_NO_COPY = 4;
constexpr int SETTING_MAX_STREAMS = 3, SETTING_WINDOW = 4, SETTING_FRAME_SIZE = 5, SETTING_HEADER_LIST = 6;
constexpr int RESULT_DEFERRED = -508, RESULT_STREAM_FAILURE = -521, RESULT_FAILURE = -902;
constexpr int RESULT_NO_MEMORY = -901, RESULT_BAD_PREFACE = -903;

enum ErrorCode : uint32_t {
    NO_ERROR = 0,
    PROTOCOL_ERROR = 1,
    INTERNAL_ERROR = 2,
    FLOW_CONTROL_ERROR = 3,
    STREAM_CLOSED = 5,
    FRAME_SIZE_ERROR = 6,
    REFUSED_STREAM = 7,
    CANCEL = 8,
    ENHANCE_YOUR_CALM = 11,
};

// Result, name without its prefix "nghttp2_", arguments.
#define KSRV_NGHTTP2_FUNCTIONS(F)                                                                \
    F(int, session_callbacks_new, (NgCallbacks **))                                              \
    F(void, session_callbacks_set_on_begin_headers_callback, (NgCallbacks *, OnFrame))           \
    F(void, session_callbacks_set_on_header_callback, (NgCallbacks *, OnField))                  \
    F(void, session_callbacks_set_on_begin_frame_callback, (NgCallbacks *, OnFrame))             \
    F(void, session_callbacks_set_on_frame_recv_callback, (NgCallbacks *, OnFrame))              \
    F(void, session_callbacks_set_on_frame_send_callback, (NgCallbacks *, OnFrame))              \
    F(void, session_callbacks_set_on_data_chunk_recv_callback, (NgCallbacks *, OnData))          \
    F(void, session_callbacks_set_on_stream_close_callback, (NgCallbacks *, OnClose))            \
    F(void, session_callbacks_set_send_data_callback, (NgCallbacks *, SendData))                 \
    F(void, session_callbacks_set_data_source_read_length_callback, (NgCallbacks *, ReadLength)) \
    F(int, option_new, (NgOption **))                                                            \
    F(void, option_set_no_auto_window_update, (NgOption *, int))                                 \
    F(int, session_server_new2, (NgSession **, const NgCallbacks *, void *, const NgOption *))   \
    F(void, session_del, (NgSession *))                                                          \
    F(ssize_t, session_mem_recv, (NgSession *, const uint8_t *, size_t))                         \
    F(ssize_t, session_mem_send, (NgSession *, const uint8_t **))                                \
    F(size_t, session_get_outbound_queue_size, (NgSession *))                                    \
    F(int, session_want_read, (NgSession *))                                                     \
    F(int, session_want_write, (NgSession *))                                                    \
    F(int, submit_settings, (NgSession *, uint8_t, const Setting *, size_t))                     \
    F(int, submit_response, (NgSession *, int32_t, const Field *, size_t, const DataProvider *)) \
    F(int, submit_trailer, (NgSession *, int32_t, const Field *, size_t))                        \
    F(int, submit_rst_stream, (NgSession *, uint8_t, int32_t, uint32_t))                         \
    F(int, submit_goaway, (NgSession *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t))    \
    F(int, submit_shutdown_notice, (NgSession *))                                                \
    F(int, submit_ping, (NgSession *, uint8_t, const uint8_t *))                                 \
    F(int, session_resume_data, (NgSession *, int32_t))                                          \
    F(int, session_consume_connection, (NgSession *, size_t))                                    \
    F(int, session_consume_stream, (NgSession *, int32_t, size_t))                               \
    F(int, session_set_local_window_size, (NgSession *, uint8_t, int32_t, int32_t))              \
    F(int32_t, session_get_stream_local_window_size, (NgSession *, int32_t))                     \
    F(void *, session_get_stream_user_data, (NgSession *, int32_t))                              \
    F(int, session_set_stream_user_data, (NgSession *, int32_t, void *))                         \
    F(int32_t, session_get_last_proc_stream_id, (NgSession *))

struct Library {
    int version = 0;
    const char *version_text = nullptr;
#define KSRV_DECLARE(result, name, arguments) result (*name) arguments = nullptr;
    KSRV_NGHTTP2_FUNCTIONS(KSRV_DECLARE)
#undef KSRV_DECLARE
    // Limits of later releases: null if the library is older.
    void (*option_set_stream_reset_rate_limit)(NgOption *, uint64_t, uint64_t) = nullptr;  // since 1.57
    void (*option_set_glitch_rate_limit)(NgOption *, uint64_t, uint64_t) = nullptr;        // since 1.67
};

// Empty until `library` has succeeded.
extern Library nghttp2;

// The library, loaded by the first call. Null if it is missing or too old.
const Library *library() noexcept;

}  // namespace ksrv::http2
