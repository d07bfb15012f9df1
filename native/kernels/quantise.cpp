#include "kernels/quantise.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quantise_levels.hpp"

namespace hcomm {
namespace kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint8_t kPlusInfinity = 253, kMinusInfinity = 254, kNan = 255;
constexpr std::int32_t kHighest = 0x7F7FFFFF;  ///< the largest finite float, as ordered integer
/// A smaller step cannot be inverted, or not precisely, in float32.
constexpr float kSmallStep = 1e-30F;

/// The step that divides a range into `parts`; rounded down, so that the largest value stays finite.
float step_of(double range, int parts) noexcept {
    const auto step = static_cast<float>(range / parts);
    return static_cast<double>(step) * parts > range ? std::nextafterf(step, 0.0F) : step;
}

float value_of(std::int32_t key) noexcept { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7FFFFFFF)); }

std::uint8_t rounded(double code, int most) noexcept {
    return static_cast<std::uint8_t>(std::clamp(code + 0.5, 0.0, static_cast<double>(most)));
}

/// Infinities and NaN among the values, which get codes of their own.
Scale encode_marked(const float* values, std::size_t n, std::uint8_t* codes) noexcept {
    double lo = std::numeric_limits<double>::infinity(), hi = -lo;
    for (std::size_t i = 0; i < n; ++i) {
        if (!std::isfinite(values[i])) continue;
        lo = std::min(lo, static_cast<double>(values[i]));
        hi = std::max(hi, static_cast<double>(values[i]));
    }
    if (lo > hi) lo = hi = 0.0;
    const auto middle = static_cast<float>((lo + hi) / 2);
    const float step = step_of(hi - lo, 252);
    for (std::size_t i = 0; i < n; ++i) {
        const float value = values[i];
        if (std::isnan(value)) {
            codes[i] = kNan;
        } else if (std::isinf(value)) {
            codes[i] = value > 0 ? kPlusInfinity : kMinusInfinity;
        } else {
            const double offset = static_cast<double>(value) - static_cast<double>(middle);
            codes[i] = step > 0 ? rounded(offset / static_cast<double>(step) + 126.0, 252) : std::uint8_t{0};
        }
    }
    return {middle, -step};
}

void add_marked(Scale scale, const std::uint8_t* codes, std::size_t n, float weight, float* sum) noexcept {
    const float middle = scale.middle * weight, step = -scale.step * weight;
    for (std::size_t i = 0; i < n; ++i) {
        switch (codes[i]) {
            case kPlusInfinity:
                sum[i] += kInfinity;
                break;
            case kMinusInfinity:
                sum[i] -= kInfinity;
                break;
            case kNan:
                sum[i] = std::numeric_limits<float>::quiet_NaN();
                break;
            default:
                sum[i] += middle + (static_cast<float>(codes[i]) - 126.0F) * step;
        }
    }
}

Scale encode(const QuantiseTable& table, const float* values, std::size_t n, std::uint8_t* codes) noexcept {
    std::int32_t least = 0, most = 0;
    table.extremes(values, n, &least, &most);
    if (most > kHighest || least < -kHighest - 1) return encode_marked(values, n, codes);
    const double lo = value_of(least), hi = value_of(most);
    const Scale scale{static_cast<float>((lo + hi) / 2), step_of(hi - lo, 255)};
    if (scale.step >= kSmallStep) {
        table.encode(values, n, scale, codes);
        return scale;
    }
    const auto step = static_cast<double>(scale.step), middle = static_cast<double>(scale.middle);
    for (std::size_t i = 0; i < n; ++i) {
        codes[i] = step > 0 ? rounded((static_cast<double>(values[i]) - middle) / step + 127.5, 255)
                            : std::uint8_t{0};
    }
    return scale;
}

std::size_t chunks_of(std::size_t count) noexcept { return (count + kQuantiseChunk - 1) / kQuantiseChunk; }

/// A piece that is being written.
class Writer {
  public:
    Writer(std::byte* piece, std::size_t count) noexcept
        : scales_(piece), codes_(piece + chunks_of(count) * sizeof(Scale)) {
        const std::size_t used = chunks_of(count) * sizeof(Scale) + count;
        std::memset(piece + used, 0, quantised_bytes(count) - used);
    }
    void chunk(const QuantiseTable& table, const float* values, std::size_t at, std::size_t n) noexcept {
        const Scale scale = encode(table, values, n, reinterpret_cast<std::uint8_t*>(codes_) + at);
        std::memcpy(scales_ + at / kQuantiseChunk * sizeof scale, &scale, sizeof scale);
    }

