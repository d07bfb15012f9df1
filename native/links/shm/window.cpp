#include "links/shm/window.hpp"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "engine/status.hpp"
#include "links/shm/pages.hpp"

namespace hcomm {
namespace {

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

std::size_t clamp_ring(std::size_t bytes, std::size_t most) {
    return std::bit_floor(std::clamp<std::size_t>(bytes, 16 << 10, most));
}

std::byte* map(int fd, std::size_t bytes) {
    std::byte* data = map_shared(fd, bytes);
    if (data == nullptr)
        throw SystemError("cannot map " + std::to_string(bytes) +
                          " bytes of shared memory: " + std::strerror(errno));
    return data;
}

}  // namespace

WindowLayout::WindowLayout(std::size_t ranks, std::size_t buffer_bytes) : local(ranks) {
    // Half of the buffer for operations (two take turns), half for the rings between pairs.
    operation_bytes = round_up(std::max<std::size_t>(buffer_bytes / 4, 64 << 10), 4096);
    const std::size_t share = buffer_bytes / 2 / std::max<std::size_t>(ranks, 1);
    coll_bytes = clamp_ring(share / 2, 512 << 10);
    p2p_bytes = clamp_ring(share / 2, 2 << 20);
    posts = sizeof(WindowControl);
    rings = posts + round_up(ranks * sizeof(std::uint64_t), kLine);
    area = round_up(rings + ranks * (2 * sizeof(RingControl) + coll_bytes + p2p_bytes), 4096);
    total = area + 2 * operation_bytes;
}

Mapping::Mapping(int fd, std::size_t bytes) : data_(map(fd, bytes)), bytes_(bytes) {}
Mapping::Mapping(std::size_t bytes) : data_(map(-1, bytes)), bytes_(bytes) {}
Mapping::~Mapping() { ::munmap(data_, bytes_); }

Window::Window(std::shared_ptr<Mapping> mapping, const WindowLayout& layout)
    : mapping_(std::move(mapping)),
      layout_(layout),
      // The memory starts as zeros, which is a valid state of every atomic in it.
      control_(reinterpret_cast<WindowControl*>(mapping_->data())),
      posts_(reinterpret_cast<std::atomic<std::uint64_t>*>(mapping_->data() + layout.posts)) {}

Ring Window::coll_ring(std::size_t from) const noexcept {
    const std::size_t stride = 2 * sizeof(RingControl) + layout_.coll_bytes + layout_.p2p_bytes;
    std::byte* base = mapping_->data() + layout_.rings + from * stride;
    return {reinterpret_cast<RingControl*>(base), base + 2 * sizeof(RingControl), layout_.coll_bytes};
}

Ring Window::p2p_ring(std::size_t from) const noexcept {
    const std::size_t stride = 2 * sizeof(RingControl) + layout_.coll_bytes + layout_.p2p_bytes;
    std::byte* base = mapping_->data() + layout_.rings + from * stride;
    return {reinterpret_cast<RingControl*>(base) + 1, base + 2 * sizeof(RingControl) + layout_.coll_bytes,
            layout_.p2p_bytes};
}

}  // namespace hcomm
