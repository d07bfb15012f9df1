/// Internal: one table of kernels per instruction set, and the choice between them. For dispatch, tests and
/// benchmark.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.hpp"

namespace hcomm::kernels {

/// Instruction sets in rising order. Baseline is what every machine of the architecture has.
enum class Level : std::uint8_t { Baseline = 0, Avx2, Avx512 };

inline constexpr int kLevels = 3;

using CopyFn = void (*)(void* dst, const void* src, std::size_t n) noexcept;
using FinishFn = void (*)(void* data, std::size_t count, unsigned divisor) noexcept;

/// The kernels of one level; nullptr where the operator is not supported or the level below has the better
/// kernel.
struct KernelTable {
    CopyFn copy_lines;  ///< past the cache: `dst` begins with a line of memory, `n` is a multiple of it
    ReduceFn reduce[kDTypes][kReduceOps];
    FinishFn finish[kDTypes];
};

/// The table of `level`, or nullptr if this build or this machine lacks it.
[[nodiscard]] const KernelTable* table_at(Level level) noexcept;

/// The table of the best level of this machine.
[[nodiscard]] const KernelTable& best_table() noexcept;

/// `reduce_kernel` of one level; nullptr if the level is missing or the operator is not supported.
[[nodiscard]] ReduceFn reduce_kernel_at(Level level, DType dtype, ReduceOp op) noexcept;

[[nodiscard]] const char* name_of(Level level) noexcept;

// One definition per kernels_*.cpp, each compiled with the flags of its level.
namespace baseline {
const KernelTable& table() noexcept;
}
namespace avx2 {
const KernelTable& table() noexcept;
}
namespace avx512 {
const KernelTable& table() noexcept;
}

}  // namespace hcomm::kernels
