/// The reduce kernels against tests/reference.hpp and against values worked out by hand, at every SIMD level
/// this machine has. All levels are compared with the same expected bits, so they agree with each other.

#include <algorithm>
#include <cstring>

#include "check.hpp"
#include "kernel_cases.hpp"
#include "kernels/kernels.hpp"
#include "kernels/levels.hpp"
#include "reference.hpp"

using namespace kernel_cases;

TEST(names_and_sizes) {
    CHECK_EQ(hcomm::size_of(DType::Bool), 1);
    CHECK_EQ(hcomm::size_of(DType::BF16), 2);
    CHECK_EQ(hcomm::size_of(DType::F32), 4);
    CHECK_EQ(hcomm::size_of(DType::C64), 8);
    CHECK_EQ(hcomm::size_of(DType::C128), 16);
    CHECK_EQ(hcomm::size_of(static_cast<DType>(99)), 0);
    CHECK_EQ(hcomm::name_of(DType::BF16), "bfloat16");
    CHECK_EQ(hcomm::name_of(DType::U64), "uint64");
    CHECK_EQ(hcomm::name_of(static_cast<DType>(15)), "unknown");
    CHECK_EQ(hcomm::name_of(ReduceOp::BXor), "bxor");
    CHECK_EQ(hcomm::name_of(ReduceOp::None), "none");
    CHECK_EQ(hcomm::name_of(static_cast<ReduceOp>(8)), "unknown");
}

TEST(supported_operators) {
    // Operators in the order of their codes: sum avg prod min max band bor bxor.
    const char* const table[] = {"10111111", "11111111", "11111111", "11111111",
                                 "11111111",                                      // bool, int8 … int64
                                 "11111111", "11111111", "11111111", "11111111",  // uint8 … uint64
                                 "11111000", "11111000", "11111000", "11111000",  // floats
                                 "11100000", "11100000"};                         // complex
    for (int t = 0; t < hcomm::kDTypes; ++t) {
        for (int o = 0; o < hcomm::kReduceOps; ++o) {
            const auto dtype = static_cast<DType>(t);
            const auto op = static_cast<ReduceOp>(o);
            CHECK_EQ(hcomm::supported(dtype, op), table[t][o] == '1');
            for (const Level level : levels()) {
                CHECK_EQ(hcomm::kernels::reduce_kernel_at(level, dtype, op) != nullptr, table[t][o] == '1');
            }
        }
    }
    CHECK(hcomm::reduce_kernel(DType::F32, ReduceOp::None) == nullptr);
    CHECK(hcomm::reduce_kernel(static_cast<DType>(15), ReduceOp::Sum) == nullptr);
    CHECK(hcomm::reduce_kernel(DType::F32, ReduceOp::Sum) != nullptr);
    CHECK_EQ(hcomm::simd_level(), hcomm::kernels::name_of(levels().back()));
}

TEST(every_type_and_operator) {
    const int shapes[][2] = {
        {1, 1}, {1, 3}, {2, 1}, {2, 2}, {2, 3}, {3, 1}, {3, 2}, {3, 3}, {4, 1},
        {4, 2}, {4, 3}, {4, 4}, {5, 1}, {5, 3}, {6, 1}, {7, 2}, {8, 1}, {8, 8}};  // sources, destinations
    for_each_kernel([&](Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
        for (const std::size_t count : {0, 1, 7, 8, 63, 1000}) {
            for (const auto& shape : shapes) run_case(level, dtype, op, kernel, count, shape[0], shape[1], 0);
        }
    });
}

TEST(several_blocks) {
    for_each_kernel([&](Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
        run_case(level, dtype, op, kernel, 9001, 3, 2, 0);
    });
}

TEST(past_the_cache) {
    // Heads and tails around the lines that are written whole, at every level; pointers that leave none.
    for_each_kernel([&](Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
        for (const std::size_t count : {0, 1, 15, 63, 64, 700}) {
            for (const std::size_t shift : {0, 1, 3}) {
                run_case(level, dtype, op, kernel, count, 2, 1, shift, false, true);
                run_case(level, dtype, op, kernel, count, 5, 3, shift, false, true);
            }
        }
        run_case(level, dtype, op, kernel, 700, 4, 4, 1, true, true);
    });
}

