#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/header.hpp"
#include "links/shm/ring.hpp"

namespace hcomm {

inline constexpr std::size_t kLine = 64;
inline constexpr std::uint64_t kHeaderSlots = 8;

/// The fixed start of a window. A line has one writer, or is written rarely.
struct WindowControl {
    std::byte token[kLine];  ///< proves at wire-up that two ranks see the same memory
    /// Futex word of the owner's sleeping threads; peers add one to it.
    alignas(kLine) std::atomic<std::uint32_t> doorbell;
    /// Threads of the owner that sleep on the doorbell, and those that sleep in poll(2).
    alignas(kLine) std::atomic<std::uint32_t> futex_sleepers;
    std::atomic<std::uint32_t> poll_sleepers;
    /// Number of the last collective the owner has completed.
    alignas(kLine) std::atomic<std::uint64_t> done;
    std::atomic<std::uint32_t> want_done;  ///< a peer waits for `done` to grow
    alignas(kLine) SharedHeader headers[kHeaderSlots];
};

/// Where the parts of a window lie; the same on every rank of a clique.
struct WindowLayout {
    std::size_t local = 0;            ///< ranks in the clique
    std::size_t operation_bytes = 0;  ///< what one operation may use (two operations take turns)
    std::size_t coll_bytes = 0, p2p_bytes = 0;
    std::size_t posts = 0, rings = 0, area = 0, total = 0;  ///< offsets, size

    WindowLayout(std::size_t local, std::size_t buffer_bytes);
};

/// A mapping of shared memory; unmapped at the end.
class Mapping {
  public:
    /// Maps `bytes` of the file. Does not take over the descriptor. Throws SystemError.
    Mapping(int fd, std::size_t bytes);
    /// Memory that only this process sees: for ranks that are threads of one process (tests).
    explicit Mapping(std::size_t bytes);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    std::byte* data() const noexcept { return data_; }

  private:
    std::byte* data_;
    std::size_t bytes_;
};

/// A rank's window as seen from this process.
class Window {
  public:
    Window(std::shared_ptr<Mapping> mapping, const WindowLayout& layout);

    WindowControl& control() const noexcept { return *control_; }
    /// Counter of the owner's posts to local rank `to`, as (operation << 20 | posts in it).
    std::atomic<std::uint64_t>& posted(std::size_t to) const noexcept { return posts_[to]; }
    /// The ring in which local rank `from` writes to the owner.
    Ring coll_ring(std::size_t from) const noexcept;
    Ring p2p_ring(std::size_t from) const noexcept;
    /// The part of the window that operation `seq` may use.
    std::byte* area(std::uint64_t seq) const noexcept {
        return mapping_->data() + layout_.area + (seq & 1) * layout_.operation_bytes;
    }

  private:
    std::shared_ptr<Mapping> mapping_;
    WindowLayout layout_;
    WindowControl* control_;
    std::atomic<std::uint64_t>* posts_;
};

}  // namespace hcomm
