#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>

namespace hcomm {

using Clock = std::chrono::steady_clock;

/// Sleeps while `word` holds `expected`, at most `limit`. True if a signal handler ran meanwhile.
inline bool futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected,
                       std::chrono::nanoseconds limit) noexcept {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    const timespec time{seconds.count(), (limit - seconds).count()};
    // Not FUTEX_PRIVATE: the word lies in memory that other processes map too.
    const long r = ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
    return r == -1 && errno == EINTR;
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
    ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Tells the core that this is a spin loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

}  // namespace hcomm
