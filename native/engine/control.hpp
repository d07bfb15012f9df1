#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/header.hpp"
#include "engine/status.hpp"
#include "links/fd.hpp"

namespace hcomm {

/// What travels on the control channel of a pair: liveness (its end is the peer's end), news of failures,
/// questions.
enum class ControlKind : std::uint16_t {
    Ding = 1,     ///< wake up: there is something for you in shared memory
    Abort = 2,    ///< the communicator is broken, and why
    Bye = 3,      ///< this rank has closed its communicator in good order
    Report = 4,   ///< what this rank is doing; may ask for the same in return
    Slow = 5,     ///< an OpHeader: the operation this rank has been blocked in for a while
    Share = 6,    ///< ShareNote, with a descriptor: memory of this rank that the peer may map
    Shared = 7,   ///< ShareNote: the peer has mapped it (bytes: its size), or could not (bytes: 0)
    Unshare = 8,  ///< ShareNote: this rank uses it no more
};

/// Body of the frames about shared memory.
struct ShareNote {
    std::uint64_t segment = 0;
    std::uint64_t bytes = 0;
};

/// A rank's account of itself.
struct RankReport {
    bool heard = false, alive = true, left = false;
    bool is_final = false;  ///< sent by the rank's own failing call, not by its engine on request
    std::int32_t pid = 0;
    std::uint64_t posted = 0, done = 0;  ///< collectives started and completed
    std::string what, where;
    std::string recent;  ///< the operations it began last, a line each: number, space, words
};

struct ControlFrame {
    ControlKind kind;
    std::vector<std::byte> body;
};

std::vector<std::byte> encode_failure(const Failure& failure);
std::optional<Failure> decode_failure(std::span<const std::byte> body, int size);
std::vector<std::byte> encode_report(const RankReport& report, bool asks);
std::optional<RankReport> decode_report(std::span<const std::byte> body, bool& asks);

/// One end of a control channel. Any thread may send; only the engine's thread receives.
class ControlChannel {
  public:
    /// Takes over the descriptor of a connected stream socket. Throws SystemError.
    explicit ControlChannel(int fd);

    /// Sends a whole frame; waits a little if the socket is full. False if the peer is gone or never reads.
    bool send(ControlKind kind, std::span<const std::byte> body) noexcept;
    /// The same, with a copy of a descriptor; over Unix sockets only.
    bool send(ControlKind kind, std::span<const std::byte> body, int fd) noexcept;
    /// Wakes the peer's engine; dropped if the socket is full, since then it has plenty to wake for.
    void ding() noexcept;

    /// Reads what is there and appends the whole frames to `frames`. False at the end of the stream, or when
    /// what arrives is no frame.
    bool receive(std::vector<ControlFrame>& frames);
    /// The descriptor that came first of those not yet taken; none if there is none.
    Fd take_fd() noexcept;

    int fd() const noexcept { return fd_.get(); }
    void shutdown() noexcept;
    /// Nothing can be sent or received from now on.
    void close() noexcept;

  private:
    bool send_unsent() noexcept;
    ssize_t receive_some(std::span<std::byte> into) noexcept;

    Fd fd_;
    std::deque<Fd> received_fds_;
    std::mutex sending_;
    std::vector<std::byte> unsent_;  ///< the rest of a frame that the socket took in part
    std::vector<std::byte> input_;
};

}  // namespace hcomm
