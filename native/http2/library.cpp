#include "http2/library.hpp"

#include <dlfcn.h>

namespace ksrv::http2 {

namespace {

constexpr int OLDEST = 0x012b00;  // 1.43, the version in Debian 11 and RHEL 9

struct Info {
    int age;
    int version_num;
    const char *version_str;
    const char *proto_str;
};

template <typename Function> bool find(void *from, const char *name, Function *out) noexcept {
    *out = reinterpret_cast<Function>(dlsym(from, name));
    return *out != nullptr;
}

bool load(Library *made) noexcept {
    void *from = dlopen("libnghttp2.so.14", RTLD_NOW | RTLD_LOCAL);
    if (!from) return false;
    Info *(*version)(int) = nullptr;
    Library &of = *made;
    const bool found =
        find(from, "nghttp2_version", &version) &&
        find(from, "nghttp2_session_callbacks_new", &of.callbacks_new) &&
        find(from, "nghttp2_session_callbacks_del", &of.callbacks_del) &&
        find(from, "nghttp2_session_callbacks_set_on_begin_headers_callback", &of.set_begin_headers) &&
        find(from, "nghttp2_session_callbacks_set_on_header_callback", &of.set_header) &&
        find(from, "nghttp2_session_callbacks_set_on_begin_frame_callback", &of.set_begin_frame) &&
        find(from, "nghttp2_session_callbacks_set_on_frame_recv_callback", &of.set_frame_received) &&
        find(from, "nghttp2_session_callbacks_set_on_frame_send_callback", &of.set_frame_sent) &&
        find(from, "nghttp2_session_callbacks_set_on_data_chunk_recv_callback", &of.set_data_chunk) &&
        find(from, "nghttp2_session_callbacks_set_on_stream_close_callback", &of.set_stream_close) &&
        find(from, "nghttp2_session_callbacks_set_send_data_callback", &of.set_send_data) &&
        find(from, "nghttp2_session_callbacks_set_data_source_read_length_callback",
             &of.set_read_length) &&
        find(from, "nghttp2_option_new", &of.option_new) &&
        find(from, "nghttp2_option_del", &of.option_del) &&
        find(from, "nghttp2_option_set_no_auto_window_update", &of.option_no_auto_window_update) &&
        find(from, "nghttp2_session_server_new2", &of.server_new) &&
        find(from, "nghttp2_session_del", &of.session_del) &&
        find(from, "nghttp2_session_mem_recv", &of.receive) &&
        find(from, "nghttp2_session_mem_send", &of.send) &&
        find(from, "nghttp2_session_get_outbound_queue_size", &of.queued) &&
        find(from, "nghttp2_session_want_read", &of.want_read) &&
        find(from, "nghttp2_session_want_write", &of.want_write) &&
        find(from, "nghttp2_submit_settings", &of.submit_settings) &&
        find(from, "nghttp2_submit_response", &of.submit_response) &&
        find(from, "nghttp2_submit_trailer", &of.submit_trailer) &&
        find(from, "nghttp2_submit_rst_stream", &of.submit_reset) &&
        find(from, "nghttp2_submit_goaway", &of.submit_goaway) &&
        find(from, "nghttp2_submit_shutdown_notice", &of.submit_shutdown_notice) &&
        find(from, "nghttp2_submit_ping", &of.submit_ping) &&
        find(from, "nghttp2_session_resume_data", &of.resume_data) &&
        find(from, "nghttp2_session_consume", &of.consume) &&
        find(from, "nghttp2_session_consume_connection", &of.consume_connection) &&
        find(from, "nghttp2_session_consume_stream", &of.consume_stream) &&
        find(from, "nghttp2_session_set_local_window_size", &of.set_local_window) &&
        find(from, "nghttp2_session_get_stream_local_window_size", &of.stream_local_window) &&
        find(from, "nghttp2_session_get_local_window_size", &of.local_window) &&
        find(from, "nghttp2_session_get_stream_user_data", &of.stream_data) &&
        find(from, "nghttp2_session_set_stream_user_data", &of.set_stream_data) &&
        find(from, "nghttp2_session_get_last_proc_stream_id", &of.last_stream) &&
        find(from, "nghttp2_strerror", &of.text_of);
    if (!found) return false;
    const Info *info = version(0);
    if (!info || info->version_num < OLDEST) return false;
    made->version = info->version_num;
    made->version_text = info->version_str;
    find(from, "nghttp2_option_set_stream_reset_rate_limit", &of.option_stream_reset_rate);
    find(from, "nghttp2_option_set_glitch_rate_limit", &of.option_glitch_rate);
    return true;
}

}  // namespace

const Library *library() noexcept {
    static Library made;
    static const bool loaded = load(&made);
    return loaded ? &made : nullptr;
}

}  // namespace ksrv::http2
