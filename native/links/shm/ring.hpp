#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "links/shm/copier.hpp"

namespace hcomm {

/// Positions of a ring; they only grow, and are taken modulo the capacity.
struct RingControl {
    alignas(64) std::atomic<std::uint64_t> head;  ///< written by the writer
    alignas(64) std::atomic<std::uint64_t> tail;  ///< written by the reader, in whole cache lines
    std::atomic<std::uint32_t> want_room;         ///< set by a writer that waits for room
};
static_assert(sizeof(RingControl) == 128);

/// A ring in shared memory. The capacity is a multiple of 64 and messages start on cache lines, so that no
/// element is ever split by the end of the memory.
struct Ring {
    RingControl* control;
    std::byte* data;
    std::size_t capacity;
};

/// The writing end.
class RingWriter {
  public:
    explicit RingWriter(Ring ring) noexcept : ring_(ring) {}

    std::size_t write(const std::byte* from, std::size_t bytes) noexcept {
        std::size_t written = 0;
        while (written < bytes) {
            const std::size_t room = free_bytes();
            const std::size_t at = head_ % ring_.capacity;
            // Small pieces, so that the reader starts while the rest is being copied.
            const std::size_t piece = std::min({bytes - written, room, ring_.capacity - at, kPiece});
            if (piece == 0) break;
            copier_.copy(ring_.data + at, from + written, piece);
            head_ += piece;
            written += piece;
            // Pairs with the acquire load in RingReader::readable.
            ring_.control->head.store(head_, std::memory_order_release);
        }
        return written;
    }

    /// Moves on to the next cache line: the end of a message.
    void pad() noexcept {
        head_ = (head_ + 63) / 64 * 64;
        ring_.control->head.store(head_, std::memory_order_release);
    }

    void want_room() noexcept { ring_.control->want_room.store(1, std::memory_order_seq_cst); }

  private:
    static constexpr std::size_t kPiece = 32 << 10;

    std::size_t free_bytes() noexcept {
        if (head_ - tail_ >= ring_.capacity / 2) tail_ = ring_.control->tail.load(std::memory_order_acquire);
        return ring_.capacity - (head_ - tail_);
    }

    Ring ring_;
    std::uint64_t head_ = 0;
    std::uint64_t tail_ = 0;  ///< as last seen
    SharedCopier copier_;
};

/// The reading end.
class RingReader {
  public:
    explicit RingReader(Ring ring) noexcept : ring_(ring) {}

    std::span<const std::byte> peek(std::size_t most) noexcept {
        const std::uint64_t head = ring_.control->head.load(std::memory_order_acquire);
        // The reader may have skipped the padding of a message before the writer has told of it.
        if (head <= tail_) return {};
        const std::size_t at = tail_ % ring_.capacity;
        return {ring_.data + at,
                std::min({most, static_cast<std::size_t>(head - tail_), ring_.capacity - at})};
    }

    /// True if the writer waits for room and must be woken.
    bool consume(std::size_t bytes) noexcept {
        tail_ += bytes;
        return publish();
    }

    bool skip_pad() noexcept {
        tail_ = (tail_ + 63) / 64 * 64;
        return publish();
    }

  private:
    bool publish() noexcept {
        const std::uint64_t whole = tail_ / 64 * 64;
        if (whole == published_) return false;
        published_ = whole;
        // Release: the writer may overwrite what was read. seq_cst, so that either this thread sees want_room
        // or the writer, which sets it before looking at the tail again, sees this tail.
        ring_.control->tail.store(whole, std::memory_order_seq_cst);
        return ring_.control->want_room.load(std::memory_order_seq_cst) != 0 &&
               ring_.control->want_room.exchange(0, std::memory_order_acq_rel) != 0;
    }

    Ring ring_;
    std::uint64_t tail_ = 0;
    std::uint64_t published_ = 0;
};

}  // namespace hcomm
