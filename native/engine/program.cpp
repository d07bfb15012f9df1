#include "engine/program.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace hcomm {
namespace {

constexpr std::int32_t kMagic = 0x48434D50;
constexpr std::int32_t kVersion = 1;
constexpr std::int32_t kMaxSlots = 1 << 16;

[[noreturn]] void malformed(const std::string& what) {
    throw std::invalid_argument("malformed program: " + what);
}

/// Takes words off the front of an encoded program, refusing to run past its end.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {
        if (bytes.size() % 4) malformed("not a whole number of words");
    }
    std::int32_t word() {
        if (bytes_.size() < 4) malformed("truncated");
        std::int32_t value;
        std::memcpy(&value, bytes_.data(), 4);
        bytes_ = bytes_.subspan(4);
        return value;
    }
    std::int32_t word(std::int32_t low, std::int32_t high, const char* name) {
        const std::int32_t value = word();
        if (value < low || value > high)
            malformed(std::string(name) + " is " + std::to_string(value) + ", expected " +
                      std::to_string(low) + ".." + std::to_string(high));
        return value;
    }
    /// A count of things of which each takes at least `words` words of what is left.
    std::int32_t count(std::int32_t words, const char* name) {
        const std::int32_t value = word(0, 1 << 24, name);
        if (static_cast<std::size_t>(value) * static_cast<std::size_t>(words) * 4 > bytes_.size())
            malformed(std::string(name) + " runs past the end");
        return value;
    }
    bool empty() const noexcept { return bytes_.empty(); }

  private:
    std::span<const std::byte> bytes_;
};

struct Context {
    int rank, size;
    std::span<const int> local;
    bool is_local(int r) const { return std::find(local.begin(), local.end(), r) != local.end(); }
};

Region read_region(Reader& in, const Context& context) {
    Region region;
    region.space = static_cast<Space>(in.word(0, 3, "space"));
    region.owner = in.word(-1, context.size - 1, "owner");
    region.slot = in.word(-1, kMaxSlots, "slot");
    region.part = static_cast<Part>(in.word(0, 4, "part"));
    region.begin = in.word(0, 1 << 24, "begin");
    region.end = in.word(0, 1 << 24, "end");
    region.parts = in.word(0, 1 << 24, "parts");
    if (region.owner == context.rank) region.owner = -1;
    if (region.owner >= 0 && !context.is_local(region.owner))
        malformed("memory of rank " + std::to_string(region.owner) + ", which is not on this host");
    if (region.owner >= 0 && region.space == Space::Scratch) malformed("scratch of another rank");
    const bool slotted = region.space == Space::Scratch || region.space == Space::Window;
    if (slotted != (region.slot >= 0))
        malformed("scratch and windows have slots, input and output have none");
    if (region.part == Part::Even &&
        (region.parts < 1 || region.end > region.parts || region.begin > region.end))
        malformed("a chunk outside its even parts");
    if (region.begin > region.end) malformed("a region that ends before it begins");
    return region;
}

void check_step(const Step& step, const Context& context) {
    const auto own = [](const Region& r) { return r.owner < 0; };
    switch (step.kind) {
        case StepKind::Send:
        case StepKind::Recv:
        case StepKind::RecvReduce: {
            if (step.peer < 0 || step.peer == context.rank) malformed("a message to or from nobody");
            const bool sends = step.kind == StepKind::Send;
            const auto& regions = sends ? step.src : step.dst;
            if (regions.size() != 1 || !(sends ? step.dst : step.src).empty() || !own(regions[0]))
                malformed("a message takes one region of this rank");
            break;
        }
        case StepKind::Move:
            if (step.dst.empty() || step.src.empty()) malformed("a move needs a source and a destination");
            break;
        case StepKind::Finish:
            if (step.dst.size() != 1 || !own(step.dst[0])) malformed("finish takes one region of this rank");
            break;
        case StepKind::Post:
        case StepKind::Await:
        case StepKind::Meet:
            for (int r : step.ranks)
                if (r != context.rank && !context.is_local(r))
                    malformed("rank " + std::to_string(r) + " does not share memory with this one");
            break;
    }
}

