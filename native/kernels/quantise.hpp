/// 8-bit quantisation of float vectors: what is exchanged instead of the floats when gradients are
/// compressed.
///
/// A *piece* stands for a vector of n values, cut into chunks of kQuantiseChunk. It holds, one after the
/// other, the scale of every chunk (two float32: middle and step) and one code (a byte) for every value. A
/// value is middle + (code - 127.5) * step, where step = (max - min) / 255 of the chunk, so that no value is
/// off by more than half a step. A chunk of equal values has step 0, and they are exact.
///
/// A chunk that holds infinities or NaN is marked by the sign of its step. Its finite values use the codes 0
/// to 252, as middle + (code - 126) * |step|; 253 is +inf, 254 is -inf, 255 is NaN. So none of them ever
/// becomes a finite number, and none spoils its neighbours.
///
/// The bits do not depend on the SIMD level.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/types.hpp"

namespace hcomm {

inline constexpr std::size_t kQuantiseChunk = 512;

/// Bytes of the piece of `count` values; a multiple of 16, the last of which may be unused and are zero.
[[nodiscard]] constexpr std::size_t quantised_bytes(std::size_t count) noexcept {
    const std::size_t chunks = (count + kQuantiseChunk - 1) / kQuantiseChunk;
    return (chunks * 2 * sizeof(float) + count + 15) / 16 * 16;
}

/// Whether vectors of this type can be quantised: float16, bfloat16, float32, float64. They are rounded to
/// float32 first.
[[nodiscard]] bool quantisable(DType dtype) noexcept;

/// Writes the piece of `count` values to `piece`, in quantised_bytes(count).
void quantise(DType dtype, const void* values, std::size_t count, std::byte* piece) noexcept;

/// The weighted sum, in float32, of what pieces stand for.
struct QuantisedSum {
    std::span<const std::byte* const> pieces;  ///< each of `count` values
    const void* exact = nullptr;               ///< values that were not quantised, or null
    DType exact_type = DType::F32;
    float weight = 1.0F;  ///< of every piece, and of `exact`
    std::size_t count = 0;
};

/// The sum, rounded to `dtype`. `values` may be `sum.exact`.
void dequantise(const QuantisedSum& sum, DType dtype, void* values) noexcept;

/// The piece of the sum. `piece` overlaps none of the summands.
void requantise(const QuantisedSum& sum, std::byte* piece) noexcept;

}  // namespace hcomm
