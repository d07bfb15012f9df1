#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/header.hpp"
#include "engine/memory.hpp"
#include "engine/program.hpp"
#include "engine/task.hpp"

namespace hcomm {

class Comm;
class Peer;

/// One collective in progress: a program, its pointers, and where it stands. It can stop at any step and go
/// on later.
class Operation final : public Task {
  public:
    Operation(Comm& comm, std::shared_ptr<const Plan> plan, std::byte* in, std::byte* out, std::uint64_t seq);

    /// Goes as far as it can. True when complete. Throws OperationFailed after recording why in the
    /// communicator.
    bool advance();

    const OpHeader& header() const noexcept { return header_; }
    /// The peer it waits for, or null; valid after advance() returned false.
    Peer* waiting_for() const noexcept { return waiting_; }
    /// Bytes of its message that are still to come, or those of a header.
    std::size_t waiting_bytes() const noexcept { return missing_; }
    /// Its first step may have run: before, it has touched nothing and told nobody.
    bool begun() const noexcept { return begun_; }

    std::uint64_t position() const noexcept;

    Clock::time_point started{};  ///< when a driver first found it blocked

  private:
    bool begin();
    bool choose_program();
    void offer();
    bool is_offered(const OpHeader& header, int rank) const noexcept;
    void reach_into_peers();
    bool run_block(const BoundBlock& block);
    bool run_step(const BoundBlock& block, const BoundStep& step, std::uint64_t tile);
    bool run_sync(const BoundStep& step);
    bool run_receive(const BoundBlock& block, const BoundStep& step, std::uint64_t tile);
    void run_send(const BoundBlock& block, const BoundStep& step, std::uint64_t tile);
    void run_move(const BoundBlock& block, const BoundStep& step, std::uint64_t tile);
    void move_remote(const BoundBlock& block, const BoundStep& step, std::uint64_t tile, std::uint64_t count);
    bool writes_past_cache(const Operand& dst, std::size_t least) const noexcept;
    void post(const BoundStep& step);
    bool await(Peer& peer);
    bool receive_header(Peer& peer, std::uint64_t bytes);
    void publish(std::uint8_t flags);
    void complete();
    void use(const BoundProgram& program) noexcept;

    struct Place {
        std::byte* here;        ///< null if the memory can only be reached through its process
        Peer* owner;            ///< set if `here` is null
        std::uint64_t address;  ///< in the owner's process
        std::uint64_t count;    ///< elements of this tile
    };
    Place place(const BoundBlock& block, const Operand& operand, std::uint64_t tile) const;

    Comm& comm_;
    std::shared_ptr<const Plan> plan_;
    const BoundProgram* program_ = nullptr;
    std::uint64_t place_in_window_ = 0;  ///< bytes from the start of the operation's half
    std::byte* in_;
    std::byte* out_;
    /// The user's input and output, if they are shared for this operation, which then works on the segment's
    /// own mapping of them.
    Shown shown_in_, shown_out_;
    OpHeader header_;
    std::size_t item_;
    bool begun_ = false, published_ = false, chosen_ = false;
    std::size_t block_ = 0, step_ = 0;
    std::uint64_t iteration_ = 0;
    std::uint64_t progress_ = 0;  ///< within the step: ranks met, or bytes received
    bool in_body_ = false;        ///< within a receive: the header has been read
    bool posted_ = false;         ///< within a meet: the post is done
    const bool in_place_;
    bool implied_ = false;  ///< all have shown their headers first: that was everybody's first post
    Peer* waiting_ = nullptr;
    std::size_t missing_ = 1;
};

}  // namespace hcomm
