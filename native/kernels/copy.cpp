#include <cstdint>
#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/levels.hpp"

namespace hcomm {

#if HCOMM_KERNELS_X86
namespace {

constexpr std::size_t kLine = 64;

/// Copies past the cache, but for what lies before the first and after the last whole line of `dst`.
void stream(void* dst, const void* src, std::size_t n) noexcept {
    auto* to = static_cast<unsigned char*>(dst);
    const auto* from = static_cast<const unsigned char*>(src);
    const std::size_t gap = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
    const std::size_t head = gap < n ? gap : n, lines = (n - head) / kLine * kLine;
    std::memcpy(to, from, head);
    kernels::best_table().copy_lines(to + head, from + head, lines);
    std::memcpy(to + head + lines, from + head + lines, n - head - lines);
}

}  // namespace

void copy_bytes(void* dst, const void* src, std::size_t n, std::size_t whole) noexcept {
    if (n != 0 && (n >= kStreamCopy || whole >= kStreamCopy)) return stream(dst, src, n);
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