  private:
    std::byte* scales_;
    std::byte* codes_;
};

const std::byte* element(const void* values, DType dtype, std::size_t at) noexcept {
    return static_cast<const std::byte*>(values) + at * size_of(dtype);
}

/// Values at..at+n of a sum.
void sum_chunk(const QuantiseTable& table, const QuantisedSum& sum, std::size_t at, std::size_t n,
               float* out) noexcept {
    std::fill_n(out, n, 0.0F);
    if (sum.exact != nullptr) {
        float exact[kQuantiseChunk];
        table.widen[static_cast<int>(sum.exact_type)](exact, element(sum.exact, sum.exact_type, at), n);
        table.add_values(exact, n, sum.weight, out);
    }
    for (const std::byte* piece : sum.pieces) {
        Scale scale;
        std::memcpy(&scale, piece + at / kQuantiseChunk * sizeof scale, sizeof scale);
        const auto* codes =
            reinterpret_cast<const std::uint8_t*>(piece + chunks_of(sum.count) * sizeof scale) + at;
        (std::signbit(scale.step) ? add_marked : table.add)(scale, codes, n, sum.weight, out);
    }
}

const QuantiseTable& best() noexcept {
    static const QuantiseTable* const table = [] {
        for (int level = kLevels - 1; level > 0; --level) {
            if (const auto* found = quantise_table_at(static_cast<Level>(level))) return found;
        }
        return quantise_table_at(Level::Baseline);
    }();
    return *table;
}

}  // namespace

const QuantiseTable* quantise_table_at(Level level) noexcept {
    if (table_at(level) == nullptr) return nullptr;
    switch (level) {
#if HCOMM_KERNELS_X86
        case Level::Avx512:
            return &avx512::quantise_table();
        case Level::Avx2:
            return &avx2::quantise_table();
#endif
        default:
            return &baseline::quantise_table();
    }
}

void quantise_with(const QuantiseTable& table, DType dtype, const void* values, std::size_t count,
                   std::byte* piece) noexcept {
    Writer writer(piece, count);
    float wide[kQuantiseChunk];
    for (std::size_t at = 0; at < count; at += kQuantiseChunk) {
        const std::size_t n = std::min(kQuantiseChunk, count - at);
        const std::byte* from = element(values, dtype, at);
        if (dtype != DType::F32) table.widen[static_cast<int>(dtype)](wide, from, n);
        writer.chunk(table, dtype == DType::F32 ? reinterpret_cast<const float*>(from) : wide, at, n);
    }
}

void dequantise_with(const QuantiseTable& table, const QuantisedSum& sum, DType dtype,
                     void* values) noexcept {
    float wide[kQuantiseChunk];
    for (std::size_t at = 0; at < sum.count; at += kQuantiseChunk) {
        const std::size_t n = std::min(kQuantiseChunk, sum.count - at);
        sum_chunk(table, sum, at, n, wide);
        table.narrow[static_cast<int>(dtype)](static_cast<std::byte*>(values) + at * size_of(dtype), wide, n);
    }
}

void requantise_with(const QuantiseTable& table, const QuantisedSum& sum, std::byte* piece) noexcept {
    Writer writer(piece, sum.count);
    float wide[kQuantiseChunk];
    for (std::size_t at = 0; at < sum.count; at += kQuantiseChunk) {
        const std::size_t n = std::min(kQuantiseChunk, sum.count - at);
        sum_chunk(table, sum, at, n, wide);
        writer.chunk(table, wide, at, n);
    }
}

}  // namespace kernels

bool quantisable(DType dtype) noexcept { return dtype >= DType::F16 && dtype <= DType::F64; }

void quantise(DType dtype, const void* values, std::size_t count, std::byte* piece) noexcept {
    kernels::quantise_with(kernels::best(), dtype, values, count, piece);
}

void dequantise(const QuantisedSum& sum, DType dtype, void* values) noexcept {
    kernels::dequantise_with(kernels::best(), sum, dtype, values);
}

void requantise(const QuantisedSum& sum, std::byte* piece) noexcept {
    kernels::requantise_with(kernels::best(), sum, piece);
}

}  // namespace hcomm