Step read_step(Reader& in, const Context& context, std::int32_t stages) {
    Step step;
    step.kind = static_cast<StepKind>(in.word(1, 8, "kind"));
    step.stage = in.word(-1, stages - 1, "stage");
    step.peer = in.word(-1, context.size - 1, "peer");
    step.final = in.word(0, 1, "flags") != 0;
    const auto ndst = in.count(7, "destinations");
    const auto nsrc = in.count(7, "sources");
    const auto nranks = in.count(1, "ranks");
    for (int i = 0; i < ndst; ++i) step.dst.push_back(read_region(in, context));
    for (int i = 0; i < nsrc; ++i) step.src.push_back(read_region(in, context));
    for (int i = 0; i < nranks; ++i) {
        const int r = in.word(0, context.size - 1, "rank");
        if (r != context.rank) step.ranks.push_back(r);
    }
    const bool sync =
        step.kind == StepKind::Post || step.kind == StepKind::Await || step.kind == StepKind::Meet;
    if (step.stage < 0 && !sync) malformed("only post, await and meet may belong to no stage");
    check_step(step, context);
    return step;
}

/// Turns regions into offsets and lengths.
class Binder {
  public:
    Binder(const Sizes& sizes, std::uint64_t item) : sizes_(sizes), item_(item) {}

    Operand bind(const Region& region) const {
        const auto [first, last] = extent(region);
        const std::uint64_t limit = region.space == Space::Input ? sizes_.n_in : sizes_.n_out;
        const bool own_data = region.slot < 0 && region.owner < 0;
        if (own_data && last > limit)
            throw std::invalid_argument("a region of the program lies outside its buffer");
        return {region.space, region.owner, region.slot, region.slot >= 0 ? 0 : first * item_, last - first};
    }

    /// The vector in whole cache lines; 0 if ranks do not agree on its length.
    std::uint64_t vector_bytes() const noexcept { return (sizes_.count * item_ + 63) / 64 * 64; }

    /// The length of this kind of region on the rank where it is longest: all ranks must find the same.
    std::uint64_t longest(const Region& region) const {
        const auto widest = [](const std::vector<std::uint64_t>& bounds) {
            std::uint64_t most = 0;
            for (std::size_t i = 1; i < bounds.size(); ++i) most = std::max(most, bounds[i] - bounds[i - 1]);
            return most;
        };
        switch (region.part) {
            case Part::AllInput:
                return sizes_.bounds_out.empty() ? sizes_.n_in
                                                 : std::max(sizes_.n_in, widest(sizes_.bounds_out));
            case Part::AllOutput:
                return sizes_.bounds_in.empty() ? sizes_.n_out
                                                : std::max(sizes_.n_out, widest(sizes_.bounds_in));
            case Part::TableIn:
            case Part::TableOut: {
                const auto [first, last] = extent(region);
                const auto& bounds = region.part == Part::TableIn ? sizes_.bounds_in : sizes_.bounds_out;
                return region.end - region.begin == 1 ? widest(bounds) : last - first;
            }
            case Part::Even:
                break;
        }
        const std::uint64_t width = static_cast<std::uint64_t>(region.end - region.begin);
        const std::uint64_t parts = static_cast<std::uint64_t>(region.parts);
        std::uint64_t most = 0;
        for (std::uint64_t i = 0; i + width <= parts; ++i)
            most = std::max(most, even_offset(sizes_.count, i + width, parts, item_) -
                                      even_offset(sizes_.count, i, parts, item_));
        return most;
    }

