/// What the kernels must give, one element at a time, written independently of them: integers in 128 bits,
/// floats in double with one rounding per operation, 16-bit floats from the definition of their fields.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/types.hpp"

namespace reference {

using hcomm::DType;
using hcomm::ReduceOp;
using Bytes = std::vector<unsigned char>;

template <class T>
T read(const unsigned char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

template <class T>
void write(unsigned char* at, T value) {
    std::memcpy(at, &value, sizeof value);
}

/// The value of a 16-bit float with `fraction` fraction bits (float16: 10, bfloat16: 7).
inline double decode16(std::uint16_t bits, int fraction) {
    const int exponent_bits = 15 - fraction;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> fraction) & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << fraction) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - fraction);
    return sign * std::ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
}

/// The nearest 16-bit float, ties to the even one.
inline std::uint16_t encode16(double value, int fraction) {
    const int exponent_bits = 15 - fraction;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int infinity = ((1 << exponent_bits) - 1) << fraction;
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | (1 << (fraction - 1)));
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
    int exponent = 1 - bias;
    if (size >= std::ldexp(1.0, exponent)) exponent = std::ilogb(size);
    const double units = std::nearbyint(std::ldexp(size, fraction - exponent));
    // Units from 2^fraction up carry the implied bit into the exponent field, and a rounded-up one further.
    const double bits = units + std::ldexp(double(exponent + bias - 1), fraction);
    return static_cast<std::uint16_t>(sign | (bits >= infinity ? infinity : static_cast<int>(bits)));
}

inline int fraction_of(DType dtype) { return dtype == DType::F16 ? 10 : 7; }

/// One operation on floating point numbers, exact up to the rounding of F.
template <class F>
F combine_float(ReduceOp op, F a, F b) {
    if (op == ReduceOp::Prod) return static_cast<F>(double(a) * double(b));
    if (op == ReduceOp::Sum || op == ReduceOp::Avg) return static_cast<F>(double(a) + double(b));
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<F>::quiet_NaN();
    if (op == ReduceOp::Min) return b < a ? b : a;
    return b > a ? b : a;
}

template <class T>
T combine_integer(ReduceOp op, T a, T b) {
    using Wide = unsigned __int128;
    switch (op) {
        case ReduceOp::Prod:
            return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
        case ReduceOp::Min:
            return b < a ? b : a;
        case ReduceOp::Max:
            return b > a ? b : a;
        case ReduceOp::BAnd:
            return static_cast<T>(static_cast<Wide>(a) & static_cast<Wide>(b));
        case ReduceOp::BOr:
            return static_cast<T>(static_cast<Wide>(a) | static_cast<Wide>(b));
        case ReduceOp::BXor:
            return static_cast<T>(static_cast<Wide>(a) ^ static_cast<Wide>(b));
        default:
            return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
    }
}

using Sources = std::vector<const unsigned char*>;

template <class T>
void integer_element(ReduceOp op, unsigned divisor, const Sources& src, std::size_t i, unsigned char* out) {
    T acc = read<T>(src[0] + i * sizeof(T));
    for (std::size_t s = 1; s < src.size(); ++s)
        acc = combine_integer<T>(op, acc, read<T>(src[s] + i * sizeof(T)));
    if (op == ReduceOp::Avg && divisor > 1) acc = static_cast<T>(static_cast<__int128>(acc) / divisor);
    write<T>(out + i * sizeof(T), acc);
}

template <class F>
void float_element(ReduceOp op, unsigned divisor, const Sources& src, std::size_t i, unsigned char* out) {
    F acc = read<F>(src[0] + i * sizeof(F));
    for (std::size_t s = 1; s < src.size(); ++s)
        acc = combine_float<F>(op, acc, read<F>(src[s] + i * sizeof(F)));
    if (op == ReduceOp::Avg && divisor > 1) acc = static_cast<F>(double(acc) / double(divisor));
    write<F>(out + i * sizeof(F), acc);
}

template <class F>
void complex_product(const Sources& src, std::size_t i, unsigned char* out) {
    const std::size_t at = 2 * i * sizeof(F);
    F re = read<F>(src[0] + at), im = read<F>(src[0] + at + sizeof(F));
    for (std::size_t s = 1; s < src.size(); ++s) {
        const F re2 = read<F>(src[s] + at), im2 = read<F>(src[s] + at + sizeof(F));
        const volatile F rr = re * re2, ii = im * im2, ri = re * im2, ir = im * re2;
        re = rr - ii;
        im = ri + ir;
    }
    write<F>(out + at, re);
    write<F>(out + at + sizeof(F), im);
}

inline void short_float_element(DType dtype, ReduceOp op, unsigned divisor, const Sources& src, std::size_t i,
                                unsigned char* out) {
    const int fraction = fraction_of(dtype);
    const auto value = [&](std::size_t s) {
        return static_cast<float>(decode16(read<std::uint16_t>(src[s] + 2 * i), fraction));
    };
    float acc = value(0);
    for (std::size_t s = 1; s < src.size(); ++s) acc = combine_float<float>(op, acc, value(s));
    if (op == ReduceOp::Avg && divisor > 1) acc = static_cast<float>(double(acc) / double(divisor));
    write<std::uint16_t>(out + 2 * i, encode16(acc, fraction));
}

