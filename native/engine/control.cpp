#include "engine/control.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "links/tcp/tcp_link.hpp"

namespace hcomm {
namespace {

constexpr std::uint32_t kMagic = 0x4843544C;
constexpr std::uint32_t kMaxBody = 16 << 10;
constexpr std::size_t kMaxText = 4 << 10;
/// Descriptors that may wait to be taken; a peer that sends more sends garbage.
constexpr std::size_t kMaxFds = 1024;

struct FrameHeader {
    std::uint32_t magic;
    ControlKind kind;
    std::uint16_t reserved;
    std::uint32_t bytes;
};
static_assert(sizeof(FrameHeader) == 12);

class Writer {
  public:
    template <class T>
    void put(T value) {
        const auto* p = reinterpret_cast<const std::byte*>(&value);
        out_.insert(out_.end(), p, p + sizeof value);
    }
    void put_text(const std::string& text) {
        const std::size_t n = std::min(text.size(), kMaxText);
        put(static_cast<std::uint32_t>(n));
        const auto* p = reinterpret_cast<const std::byte*>(text.data());
        out_.insert(out_.end(), p, p + n);
    }
    std::vector<std::byte> take() { return std::move(out_); }

  private:
    std::vector<std::byte> out_;
};

/// Takes values off a received body; `ok` turns false, for good, when it is too short.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> body) : in_(body) {}
    bool ok = true;

    template <class T>
    T get() {
        T value{};
        if (in_.size() < sizeof value) {
            ok = false;
            return value;
        }
        std::memcpy(&value, in_.data(), sizeof value);
        in_ = in_.subspan(sizeof value);
        return value;
    }
    std::string get_text() {
        const auto n = get<std::uint32_t>();
        if (n > in_.size()) {
            ok = false;
            return {};
        }
        std::string text(reinterpret_cast<const char*>(in_.data()), n);
        in_ = in_.subspan(n);
        return text;
    }

  private:
    std::span<const std::byte> in_;
};

}  // namespace

std::vector<std::byte> encode_failure(const Failure& failure) {
    Writer out;
    out.put(static_cast<std::int32_t>(failure.kind));
    out.put(failure.seq);
    const std::size_t n = std::min<std::size_t>(failure.ranks.size(), 1024);
    out.put(static_cast<std::uint32_t>(n));
    for (std::size_t i = 0; i < n; ++i) out.put(static_cast<std::int32_t>(failure.ranks[i]));
    out.put_text(failure.text);
    return out.take();
}

std::optional<Failure> decode_failure(std::span<const std::byte> body, int size) {
    Reader in(body);
    Failure failure;
    const auto kind = in.get<std::int32_t>();
    failure.seq = in.get<std::uint64_t>();
    const auto n = in.get<std::uint32_t>();
    if (kind < static_cast<int>(Status::Mismatch) || kind > static_cast<int>(Status::System) || n > 1024)
        return {};
    failure.kind = static_cast<Status>(kind);
    for (std::uint32_t i = 0; i < n && in.ok; ++i) {
        const auto rank = in.get<std::int32_t>();
        if (rank < 0 || rank >= size) return {};
        failure.ranks.push_back(rank);
    }
    failure.text = in.get_text();
    if (!in.ok) return {};
    return failure;
}

std::vector<std::byte> encode_report(const RankReport& report, bool asks) {
    Writer out;
    out.put(static_cast<std::uint8_t>((asks ? 1 : 0) | (report.is_final ? 2 : 0)));
    out.put(report.pid);
    out.put(report.posted);
    out.put(report.done);
    out.put_text(report.what);
    out.put_text(report.where);
    out.put_text(report.recent);
    return out.take();
}

std::optional<RankReport> decode_report(std::span<const std::byte> body, bool& asks) {
    Reader in(body);
    RankReport report;
    const auto flags = in.get<std::uint8_t>();
    asks = flags & 1;
    report.is_final = flags & 2;
    report.pid = in.get<std::int32_t>();
    report.posted = in.get<std::uint64_t>();
    report.done = in.get<std::uint64_t>();
    report.what = in.get_text();
    report.where = in.get_text();
    report.recent = in.get_text();
    if (!in.ok) return {};
    report.heard = true;
    return report;
}

ControlChannel::ControlChannel(int fd) : fd_(fd) { set_nonblocking(fd); }

