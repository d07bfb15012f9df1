#include "engine/control.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "links/tcp/tcp_link.hpp"

namespace hcomm {
namespace {

constexpr std::uint32_t kMagic = 0x4843544C;
constexpr std::uint32_t kMaxBody = 16 << 10;
constexpr std::size_t kMaxText = 4 << 10;

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

bool ControlChannel::receive(std::vector<ControlFrame>& frames) {
    std::byte chunk[4096];
    bool open = true;
    for (;;) {
        const ssize_t n = ::recv(fd_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
        if (n > 0) {
            input_.insert(input_.end(), chunk, chunk + n);
            if (static_cast<std::size_t>(n) == sizeof chunk) continue;
        } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
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
