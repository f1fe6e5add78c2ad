// The load of every benchmark that compares servers: the same requests, again and again, over HTTP/1.1 or gRPC.
//
//     g++ -O2 -std=c++17 client.cpp -lssl -lcrypto -o client        (without OpenSSL: -DWITHOUT_TLS)
//     ./client PORT http|grpc plain|tls FILE[,FILE ...] CONNECTIONS STREAMS closed SECONDS
//     ./client PORT http|grpc plain|tls FILE[,FILE ...] CONNECTIONS STREAMS open RATE:SECONDS [RATE:SECONDS ...]
//
// `closed`: each stream sends its next request when its answer has come; a round ends with its first answer at the earliest. `open`: requests are due at random times
// (exponential gaps, the same in every run) at so many a second, independently of the server, and a latency counts from when a
// request was due; one for which no stream is free waits in the client, and its wait counts.
// FILE: one request each, sent in turn. For http its bytes; for grpc four bytes with the length of an HPACK block (it may index nothing),
// the block, and the message after its prefix. It prints one line of JSON for each phase.

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#ifndef WITHOUT_TLS
#include <openssl/ssl.h>
#else
struct SSL;
#endif

namespace {

constexpr std::size_t READ_BYTES = 1 << 18;
constexpr std::int64_t OWN_WINDOW = 1 << 30;  // that answers never have to wait for
constexpr double LAST_ANSWERS_SECONDS = 5;    // waited for after the last phase
constexpr double FIRST_ANSWER_SECONDS = 30;

double now() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC, &at);
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) / 1e9;
}

[[noreturn]] void fail(const std::string &what) {
    std::fprintf(stderr, "client: %s\n", what.c_str());
    std::exit(1);
}

struct Phase {
    double rate = 0, seconds = 0, begins = 0;
    long sent = 0, errors = 0, in_time = 0;  // in_time: good answers that came before the phase ended
    std::vector<float> latencies;   // of good answers, in seconds
    std::vector<float> worst;       // by tenths of a second since the phase began, of when a request was due
};

struct Request {
    std::string head, body;         // of HTTP/1.1 both in the head
};

std::vector<Request> requests;

struct Stream {
    const Request *request = &requests[0];
    std::uint32_t id = 0;
    bool busy = false;
    double due = 0;
    std::size_t phase = 0;
    std::size_t sent = 0;           // bytes of the body that were framed
    std::int64_t window = 0;
    std::size_t got = 0;
};

int port;
bool grpc, tls, open_loop;
std::size_t next_request = 0;
std::vector<Phase> phases;
std::deque<std::pair<double, std::size_t>> waiting;  // requests that are due: when, and their phase
#ifndef WITHOUT_TLS
SSL_CTX *context;
#endif

void answered(const Stream &stream, bool good, double at) {
    Phase &phase = phases[stream.phase];
    if (!good) {
        ++phase.errors;
        return;
    }
    const auto latency = static_cast<float>(at - stream.due);
    phase.latencies.push_back(latency);
    phase.in_time += at <= phase.begins + phase.seconds;
    const auto bin = static_cast<std::size_t>(std::max(0.0, stream.due - phase.begins) * 10);
    if (phase.worst.size() <= bin) phase.worst.resize(bin + 1);
    phase.worst[bin] = std::max(phase.worst[bin], latency);
}

// An answer of HTTP/1.1. Only the framing is kept.
class Http1Answer {
public:
    // Takes bytes; returns whether the answer is whole.
    bool take(const char *data, std::size_t count) {
        while (count) {
            if (state_ == HEAD || state_ == LINE) {
                line_.push_back(*data++), --count;
                if (state_ == HEAD && ends_with("\r\n\r\n")) {
                    if (read_head()) return finish();
                } else if (state_ == LINE && ends_with("\r\n")) {
                    if (read_chunk_line()) return finish();
                }
                continue;
            }
            const std::size_t some = std::min(left_, count);
            data += some, count -= some, left_ -= some;
            if (left_ == 0) {
                if (!chunked_) return finish();
                state_ = LINE, line_.clear();
            }
        }
        return false;
    }
    bool good() const { return status_ == 200; }
    bool closes() const { return closes_; }
    bool began() const { return !line_.empty() || state_ != HEAD; }

private:
    enum State { HEAD, BODY, LINE };