TEST(past_the_cache_where_destinations_lie_differently) {
    constexpr std::size_t kCount = 300;
    const std::vector<std::int16_t> ones(kCount, 1), twos(kCount, 2);
    for (const Level level : levels()) {
        std::vector<std::int16_t> first(kCount + 1), second(kCount + 1);
        const void* src[] = {ones.data(), twos.data(), ones.data()};
        void* dst[] = {first.data(), second.data() + 1};
        hcomm::kernels::reduce_kernel_at(level, DType::I16, ReduceOp::Sum)(dst, 2, src, 3, kCount, 1, true);
        CHECK_EQ(std::count(first.begin(), first.end() - 1, 4), std::ptrdiff_t(kCount));
        CHECK_EQ(std::count(second.begin() + 1, second.end(), 4), std::ptrdiff_t(kCount));
        CHECK(first.back() == 0 && second.front() == 0);
    }
}

TEST(element_aligned_pointers) {
    for_each_kernel([&](Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
        for (const std::size_t shift : {1, 3}) {
            run_case(level, dtype, op, kernel, 133, 2, 1, shift);
            run_case(level, dtype, op, kernel, 133, 2, 2, shift);
            run_case(level, dtype, op, kernel, 133, 4, 2, shift);
            run_case(level, dtype, op, kernel, 133, 7, 1, shift);
        }
    });
}

TEST(destinations_that_are_sources) {
    for_each_kernel([&](Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
        for (const std::size_t count : {63, 9001}) {
            run_case(level, dtype, op, kernel, count, 1, 1, 0, true);
            run_case(level, dtype, op, kernel, count, 2, 1, 0, true);
            run_case(level, dtype, op, kernel, count, 2, 2, 0, true);
            run_case(level, dtype, op, kernel, count, 4, 4, 0, true);
            run_case(level, dtype, op, kernel, count, 8, 8, 0, true);
        }
    });
}

TEST(integers_wrap) {
    run_hand_cases<std::int8_t>(DType::I8, {{ReduceOp::Sum, {127, 1}, -128},
                                            {ReduceOp::Prod, {16, 17}, 16},
                                            {ReduceOp::Avg, {-7, 0}, -3},
                                            {ReduceOp::Avg, {127, 2}, -63}});
    run_hand_cases<std::uint16_t>(DType::U16,
                                  {{ReduceOp::Prod, {65535, 65535}, 1}, {ReduceOp::Avg, {7, 0}, 3}});
    run_hand_cases<std::int32_t>(DType::I32, {{ReduceOp::Sum, {INT32_MAX, 1}, INT32_MIN},
                                              {ReduceOp::Avg, {INT32_MIN, 0}, INT32_MIN / 2},
                                              {ReduceOp::Min, {-1, 1}, -1},
                                              {ReduceOp::Avg, {-1, -1, 0}, 0}});
    run_hand_cases<std::uint32_t>(
        DType::U32, {{ReduceOp::Min, {0xFFFFFFFFu, 1}, 1}, {ReduceOp::Avg, {0xFFFFFFFFu, 0}, 0x7FFFFFFFu}});
    run_hand_cases<std::int64_t>(DType::I64, {{ReduceOp::Sum, {INT64_MIN, -1}, INT64_MAX},
                                              {ReduceOp::Avg, {INT64_MIN, 0}, INT64_MIN / 2}});
}

TEST(bool_is_zero_or_one) {
    run_hand_cases<std::uint8_t>(DType::Bool, {{ReduceOp::Sum, {2, 1}, 1},
                                               {ReduceOp::Prod, {2, 1}, 1},
                                               {ReduceOp::Prod, {255, 0}, 0},
                                               {ReduceOp::BXor, {2, 1}, 0},
                                               {ReduceOp::BXor, {2, 1, 4}, 1},
                                               {ReduceOp::Max, {7}, 1}});
}

TEST(nan_propagates_through_min_and_max) {
    const auto run = [](DType dtype, auto nan, auto one) {
        using T = decltype(nan);
        constexpr std::size_t kCount = 39;  // a vector body and a tail at every level
        for (const Level level : levels()) {
            for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max}) {
                for (int nsrc = 1; nsrc <= 4; ++nsrc) {
                    for (int holder = 0; holder < nsrc; ++holder) {
                        for (std::size_t at = 0; at < kCount; ++at) {
                            std::vector<std::vector<T>> src(std::size_t(nsrc), std::vector<T>(kCount, one));
                            src[std::size_t(holder)][at] = nan;
                            std::vector<const void*> sources;
                            for (const auto& s : src) sources.push_back(s.data());
                            std::vector<T> result(kCount), expected(kCount, one);
                            expected[at] = nan;
                            void* dst[] = {result.data()};
                            hcomm::kernels::reduce_kernel_at(level, dtype, op)(dst, 1, sources.data(), nsrc,
                                                                               kCount, 1, false);
                            CHECK(reference::same(
                                dtype, reinterpret_cast<const unsigned char*>(result.data()),
                                reinterpret_cast<const unsigned char*>(expected.data()), kCount));
                        }
                    }
                }
            }
        }
    };
    run(DType::F32, std::numeric_limits<float>::quiet_NaN(), 1.0f);
    run(DType::F64, std::numeric_limits<double>::quiet_NaN(), 1.0);
    run(DType::F16, std::uint16_t{0x7E00}, std::uint16_t{0x3C00});
    run(DType::BF16, std::uint16_t{0xFFC1}, std::uint16_t{0x3F80});
}

