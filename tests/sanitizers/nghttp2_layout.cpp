// The declarations of native/http2/library.hpp beside libnghttp2's own header; compiling is the test.

#include <nghttp2/nghttp2.h>

#include <cstddef>

#include "http2/library.hpp"

using namespace ksrv::http2;

static_assert(sizeof(FrameHead) == sizeof(nghttp2_frame_hd));
static_assert(offsetof(FrameHead, stream_id) == offsetof(nghttp2_frame_hd, stream_id));
static_assert(offsetof(FrameHead, type) == offsetof(nghttp2_frame_hd, type));
static_assert(offsetof(FrameHead, flags) == offsetof(nghttp2_frame_hd, flags));
static_assert(offsetof(nghttp2_frame, hd) == 0);
static_assert(offsetof(ResetFrame, error) == offsetof(nghttp2_rst_stream, error_code));
static_assert(sizeof(Field) == sizeof(nghttp2_nv));
static_assert(offsetof(Field, value) == offsetof(nghttp2_nv, value));
static_assert(offsetof(Field, value_length) == offsetof(nghttp2_nv, valuelen));
static_assert(offsetof(Field, flags) == offsetof(nghttp2_nv, flags));
static_assert(sizeof(DataSource) == sizeof(nghttp2_data_source));
static_assert(sizeof(DataProvider) == sizeof(nghttp2_data_provider));
static_assert(offsetof(DataProvider, read) == offsetof(nghttp2_data_provider, read_callback));
static_assert(sizeof(Setting) == sizeof(nghttp2_settings_entry));
static_assert(FRAME_CONTINUATION == NGHTTP2_CONTINUATION && FRAME_GOAWAY == NGHTTP2_GOAWAY);
static_assert(FLAG_END_STREAM == NGHTTP2_FLAG_END_STREAM && FLAG_PADDED == NGHTTP2_FLAG_PADDED);
static_assert(FIELD_NO_INDEX == NGHTTP2_NV_FLAG_NO_INDEX);
static_assert(FIELD_NO_COPY == (NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE));
static_assert(DATA_EOF == NGHTTP2_DATA_FLAG_EOF && DATA_NO_COPY == NGHTTP2_DATA_FLAG_NO_COPY);
static_assert(DATA_NO_END_STREAM == NGHTTP2_DATA_FLAG_NO_END_STREAM);
static_assert(SETTING_MAX_STREAMS == NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
static_assert(SETTING_WINDOW == NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE);
static_assert(SETTING_FRAME_SIZE == NGHTTP2_SETTINGS_MAX_FRAME_SIZE);
static_assert(SETTING_HEADER_LIST == NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE);
static_assert(RESULT_DEFERRED == NGHTTP2_ERR_DEFERRED && RESULT_FAILURE == NGHTTP2_ERR_CALLBACK_FAILURE);
static_assert(RESULT_NO_MEMORY == NGHTTP2_ERR_NOMEM && RESULT_BAD_PREFACE == NGHTTP2_ERR_BAD_CLIENT_MAGIC);
static_assert(RESULT_STREAM_FAILURE == NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE);
static_assert(ENHANCE_YOUR_CALM == static_cast<uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
static_assert(REFUSED_STREAM == static_cast<uint32_t>(NGHTTP2_REFUSED_STREAM));
static_assert(FLOW_CONTROL_ERROR == static_cast<uint32_t>(NGHTTP2_FLOW_CONTROL_ERROR));
static_assert(STREAM_CLOSED == static_cast<uint32_t>(NGHTTP2_STREAM_CLOSED));
static_assert(FRAME_SIZE_ERROR == static_cast<uint32_t>(NGHTTP2_FRAME_SIZE_ERROR));
