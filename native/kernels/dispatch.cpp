#include "kernels/kernels.hpp"
#include "kernels/levels.hpp"

#if HCOMM_KERNELS_X86
#include <cpuid.h>
#endif

namespace hcomm {
namespace kernels {
namespace {

#if HCOMM_KERNELS_X86
/// clang 14 does not know "f16c" in __builtin_cpu_supports. The operating system's consent is that of AVX.
bool has_f16c() noexcept {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool has_avx2() noexcept { return __builtin_cpu_supports("avx2") != 0 && has_f16c(); }

bool has_avx512() noexcept {
    return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}
#endif

Level detect() noexcept {
#if HCOMM_KERNELS_X86
    // The CPU model is filled in by a constructor of libgcc, which may run after a constructor that calls us.
    __builtin_cpu_init();
    if (has_avx512()) return Level::Avx512;
    if (has_avx2()) return Level::Avx2;
#endif
    return Level::Baseline;
}

Level best_level() noexcept {
    static const Level level = detect();
    return level;
}

constexpr int index(DType dtype) { return static_cast<int>(dtype); }

}  // namespace

const KernelTable* table_at(Level level) noexcept {
    if (level > best_level()) return nullptr;
    switch (level) {
#if HCOMM_KERNELS_X86
        case Level::Avx512:
            return &avx512::table();
        case Level::Avx2:
            return &avx2::table();
#endif
        default:
            return &baseline::table();
    }
}

const KernelTable& best_table() noexcept {
    static const KernelTable& table = *table_at(best_level());
    return table;
}

ReduceFn reduce_kernel_at(Level level, DType dtype, ReduceOp op) noexcept {
    if (table_at(level) == nullptr || !supported(dtype, op)) return nullptr;
    ReduceFn kernel = nullptr;
    for (int l = static_cast<int>(level); kernel == nullptr && l >= 0; --l) {
        kernel = table_at(static_cast<Level>(l))->reduce[index(dtype)][static_cast<int>(op)];
    }
    return kernel;
}

const char* name_of(Level level) noexcept {
    if (level == Level::Avx512) return "avx512";
    if (level == Level::Avx2) return "avx2";
#if HCOMM_KERNELS_X86
    return "sse2";
#elif defined(__aarch64__)
    return "neon";
#else
    return "plain";
#endif
}

}  // namespace kernels

ReduceFn reduce_kernel(DType dtype, ReduceOp op) noexcept {
    return kernels::reduce_kernel_at(kernels::best_level(), dtype, op);
}

void finish(DType dtype, void* data, std::size_t count, unsigned divisor) noexcept {
    if (divisor <= 1 || kernels::index(dtype) >= kDTypes) return;
    const auto divide = kernels::best_table().finish[kernels::index(dtype)];
    if (divide != nullptr) divide(data, count, divisor);
}

const char* simd_level() noexcept { return kernels::name_of(kernels::best_level()); }

}  // namespace hcomm