  private:
    struct Extent {
        std::uint64_t first, last;
    };
    Extent extent(const Region& region) const {
        const auto begin = static_cast<std::uint64_t>(region.begin),
                   end = static_cast<std::uint64_t>(region.end);
        const auto parts = static_cast<std::uint64_t>(region.parts);
        switch (region.part) {
            case Part::AllInput:
                return {0, sizes_.n_in};
            case Part::AllOutput:
                return {0, sizes_.n_out};
            case Part::Even:
                return {even_offset(sizes_.count, begin, parts, item_),
                        even_offset(sizes_.count, end, parts, item_)};
            case Part::TableIn:
                return table(sizes_.bounds_in, begin, end);
            case Part::TableOut:
                return table(sizes_.bounds_out, begin, end);
        }
        return {0, 0};
    }
    static Extent table(const std::vector<std::uint64_t>& bounds, std::uint64_t begin, std::uint64_t end) {
        if (end >= bounds.size()) throw std::invalid_argument("the program names a block that has no size");
        return {bounds[begin], bounds[end]};
    }

    const Sizes& sizes_;
    std::uint64_t item_;
};

BoundStep bind_step(const Step& step, const Binder& binder) {
    BoundStep bound{step.kind, step.stage, step.peer, step.final, false, {}, {}, step.ranks};
    for (const Region& r : step.dst) bound.dst.push_back(binder.bind(r));
    for (const Region& r : step.src) bound.src.push_back(binder.bind(r));
    const auto& all = bound.dst.empty() ? bound.src : bound.dst;
    for (const auto* side : {&bound.dst, &bound.src})
        for (const Operand& o : *side)
            if (o.count != all[0].count)
                throw std::invalid_argument("a move between regions of different lengths");
    return bound;
}

/// The step among post, await and meet that runs first, or null: a later stage has no tile before its
/// iteration.
const Step* first_sync(const Block& block) {
    const Step* first = nullptr;
    for (const Step& step : block.steps) {
        if (step.kind != StepKind::Post && step.kind != StepKind::Await && step.kind != StepKind::Meet)
            continue;
        if (!first || std::max(step.stage, 0) < std::max(first->stage, 0)) first = &step;
    }
    return first;
}

std::int32_t highest_slot(const Block& block, Space space) {
    std::int32_t highest = -1;
    for (const Step& step : block.steps)
        for (const auto* side : {&step.dst, &step.src})
            for (const Region& r : *side)
                if (r.space == space) highest = std::max(highest, r.slot);
    return highest;
}

/// The tile size, the same on every rank: as asked for, or as the window allows.
void size_block(const Block& block, const Program& program, const Binder& binder, std::uint64_t item,
                std::uint64_t window_bytes, std::uint64_t tile_bytes, BoundBlock& bound) {
    std::uint64_t longest = 0;
    for (const Step& step : block.steps)
        for (const auto* side : {&step.dst, &step.src})
            for (const Region& r : *side) longest = std::max(longest, binder.longest(r));
    const auto round_up = [](std::uint64_t n) { return (n + 63) / 64 * 64; };
    const bool windowed = program.window_slots > 0;
    const auto slots = static_cast<std::uint64_t>(std::max(program.window_slots, 1)) *
                       static_cast<std::uint64_t>(block.tile_bytes ? block.buffers : 1);
    if (block.tile_bytes == 0) {
        bound.slot_bytes = round_up(longest * item);
        if (windowed && bound.slot_bytes * slots > window_bytes)
            throw std::invalid_argument(
                "the window is too small for this algorithm: " + std::to_string(bound.slot_bytes * slots) +
                " bytes needed, " + std::to_string(window_bytes) + " there (HCOMM_BUFFER_SIZE)");
        return;
    }
    std::uint64_t bytes = tile_bytes ? tile_bytes : static_cast<std::uint64_t>(block.tile_bytes);
    if (windowed) bytes = std::min(bytes, window_bytes / slots);
    bytes = std::max<std::uint64_t>(bytes / 64 * 64, 64);
    if (windowed && bytes * slots > window_bytes)
        throw std::invalid_argument("the window is too small for this many ranks (HCOMM_BUFFER_SIZE)");
    bound.tile = bytes / item;
    bound.tiles = (longest + bound.tile - 1) / bound.tile;
    bound.slot_bytes = bytes;
    const std::uint64_t vector = binder.vector_bytes();
    if (vector == 0) return;
    // Short vectors leave the rest of the window to the operations after this one. All ranks must find the
    // same places, whatever their own programs name, so only the length of the vector counts.
    bound.slot_bytes = std::min(bytes, vector);
    const std::uint64_t tiles = (vector + bytes - 1) / bytes;
    bound.buffers = static_cast<std::int32_t>(
        std::clamp<std::uint64_t>(tiles, 1, static_cast<std::uint64_t>(block.buffers)));
}