TEST(bfloat16_rounds_once) {
    // 0x4380 = 256, 0x4381 = 258, 0x4382 = 260, 0x3F80 = 1, 0x7F7F = the largest number, 0x0001 = the
    // smallest.
    run_hand_cases<std::uint16_t>(
        DType::BF16,
        {{ReduceOp::Sum, {0x4380, 0x3F80, 0x3F80, 0x3F80}, 0x4382},  // 259 lies between: to even, 260
         {ReduceOp::Sum, {0x4380, 0x3F80}, 0x4380},                  // 257: to even, 256
         {ReduceOp::Sum, {0x4380, 0x3F80, 0x3F80}, 0x4381},          // 258
         {ReduceOp::Avg, {0x4380, 0x3F80, 0x3F80, 0x3F80}, 0x4282},  // 259 / 4 = 64.75: to even, 65
         {ReduceOp::Sum, {0x7F7F, 0x7F7F}, 0x7F80},                  // infinity
         {ReduceOp::Sum, {0x0001, 0x0001}, 0x0002},                  // denormals
         {ReduceOp::Sum, {0xFF80, 0x3F80}, 0xFF80}});                // -infinity + 1
}

TEST(float16_rounds_once) {
    // 0x6800 = 2048, 0x6801 = 2050, 0x3C00 = 1, 0x3800 = 0.5, 0x7BFF = 65504 the largest, 0x0001 = 2^-24 the
    // smallest.
    run_hand_cases<std::uint16_t>(
        DType::F16, {{ReduceOp::Sum, {0x6800, 0x3C00}, 0x6800},          // 2049: to even, 2048
                     {ReduceOp::Sum, {0x6800, 0x3C00, 0x3C00}, 0x6801},  // 2050
                     {ReduceOp::Sum, {0x6801, 0x3C00}, 0x6802},          // 2051: to even, 2052
                     {ReduceOp::Sum, {0x7BFF, 0x4C00}, 0x7C00},          // 65504 + 16 = 65520: infinity
                     {ReduceOp::Sum, {0x7BFF, 0x4BFF}, 0x7BFF},          // 65504 + 15.99: 65504
                     {ReduceOp::Avg, {0x7BFF, 0x7BFF}, 0x7BFF},          // the sum does not overflow
                     {ReduceOp::Sum, {0x0001, 0x0001}, 0x0002},          // denormals
                     {ReduceOp::Prod, {0x0001, 0x3800}, 0x0000},         // half a unit: to even, 0
                     {ReduceOp::Prod, {0x0003, 0x3800}, 0x0002},         // one unit and a half: to even, 2
                     {ReduceOp::Sum, {0x03FF, 0x0001}, 0x0400},    // the largest denormal + 1 unit: normal
                     {ReduceOp::Sum, {0x8000, 0x8000}, 0x8000}});  // -0
}

TEST(all_short_floats_survive) {
    std::vector<std::uint16_t> all(65536), minus_zero(65536, 0x8000), result(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const Level level : levels()) {
        for (const DType dtype : {DType::F16, DType::BF16}) {
            const void* src[] = {all.data(),
                                 minus_zero.data()};  // x + -0 is x for every x, +0 and -0 included
            void* dst[] = {result.data()};
            hcomm::kernels::reduce_kernel_at(level, dtype, ReduceOp::Sum)(dst, 1, src, 2, all.size(), 1,
                                                                          false);
            CHECK(reference::same(dtype, reinterpret_cast<const unsigned char*>(result.data()),
                                  reinterpret_cast<const unsigned char*>(all.data()), all.size()));
            // A NaN keeps its sign and the upper part of its payload, and is quiet.
            const int infinity = dtype == DType::F16 ? 0x7C00 : 0x7F80;
            const int quiet = dtype == DType::F16 ? 0x0200 : 0x0040;
            for (int i = 0; i < 65536; ++i) {
                if ((i & 0x7FFF) > infinity) CHECK_EQ(result[std::size_t(i)], i | quiet);
            }
        }
    }
}