    bool ends_with(const char *end) const {
        const std::size_t length = std::strlen(end);
        return line_.size() >= length && !line_.compare(line_.size() - length, length, end);
    }
    bool finish() {
        state_ = HEAD, line_.clear();
        return true;
    }
    // Returns whether the response has no body.
    bool read_head() {
        status_ = std::atoi(line_.c_str() + 9);
        const char *length = strcasestr(line_.c_str(), "\r\ncontent-length:");
        chunked_ = strcasestr(line_.c_str(), "\r\ntransfer-encoding:") != nullptr;
        closes_ = strcasestr(line_.c_str(), "\r\nconnection: close") != nullptr;
        left_ = length ? std::strtoull(length + 17, nullptr, 10) : 0;
        state_ = chunked_ ? LINE : BODY, line_.clear();
        last_ = false;
        return !chunked_ && left_ == 0;
    }
    // Returns whether it was the line after the last chunk.
    bool read_chunk_line() {
        if (last_) {
            const bool empty = line_ == "\r\n";
            line_.clear();
            return empty;
        }
        left_ = std::strtoull(line_.c_str(), nullptr, 16);
        line_.clear();
        last_ = left_ == 0;
        if (!last_) left_ += 2, state_ = BODY;
        return false;
    }

    State state_ = HEAD;
    std::string line_;
    std::size_t left_ = 0;
    int status_ = 0;
    bool chunked_ = false, closes_ = false, last_ = false;
};

void put_frame(std::string &out, int kind, int flags, std::uint32_t id, const char *data, std::size_t length) {
    const char begin[] = {static_cast<char>(length >> 16), static_cast<char>(length >> 8), static_cast<char>(length),
                          static_cast<char>(kind), static_cast<char>(flags)};
    const std::uint32_t number = htonl(id);
    out.append(begin, sizeof begin).append(reinterpret_cast<const char *>(&number), 4).append(data, length);
}

enum { DATA, HEADERS, RESET = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };

class Connection {
public:
    explicit Connection(int streams) : streams_(static_cast<std::size_t>(streams)) { connect_(); }

    int descriptor() const { return fd_; }

    // Sends a request, if a stream is free.
    bool begin(double due, std::size_t phase) {
        for (Stream &stream : streams_) {
            if (stream.busy) continue;
            stream = Stream{};
            stream.busy = true, stream.due = due, stream.phase = phase;
            stream.request = &requests[next_request++ % requests.size()];
            ++phases[phase].sent;
            if (grpc) {
                if (next_id_ > (1u << 30)) fail("no stream is left");
                stream.id = next_id_, next_id_ += 2;
                stream.window = initial_window_;
                const std::string &head = stream.request->head;
                put_frame(out_, HEADERS, 4, stream.id, head.data(), head.size());
                put_body(stream);
            } else {
                from_head_ = 0;
            }
            return true;
        }
        return false;
    }

    void write() {
        while (true) {
            const std::string &from = grpc ? out_ : streams_[0].request->head;
            std::size_t &at = grpc ? out_at_ : from_head_;
            if (at >= from.size()) break;
            const long some = send_(from.data() + at, std::min<std::size_t>(from.size() - at, 1 << 20));
            if (some == 0) return wait_for(EPOLLIN | EPOLLOUT);
            if (some < 0) return broken();
            at += static_cast<std::size_t>(some);
        }
        if (grpc) out_.clear(), out_at_ = 0;
        wait_for(EPOLLIN);
    }

    void read() {
        static char data[READ_BYTES];
        while (true) {
            const long some = receive_(data, sizeof data);
            if (some == 0) break;
            if (some < 0) return broken();
            if (grpc) {
                in_.append(data, static_cast<std::size_t>(some));
                take_frames();
            } else if (answer_.take(data, static_cast<std::size_t>(some))) {
                Stream &stream = streams_[0];
                stream.busy = false;
                answered(stream, answer_.good(), now());
                if (answer_.closes()) return broken();
                break;
            }
        }
        if (grpc && out_at_ < out_.size()) write();
    }

