/// The element types and reduction operators that every floor of hcomm agrees on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hcomm {

/// Element type of a buffer. The values are part of the program encoding and of the operation header.
enum class DType : std::uint8_t {
    Bool = 0,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    C64,
    C128
};

/// How two elements become one. The values are part of the program encoding and of the operation header.
enum class ReduceOp : std::uint8_t { Sum = 0, Avg, Prod, Min, Max, BAnd, BOr, BXor, None = 255 };

inline constexpr int kDTypes = 15;
inline constexpr int kReduceOps = 8;

/// Bytes of one element; 0 for a value that is no DType.
[[nodiscard]] std::size_t size_of(DType dtype) noexcept;

/// The public name ("float32", "sum", …); "unknown" for a value outside the enumeration.
[[nodiscard]] const char* name_of(DType dtype) noexcept;
[[nodiscard]] const char* name_of(ReduceOp op) noexcept;

/// Whether `op` is defined on `dtype`: bit operations need bool or integers, complex numbers have no order,
/// and bool has no average.
[[nodiscard]] bool supported(DType dtype, ReduceOp op) noexcept;

}  // namespace hcomm
