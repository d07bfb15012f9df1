// Moves: copies and reductions between the memory of ranks of one host.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/comm.hpp"
#include "engine/operation.hpp"
#include "links/cma.hpp"

namespace hcomm {
namespace {

/// Piece of a move that goes through process_vm_readv: large enough to pay for the system call, small enough
/// for L2.
constexpr std::uint64_t kRemotePiece = 128 << 10;
/// Piece of a move with several destinations.
constexpr std::uint64_t kSharedPiece = 8 << 10;

}  // namespace

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

}  // namespace hcomm
