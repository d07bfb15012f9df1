#pragma once

#include "links/link.hpp"
#include "links/shm/ring.hpp"

namespace hcomm {

/// Something that wakes the threads of a peer, if they sleep.
class Bell {
  public:
    virtual ~Bell() = default;
    virtual void ring() noexcept = 0;
};

/// A pair of rings, one in each rank's window.
class ShmLink final : public Link {
  public:
    /// `bell` wakes the peer; it must outlive the link.
    ShmLink(Ring outgoing, Ring incoming, Bell& bell) noexcept : out_(outgoing), in_(incoming), bell_(bell) {}

    ssize_t write(const std::byte* data, std::size_t bytes) noexcept override {
        return static_cast<ssize_t>(out_.write(data, bytes));
    }
    void pad() noexcept override {
        out_.pad();
        bell_.ring();
    }
    std::span<const std::byte> peek(std::size_t most) noexcept override { return in_.peek(most); }
    void consume(std::size_t bytes) noexcept override {
        if (in_.consume(bytes)) bell_.ring();
    }
    std::size_t read(std::byte* into, std::size_t bytes) noexcept override {
        std::size_t copied = 0;
        while (copied < bytes) {
            const auto piece = in_.peek(bytes - copied);
            if (piece.empty()) break;
            std::memcpy(into + copied, piece.data(), piece.size());
            copied += piece.size();
            consume(piece.size());
        }
        return copied;
    }
    void skip_pad() noexcept override {
        if (in_.skip_pad()) bell_.ring();
    }
    bool ended() const noexcept override { return false; }
    void want_room() noexcept override {
        out_.want_room();
        bell_.ring();  // what is there must be read before there can be room
    }
    int fd() const noexcept override { return -1; }

  private:
    RingWriter out_;
    RingReader in_;
    Bell& bell_;
};

}  // namespace hcomm
