/// Every kernel against what the machine can do: a copy, and an addition of two arrays of floats.
///
/// Destinations of hcomm::kStreamReduce bytes and more are written with streaming stores, as in operations
/// whose destinations are no sources.
///
///     bench_kernels [KiB per buffer = 25600] [repetitions = 7] [level = best | all] [name filter]
///
/// Writes one JSON object a line; `python -m benchmarks.kernels` makes tables of them. GB/s count each source
/// read once and each destination written once (1 GB = 10^9 bytes); median of the repetitions. The machine's
/// limits are measured again with every kernel, between its repetitions, so that a slow spell hits both.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/kernels.hpp"
#include "kernels/levels.hpp"

namespace {

using hcomm::DType;
using hcomm::ReduceOp;

constexpr int kBuffers = 9;

struct Shape {
    int sources, destinations;
};
constexpr Shape kShapes[] = {{2, 1}, {3, 1}, {4, 1}, {8, 1}, {2, 2}, {4, 4}};

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

    unsigned char* destination() { return buffers.back().data(); }

    /// Seconds of one `body`, repeated until the clock can measure small sizes.
    template <class F>
    double once(F&& body) const {
        using Clock = std::chrono::steady_clock;
        const std::size_t inner = std::max<std::size_t>(1, (std::size_t{4} << 20) / bytes);
        const auto start = Clock::now();
        for (std::size_t i = 0; i < inner; ++i) body();
        return std::chrono::duration<double>(Clock::now() - start).count() / double(inner);
    }

    void copy() { hcomm::copy_bytes(destination(), buffers[0].data(), bytes); }

    void add() {
        const auto* a = reinterpret_cast<const float*>(buffers[0].data());
        const auto* b = reinterpret_cast<const float*>(buffers[1].data());
        auto* sum = reinterpret_cast<float*>(destination());
        for (std::size_t i = 0; i < bytes / sizeof(float); ++i) sum[i] = a[i] + b[i];
    }

    void reduce(hcomm::ReduceFn kernel, std::size_t size, Shape shape) {
        void* dst[kBuffers];
        const void* src[kBuffers];
        for (int s = 0; s < shape.sources; ++s) src[s] = buffers[std::size_t(s)].data();
        for (int d = 0; d < shape.destinations; ++d) dst[d] = buffers[std::size_t(kBuffers - 1 - d)].data();
        kernel(dst, shape.destinations, src, shape.sources, bytes / size, unsigned(shape.sources),
               bytes >= hcomm::kStreamReduce);
    }
};

double median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
    return values[values.size() / 2];
}

double gigabytes(const Bench& bench, int buffers, double seconds) {
    return double(bench.bytes) * buffers / seconds / 1e9;
}

/// One kernel in every shape: GB/s of it, of the copy and of the addition.
void measure(Bench& bench, const char* level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
    const std::size_t size = hcomm::size_of(dtype);
    std::vector<double> copies, additions;
    std::string shapes;
    for (const Shape shape : kShapes) {
        std::vector<double> seconds;
        bench.reduce(kernel, size, shape);
        for (int r = 0; r < bench.repetitions; ++r) {
            copies.push_back(bench.once([&] { bench.copy(); }));
            seconds.push_back(bench.once([&] { bench.reduce(kernel, size, shape); }));
            additions.push_back(bench.once([&] { bench.add(); }));
        }
        char text[64];
        const double speed = gigabytes(bench, shape.sources + shape.destinations, median(seconds));
        std::snprintf(text, sizeof text, "%s\"%d>%d\": %.2f", shapes.empty() ? "" : ", ", shape.sources,
                      shape.destinations, speed);
        shapes += text;
    }
    std::printf(
        "{\"level\": \"%s\", \"dtype\": \"%s\", \"op\": \"%s\", \"copy\": %.2f, \"add\": %.2f, \"shapes\": "
        "{%s}}\n",
        level, hcomm::name_of(dtype), hcomm::name_of(op), gigabytes(bench, 2, median(copies)),
        gigabytes(bench, 3, median(additions)), shapes.c_str());
    std::fflush(stdout);
}