TEST(all_short_floats_times_factors) {
    std::vector<std::uint16_t> all(65536), factor(65536), result(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    for (const DType dtype : {DType::F16, DType::BF16}) {
        for (const double value : {0.5, 0.75, 1.0009765625, 3.0, 0.0078125, 60000.0, -1e-4}) {
            std::fill(factor.begin(), factor.end(),
                      reference::encode16(value, reference::fraction_of(dtype)));
            const void* src[] = {all.data(), factor.data()};
            const reference::Sources same_src = {reinterpret_cast<const unsigned char*>(all.data()),
                                                 reinterpret_cast<const unsigned char*>(factor.data())};
            const Bytes expected = reference::reduce(dtype, ReduceOp::Prod, same_src, all.size(), 1);
            for (const Level level : levels()) {
                void* dst[] = {result.data()};
                hcomm::kernels::reduce_kernel_at(level, dtype, ReduceOp::Prod)(dst, 1, src, 2, all.size(), 1,
                                                                               false);
                CHECK(reference::same(dtype, reinterpret_cast<const unsigned char*>(result.data()),
                                      expected.data(), all.size()));
            }
        }
    }
}

TEST(levels_agree_on_any_bits) {
    constexpr std::size_t kBytes = 16 * 4099;
    std::mt19937 random(7);
    std::vector<Bytes> memory(3, Bytes(kBytes));
    for (Bytes& buffer : memory) {
        for (unsigned char& byte : buffer) byte = static_cast<unsigned char>(random());
    }
    const void* src[] = {memory[0].data(), memory[1].data(), memory[2].data()};
    for_each_kernel([&](Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel) {
        const std::size_t count = kBytes / hcomm::size_of(dtype);
        for (const int nsrc : {2, 3}) {
            Bytes result(kBytes), expected(kBytes);
            void* dst[] = {result.data()};
            void* base_dst[] = {expected.data()};
            kernel(dst, 1, src, nsrc, count, 3, false);
            hcomm::kernels::reduce_kernel_at(Level::Baseline, dtype, op)(base_dst, 1, src, nsrc, count, 3,
                                                                         false);
            if (!reference::same(dtype, result.data(), expected.data(), count)) {
                check::fail(__FILE__, __LINE__, label(level, dtype, op) + " differs from the baseline");
            }
        }
    });
}

TEST(thousands_of_sources) {
    constexpr int kSources = 3000;
    const std::vector<std::int32_t> ones(100, 1);
    const std::vector<std::uint16_t> bf16_ones(100, 0x3F80);
    std::vector<std::int32_t> sum(100);
    std::vector<std::uint16_t> average(100);
    const std::vector<const void*> src(kSources, ones.data()), bf16_src(kSources, bf16_ones.data());
    void* dst[] = {sum.data()};
    void* bf16_dst[] = {average.data()};
    hcomm::reduce_kernel(DType::I32, ReduceOp::Sum)(dst, 1, src.data(), kSources, 100, 1, false);
    hcomm::reduce_kernel(DType::BF16, ReduceOp::Avg)(bf16_dst, 1, bf16_src.data(), kSources, 100, kSources,
                                                     false);
    CHECK(sum == std::vector<std::int32_t>(100, kSources));
    CHECK(average == bf16_ones);  // 3000 counted in float32; in bfloat16 the sum would stick at 256
}

TEST(finish_divides) {
    check_finish<std::int8_t>(DType::I8, -7, 2, -3);
    check_finish<std::int8_t>(DType::I8, -128, 200, 0);
    check_finish<std::int8_t>(DType::I8, 100, 3, 33);
    check_finish<std::int32_t>(DType::I32, INT32_MIN, 4294967295u, 0);
    check_finish<std::int32_t>(DType::I32, INT32_MAX, 2147483647u, 1);
    check_finish<std::uint32_t>(DType::U32, 4294967295u, 3, 1431655765u);
    check_finish<std::uint32_t>(DType::U32, 4294967294u, 4294967295u, 0);
    check_finish<std::int64_t>(DType::I64, INT64_MIN, 3, INT64_MIN / 3);
    check_finish<std::uint64_t>(DType::U64, UINT64_MAX, 5, UINT64_MAX / 5);
    check_finish<float>(DType::F32, 1.0f, 3, 1.0f / 3.0f);
    check_finish<double>(DType::F64, -1.0, 3, -1.0 / 3.0);
    check_finish<std::uint16_t>(DType::F16, 0x3C00, 3, 0x3555);   // 1/3 = 0x3555 rounded down
    check_finish<std::uint16_t>(DType::BF16, 0x3F80, 3, 0x3EAB);  // 1/3 = 0x3EAA.AA rounded up
}

TEST(finish_of_the_library) {
    float complex64[] = {6.0f, -9.0f, 3.0f, 1.5f};
    hcomm::finish(DType::C64, complex64, 2, 3);
    CHECK_EQ(complex64[0], 2.0f);
    CHECK_EQ(complex64[1], -3.0f);
    CHECK_EQ(complex64[3], 0.5f);
    double complex128[] = {6.0, -9.0};
    hcomm::finish(DType::C128, complex128, 1, 3);
    CHECK_EQ(complex128[1], -3.0);
    std::int32_t number = -9;
    hcomm::finish(DType::I32, &number, 1, 0);
    hcomm::finish(DType::I32, &number, 1, 1);
    hcomm::finish(DType::I32, &number, 0, 2);
    CHECK_EQ(number, -9);
    unsigned char truth = 2;
    hcomm::finish(DType::Bool, &truth, 1, 2);
    hcomm::finish(static_cast<DType>(15), &truth, 1, 2);
    CHECK_EQ(truth, 2);
}

TEST(only_an_average_divides) {
    const float a[] = {6.0f}, b[] = {2.0f};
    float result[1];
    const void* src[] = {a, b};
    void* dst[] = {result};
    hcomm::reduce_kernel(DType::F32, ReduceOp::Sum)(dst, 1, src, 2, 1, 2, false);
    CHECK_EQ(result[0], 8.0f);
    hcomm::reduce_kernel(DType::F32, ReduceOp::Avg)(dst, 1, src, 2, 1, 2, false);
    CHECK_EQ(result[0], 4.0f);
    hcomm::reduce_kernel(DType::F32, ReduceOp::Avg)(dst, 1, src, 2, 1, 1, false);
    CHECK_EQ(result[0], 8.0f);
}

TEST(copy_of_lines) {
    for (const Level level : levels()) {
        for (const std::size_t lines : {0, 1, 3, 4, 5, 9}) {
            const std::size_t size = lines * 64;
            Bytes from(size + 1), to(size + 256, 0xA5);
            for (std::size_t i = 0; i < size; ++i)
                from[i + 1] = static_cast<unsigned char>(i * 31 + (i >> 8));
            unsigned char* line =
                to.data() + 64 + (64 - reinterpret_cast<std::uintptr_t>(to.data()) % 64) % 64;
            hcomm::kernels::table_at(level)->copy_lines(line, from.data() + 1, size);
            CHECK(size == 0 || std::memcmp(line, from.data() + 1, size) == 0);
            CHECK_EQ(std::count(line - 64, line, 0xA5) + std::count(line + size, line + size + 64, 0xA5),
                     128);
        }
    }
}

TEST(copy_of_any_size) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{70001},
                                   (std::size_t{9} << 20) + 77, std::size_t{40} << 20}) {
        for (const std::size_t shift : {0, 1, 63}) {
            Bytes from(size + 64), to(size + 128, 0xA5);
            for (std::size_t i = 0; i < size; ++i) from[i] = static_cast<unsigned char>(i * 31 + (i >> 8));
            hcomm::copy_bytes(to.data() + shift, from.data(), size);
            CHECK(size == 0 || std::memcmp(to.data() + shift, from.data(), size) == 0);
            CHECK_EQ(std::count(to.begin() + std::ptrdiff_t(shift + size), to.end(), 0xA5), 128 - shift);
            CHECK_EQ(std::count(to.begin(), to.begin() + std::ptrdiff_t(shift), 0xA5), shift);
            std::fill(to.begin(), to.end(), 0xA5);
            hcomm::copy_streaming(to.data() + shift, from.data(), size);
            CHECK(size == 0 || std::memcmp(to.data() + shift, from.data(), size) == 0);
            CHECK_EQ(std::count(to.begin() + std::ptrdiff_t(shift + size), to.end(), 0xA5), 128 - shift);
        }
    }
    hcomm::copy_bytes(nullptr, nullptr, 0);
}
