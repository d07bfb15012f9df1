#include "links/cma.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace hcomm {
namespace {

using Call = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

bool transfer(Call call, pid_t pid, std::uint64_t address, void* local, std::size_t bytes) noexcept {
    while (bytes > 0) {
        const std::size_t piece = std::min<std::size_t>(bytes, 1 << 20);
        const iovec here{local, piece};
        // The address belongs to the other process; it is never dereferenced here.
        const iovec there{reinterpret_cast<void*>(address), piece};
        const ssize_t n = call(pid, &here, 1, &there, 1, 0);
        if (n <= 0) {
            if (n == 0) errno = EFAULT;
            return false;
        }
        local = static_cast<std::byte*>(local) + n;
        address += static_cast<std::uint64_t>(n);
        bytes -= static_cast<std::size_t>(n);
    }
    return true;
}

}  // namespace

bool cma_read(pid_t pid, std::uint64_t address, void* into, std::size_t bytes) noexcept {
    return transfer(::process_vm_readv, pid, address, into, bytes);
}

bool cma_write(pid_t pid, std::uint64_t address, const void* from, std::size_t bytes) noexcept {
    return transfer(::process_vm_writev, pid, address, const_cast<void*>(from), bytes);
}

}  // namespace hcomm
