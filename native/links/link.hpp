#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

namespace hcomm {

/// A reliable stream of bytes in both directions between two ranks. Nothing here ever blocks.
///
/// A message on it is a 64-byte header followed by a body; `pad` and `skip_pad` mark its end on both sides,
/// so that a link may keep every header and body aligned to cache lines.
class Link {
  public:
    virtual ~Link() = default;

    /// Takes up to `bytes` and says how many; 0: no room now; -1: the other side is gone.
    virtual ssize_t write(const std::byte* data, std::size_t bytes) noexcept = 0;
    /// The message written so far is complete.
    virtual void pad() noexcept {}

    /// What can be read without copying, at most `most` bytes; stays valid until `consume`. Empty: nothing
    /// now.
    virtual std::span<const std::byte> peek(std::size_t most) noexcept = 0;
    virtual void consume(std::size_t bytes) noexcept = 0;
    /// Copies up to `bytes` to `into` and says how many.
    virtual std::size_t read(std::byte* into, std::size_t bytes) noexcept = 0;
    /// The message read so far is complete.
    virtual void skip_pad() noexcept {}

    /// The other side closed the stream or vanished: what cannot be read now will never come.
    virtual bool ended() const noexcept = 0;
    /// Asks to be woken when there is room to write again.
    virtual void want_room() noexcept {}
    /// A sleeper need not be woken before that much more can be read.
    virtual void expect(std::size_t) noexcept {}
    /// For poll(2); -1 if this link wakes through the window's doorbell.
    virtual int fd() const noexcept = 0;
};

}  // namespace hcomm
