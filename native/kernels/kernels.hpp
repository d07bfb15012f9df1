/// Reduction and copy kernels: the only code of hcomm that looks at payload elements.
///
/// Rules that hold for every kernel and every SIMD level (the bits do not depend on the level):
/// - sources combine in the listed order;
/// - float16 and bfloat16 accumulate all sources in float32 and round once, to nearest even; NaN stays NaN;
/// - integers wrap; their average divides the wrapped sum, truncating toward zero;
/// - min and max of floats give NaN if any source is NaN (the rule of torch.minimum and torch.maximum);
/// - bool reads any nonzero byte as true and writes only 0 and 1.
#pragma once

#include <cstddef>

#include "kernels/types.hpp"

namespace hcomm {

/// Writes `count` elements dst[d][i] = round(finish(src[0][i] op src[1][i] op …)) to each of the `ndst` >= 1
/// destinations, from `nsrc` >= 1 sources. Pointers are aligned to the parts of an element. A destination may
/// be exactly one of the sources; it never overlaps one partly. `divisor` counts for ReduceOp::Avg only:
/// above 1 the wide result is divided by it before it is rounded.
using ReduceFn = void (*)(void* const* dst, int ndst, const void* const* src, int nsrc, std::size_t count,
                          unsigned divisor) noexcept;

/// The best kernel for this machine; nullptr where `supported(dtype, op)` is false.
[[nodiscard]] ReduceFn reduce_kernel(DType dtype, ReduceOp op) noexcept;

/// Divides `count` elements in place by `divisor` (0 and 1 change nothing): integers truncate toward zero,
/// floats divide in their own type, 16-bit floats in float32 with one rounding, complex numbers part by part.
void finish(DType dtype, void* data, std::size_t count, unsigned divisor) noexcept;

/// memcpy; copies too large to stay in cache bypass it. The stores are ordered before later stores of this
/// thread. `whole`: bytes of all that this is a piece of.
void copy_bytes(void* dst, const void* src, std::size_t n, std::size_t whole = 0) noexcept;

/// The same, past the cache whatever the size, where `can_stream`: for memory that another core reads next.
/// Which of the two is faster there depends on where the cores lie; see links/shm/copier.hpp.
void copy_streaming(void* dst, const void* src, std::size_t n) noexcept;
[[nodiscard]] bool can_stream() noexcept;

/// The instruction set the kernels use on this machine: "avx512", "avx2", "sse2", "neon" or "plain".
[[nodiscard]] const char* simd_level() noexcept;

}  // namespace hcomm