bool ControlChannel::send(ControlKind kind, std::span<const std::byte> body) noexcept {
    const FrameHeader header{kMagic, kind, 0, static_cast<std::uint32_t>(body.size())};
    const std::lock_guard lock(sending_);
    const auto* p = reinterpret_cast<const std::byte*>(&header);
    unsent_.insert(unsent_.end(), p, p + sizeof header);
    unsent_.insert(unsent_.end(), body.begin(), body.end());
    return send_unsent();
}

bool ControlChannel::send_unsent() noexcept {
    std::size_t sent = 0;
    for (int tries = 0; sent < unsent_.size() && tries < 10;) {
        const ssize_t n =
            ::send(fd_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            sent += static_cast<std::size_t>(n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
            pollfd p1{fd_.get(), POLLOUT, 0};
            ::poll(&p1, 1, 10);
            ++tries;
        } else {
            unsent_.clear();
            return false;
        }
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + static_cast<std::ptrdiff_t>(sent));
    return unsent_.empty();
}

bool ControlChannel::send(ControlKind kind, std::span<const std::byte> body, int fd) noexcept {
    const FrameHeader header{kMagic, kind, 0, static_cast<std::uint32_t>(body.size())};
    const std::lock_guard lock(sending_);
    // The descriptor travels with the first byte, which must be the frame's own.
    if (!send_unsent()) return false;
    const auto* p = reinterpret_cast<const std::byte*>(&header);
    unsent_.assign(p, p + sizeof header);
    unsent_.insert(unsent_.end(), body.begin(), body.end());
    iovec data{unsent_.data(), unsent_.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof fd)] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    ssize_t n = -1;
    for (int tries = 0; n < 0 && tries < 10; ++tries) {
        n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) break;
        pollfd p1{fd_.get(), POLLOUT, 0};
        ::poll(&p1, 1, 10);
    }
    if (n < 0) {
        unsent_.clear();
        return false;
    }
    unsent_.erase(unsent_.begin(), unsent_.begin() + n);
    return send_unsent();
}

void ControlChannel::ding() noexcept {
    const FrameHeader header{kMagic, ControlKind::Ding, 0, 0};
    const std::unique_lock lock(sending_, std::try_to_lock);
    // Somebody else is sending right now: that wakes the peer as well.
    if (!lock || !unsent_.empty()) return;
    const ssize_t n = ::send(fd_.get(), &header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0 && static_cast<std::size_t>(n) < sizeof header) {
        const auto* p = reinterpret_cast<const std::byte*>(&header);
        unsent_.assign(p + n, p + sizeof header);
    }
}

/// Like recv(2); descriptors that come along are kept.
ssize_t ControlChannel::receive_some(std::span<std::byte> into) noexcept {
    constexpr std::size_t kMost = 8;
    iovec data{into.data(), into.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(kMost * sizeof(int))];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0) return n;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
        int fds[kMost];
        const std::size_t count = std::min(kMost, (part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        std::memcpy(fds, CMSG_DATA(part), count * sizeof(int));
        for (std::size_t i = 0; i < count; ++i) {
            Fd fd(fds[i]);
            if (received_fds_.size() < kMaxFds) received_fds_.push_back(std::move(fd));
        }
    }
    return n;
}

Fd ControlChannel::take_fd() noexcept {
    if (received_fds_.empty()) return Fd();
    Fd fd = std::move(received_fds_.front());
    received_fds_.pop_front();
    return fd;
}

bool ControlChannel::receive(std::vector<ControlFrame>& frames) {
    std::byte chunk[4096];
    bool open = true;
    for (;;) {
        const ssize_t n = receive_some(chunk);
        if (n > 0) {
            // A message with a descriptor is handed out alone, however short.
            input_.insert(input_.end(), chunk, chunk + n);
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            open = false;
        }
        break;
    }
    std::size_t at = 0;
    FrameHeader header;
    while (input_.size() - at >= sizeof header) {
        std::memcpy(&header, input_.data() + at, sizeof header);
        if (header.magic != kMagic || header.bytes > kMaxBody) return false;
        if (input_.size() - at - sizeof header < header.bytes) break;
        const auto* body = input_.data() + at + sizeof header;
        frames.push_back({header.kind, {body, body + header.bytes}});
        at += sizeof header + header.bytes;
    }
    input_.erase(input_.begin(), input_.begin() + static_cast<std::ptrdiff_t>(at));
    return open;
}

void ControlChannel::shutdown() noexcept { ::shutdown(fd_.get(), SHUT_WR); }

void ControlChannel::close() noexcept {
    const std::lock_guard lock(sending_);
    fd_.reset();
}

}  // namespace hcomm