inline void bool_element(ReduceOp op, const Sources& src, std::size_t i, unsigned char* out) {
    int trues = 0;
    for (const unsigned char* s : src) trues += s[i] != 0 ? 1 : 0;
    const bool all = trues == int(src.size());
    const bool conjunction = op == ReduceOp::Prod || op == ReduceOp::Min || op == ReduceOp::BAnd;
    out[i] = op == ReduceOp::BXor ? trues % 2 == 1 : conjunction ? all : trues > 0;
}

/// The expected destination bytes.
inline Bytes reduce(DType dtype, ReduceOp op, const Sources& src, std::size_t count, unsigned divisor) {
    Bytes out(count * hcomm::size_of(dtype));
    const bool complex = dtype == DType::C64 || dtype == DType::C128;
    const bool by_parts = complex && op != ReduceOp::Prod;
    for (std::size_t i = 0; i < (by_parts ? 2 * count : count); ++i) {
        unsigned char* o = out.data();
        switch (dtype) {
            case DType::Bool:
                bool_element(op, src, i, o);
                break;
            case DType::I8:
                integer_element<std::int8_t>(op, divisor, src, i, o);
                break;
            case DType::I16:
                integer_element<std::int16_t>(op, divisor, src, i, o);
                break;
            case DType::I32:
                integer_element<std::int32_t>(op, divisor, src, i, o);
                break;
            case DType::I64:
                integer_element<std::int64_t>(op, divisor, src, i, o);
                break;
            case DType::U8:
                integer_element<std::uint8_t>(op, divisor, src, i, o);
                break;
            case DType::U16:
                integer_element<std::uint16_t>(op, divisor, src, i, o);
                break;
            case DType::U32:
                integer_element<std::uint32_t>(op, divisor, src, i, o);
                break;
            case DType::U64:
                integer_element<std::uint64_t>(op, divisor, src, i, o);
                break;
            case DType::F16:
            case DType::BF16:
                short_float_element(dtype, op, divisor, src, i, o);
                break;
            case DType::F32:
                float_element<float>(op, divisor, src, i, o);
                break;
            case DType::F64:
                float_element<double>(op, divisor, src, i, o);
                break;
            case DType::C64:
                by_parts ? float_element<float>(op, divisor, src, i, o) : complex_product<float>(src, i, o);
                break;
            case DType::C128:
                by_parts ? float_element<double>(op, divisor, src, i, o) : complex_product<double>(src, i, o);
                break;
        }
    }
    return out;
}

/// Equal bits, except that any NaN equals any other (which of two NaNs an addition keeps is not defined).
inline bool same(DType dtype, const unsigned char* a, const unsigned char* b, std::size_t count) {
    const auto floats = [&](auto zero, std::size_t n) {
        using F = decltype(zero);
        for (std::size_t i = 0; i < n; ++i) {
            const F x = read<F>(a + i * sizeof(F)), y = read<F>(b + i * sizeof(F));
            if (std::memcmp(&x, &y, sizeof x) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
        }
        return true;
    };
    if (dtype == DType::F32 || dtype == DType::C64)
        return floats(0.0f, dtype == DType::C64 ? 2 * count : count);
    if (dtype == DType::F64 || dtype == DType::C128)
        return floats(0.0, dtype == DType::C128 ? 2 * count : count);
    if (dtype == DType::F16 || dtype == DType::BF16) {
        const int infinity = dtype == DType::F16 ? 0x7C00 : 0x7F80;
        for (std::size_t i = 0; i < count; ++i) {
            const int x = read<std::uint16_t>(a + 2 * i), y = read<std::uint16_t>(b + 2 * i);
            if (x != y && !((x & 0x7FFF) > infinity && (y & 0x7FFF) > infinity)) return false;
        }
        return true;
    }
    return count == 0 || std::memcmp(a, b, count * hcomm::size_of(dtype)) == 0;
}

/// `count` ordinary elements: floats in (-4, 4), integers of all bits, bools of several nonzero bytes.
inline void fill(DType dtype, unsigned char* out, std::size_t count, std::mt19937& random) {
    const bool complex = dtype == DType::C64 || dtype == DType::C128;
    const std::size_t parts = complex ? 2 * count : count;
    const auto real = [&] { return (double(random() % 2000001) - 1000000.0) / 250000.0; };
    for (std::size_t i = 0; i < parts; ++i) {
        if (dtype == DType::F32 || dtype == DType::C64) {
            write<float>(out + 4 * i, static_cast<float>(real()));
        } else if (dtype == DType::F64 || dtype == DType::C128) {
            write<double>(out + 8 * i, real());
        } else if (dtype == DType::F16 || dtype == DType::BF16) {
            write<std::uint16_t>(out + 2 * i, encode16(real(), fraction_of(dtype)));
        } else if (dtype == DType::Bool) {
            out[i] = static_cast<unsigned char>("\0\1\2\377\0\1"[random() % 6]);
        } else {
            for (std::size_t b = 0; b < hcomm::size_of(dtype); ++b) {
                out[i * hcomm::size_of(dtype) + b] = static_cast<unsigned char>(random());
            }
        }
    }
}

}  // namespace reference
