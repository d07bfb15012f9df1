#include "links/tcp/tcp_link.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/status.hpp"

namespace hcomm {
namespace {
constexpr std::size_t kBuffer = 256 << 10;
/// Reads at least this large go straight to their place.
constexpr std::size_t kDirect = 16 << 10;
/// A sleeper is woken for this much at most, 1 ms at 1 Gbit/s: waking takes time from whoever computes.
constexpr std::size_t kBatch = 128 << 10;
}  // namespace

void set_nonblocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        throw SystemError(std::string("cannot use a socket: ") + std::strerror(errno));
}

TcpLink::TcpLink(int fd) : fd_(fd), buffer_(kBuffer) { set_nonblocking(fd); }

ssize_t TcpLink::write(const std::byte* data, std::size_t bytes) noexcept {
    const ssize_t n = ::send(fd_.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

std::size_t TcpLink::receive(std::byte* into, std::size_t bytes) noexcept {
    if (ended_ || bytes == 0) return 0;
    const ssize_t n = ::recv(fd_.get(), into, bytes, MSG_DONTWAIT);
    if (n > 0) return static_cast<std::size_t>(n);
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) ended_ = true;
    return 0;
}

std::span<const std::byte> TcpLink::peek(std::size_t most) noexcept {
    // Less than an element may be left over from the last look: keep it at the front.
    if (end_ - begin_ < std::min<std::size_t>(most, 64) && begin_ > 0) {
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    if (end_ - begin_ < most && end_ < buffer_.size())
        end_ += receive(buffer_.data() + end_, buffer_.size() - end_);
    return {buffer_.data() + begin_, std::min(most, end_ - begin_)};
}

void TcpLink::expect(std::size_t bytes) noexcept {
    const std::size_t held = end_ - begin_;
    const int least = static_cast<int>(std::clamp<std::size_t>(bytes > held ? bytes - held : 1, 1, kBatch));
    if (least == least_) return;
    // Where it is refused, sleepers are woken more often.
    if (::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) == 0) least_ = least;
}

void TcpLink::consume(std::size_t bytes) noexcept {
    begin_ += bytes;
    if (begin_ == end_) begin_ = end_ = 0;
}

std::size_t TcpLink::read(std::byte* into, std::size_t bytes) noexcept {
    std::size_t copied = 0;
    while (copied < bytes) {
        if (begin_ == end_ && bytes - copied >= kDirect) {
            const std::size_t n = receive(into + copied, bytes - copied);
            if (n == 0) break;
            copied += n;
            continue;
        }
        const auto piece = peek(bytes - copied);
        if (piece.empty()) break;
        std::memcpy(into + copied, piece.data(), piece.size());
        copied += piece.size();
        consume(piece.size());
    }
    return copied;
}

}  // namespace hcomm