    int epoll = -1;

private:
    void connect_() {
        sockaddr_in address{};
        address.sin_family = AF_INET, address.sin_port = htons(static_cast<std::uint16_t>(port));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        const int one = 1;
        fd_ = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd_, reinterpret_cast<sockaddr *>(&address), sizeof address)) fail("no connection");
        setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifndef WITHOUT_TLS
        if (tls) {
            ssl_ = SSL_new(context);
            SSL_set_fd(ssl_, fd_);
            SSL_set_mode(ssl_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
            if (SSL_connect(ssl_) != 1) fail("no TLS handshake");
        }
#endif
        fcntl(fd_, F_SETFL, O_NONBLOCK);
        answer_ = Http1Answer();
        in_.clear(), out_.clear(), out_at_ = 0, from_head_ = streams_[0].request->head.size();
        next_id_ = 1, window_ = 65535, initial_window_ = 65535, largest_frame_ = 16384;
        events_ = 0;
        if (!grpc) return;
        out_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        // SETTINGS_INITIAL_WINDOW_SIZE, and the connection's window beside it.
        const char settings[] = {0, 4, 0x40, 0, 0, 0};
        const char more[] = {0x3f, static_cast<char>(0xff), 0, 0};
        put_frame(out_, SETTINGS, 0, 0, settings, sizeof settings);
        put_frame(out_, WINDOW_UPDATE, 0, 0, more, sizeof more);
    }

    void broken() {
        const double at = now();
        for (Stream &stream : streams_) {
            if (stream.busy) answered(stream, false, at);
            stream.busy = false;
        }
#ifndef WITHOUT_TLS
        if (ssl_) SSL_free(ssl_);
        ssl_ = nullptr;
#endif
        close(fd_);
        connect_();
        wait_for(grpc ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }

public:
    void wait_for(std::uint32_t events) {
        if (events == events_) return;
        epoll_event event{events, {this}};
        epoll_ctl(epoll, events_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd_, &event);
        events_ = events;
    }

private:
    // Bytes, or 0 for "not now", or -1 for a broken connection.
    long send_(const char *data, std::size_t length) {
#ifndef WITHOUT_TLS
        if (ssl_) {
            const int some = SSL_write(ssl_, data, static_cast<int>(length));
            return some > 0 ? some : tls_result(some);
        }
#endif
        const ssize_t some = send(fd_, data, length, MSG_NOSIGNAL);
        return some >= 0 ? some : errno == EAGAIN ? 0 : -1;
    }
    long receive_(char *data, std::size_t length) {
#ifndef WITHOUT_TLS
        if (ssl_) {
            const int some = SSL_read(ssl_, data, static_cast<int>(length));
            return some > 0 ? some : tls_result(some);
        }
#endif
        const ssize_t some = recv(fd_, data, length, 0);
        return some > 0 ? some : some < 0 && errno == EAGAIN ? 0 : -1;
    }
#ifndef WITHOUT_TLS
    long tls_result(int result) {
        const int why = SSL_get_error(ssl_, result);
        return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
    }
#endif

    // Frames as much of a body as the windows allow.
    void put_body(Stream &stream) {
        const std::string &body = stream.request->body;
        while (stream.sent < body.size()) {
            const std::int64_t window = std::min(window_, stream.window);
            if (window <= 0) return;
            const std::size_t some = std::min({body.size() - stream.sent, static_cast<std::size_t>(window), largest_frame_});
            const bool last = stream.sent + some == body.size();
            put_frame(out_, DATA, last, stream.id, body.data() + stream.sent, some);
            stream.sent += some;
            window_ -= static_cast<std::int64_t>(some), stream.window -= static_cast<std::int64_t>(some);
        }
    }

    Stream *find(std::uint32_t id) {
        for (Stream &stream : streams_)
            if (stream.busy && stream.id == id) return &stream;
        return nullptr;
    }

    void take_frames() {
        std::size_t at = 0;
        const auto *in = reinterpret_cast<const unsigned char *>(in_.data());
        while (in_.size() - at >= 9) {
            const unsigned char *frame = in + at;
            const std::size_t length = frame[0] << 16 | frame[1] << 8 | frame[2];
            if (in_.size() - at < 9 + length) break;
            const std::uint32_t id = (frame[5] << 24 | frame[6] << 16 | frame[7] << 8 | frame[8]) & 0x7fffffff;
            take_frame(frame[3], frame[4], id, frame + 9, length);
            at += 9 + length;
        }
        in_.erase(0, at);
        for (Stream &stream : streams_)
            if (stream.busy) put_body(stream);
        if (received_ > OWN_WINDOW / 4) {  // the window opens again by what was received
            const std::uint32_t more = htonl(static_cast<std::uint32_t>(received_));
            put_frame(out_, WINDOW_UPDATE, 0, 0, reinterpret_cast<const char *>(&more), 4);
            received_ = 0;
        }
    }

    void take_frame(int kind, int flags, std::uint32_t id, const unsigned char *data, std::size_t length) {
        Stream *stream = find(id);
        if (kind == SETTINGS && !(flags & 1)) {
            for (std::size_t i = 0; i + 6 <= length; i += 6) take_setting(data[i] << 8 | data[i + 1], data + i + 2);
            put_frame(out_, SETTINGS, 1, 0, "", 0);
        } else if (kind == PING && !(flags & 1)) {
            put_frame(out_, PING, 1, 0, reinterpret_cast<const char *>(data), length);
        } else if (kind == WINDOW_UPDATE) {
            const std::int64_t more = (data[0] << 24 | data[1] << 16 | data[2] << 8 | data[3]) & 0x7fffffff;
            if (id == 0) window_ += more;
            else if (stream) stream->window += more;
        } else if (kind == GOAWAY) {
            fail("the server sends GOAWAY");
        } else if (kind == DATA) {
            received_ += static_cast<std::int64_t>(length);
            if (stream) stream->got += length;
        }
        const bool over = kind == RESET || ((kind == DATA || kind == HEADERS) && (flags & 1));
        if (stream && over) {  // a refused call has no message
            stream->busy = false;
            answered(*stream, kind != RESET && stream->got > 0, now());
        }
    }

    void take_setting(int name, const unsigned char *value) {
        const std::int64_t given = static_cast<std::uint32_t>(value[0]) << 24 | value[1] << 16 | value[2] << 8 | value[3];
        if (name == 4) {
            for (Stream &stream : streams_) stream.window += given - initial_window_;
            initial_window_ = given;
        } else if (name == 5) {
            largest_frame_ = static_cast<std::size_t>(std::min<std::int64_t>(given, 1 << 20));
        }
    }

    int fd_ = -1;
    SSL *ssl_ = nullptr;
    std::uint32_t events_ = 0;
    std::vector<Stream> streams_;
    Http1Answer answer_;
    std::string in_, out_;
    std::size_t out_at_ = 0, from_head_ = 0, largest_frame_ = 16384;
    std::int64_t window_ = 65535, initial_window_ = 65535, received_ = 0;
    std::uint32_t next_id_ = 1;
};

