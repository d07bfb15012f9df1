#pragma once

#include <vector>

#include "links/fd.hpp"
#include "links/link.hpp"

namespace hcomm {

/// A connected stream socket.
class TcpLink final : public Link {
  public:
    /// Takes over the descriptor and makes it non-blocking.
    explicit TcpLink(int fd);

    ssize_t write(const std::byte* data, std::size_t bytes) noexcept override;
    std::span<const std::byte> peek(std::size_t most) noexcept override;
    void consume(std::size_t bytes) noexcept override;
    std::size_t read(std::byte* into, std::size_t bytes) noexcept override;
    bool ended() const noexcept override { return ended_; }
    void expect(std::size_t bytes) noexcept override;
    int fd() const noexcept override { return fd_.get(); }

  private:
    /// One recv(2); 0 when nothing is there or the stream has ended.
    std::size_t receive(std::byte* into, std::size_t bytes) noexcept;

    Fd fd_;
    std::vector<std::byte> buffer_;  ///< read ahead, so that headers and small bodies cost one system call
    std::size_t begin_ = 0, end_ = 0;
    bool ended_ = false;
    int least_ = 1;  ///< bytes that make the socket readable
};

/// Makes a descriptor non-blocking. Throws SystemError.
void set_nonblocking(int fd);

}  // namespace hcomm