/// The addition with streaming stores, which bypass the cache; 0 where this build cannot. `sum` is aligned.
void add_streaming([[maybe_unused]] float* sum, [[maybe_unused]] const float* a,
                   [[maybe_unused]] const float* b, [[maybe_unused]] std::size_t count) {
#if defined(__SSE2__)
    for (std::size_t i = 0; i < count; i += 4)
        _mm_stream_ps(sum + i, _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i)));
    _mm_sfence();
#endif
}

/// What the machine can do, with ordinary and with streaming stores.
void limits(Bench& bench) {
    unsigned char* to = bench.destination();
    const std::size_t offset = (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64;
    const std::size_t count = (bench.bytes - offset) / 64 * 16;
    auto* sum = reinterpret_cast<float*>(to + offset);
    const auto* a = reinterpret_cast<const float*>(bench.buffers[0].data());
    const auto* b = reinterpret_cast<const float*>(bench.buffers[1].data());
    std::vector<double> plain, ours, streamed, added, streamed_sums;
    for (int r = 0; r <= bench.repetitions; ++r) {
        const double seconds[] = {
            bench.once([&] { std::memcpy(to, bench.buffers[0].data(), bench.bytes); }),
            bench.once([&] { bench.copy(); }),
            bench.once([&] { hcomm::copy_streaming(to, bench.buffers[0].data(), bench.bytes); }),
            bench.once([&] { bench.add(); }),
            bench.once([&] { add_streaming(sum, a, b, count); }),
        };
        if (r == 0) continue;
        plain.push_back(seconds[0]);
        ours.push_back(seconds[1]);
        streamed.push_back(seconds[2]);
        added.push_back(seconds[3]);
        streamed_sums.push_back(seconds[4]);
    }
#if defined(__SSE2__)
    const double streaming = gigabytes(bench, 3, median(streamed_sums));
#else
    const double streaming = 0;
#endif
    std::printf(
        "{\"bytes\": %zu, \"best\": \"%s\", \"memcpy\": %.2f, \"copy_bytes\": %.2f, \"copy_streaming\": "
        "%.2f, "
        "\"add\": %.2f, \"add_streaming\": %.2f}\n",
        bench.bytes, hcomm::simd_level(), gigabytes(bench, 2, median(plain)),
        gigabytes(bench, 2, median(ours)), gigabytes(bench, 2, median(streamed)),
        gigabytes(bench, 3, median(added)), streaming);
}

}  // namespace

int main(int argc, char** argv) {
    const double kibibytes = argc > 1 ? std::atof(argv[1]) : 25600.0;
    const int repetitions = argc > 2 ? std::max(1, std::atoi(argv[2])) : 7;
    const bool every_level = argc > 3 && std::string_view(argv[3]) == "all";
    const std::string filter = argc > 4 ? argv[4] : "";
    Bench bench(std::max<std::size_t>(1, static_cast<std::size_t>(kibibytes * 1024.0) / 4096) * 4096,
                repetitions);
    limits(bench);
    for (int t = 0; t < hcomm::kDTypes; ++t) {
        for (int o = 0; o < hcomm::kReduceOps; ++o) {
            const auto dtype = static_cast<DType>(t);
            const auto op = static_cast<ReduceOp>(o);
            const std::string name = std::string(hcomm::name_of(dtype)) + " " + hcomm::name_of(op);
            if (!filter.empty() && (" " + name + " ").find(" " + filter + " ") == std::string::npos) continue;
            if (!every_level) {
                const hcomm::ReduceFn kernel = hcomm::reduce_kernel(dtype, op);
                if (kernel != nullptr) measure(bench, hcomm::simd_level(), dtype, op, kernel);
                continue;
            }
            for (int l = 0; l < hcomm::kernels::kLevels; ++l) {
                const auto level = static_cast<hcomm::kernels::Level>(l);
                const hcomm::ReduceFn kernel = hcomm::kernels::reduce_kernel_at(level, dtype, op);
                if (kernel != nullptr) measure(bench, hcomm::kernels::name_of(level), dtype, op, kernel);
            }
        }
    }
    return 0;
}