void show(const Phase &phase, double seconds, double own_cpu) {
    std::vector<float> sorted = phase.latencies;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](double share) {
        if (sorted.empty()) return 0.0;
        return 1e3 * sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(share * static_cast<double>(sorted.size())))];
    };
    std::printf("{\"rate\": %.1f, \"seconds\": %.4f, \"sent\": %ld, \"answered\": %zu, \"in_time\": %ld, \"errors\": %ld, \"client_cpu_s\": %.4f, "
                "\"p50_ms\": %.4f, \"p90_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f, \"max_ms\": %.4f, \"worst_ms\": [",
                phase.rate, seconds, phase.sent, sorted.size(), phase.in_time, phase.errors, own_cpu, at(0.5), at(0.9), at(0.99), at(0.999),
                sorted.empty() ? 0.0 : 1e3 * sorted.back());
    for (std::size_t i = 0; i < phase.worst.size(); ++i) std::printf("%s%.2f", i ? ", " : "", 1e3 * phase.worst[i]);
    std::printf("]}\n");
}

double cpu_seconds() {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

Request read_request(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail("cannot read " + path);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    if (!grpc) return {bytes, ""};
    if (bytes.size() < 4) fail("the request has no HPACK block");
    std::uint32_t length;
    std::memcpy(&length, bytes.data(), 4);
    length = ntohl(length);
    if (length > bytes.size() - 4) fail("the HPACK block is cut");
    return {bytes.substr(4, length), bytes.substr(4 + length)};
}

}  // namespace

