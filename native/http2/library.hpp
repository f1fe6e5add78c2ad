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

// The functions in use. The functions that set limits of later releases are optional.
struct Library {
    int version;
    const char *version_text;

    int (*callbacks_new)(NgCallbacks **);
    void (*callbacks_del)(NgCallbacks *);
    void (*set_begin_headers)(NgCallbacks *, int (*)(NgSession *, const FrameHead *, void *));
    void (*set_header)(NgCallbacks *, int (*)(NgSession *, const FrameHead *, const uint8_t *, size_t,
                                              const uint8_t *, size_t, uint8_t, void *));
    void (*set_begin_frame)(NgCallbacks *, int (*)(NgSession *, const FrameHead *, void *));
    void (*set_frame_received)(NgCallbacks *, int (*)(NgSession *, const FrameHead *, void *));
    void (*set_frame_sent)(NgCallbacks *, int (*)(NgSession *, const FrameHead *, void *));
    void (*set_data_chunk)(NgCallbacks *,
                           int (*)(NgSession *, uint8_t, int32_t, const uint8_t *, size_t, void *));
    void (*set_stream_close)(NgCallbacks *, int (*)(NgSession *, int32_t, uint32_t, void *));
    void (*set_send_data)(NgCallbacks *, int (*)(NgSession *, const FrameHead *, const uint8_t *, size_t,
                                                 DataSource *, void *));
    void (*set_read_length)(NgCallbacks *, ssize_t (*)(NgSession *, uint8_t, int32_t, int32_t, int32_t,
                                                       uint32_t, void *));
    int (*option_new)(NgOption **);
    void (*option_del)(NgOption *);
    void (*option_no_auto_window_update)(NgOption *, int);
    void (*option_stream_reset_rate)(NgOption *, uint64_t, uint64_t);  // since 1.57, else null
    void (*option_glitch_rate)(NgOption *, uint64_t, uint64_t);        // since 1.67, else null
    int (*server_new)(NgSession **, const NgCallbacks *, void *, const NgOption *);
    void (*session_del)(NgSession *);
    ssize_t (*receive)(NgSession *, const uint8_t *, size_t);
    ssize_t (*send)(NgSession *, const uint8_t **);
    size_t (*queued)(NgSession *);
    int (*want_read)(NgSession *);
    int (*want_write)(NgSession *);
    int (*submit_settings)(NgSession *, uint8_t, const Setting *, size_t);
    int (*submit_response)(NgSession *, int32_t, const Field *, size_t, const DataProvider *);
    int (*submit_trailer)(NgSession *, int32_t, const Field *, size_t);
    int (*submit_reset)(NgSession *, uint8_t, int32_t, uint32_t);
    int (*submit_goaway)(NgSession *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t);
    int (*submit_shutdown_notice)(NgSession *);
    int (*submit_ping)(NgSession *, uint8_t, const uint8_t *);
    int (*resume_data)(NgSession *, int32_t);
    int (*consume)(NgSession *, int32_t, size_t);
    int (*consume_connection)(NgSession *, size_t);
    int (*consume_stream)(NgSession *, int32_t, size_t);
    int (*set_local_window)(NgSession *, uint8_t, int32_t, int32_t);
    int32_t (*stream_local_window)(NgSession *, int32_t);
    int32_t (*local_window)(NgSession *);
    void *(*stream_data)(NgSession *, int32_t);
    int (*set_stream_data)(NgSession *, int32_t, void *);
    int32_t (*last_stream)(NgSession *);
    const char *(*text_of)(int);
};

// The library, loaded by the first call. Null if it is missing or too old.
const Library *library() noexcept;

}  // namespace ksrv::http2
