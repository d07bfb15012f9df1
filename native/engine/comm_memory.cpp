// Memory that a communicator's ranks on one host show each other.

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "engine/comm.hpp"
#include "engine/engine.hpp"

namespace hcomm {
namespace {

std::span<const std::byte> bytes_of(const ShareNote& note) {
    return {reinterpret_cast<const std::byte*>(&note), sizeof note};
}

/// Maps a peer's file. Null if it is not what was announced: mapping a file that is too short, or that could
/// become so, would end in SIGBUS later.
std::shared_ptr<Mapping> map_segment(const Fd& fd, std::uint64_t bytes) noexcept {
    struct stat info{};
    if (!fd || bytes == 0 || ::fstat(fd.get(), &info) != 0) return nullptr;
    if (static_cast<std::uint64_t>(info.st_size) < bytes) return nullptr;
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) return nullptr;
    try {
        return std::make_shared<Mapping>(fd.get(), bytes);
    } catch (const std::exception&) {  // no memory: the answer says so
        return nullptr;
    }
}

}  // namespace

/// Tells all local peers of a segment, once. True when all have mapped it. Called with sharing_mutex_ held.
bool Comm::offer_segment(const Segment& segment) {
    if (segment.id >= kMaxSegment || segment.file_bytes() >> kOffsetBits) return false;
    const auto [place, fresh] = sharing_.try_emplace(segment.id);
    Sharing& sharing = place->second;
    if (fresh) {
        const ShareNote note{segment.id, segment.file_bytes()};
        for (Peer* peer : local_) {
            if (peer->control->send(ControlKind::Share, bytes_of(note), segment.fd()))
                ++sharing.waiting;
            else
                sharing.refused.push_back(peer->rank);
        }
    }
    return sharing.waiting == 0 && sharing.refused.empty();
}

/// The segment that holds this memory, if every local peer has mapped it; the first call offers it to them.
std::shared_ptr<Segment> Comm::shared_segment(const void* address, std::size_t bytes, bool writable) {
    auto segment = engine_->memory().find(address, bytes, writable);
    if (!segment) return nullptr;
    const std::lock_guard lock(sharing_mutex_);
    return offer_segment(*segment) ? segment : nullptr;
}

std::string Comm::share(const void* address, std::size_t bytes, double timeout) {
    const auto segment = engine_->memory().find(address, bytes);
    if (!segment) return "it is not registered";
    std::unique_lock lock(sharing_mutex_);
    if (offer_segment(*segment)) return {};
    const auto answered = [&] {
        const auto place = sharing_.find(segment->id);
        return failed_ || closed_ || place == sharing_.end() || place->second.waiting == 0;
    };
    const bool complete = sharing_cv_.wait_for(lock, std::chrono::duration<double>(timeout), answered);
    const auto place = sharing_.find(segment->id);
    if (place == sharing_.end() || failed_ || closed_) return "the communicator is closed or broken";
    if (!complete) return "not all ranks of this host have answered in time";
    std::string who;
    for (int rank : place->second.refused) who += (who.empty() ? "rank " : ", ") + std::to_string(rank);
    return who.empty() ? who : who + " could not map it (out of memory, or too many mappings?)";
}

bool Comm::is_shared(const void* address, std::size_t bytes, bool writable) const {
    return engine_->memory().find(address, bytes, writable) != nullptr;
}

void Comm::unshare(std::uint64_t segment) noexcept {
    {
        const std::lock_guard lock(sharing_mutex_);
        if (sharing_.erase(segment) == 0) return;
    }
    const ShareNote note{segment, 0};
    for (Peer* peer : local_)
        if (peer->control_open) peer->control->send(ControlKind::Unshare, bytes_of(note));
}

void Comm::on_share(Peer& peer, const ShareNote& note) {
    const Fd fd = peer.control->take_fd();
    auto mapping = map_segment(fd, note.bytes);
    const ShareNote answer{note.segment, mapping ? note.bytes : 0};
    if (mapping) {
        const std::lock_guard lock(peer.segments_mutex);
        peer.segments[note.segment] = {std::move(mapping), note.bytes};
    }
    peer.control->send(ControlKind::Shared, bytes_of(answer));
}

void Comm::on_shared(const Peer& peer, const ShareNote& note) {
    const std::lock_guard lock(sharing_mutex_);
    const auto place = sharing_.find(note.segment);
    if (place == sharing_.end() || place->second.waiting == 0) return;
    --place->second.waiting;
    if (note.bytes == 0) place->second.refused.push_back(peer.rank);
    sharing_cv_.notify_all();
}

}  // namespace hcomm