int main(int count, char **arguments) {
    if (count < 9) fail("PORT http|grpc plain|tls FILE CONNECTIONS STREAMS closed SECONDS | open RATE:SECONDS ...");
    signal(SIGPIPE, SIG_IGN);
    port = std::atoi(arguments[1]);
    grpc = !std::strcmp(arguments[2], "grpc");
    tls = !std::strcmp(arguments[3], "tls");
    std::istringstream paths(arguments[4]);
    for (std::string path; std::getline(paths, path, ',');) requests.push_back(read_request(path));
    const int connection_count = std::atoi(arguments[5]), streams = grpc ? std::atoi(arguments[6]) : 1;
    open_loop = !std::strcmp(arguments[7], "open");
    for (int i = 8; i < count; ++i) {
        Phase phase;
        const char *colon = std::strchr(arguments[i], ':');
        phase.rate = colon ? std::atof(arguments[i]) : 0;
        phase.seconds = std::atof(colon ? colon + 1 : arguments[i]);
        if (phase.seconds <= 0 || (open_loop && phase.rate <= 0)) fail("a phase is RATE:SECONDS");
        phases.push_back(phase);
    }
#ifndef WITHOUT_TLS
    if (tls) {
        context = SSL_CTX_new(TLS_client_method());
        if (grpc) SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char *>("\2h2"), 3);
    }
#else
    if (tls) fail("it was compiled without TLS");
#endif
    const int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    std::vector<Connection> connections;
    connections.reserve(static_cast<std::size_t>(connection_count));
    for (int i = 0; i < connection_count; ++i) {
        connections.emplace_back(streams);
        connections.back().epoll = epoll;
        connections.back().wait_for(EPOLLIN | EPOLLOUT);
    }
    epoll_event of_timer{EPOLLIN, {nullptr}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &of_timer);

    const double began = now();
    double ends = began;
    for (Phase &phase : phases) phase.begins = ends, ends += phase.seconds;
    std::mt19937_64 random(1);
    std::exponential_distribution<double> gap(1);
    std::size_t phase = 0;
    double due = began + (open_loop ? gap(random) / phases[0].rate : 0);
    std::size_t turn = 0;
    while (true) {
        double at = now();
        if (open_loop) {
            while (phase < phases.size() && due <= at) {
                waiting.emplace_back(due, phase);
                due += gap(random) / phases[phase].rate;
                while (phase < phases.size() && due >= phases[phase].begins + phases[phase].seconds) ++phase;
            }
            for (std::size_t tried = 0; !waiting.empty() && tried < connections.size();) {
                Connection &one = connections[turn];
                if (one.begin(waiting.front().first, waiting.front().second)) {
                    waiting.pop_front();
                    one.write();
                    tried = 0;
                } else {
                    ++tried;
                }
                turn = (turn + 1) % connections.size();
            }
            if (phase >= phases.size()) {
                long open = static_cast<long>(waiting.size());
                for (const Phase &one : phases)
                    open += one.sent - one.errors - static_cast<long>(one.latencies.size());
                if (open == 0 || at > ends + LAST_ANSWERS_SECONDS) break;
            } else {
                const double wait = std::max(due - at, 1e-6);
                itimerspec next{};
                next.it_value.tv_sec = static_cast<time_t>(wait);
                next.it_value.tv_nsec = static_cast<long>((wait - static_cast<double>(next.it_value.tv_sec)) * 1e9);
                timerfd_settime(timer, 0, &next, nullptr);
            }
        } else {
            // A slow server's first answer is waited for: without it the round says nothing, and its work would disturb the next round.
            const bool has_answer = !phases[0].latencies.empty() || phases[0].errors;
            if (at >= ends && (has_answer || at >= ends + FIRST_ANSWER_SECONDS)) break;
            for (Connection &one : connections) {
                bool begun = false;
                while (one.begin(at, 0)) begun = true;
                if (begun) one.write();
            }
        }
        epoll_event events[64];
        const int found = epoll_wait(epoll, events, 64, 100);
        for (int i = 0; i < found; ++i) {
            auto *one = static_cast<Connection *>(events[i].data.ptr);
            if (!one) {
                std::uint64_t expired;
                if (::read(timer, &expired, sizeof expired) < 0) continue;
                continue;
            }
            if (events[i].events & EPOLLOUT) one->write();
            if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) one->read();
        }
    }
    for (Phase &one : phases) {
        // Requests without an answer: lost in an open loop; a closed loop ends while they run.
        if (open_loop) one.errors += one.sent - one.errors - static_cast<long>(one.latencies.size());
        show(one, open_loop ? one.seconds : now() - began, cpu_seconds());
    }
    if (!waiting.empty()) std::fprintf(stderr, "client: %zu requests were never sent\n", waiting.size());
    return 0;
}
