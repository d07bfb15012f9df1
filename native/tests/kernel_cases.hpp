/// How the kernel tests call kernels: every SIMD level of this machine, checked against tests/reference.hpp
/// or against values worked out by hand.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "check.hpp"
#include "kernels/kernels.hpp"
#include "kernels/levels.hpp"
#include "reference.hpp"

namespace kernel_cases {

using hcomm::DType;
using hcomm::ReduceOp;
using hcomm::kernels::Level;
using reference::Bytes;

inline std::vector<Level> levels() {
    std::vector<Level> found;
    for (int l = 0; l < hcomm::kernels::kLevels; ++l) {
        if (hcomm::kernels::table_at(static_cast<Level>(l)) != nullptr)
            found.push_back(static_cast<Level>(l));
    }
    return found;
}

inline void for_each_kernel(const std::function<void(Level, DType, ReduceOp, hcomm::ReduceFn)>& body) {
    for (const Level level : levels()) {
        for (int t = 0; t < hcomm::kDTypes; ++t) {
            for (int o = 0; o < hcomm::kReduceOps; ++o) {
                const auto dtype = static_cast<DType>(t);
                const auto op = static_cast<ReduceOp>(o);
                const auto kernel = hcomm::kernels::reduce_kernel_at(level, dtype, op);
                if (kernel != nullptr) body(level, dtype, op, kernel);
            }
        }
    }
}

inline std::string label(Level level, DType dtype, ReduceOp op) {
    return std::string(hcomm::kernels::name_of(level)) + " " + hcomm::name_of(dtype) + " " +
           hcomm::name_of(op);
}

/// Where the parts of an element must be aligned.
inline std::size_t alignment(DType dtype) {
    const bool complex = dtype == DType::C64 || dtype == DType::C128;
    return complex ? hcomm::size_of(dtype) / 2 : hcomm::size_of(dtype);
}

/// One call with `nsrc` sources and `ndst` destinations of `count` elements, every buffer `shift` alignments
/// off a 64-byte boundary, with guard bytes around the destinations. Where `in_place`, destination d is
/// source d. `stream`: with streaming stores.
inline void run_case(Level level, DType dtype, ReduceOp op, hcomm::ReduceFn kernel, std::size_t count,
                     int nsrc, int ndst, std::size_t shift, bool in_place = false, bool stream = false) {
    const std::size_t bytes = count * hcomm::size_of(dtype);
    std::mt19937 random(static_cast<unsigned>(count * 31 + std::size_t(nsrc)));
    std::vector<Bytes> memory(std::size_t(nsrc + ndst), Bytes(bytes + 384, 0xA5));
    std::vector<unsigned char*> at;
    for (Bytes& buffer : memory) {
        const auto address = reinterpret_cast<std::uintptr_t>(buffer.data());
        at.push_back(buffer.data() + 64 + (64 - address % 64) % 64 + shift * alignment(dtype));
    }
    reference::Sources src;
    for (int s = 0; s < nsrc; ++s) {
        reference::fill(dtype, at[std::size_t(s)], count, random);
        src.push_back(at[std::size_t(s)]);
    }
    const unsigned divisor = op == ReduceOp::Avg ? unsigned(nsrc) : 1;
    const Bytes expected = reference::reduce(dtype, op, src, count, divisor);
    std::vector<void*> dst;
    for (int d = 0; d < ndst; ++d) dst.push_back(at[std::size_t(in_place ? d : nsrc + d)]);
    const std::vector<const void*> sources(src.begin(), src.end());
    kernel(dst.data(), ndst, sources.data(), nsrc, count, divisor, stream);
    for (void* d : dst) {
        const auto* result = static_cast<const unsigned char*>(d);
        const bool right = reference::same(dtype, result, expected.data(), count);
        const bool guarded = std::count(result + bytes, result + bytes + 64, 0xA5) == 64 &&
                             std::count(result - 64, result, 0xA5) == 64;
        if (!right || !guarded) {
            check::fail(__FILE__, __LINE__,
                        label(level, dtype, op) + (right ? " writes outside" : " gives wrong values") +
                            ": count " + std::to_string(count) + ", " + std::to_string(nsrc) + " sources, " +
                            std::to_string(ndst) + " destinations, shift " + std::to_string(shift));
        }
    }
}

template <class T>
struct Case {
    ReduceOp op;
    std::vector<T> operands;
    T expected;
};

/// Hand values: the operands, one per source, repeated over 21 elements so that body and tail see them.
template <class T>
void run_hand_cases(DType dtype, const std::vector<Case<T>>& cases) {
    constexpr std::size_t kCount = 21;
    for (const Level level : levels()) {
        for (const Case<T>& c : cases) {
            std::vector<std::vector<T>> src;
            for (const T value : c.operands) src.emplace_back(kCount, value);
            std::vector<const void*> sources;
            for (const auto& s : src) sources.push_back(s.data());
            std::vector<T> result(kCount);
            void* dst[] = {result.data()};
            hcomm::kernels::reduce_kernel_at(level, dtype, c.op)(dst, 1, sources.data(), int(sources.size()),
                                                                 kCount, unsigned(sources.size()), false);
            for (const T value : result) {
                if (std::memcmp(&value, &c.expected, sizeof value) == 0) continue;
                check::fail(__FILE__, __LINE__,
                            label(level, dtype, c.op) + ": expected " + check::show(c.expected) + ", found " +
                                check::show(value));
                break;
            }
        }
    }
}

template <class T>
void check_finish(DType dtype, T value, unsigned divisor, T expected) {
    for (const Level level : levels()) {
        std::vector<T> data(21, value);
        hcomm::kernels::table_at(level)->finish[int(dtype)](data.data(), data.size(), divisor);
        for (const T result : data) CHECK_EQ(result, expected);
    }
}

}  // namespace kernel_cases
