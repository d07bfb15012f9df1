#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace hcomm {

/// Reads from / writes to the memory of another process (process_vm_readv(2)). False, with errno set, on
/// refusal.
bool cma_read(pid_t pid, std::uint64_t address, void* into, std::size_t bytes) noexcept;
bool cma_write(pid_t pid, std::uint64_t address, const void* from, std::size_t bytes) noexcept;

}  // namespace hcomm
