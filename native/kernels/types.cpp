#include "kernels/types.hpp"

namespace hcomm {
namespace {

struct TypeInfo {
    std::size_t size;
    const char* name;
};

constexpr TypeInfo kTypes[kDTypes] = {
    {1, "bool"},     {1, "int8"},    {2, "int16"},   {4, "int32"},     {8, "int64"},
    {1, "uint8"},    {2, "uint16"},  {4, "uint32"},  {8, "uint64"},    {2, "float16"},
    {2, "bfloat16"}, {4, "float32"}, {8, "float64"}, {8, "complex64"}, {16, "complex128"},
};

constexpr const char* kOps[kReduceOps] = {"sum", "avg", "prod", "min", "max", "band", "bor", "bxor"};

constexpr int index(DType dtype) { return static_cast<int>(dtype); }
constexpr int index(ReduceOp op) { return static_cast<int>(op); }

}  // namespace

std::size_t size_of(DType dtype) noexcept { return index(dtype) < kDTypes ? kTypes[index(dtype)].size : 0; }

const char* name_of(DType dtype) noexcept {
    return index(dtype) < kDTypes ? kTypes[index(dtype)].name : "unknown";
}

const char* name_of(ReduceOp op) noexcept {
    if (op == ReduceOp::None) return "none";
    return index(op) < kReduceOps ? kOps[index(op)] : "unknown";
}

bool supported(DType dtype, ReduceOp op) noexcept {
    if (index(dtype) >= kDTypes || index(op) >= kReduceOps) return false;
    if (dtype == DType::Bool) return op != ReduceOp::Avg;
    if (dtype <= DType::U64) return true;
    const bool complex = dtype == DType::C64 || dtype == DType::C128;
    return op <= (complex ? ReduceOp::Prod : ReduceOp::Max);
}

}  // namespace hcomm
