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
/// above 1 the wide result is divided by it before it is rounded. `stream`: the destinations are written past
/// the cache where that is possible, in order before later stores of this thread.
using ReduceFn = void (*)(void* const* dst, int ndst, const void* const* src, int nsrc, std::size_t count,
                          unsigned divisor, bool stream) noexcept;

/// The best kernel for this machine; nullptr where `supported(dtype, op)` is false.
[[nodiscard]] ReduceFn reduce_kernel(DType dtype, ReduceOp op) noexcept;

/// Divides `count` elements in place by `divisor` (0 and 1 change nothing): integers truncate toward zero,
/// floats divide in their own type, 16-bit floats in float32 with one rounding, complex numbers part by part.
void finish(DType dtype, void* data, std::size_t count, unsigned divisor) noexcept;

/// From these sizes of a destination on, stores that bypass the cache pay: an ordinary store first reads the
/// line that it is about to overwrite. Not where the destination has just been read (a sum in place): its
/// lines are in the cache then. Measured on EPYC 9004 (32 MiB L3), one core, GB/s, ordinary against
/// streaming. Copies of what that core has just written: 4 MiB 40 : 28, 8 MiB 17 : 20, 25 MiB 8.5 : 15.6, 100
/// MiB 7.7 : 14.5, and the reader that comes afterwards is no slower from 8 MiB on. Sums of two vectors that
/// two cores have written, into a third: 2 MiB 32 : 31, 4 MiB 15 : 24, 8 MiB 17 : 20, 50 MiB 14 : 19.
inline constexpr std::size_t kStreamCopy = std::size_t{8} << 20;
inline constexpr std::size_t kStreamReduce = std::size_t{4} << 20;

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
