#include "engine/operation.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm.hpp"

namespace hcomm {
namespace {

/// A post counter holds the operation above this bit and the posts in it below: it only ever grows.
constexpr unsigned kSeqShift = 20;
/// How far operations wander through their half of the window. They use about half of their places, so that
/// lines are written again after about twice the size of a usual second-level cache.
constexpr std::uint64_t kWander = 2 << 20;
/// In no more places than these: each takes pages that were never touched when it is used for the first time.
constexpr std::uint64_t kPlaces = 64;

}  // namespace

Operation::Operation(Comm& comm, std::shared_ptr<const Plan> plan, std::byte* in, std::byte* out,
                     std::uint64_t seq)
    : comm_(comm),
      plan_(std::move(plan)),
      in_(in),
      out_(out),
      header_(plan_->header),
      item_(size_of(plan_->dtype)),
      in_place_(in == out) {
    header_.seq = seq;
    use(plan_->program);
}

/// Operations take turns in the window: a line that a peer has read is cheap to write again when it has left
/// the peer's second-level cache.
void Operation::use(const BoundProgram& program) noexcept {
    program_ = &program;
    const std::uint64_t bytes = program.window_bytes;
    const std::uint64_t turns =
        bytes ? std::min(std::min(comm_.layout_.operation_bytes, kWander) / bytes, kPlaces) : 0;
    place_in_window_ = turns > 1 ? header_.seq / 2 % turns * bytes : 0;
}

bool Operation::advance() {
    waiting_ = nullptr;
    if (!begun_ && !begin()) return false;
    if (!chosen_ && !choose_program()) return false;
    while (block_ < program_->blocks.size()) {
        if (!run_block(program_->blocks[block_])) return false;
        ++block_;
        iteration_ = 0;
    }
    if (!comm_.flush_all()) return false;
    complete();
    return true;
}

bool Operation::begin() {
    // A peer may have done its part and left. If it left before, this operation cannot complete, and
    // Comm::check_lost says so.
    for (const Peer* peer : comm_.others_)
        if (comm_.never_completes(*peer, header_.seq)) return false;
    // A header slot is free once every local peer has completed the operation that used it last; the same for
    // the half of the window that this operation may use.
    if (header_.seq > kHeaderSlots && !comm_.all_done(header_.seq - kHeaderSlots)) return false;
    const bool window = program_->uses_window || (plan_->has_fallback && plan_->fallback.uses_window);
    if (window && header_.seq > 2 && !comm_.all_done(header_.seq - 2)) return false;
    comm_.reserve_scratch(std::max(plan_->program.scratch_bytes, plan_->fallback.scratch_bytes));
    for (Peer* peer : comm_.local_) peer->posts = peer->awaits = 0;
    header_.first = reinterpret_cast<std::uint64_t>(in_);
    header_.second = reinterpret_cast<std::uint64_t>(out_);
    if (plan_->has_fallback) offer();
    header_.signature = chain_signatures(comm_.history_, plan_->header.signature);
    comm_.history_ = header_.signature;
    begun_ = true;
    comm_.recent_[header_.seq % kRecent].publish(header_);
    comm_.begun_.store(header_.seq, std::memory_order_release);
    chosen_ = !plan_->has_fallback;
    if (plan_->has_fallback && !is_offered(header_, comm_.rank())) {
        use(plan_->fallback);
        chosen_ = true;
    }
    if (!program_->fused || !chosen_) publish(0);
    return true;
}

void Operation::publish(std::uint8_t flags) {
    OpHeader header = header_;
    header.flags = static_cast<std::uint8_t>(header.flags | flags);
    comm_.own().control().headers[header_.seq % kHeaderSlots].publish(header);
    published_ = true;
    comm_.ring_local();
}

bool Operation::run_block(const BoundBlock& block) {
    const std::uint64_t iterations = block.iterations();
    if (block.tile && block.tiles == 0) return true;
    for (; iteration_ < iterations; ++iteration_, step_ = 0) {
        for (; step_ < block.steps.size(); ++step_) {
            const BoundStep& step = block.steps[step_];
            std::uint64_t tile = 0;
            if (block.tile) {
                if (step.stage < 0) {
                    if (iteration_ + 1 == iterations) continue;
                } else if (const auto t = block.tile_of(iteration_, static_cast<std::uint64_t>(step.stage))) {
                    tile = *t;
                } else {
                    continue;
                }
            }
            if (!run_step(block, step, tile)) return false;
            progress_ = 0;
            in_body_ = posted_ = false;
        }
    }
    step_ = 0;
    return true;
}

bool Operation::run_step(const BoundBlock& block, const BoundStep& step, std::uint64_t tile) {
    switch (step.kind) {
        case StepKind::Send:
            run_send(block, step, tile);
            return true;
        case StepKind::Recv:
        case StepKind::RecvReduce:
            return run_receive(block, step, tile);
        case StepKind::Move:
            run_move(block, step, tile);
            return true;
        case StepKind::Post:
            post(step);
            return true;
        case StepKind::Await:
        case StepKind::Meet:
            return run_sync(step);
        case StepKind::Finish: {
            const Place p = place(block, step.dst[0], tile);
            if (plan_->op == ReduceOp::Avg)
                hcomm::finish(plan_->dtype, p.here, p.count, static_cast<unsigned>(comm_.size()));
            return true;
        }
    }
    return true;
}

/// Changes whenever the operation has moved on.
std::uint64_t Operation::position() const noexcept {
    return ((iteration_ * 4096 + step_) * 16 + block_) * 4 + (in_body_ ? 2 : 0) + (begun_ ? 1 : 0) +
           (progress_ << 20);
}

Operation::Place Operation::place(const BoundBlock& block, const Operand& operand, std::uint64_t tile) const {
    std::uint64_t offset = operand.offset, count = operand.count;
    if (block.tile) {
        const std::uint64_t first = std::min(tile * block.tile, operand.count);
        count = std::min(block.tile, operand.count - first);
        if (operand.slot < 0) offset += first * item_;
    }
    if (operand.slot >= 0) {
        const auto slot = static_cast<std::uint64_t>(operand.slot);
        const auto buffers = static_cast<std::uint64_t>(block.buffers);
        offset = (block.tile ? slot * buffers + tile % buffers : slot) * block.slot_bytes;
    }
    const bool mine = operand.owner < 0;
    switch (operand.space) {
        case Space::Scratch:
            return {comm_.scratch_.data() + offset, nullptr, 0, count};
        case Space::Window: {
            Window& window = mine ? comm_.own() : *comm_.peer(operand.owner).window;
            return {window.area(header_.seq) + place_in_window_ + offset, nullptr, 0, count};
        }
        case Space::Input:
        case Space::Output:
            break;
    }
    const bool input = operand.space == Space::Input;
    if (mine) return {(input ? in_ : out_) + offset, nullptr, 0, count};
    Peer& owner = comm_.peer(operand.owner);
    if (const Peer::Reach& reach = input ? owner.input : owner.output; reach.data) {
        if (offset + count * item_ > reach.bytes)
            comm_.raise({Status::System,
                         header_.seq,
                         {owner.rank},
                         "rank " + std::to_string(owner.rank) + " offers less memory than its tensor has"});
        return {reach.data + offset, nullptr, 0, count};
    }
    return {nullptr, &owner, (input ? owner.header.first : owner.header.second) + offset, count};
}

void Operation::post(const BoundStep& step) {
    if (step.fused && implied_) return;
    if (step.fused && !published_) {
        publish(kFused);
        return;
    }
    for (int rank : step.ranks) {
        Peer& peer = comm_.peer(rank);
        ++peer.posts;
        comm_.own()
            .posted(peer.local_index)
            .store(header_.seq << kSeqShift | peer.posts, std::memory_order_release);
    }
    comm_.ring_local();
}

bool Operation::run_sync(const BoundStep& step) {
    if (step.kind == StepKind::Meet && !posted_) {
        post(step);
        posted_ = true;
    }
    for (; progress_ < step.ranks.size(); ++progress_) {
        Peer& peer = comm_.peer(step.ranks[progress_]);
        if (!await(peer)) {
            waiting_ = &peer;
            return false;
        }
    }
    // Everybody of the clique is in this operation, so everybody has completed the one before.
    if (step.ranks.size() == comm_.local_.size())
        comm_.known_done_ = std::max(comm_.known_done_, header_.seq - 1);
    return true;
}

bool Operation::await(Peer& peer) {
    if (peer.checked != header_.seq) {
        const SharedHeader& slot = peer.window->control().headers[header_.seq % kHeaderSlots];
        if (slot.seq() != header_.seq) return false;
        peer.header = slot.read();
        if (peer.header.signature != header_.signature) comm_.mismatch(header_, peer.rank, peer.header);
        peer.checked = header_.seq;
    }
    const std::uint64_t needed = peer.awaits + 1 - (implied_ || (peer.header.flags & kFused) ? 1 : 0);
    if (needed > 0) {
        // Acquire: pairs with the release store in `post`; what the peer did before is visible.
        const auto posted = peer.window->posted(comm_.local_index_).load(std::memory_order_acquire);
        if (posted < (header_.seq << kSeqShift | needed)) return false;
    }
    ++peer.awaits;
    return true;
}

void Operation::run_send(const BoundBlock& block, const BoundStep& step, std::uint64_t tile) {
    const Place from = place(block, step.src[0], tile);
    Peer& peer = comm_.peer(step.peer);
    const std::uint64_t bytes = from.count * item_;
    Outgoing message{header_, from.here, bytes, 0};
    message.header.first = bytes;
    message.header.second = kMessageMagic;
    peer.outbox.push_back(message);
    comm_.flush(peer);
}

/// Reads the header of the next message; false if it is not there yet.
bool Operation::receive_header(Peer& peer, std::uint64_t bytes) {
    const auto head = peer.coll->peek(sizeof(OpHeader));
    if (head.size() < sizeof(OpHeader)) {
        if (peer.coll->ended()) peer.note_lost();
        return false;
    }
    OpHeader theirs;
    std::memcpy(&theirs, head.data(), sizeof theirs);
    peer.coll->consume(sizeof theirs);
    if (theirs.second != kMessageMagic)
        comm_.raise({Status::System,
                     header_.seq,
                     {peer.rank},
                     "rank " + std::to_string(peer.rank) + " sent something that is no message of hcomm"});
    if (theirs.seq != header_.seq || theirs.signature != header_.signature)
        comm_.mismatch(header_, peer.rank, theirs);
    if (theirs.first != bytes)
        comm_.raise({Status::Mismatch,
                     header_.seq,
                     {comm_.rank(), peer.rank},
                     "rank " + std::to_string(peer.rank) + " sends " + std::to_string(theirs.first) +
                         " bytes in " + describe(theirs) + ", but rank " + std::to_string(comm_.rank()) +
                         " expects " + std::to_string(bytes) + " from it"});
    return true;
}

bool Operation::run_receive(const BoundBlock& block, const BoundStep& step, std::uint64_t tile) {
    const Place into = place(block, step.dst[0], tile);
    Peer& peer = comm_.peer(step.peer);
    const std::uint64_t bytes = into.count * item_;
    if (!in_body_) {
        if (!receive_header(peer, bytes)) {
            waiting_ = &peer;
            missing_ = sizeof(OpHeader);
            comm_.flush_all();
            return false;
        }
        in_body_ = true;
    }
    while (progress_ < bytes) {
        std::uint64_t moved = 0;
        if (step.kind == StepKind::Recv) {
            moved = peer.coll->read(into.here + progress_, bytes - progress_);
        } else {
            const auto piece = peer.coll->peek(bytes - progress_);
            const std::uint64_t count = piece.size() / item_;
            if (count > 0) {
                void* dst = into.here + progress_;
                const void* sources[2] = {dst, piece.data()};
                plan_->kernel(&dst, 1, sources, 2, count, 1, false);
                moved = count * item_;
                peer.coll->consume(moved);
            }
        }
        progress_ += moved;
        // Whoever waits for what this rank sends must not wait for what this rank receives.
        comm_.flush_all();
        if (moved == 0) {
            if (peer.coll->ended()) peer.note_lost();
            waiting_ = &peer;
            missing_ = bytes - progress_;
            return false;
        }
    }
    peer.coll->skip_pad();
    return true;
}

void Operation::complete() {
    // An operation without a sync step still shows its header, so that a peer in another operation finds out.
    if (!published_ && !comm_.local_.empty()) publish(0);
    const Shown& written = in_place_ && !shown_out_.segment ? shown_in_ : shown_out_;
    if (written.segment) written.segment->unmirror(written.begin, written.bytes);
    shown_in_.reset();
    shown_out_.reset();
    for (Peer* peer : comm_.local_) peer->input = peer->output = {};
    comm_.finished(header_.seq);
}

}  // namespace hcomm
