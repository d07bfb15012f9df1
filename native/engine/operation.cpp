#include "engine/operation.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/comm.hpp"
#include "links/cma.hpp"

namespace hcomm {
namespace {

/// Piece of a move that goes through process_vm_readv: large enough to pay for the system call, small enough
/// for L2.
constexpr std::uint64_t kRemotePiece = 128 << 10;
/// Piece of a move with several destinations.
constexpr std::uint64_t kSharedPiece = 8 << 10;
/// A post counter holds the operation above this bit and the posts in it below: it only ever grows.
constexpr unsigned kSeqShift = 20;
/// How far operations wander through their half of the window: the two halves are twice the size of a usual
/// second-level cache.
constexpr std::uint64_t kWander = 1 << 20;

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
    const std::uint64_t turns = bytes ? std::min(comm_.layout_.operation_bytes, kWander) / bytes : 0;
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

void Operation::run_move(const BoundBlock& block, const BoundStep& step, std::uint64_t tile) {
    constexpr std::size_t kInline = 16;
    void* dst_inline[kInline];
    const void* src_inline[kInline];
    std::vector<void*> dst_many;
    std::vector<const void*> src_many;
    void** dst = dst_inline;
    const void** src = src_inline;
    if (step.dst.size() > kInline) dst_many.resize(step.dst.size()), dst = dst_many.data();
    if (step.src.size() > kInline) src_many.resize(step.src.size()), src = src_many.data();

    std::uint64_t count = 0;
    bool remote = false;
    for (std::size_t i = 0; i < step.dst.size(); ++i) {
        const Place p = place(block, step.dst[i], tile);
        dst[i] = p.here;
        count = p.count;
        remote |= p.owner != nullptr;
    }
    for (std::size_t i = 0; i < step.src.size(); ++i) {
        const Place p = place(block, step.src[i], tile);
        src[i] = p.here;
        remote |= p.owner != nullptr;
    }
    if (count == 0) return;
    if (remote) return move_remote(block, step, tile, count);
    const unsigned divisor =
        step.final && plan_->op == ReduceOp::Avg ? static_cast<unsigned>(comm_.size()) : 1;
    const std::uint64_t bytes = count * item_;
    const auto copy_to = [&](std::size_t i, const void* from, std::uint64_t at, std::uint64_t n) {
        void* to = static_cast<std::byte*>(dst[i]) + at;
        if (to == from) return;
        if (step.dst[i].space == Space::Window) return comm_.copier_.copy(to, from, n);
        if (writes_past_cache(step.dst[i], kStreamCopy)) return copy_streaming(to, from, n);
        copy_bytes(to, from, n, bytes);
    };
    const bool copies = step.src.size() == 1 && divisor == 1;
    const auto ndst = static_cast<int>(step.dst.size()), nsrc = static_cast<int>(step.src.size());
    if (copies && ndst == 1) return copy_to(0, src[0], 0, bytes);
    const bool windowed = std::any_of(step.dst.begin(), step.dst.end(),
                                      [](const Operand& o) { return o.space == Space::Window; });
    if (!copies && (!windowed || ndst == 1)) {
        plan_->kernel(dst, ndst, src, nsrc, count, divisor, writes_past_cache(step.dst[0], kStreamReduce));
        return;
    }
    // Piece by piece, so that what goes to several destinations, each with stores of its own kind, is read
    // from the first-level cache, but for the first time.
    const std::uint64_t piece = kSharedPiece / item_;
    for (std::uint64_t first = 0; first < count; first += piece) {
        const std::uint64_t n = std::min(piece, count - first), at = first * item_;
        const void* result = src[0];
        if (!copies) {
            void* into = static_cast<std::byte*>(dst[0]) + at;
            plan_->kernel(&into, 1, src, nsrc, n, divisor, false);
            result = into;
        }
        for (std::size_t i = copies ? 0 : 1; i < step.dst.size(); ++i) copy_to(i, result, at, n * item_);
        for (std::size_t i = 0; i < step.src.size(); ++i)
            src[i] = static_cast<const std::byte*>(src[i]) + n * item_;
    }
}

/// Whether what a step writes, all its tiles together, is too large to stay in the cache, and nothing in this
/// operation reads it before: what has been read is in the cache, where an ordinary store finds it.
bool Operation::writes_past_cache(const Operand& dst, std::size_t least) const noexcept {
    return dst.space == Space::Output && (plan_->op == ReduceOp::None || !in_place_) &&
           dst.count * item_ >= least;
}

/// A move of which some operand lies in the private memory of another process, piece by piece.
void Operation::move_remote(const BoundBlock& block, const BoundStep& step, std::uint64_t tile,
                            std::uint64_t count) {
    std::vector<Place> to, from;
    for (const Operand& o : step.dst) to.push_back(place(block, o, tile));
    for (const Operand& o : step.src) from.push_back(place(block, o, tile));
    const std::uint64_t piece = kRemotePiece / item_;
    std::vector<std::byte> buffer((from.size() + 1) * kRemotePiece);
    const auto check = [&](bool ok, const Peer& peer) {
        if (ok) return;
        const std::string who = "rank " + std::to_string(peer.rank);
        if (errno == ESRCH)
            comm_.raise({Status::PeerLost, header_.seq, {peer.rank}, who + " died: its process is gone"});
        comm_.raise({Status::System,
                     header_.seq,
                     {peer.rank},
                     "the memory of " + who +
                         " cannot be reached (process_vm_readv/writev): " + std::strerror(errno)});
    };
    const unsigned divisor =
        step.final && plan_->op == ReduceOp::Avg ? static_cast<unsigned>(comm_.size()) : 1;
    for (std::uint64_t first = 0; first < count; first += piece) {
        const std::uint64_t n = std::min(piece, count - first), offset = first * item_, bytes = n * item_;
        std::vector<const void*> src;
        for (std::size_t i = 0; i < from.size(); ++i) {
            if (from[i].here) {
                src.push_back(from[i].here + offset);
                continue;
            }
            std::byte* copy = buffer.data() + (i + 1) * kRemotePiece;
            check(cma_read(from[i].owner->pid, from[i].address + offset, copy, bytes), *from[i].owner);
            src.push_back(copy);
        }
        std::vector<void*> dst;
        for (const Place& p : to)
            if (p.here) dst.push_back(p.here + offset);
        if (dst.empty()) dst.push_back(buffer.data());
        if (src.size() == 1 && divisor == 1) {
            for (void* d : dst)
                if (d != src[0]) copy_bytes(d, src[0], bytes);
        } else {
            plan_->kernel(dst.data(), static_cast<int>(dst.size()), src.data(), static_cast<int>(src.size()),
                          n, divisor, false);
        }
        for (const Place& p : to)
            if (!p.here) check(cma_write(p.owner->pid, p.address + offset, dst[0], bytes), *p.owner);
    }
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
