#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.hpp"

#if HCOMM_KERNELS_X86
#include <emmintrin.h>
#endif

namespace hcomm {

#if HCOMM_KERNELS_X86
namespace {

/// From here on stores bypass the cache. An ordinary store first reads the line it is about to overwrite.
/// Measured on EPYC 9004 (32 MiB L3), GB/s copied, ordinary against streaming, source just written: 4 MiB 40
/// : 28, 8 MiB 17 : 20, 25 MiB 8.5 : 15.6, 100 MiB 7.7 : 14.5; the reader that comes afterwards is no slower
/// from 8 MiB on.
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

constexpr std::size_t kLine = 64;

void stream_lines(unsigned char* dst, const unsigned char* src, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; i += kLine) {
        const auto* from = reinterpret_cast<const __m128i*>(src + i);
        auto* to = reinterpret_cast<__m128i*>(dst + i);
        const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    // Streaming stores are weakly ordered: without the fence a flag set after the copy could be seen before
    // it.
    _mm_sfence();
}

/// Copies past the cache, but for what lies before the first and after the last whole line of `dst`.
void stream(void* dst, const void* src, std::size_t n) noexcept {
    auto* to = static_cast<unsigned char*>(dst);
    const auto* from = static_cast<const unsigned char*>(src);
    const std::size_t head = std::min(n, (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine);
    const std::size_t lines = (n - head) / kLine * kLine;
    std::memcpy(to, from, head);
    stream_lines(to + head, from + head, lines);
    std::memcpy(to + head + lines, from + head + lines, n - head - lines);
}

}  // namespace

void copy_bytes(void* dst, const void* src, std::size_t n, std::size_t whole) noexcept {
    if (n != 0 && std::max(n, whole) >= kStreamBytes) return stream(dst, src, n);
    if (n != 0) std::memcpy(dst, src, n);
}

bool can_stream() noexcept { return true; }

void copy_streaming(void* dst, const void* src, std::size_t n) noexcept {
    if (n != 0) stream(dst, src, n);
}
#else
void copy_bytes(void* dst, const void* src, std::size_t n, std::size_t) noexcept {
    if (n != 0) std::memcpy(dst, src, n);
}

bool can_stream() noexcept { return false; }

void copy_streaming(void* dst, const void* src, std::size_t n) noexcept { copy_bytes(dst, src, n); }
#endif

}  // namespace hcomm
