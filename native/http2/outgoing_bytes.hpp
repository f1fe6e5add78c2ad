// The outgoing bytes of a connection: a list of pieces. Small parts are copied into one buffer, and neighbouring copies
// become one piece. Large parts are not copied; their `Keeper` keeps their memory until they are sent.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

namespace ksrv::http2 {

// Keeps memory alive until its bytes are sent.
struct Keeper {
    virtual void retain() noexcept = 0;
    virtual void release() noexcept = 0;

  protected:
    ~Keeper() = default;
};

class OutgoingBytes {
  public:
    static constexpr size_t COPIED = 4096;  // shorter parts are copied
    static constexpr int PARTS = 64;        // in one writev

    OutgoingBytes() = default;
    OutgoingBytes(const OutgoingBytes &) = delete;
    OutgoingBytes &operator=(const OutgoingBytes &) = delete;
    ~OutgoingBytes() { clear(); }

    size_t length() const noexcept { return length_; }
    bool empty() const noexcept { return length_ == 0; }
    size_t copied() const noexcept { return copied_.size(); }

    // These functions may throw std::bad_alloc, and then change nothing.
    void copy(const void *data, size_t length) {
        if (length == 0) return;
        const size_t at = copied_.size();
        const unsigned char *from = static_cast<const unsigned char *>(data);
        copied_.insert(copied_.end(), from, from + length);
        if (has_pieces() && !pieces_.back().keeper && pieces_.back().at + pieces_.back().length == at) {
            pieces_.back().length += length;
        } else {
            add({nullptr, nullptr, at, length});
        }
        length_ += length;
    }

    void refer(const unsigned char *data, size_t length, Keeper *keeper) {
        if (length < COPIED) {
            copy(data, length);
            return;
        }
        add({data, keeper, 0, length});
        keeper->retain();
        length_ += length;
    }

    // Returns the first parts, and their number (at most PARTS).
    int parts(iovec *out) const noexcept {
        int count = 0;
        size_t skip = sent_;
        for (size_t i = first_; i < pieces_.size() && count < PARTS; ++i) {
            const Piece &piece = pieces_[i];
            const unsigned char *data = piece.keeper ? piece.data : copied_.data() + piece.at;
            out[count].iov_base = const_cast<unsigned char *>(data + skip);
            out[count].iov_len = piece.length - skip;
            skip = 0;
            ++count;
        }
        return count;
    }

    void drop_sent(size_t sent) noexcept {
        length_ -= sent;
        sent_ += sent;
        while (has_pieces() && sent_ >= pieces_[first_].length) {
            sent_ -= pieces_[first_].length;
            if (pieces_[first_].keeper) pieces_[first_].keeper->release();
            ++first_;
        }
        if (!has_pieces()) {
            pieces_.clear();
            first_ = 0;
            if (copied_.capacity() > MOST_KEPT) {
                std::vector<unsigned char>().swap(copied_);
            } else {
                copied_.clear();
            }
        } else if (!pieces_[first_].keeper && pieces_[first_].at >= MOST_KEPT) {
            const size_t gone = pieces_[first_].at;
            copied_.erase(copied_.begin(), copied_.begin() + static_cast<std::ptrdiff_t>(gone));
            for (size_t i = first_; i < pieces_.size(); ++i)
                if (!pieces_[i].keeper) pieces_[i].at -= gone;
        }
    }

    void clear() noexcept {
        for (size_t i = first_; i < pieces_.size(); ++i)
            if (pieces_[i].keeper) pieces_[i].keeper->release();
        std::vector<Piece>().swap(pieces_);
        first_ = 0;
        std::vector<unsigned char>().swap(copied_);
        length_ = sent_ = 0;
    }

  private:
    static constexpr size_t MOST_KEPT = 65536;  // bytes of sent copies, or of an empty buffer, that stay allocated

    struct Piece {
        const unsigned char *data;
        Keeper *keeper;  // null: the bytes are in `copied_`, at offset `at`
        size_t at, length;
    };

    bool has_pieces() const noexcept { return first_ < pieces_.size(); }
    void add(const Piece &piece) {
        // Remove the sent pieces before the vector would grow.
        if (first_ && pieces_.size() == pieces_.capacity()) {
            pieces_.erase(pieces_.begin(), pieces_.begin() + static_cast<std::ptrdiff_t>(first_));
            first_ = 0;
        }
        pieces_.push_back(piece);
    }

    // Not a deque, because a deque's constructor allocates, and its failure would end the process.
    std::vector<Piece> pieces_;
    size_t first_ = 0;           // index of the first unsent piece
    std::vector<unsigned char> copied_;
    size_t length_ = 0;
    size_t sent_ = 0;  // bytes of the first piece
};

}  // namespace ksrv::http2
