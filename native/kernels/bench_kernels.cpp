/// Every kernel against what the machine can do: a copy, and a plain float addition.
///
///     bench_kernels [MiB per buffer = 25] [repetitions = 7] [name filter]
///
/// GB/s count each source read once and each destination written once (1 GB = 10^9 bytes); median of the
/// repetitions.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "kernels/levels.hpp"

namespace {

using hcomm::DType;
using hcomm::ReduceOp;

constexpr int kBuffers = 8;

struct Bench {
    std::size_t bytes;
    int repetitions;
    std::vector<std::vector<unsigned char>> buffers;

    Bench(std::size_t bytes_, int repetitions_) : bytes(bytes_), repetitions(repetitions_) {
        // Bytes 0…63: ordinary small numbers in every type, so that no denormal slows a kernel down.
        for (int b = 0; b < kBuffers; ++b) {
            buffers.emplace_back(bytes);
            for (std::size_t i = 0; i < bytes; ++i)
                buffers.back()[i] = static_cast<unsigned char>((i * 7 + 3) % 64);
        }
    }

    /// GB/s of `body`, which moves `moved` bytes; repeated until the clock can measure small sizes.
    template <class F>
    double measure(std::size_t moved, F&& body) const {
        using Clock = std::chrono::steady_clock;
        const std::size_t inner = std::max<std::size_t>(1, (std::size_t{4} << 20) / bytes);
        std::vector<double> seconds;
        body();
        for (int r = 0; r < repetitions; ++r) {
            const auto start = Clock::now();
            for (std::size_t i = 0; i < inner; ++i) body();
            seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / double(inner));
        }
        std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2, seconds.end());
        return double(moved) / seconds[std::size_t(repetitions / 2)] / 1e9;
    }

    double reduce(hcomm::ReduceFn kernel, std::size_t size, int nsrc, int ndst, unsigned divisor) {
        void* dst[kBuffers];
        const void* src[kBuffers];
        for (int s = 0; s < nsrc; ++s) src[s] = buffers[std::size_t(s)].data();
        for (int d = 0; d < ndst; ++d) dst[d] = buffers[std::size_t(kBuffers - 1 - d)].data();
        return measure(bytes * std::size_t(nsrc + ndst),
                       [&] { kernel(dst, ndst, src, nsrc, bytes / size, divisor); });
    }
};

void machine_limits(Bench& bench) {
    unsigned char* dst = bench.buffers[kBuffers - 1].data();
    const unsigned char* src = bench.buffers[0].data();
    const double plain = bench.measure(2 * bench.bytes, [&] { std::memcpy(dst, src, bench.bytes); });
    const double copy = bench.measure(2 * bench.bytes, [&] { hcomm::copy_bytes(dst, src, bench.bytes); });
    const auto* a = reinterpret_cast<const float*>(src);
    const auto* b = reinterpret_cast<const float*>(bench.buffers[1].data());
    auto* sum = reinterpret_cast<float*>(dst);
    const double add = bench.measure(3 * bench.bytes, [&] {
        for (std::size_t i = 0; i < bench.bytes / sizeof(float); ++i) sum[i] = a[i] + b[i];
    });
    std::printf("memcpy %.1f GB/s, copy_bytes %.1f GB/s, float addition loop %.1f GB/s\n\n", plain, copy,
                add);
}

}  // namespace

int main(int argc, char** argv) {
    const double mebibytes = argc > 1 ? std::atof(argv[1]) : 25.0;
    const int repetitions = argc > 2 ? std::max(1, std::atoi(argv[2])) : 7;
    const std::string filter = argc > 3 ? argv[3] : "";
    Bench bench(static_cast<std::size_t>(mebibytes * 1048576.0) / 64 * 64, repetitions);
    std::printf("%zu bytes per buffer, best level %s\n", bench.bytes, hcomm::simd_level());
    machine_limits(bench);
    std::printf("%-8s %-18s %8s %8s %8s %8s   GB/s, sources->destinations\n", "level", "kernel", "2->1",
                "2->2", "4->1", "4->4");
    for (int t = 0; t < hcomm::kDTypes; ++t) {
        for (int o = 0; o < hcomm::kReduceOps; ++o) {
            const auto dtype = static_cast<DType>(t);
            const auto op = static_cast<ReduceOp>(o);
            const std::string name = std::string(hcomm::name_of(dtype)) + " " + hcomm::name_of(op);
            if (name.find(filter) == std::string::npos) continue;
            for (int l = 0; l < hcomm::kernels::kLevels; ++l) {
                const auto level = static_cast<hcomm::kernels::Level>(l);
                const hcomm::ReduceFn kernel = hcomm::kernels::reduce_kernel_at(level, dtype, op);
                if (kernel == nullptr) continue;
                const std::size_t size = hcomm::size_of(dtype);
                std::printf("%-8s %-18s %8.1f %8.1f %8.1f %8.1f\n", hcomm::kernels::name_of(level),
                            name.c_str(), bench.reduce(kernel, size, 2, 1, 2),
                            bench.reduce(kernel, size, 2, 2, 2), bench.reduce(kernel, size, 4, 1, 4),
                            bench.reduce(kernel, size, 4, 4, 4));
            }
        }
    }
    return 0;
}
