/// Internal: the quantisation kernels of one instruction set. For dispatch and tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/levels.hpp"
#include "kernels/quantise.hpp"

namespace hcomm::kernels {

/// How the codes of a chunk become values; see quantise.hpp.
struct Scale {
    float middle;
    float step;
};

/// Each works on one chunk of at most kQuantiseChunk values.
struct QuantiseTable {
    void (*widen[kDTypes])(float* out, const void* in, std::size_t n) noexcept;
    void (*narrow[kDTypes])(void* out, const float* in, std::size_t n) noexcept;
    /// The codes of finite values in lo..hi, whose step is not too small to be inverted.
    void (*encode)(const float* in, std::size_t n, Scale scale, std::uint8_t* codes) noexcept;
    /// Smallest and largest value as ordered integers; see `ordered`.
    void (*extremes)(const float* in, std::size_t n, std::int32_t* lo, std::int32_t* hi) noexcept;
    /// sum[i] += weight * value of codes[i], for chunks that are not marked.
    void (*add)(Scale scale, const std::uint8_t* codes, std::size_t n, float weight, float* sum) noexcept;
    /// sum[i] += weight * in[i].
    void (*add_values)(const float* in, std::size_t n, float weight, float* sum) noexcept;
};

/// The table of `level`, or nullptr if this build or this machine lacks it.
[[nodiscard]] const QuantiseTable* quantise_table_at(Level level) noexcept;

namespace baseline {
const QuantiseTable& quantise_table() noexcept;
}
namespace avx2 {
const QuantiseTable& quantise_table() noexcept;
}
namespace avx512 {
const QuantiseTable& quantise_table() noexcept;
}

// `quantise` and its kin with the kernels of one level.
void quantise_with(const QuantiseTable& table, DType dtype, const void* values, std::size_t count,
                   std::byte* piece) noexcept;
void dequantise_with(const QuantiseTable& table, const QuantisedSum& sum, DType dtype, void* values) noexcept;
void requantise_with(const QuantiseTable& table, const QuantisedSum& sum, std::byte* piece) noexcept;

}  // namespace hcomm::kernels
