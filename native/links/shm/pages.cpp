#include "links/shm/pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace hcomm {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

constexpr std::uintptr_t huge_up(std::uintptr_t at) { return (at + kHugePage - 1) / kHugePage * kHugePage; }

/// Whether the system uses huge pages for anybody who asks. MADV_COLLAPSE itself does not look at that.
bool wanted() noexcept {
    static const bool allowed = [] {
        const File file(std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re"), &std::fclose);
        char line[64] = "";
        return file && std::fgets(line, sizeof line, file.get()) && !std::strstr(line, "[never]");
    }();
    return allowed;
}

/// The number in a file of one; `otherwise` if there is none.
std::uint64_t number_in(const char* path, std::uint64_t otherwise) noexcept {
    const File file(std::fopen(path, "re"), &std::fclose);
    std::uint64_t value = 0;
    return file && std::fscanf(file.get(), "%" SCNu64, &value) == 1 ? value : otherwise;
}

/// What this process may still take: of the machine, and of its control group where that has a limit.
std::size_t available_bytes() noexcept {
    const File file(std::fopen("/proc/meminfo", "re"), &std::fclose);
    char line[128];
    std::uint64_t kibibytes = 0;
    while (file && std::fgets(line, sizeof line, file.get()))
        if (std::sscanf(line, "MemAvailable: %" SCNu64, &kibibytes) == 1) break;
    const std::uint64_t limit = number_in("/sys/fs/cgroup/memory.max", UINT64_MAX);
    const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
    return std::min<std::uint64_t>(kibibytes << 10, limit > used ? limit - used : 0);
}

}  // namespace

std::byte* map_shared(int fd, std::size_t bytes) noexcept {
    constexpr int kAccess = PROT_READ | PROT_WRITE;
    const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    const auto plain = [&] {
        void* data = ::mmap(nullptr, bytes, kAccess, flags, fd, 0);
        return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
    };
    if (bytes < kHugePage || bytes > SIZE_MAX - 2 * kHugePage) return plain();
    // Addresses for one huge page more; what lies before and after the mapping is given back.
    const std::size_t room = huge_up(bytes) + kHugePage;
    void* const reserved =
        ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return plain();
    const auto first = reinterpret_cast<std::uintptr_t>(reserved), begin = huge_up(first);
    void* const data = ::mmap(reinterpret_cast<void*>(begin), bytes, kAccess, flags | MAP_FIXED, fd, 0);
    if (data == MAP_FAILED) {
        const int error = errno;
        ::munmap(reserved, room);
        errno = error;
        return nullptr;
    }
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const std::uintptr_t end = (begin + bytes + page - 1) / page * page, last = first + room;
    if (begin > first) ::munmap(reserved, begin - first);
    if (last > end) ::munmap(reinterpret_cast<void*>(end), last - end);
    return static_cast<std::byte*>(data);
}

void take_huge_pages(int fd, std::byte* mapping, std::size_t begin, std::size_t bytes) noexcept {
    const std::size_t first = huge_up(begin), last = (begin + bytes) / kHugePage * kHugePage;
    if (first >= last || !wanted() || last - first > available_bytes() / 2) return;
    // Collapsing pages that are there is faster than filling holes.
    if (::fallocate(fd, 0, static_cast<off_t>(first), static_cast<off_t>(last - first)) != 0) return;
    for (std::size_t at = first; at < last; at += kHugePage) {
        if (::madvise(mapping + at, kHugePage, MADV_COLLAPSE) == 0) continue;
        // A page that is busy is left as it is. Without huge pages, or without this advice, so are all.
        if (errno != EAGAIN && errno != EBUSY) return;
    }
}

}  // namespace hcomm