/// A bound of what one operation uses of a window, by what all ranks agree on: tiles of a slot have at most
/// the length of two vectors, since all but the last are full.
std::uint64_t window_bound(const Program& program, const BoundProgram& bound, std::uint64_t vector) {
    for (const BoundBlock& block : bound.blocks)
        if (vector > 0 && !block.tile && block.slot_bytes > vector)
            throw std::invalid_argument("a program with a region that is longer than the vector");
    return static_cast<std::uint64_t>(program.window_slots) * 2 * vector;
}

/// What one untiled block leaves in a slot, a later one finds there: they all have one stride.
void share_stride(BoundProgram& program) {
    std::uint64_t stride = 0;
    for (const BoundBlock& block : program.blocks)
        if (!block.tile) stride = std::max(stride, block.slot_bytes);
    for (BoundBlock& block : program.blocks) {
        if (!block.tile) block.slot_bytes = stride;
        program.scratch_bytes = std::max(program.scratch_bytes, block.scratch_slots * block.slot_bytes);
    }
}

}  // namespace

Program Program::decode(std::span<const std::byte> bytes, int rank, int size, std::span<const int> local) {
    Reader in(bytes);
    const Context context{rank, size, local};
    if (in.word() != kMagic || in.word() != kVersion) malformed("wrong magic or version");
    Program program;
    const auto nblocks = in.count(4, "blocks");
    program.window_slots = in.word(0, kMaxSlots, "window slots");
    program.uses_access = in.word(0, 1, "access") != 0;
    for (int b = 0; b < nblocks; ++b) {
        Block block;
        block.tile_bytes = in.word(0, 1 << 30, "tile bytes");
        block.buffers = in.word(1, 64, "buffers");
        block.stages = in.word(1, 64, "stages");
        const auto nsteps = in.count(7, "steps");
        for (int s = 0; s < nsteps; ++s) block.steps.push_back(read_step(in, context, block.stages));
        if (highest_slot(block, Space::Window) >= program.window_slots)
            malformed("more window slots than declared");
        program.blocks.push_back(std::move(block));
    }
    if (!in.empty()) malformed("surplus words");
    return program;
}

BoundProgram BoundProgram::bind(const Program& program, const Sizes& sizes, DType dtype,
                                std::span<const int> local, std::uint64_t window_bytes,
                                std::uint64_t tile_bytes, bool overlap) {
    const std::uint64_t item = size_of(dtype);
    const Binder binder(sizes, item);
    BoundProgram bound;
    for (const Block& block : program.blocks) {
        BoundBlock out{0, 0, block.buffers, block.stages, 0, 0, overlap, {}};
        size_block(block, program, binder, item, window_bytes, tile_bytes, out);
        out.scratch_slots = static_cast<std::uint64_t>(highest_slot(block, Space::Scratch) + 1) *
                            static_cast<std::uint64_t>(out.tile ? block.buffers : 1);
        bound.uses_window |= highest_slot(block, Space::Window) >= 0;
        const Step* first = bound.uses_sync ? nullptr : first_sync(block);
        for (const Step& step : block.steps) {
            BoundStep s = bind_step(step, binder);
            if (&step == first) {
                const bool posts = s.kind == StepKind::Post || s.kind == StepKind::Meet;
                bound.uses_sync = true;
                bound.fused = s.fused = posts && s.ranks.size() + 1 == local.size();
            }
            out.steps.push_back(std::move(s));
        }
        bound.blocks.push_back(std::move(out));
    }
    share_stride(bound);
    bound.window_bytes = window_bound(program, bound, binder.vector_bytes());
    return bound;
}

}  // namespace hcomm
