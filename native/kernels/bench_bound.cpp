/// What an all_reduce of two ranks can cost at least: two cores at once copy, add, and do what such an
/// all_reduce must do to memory, with nothing around it.
///
///     bench_bound [KiB per buffer = 25600] [repetitions = 21]
///
/// Each repetition both threads first rewrite a buffer of their own, as a training step would; then both are
/// timed, and the longer time counts. One JSON object: GB/s of a copy and of an addition of two buffers into
/// a third (sources read once and destinations written once; the better of ordinary and streaming stores),
/// and the seconds that it takes to add two buffers and write the sum into both, each thread its half. Memory
/// comes in huge pages where the system has them.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "kernels/kernels.hpp"

namespace {

constexpr int kThreads = 2, kBuffers = 4;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Meeting {
    std::atomic<int> arrived{0};

    /// Both threads have come `turn` times.
    void meet(int turn) {
        arrived.fetch_add(1);
        while (arrived.load() < turn * kThreads) std::this_thread::yield();
    }
};

struct Buffers {
    std::size_t bytes;
    unsigned char* data[kBuffers];

    explicit Buffers(std::size_t bytes_) : bytes(bytes_) {
        for (auto& buffer : data) {
            const std::size_t room = (bytes + kHugePage - 1) / kHugePage * kHugePage;
            buffer = static_cast<unsigned char*>(std::aligned_alloc(kHugePage, room));
            if (buffer == nullptr) throw std::bad_alloc();
            ::madvise(buffer, room, MADV_HUGEPAGE);
            std::memset(buffer, 1, room);
        }
    }
    ~Buffers() {
        for (auto* buffer : data) std::free(buffer);
    }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;

    /// The half of a thread.
    unsigned char* half(int buffer, int thread) const {
        return data[buffer] + std::size_t(thread) * (bytes / kThreads);
    }
};

double median(std::vector<double>& values) {
    std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
    return values[values.size() / 2];
}

/// Median of the seconds that the slower of two threads needs for `body(thread)`.
double seconds(const Buffers& buffers, int repetitions, const std::function<void(int)>& body) {
    Meeting meeting;
    std::vector<double> times[kThreads];
    const auto run = [&](int thread) {
        for (int r = 0, turn = 0; r <= repetitions; ++r) {
            auto* own = reinterpret_cast<float*>(buffers.data[thread]);
            std::fill_n(own, buffers.bytes / sizeof(float), float(r % 7 + thread));
            meeting.meet(++turn);
            const auto start = std::chrono::steady_clock::now();
            body(thread);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            meeting.meet(++turn);
            if (r > 0) times[thread].push_back(took.count());
        }
    };
    std::thread second(run, 1);
    run(0);
    second.join();
    std::vector<double> longer;
    for (std::size_t r = 0; r < times[0].size(); ++r) longer.push_back(std::max(times[0][r], times[1][r]));
    return median(longer);
}

}  // namespace

int main(int argc, char** argv) {
    const double kibibytes = argc > 1 ? std::atof(argv[1]) : 25600.0;
    const int repetitions = argc > 2 ? std::max(1, std::atoi(argv[2])) : 21;
    const Buffers buffers(std::max<std::size_t>(1, static_cast<std::size_t>(kibibytes / 8.0)) * 8192);
    const std::size_t half = buffers.bytes / kThreads, count = half / sizeof(float);
    const auto sum = hcomm::reduce_kernel(hcomm::DType::F32, hcomm::ReduceOp::Sum);
    const auto add = [&](int thread, bool stream) {
        const void* src[] = {buffers.half(0, thread), buffers.half(1, thread)};
        void* dst[] = {buffers.half(2, thread)};
        sum(dst, 1, src, 2, count, 1, stream);
    };
    const double copied = std::min(
        seconds(buffers, repetitions,
                [&](int t) { std::memcpy(buffers.half(2, t), buffers.half(1 - t, t), half); }),
        seconds(buffers, repetitions,
                [&](int t) { hcomm::copy_streaming(buffers.half(2, t), buffers.half(1 - t, t), half); }));
    const double added = std::min(seconds(buffers, repetitions, [&](int t) { add(t, false); }),
                                  seconds(buffers, repetitions, [&](int t) { add(t, true); }));
    const double in_place = seconds(buffers, repetitions, [&](int t) {
        const void* src[] = {buffers.half(0, t), buffers.half(1, t)};
        void* dst[] = {buffers.half(0, t), buffers.half(1, t)};
        sum(dst, 2, src, 2, count, 1, false);
    });
    const double n = double(buffers.bytes);
    std::printf("{\"bytes\": %zu, \"copy\": %.2f, \"add\": %.2f, \"in_place\": %.9f}\n", buffers.bytes,
                2 * n / copied / 1e9, 3 * n / added / 1e9, in_place);
    return 0;
}
