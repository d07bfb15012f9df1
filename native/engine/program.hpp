#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/header.hpp"
#include "kernels/kernels.hpp"

namespace hcomm {

/// Memory of a rank that a program may name.
enum class Space : std::int32_t { Input = 0, Output = 1, Scratch = 2, Window = 3 };

/// Which part of the operation's data a region covers; resolved to bytes when a program is bound to sizes.
enum class Part : std::int32_t { AllInput = 0, AllOutput = 1, Even = 2, TableIn = 3, TableOut = 4 };

enum class StepKind : std::int32_t {
    Send = 1,
    Recv = 2,
    RecvReduce = 3,
    Move = 4,
    Post = 5,
    Await = 6,
    Meet = 7,
    Finish = 8,
};

/// A region as a program names it.
struct Region {
    Space space;
    std::int32_t owner;  ///< -1: this rank
    std::int32_t slot;   ///< -1: at the part's own offset; otherwise at the start of this slot
    Part part;
    std::int32_t begin, end, parts;
};

struct Step {
    StepKind kind;
    std::int32_t stage;  ///< -1: in every iteration of a tiled block but the last
    std::int32_t peer;
    bool final;  ///< a move that holds every rank's contribution
    std::vector<Region> dst, src;
    std::vector<std::int32_t> ranks;
};

struct Block {
    std::int32_t tile_bytes, buffers, stages;
    std::vector<Step> steps;
};

/// What one rank does in one collective, before sizes are known.
struct Program {
    std::vector<Block> blocks;
    std::int32_t window_slots = 0;
    bool uses_access = false;

    /// Reads the encoding of hcomm.planning.program.
    ///
    /// Throws std::invalid_argument for anything malformed: unknown kinds, ranks outside 0..size-1, remote
    /// memory of a rank that is not in `local`, truncated or surplus words.
    static Program decode(std::span<const std::byte> bytes, int rank, int size, std::span<const int> local);
};

/// The sizes of one kind of call.
struct Sizes {
    std::uint64_t count = 0, n_in = 0, n_out = 0;      ///< elements
    std::vector<std::uint64_t> bounds_in, bounds_out;  ///< prefix sums, size+1 entries, or empty
};

/// A region whose offset and length are known. `offset` is in bytes from the start of the space or slot.
struct Operand {
    Space space;
    std::int32_t owner;
    std::int32_t slot;
    std::uint64_t offset;  ///< bytes; 0 when it lies in a slot
    std::uint64_t count;   ///< elements
};

struct BoundStep {
    StepKind kind;
    std::int32_t stage;
    std::int32_t peer;
    bool final;
    bool fused;  ///< the first post of the operation, to the whole clique: publishing the header does it
    std::vector<Operand> dst, src;
    std::vector<std::int32_t> ranks;
};

struct BoundBlock {
    std::uint64_t tile;  ///< elements of a tile; 0: not tiled
    std::uint64_t tiles;
    std::int32_t buffers, stages;
    std::uint64_t slot_bytes;     ///< distance between physical slots of the window and of scratch
    std::uint64_t scratch_slots;  ///< physical slots of scratch it uses
    bool overlap;                 ///< stages work on different tiles at a time; otherwise tile after tile
    std::vector<BoundStep> steps;

    std::uint64_t iterations() const noexcept {
        const auto depth = static_cast<std::uint64_t>(stages);
        return tile == 0 ? 1 : overlap ? tiles + depth - 1 : tiles * depth;
    }
    /// The tile that a stage works on in an iteration, if it works at all.
    std::optional<std::uint64_t> tile_of(std::uint64_t iteration, std::uint64_t stage) const noexcept {
        const auto depth = static_cast<std::uint64_t>(stages);
        if (!overlap) {
            if (iteration % depth != stage) return {};
            return iteration / depth;
        }
        if (iteration < stage || iteration - stage >= tiles) return {};
        return iteration - stage;
    }
};

/// A program bound to sizes: everything about an operation but its pointers.
struct BoundProgram {
    std::vector<BoundBlock> blocks;
    std::uint64_t scratch_bytes = 0;
    /// What one operation uses of a window at most, alike on all ranks; 0: not known, or nothing.
    std::uint64_t window_bytes = 0;
    bool uses_window = false;
    bool uses_sync = false;
    bool fused = false;  ///< its first sync step is a post to the whole clique

    /// Throws std::invalid_argument if the parts do not fit the sizes, or the window is too small.
    static BoundProgram bind(const Program& program, const Sizes& sizes, DType dtype,
                             std::span<const int> local, std::uint64_t window_bytes, std::uint64_t tile_bytes,
                             bool overlap = true);
};

/// What ranks must offer for a program that reaches into the memory of others.
struct Access {
    /// By rank: whether others reach into its input, its output. Empty: into everybody's.
    std::vector<bool> input, output;
    bool through_process = true;  ///< reaching it through its process is good enough
};

/// A plan: the bound program, one to fall back on, and the header that every call of it carries.
struct Plan {
    BoundProgram program;
    BoundProgram fallback;  ///< for when not everybody offers access
    bool has_fallback = false;
    Access access;  ///< for `program`
    OpHeader header;
    DType dtype;
    ReduceOp op;
    ReduceFn kernel = nullptr;
    std::uint64_t n_in = 0, n_out = 0;
};

/// First element of chunk `i` of `parts` even chunks of `count` elements; chunks start on cache lines.
constexpr std::uint64_t even_offset(std::uint64_t count, std::uint64_t i, std::uint64_t parts,
                                    std::uint64_t item_bytes) noexcept {
    if (i >= parts) return count;
    // count * i needs up to 40 + 32 bits: split the product instead of overflowing it.
    const std::uint64_t raw = count / parts * i + count % parts * i / parts;
    const std::uint64_t line = 64 / item_bytes;
    return raw / line * line;
}

}  // namespace hcomm
