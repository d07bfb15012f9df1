#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/control.hpp"
#include "engine/futex.hpp"
#include "engine/header.hpp"
#include "links/link.hpp"
#include "links/shm/shm_link.hpp"
#include "links/shm/window.hpp"

namespace hcomm {

/// A message of a collective on its way out: its header, then `body`.
struct Outgoing {
    OpHeader header;
    const std::byte* body;
    std::size_t bytes;
    std::size_t sent = 0;  ///< of header and body together
};

/// Another rank as one communicator sees it.
class Peer final : public Bell {
  public:
    explicit Peer(int number) : rank(number) {}

    const int rank;
    std::unique_ptr<ControlChannel> control;
    std::unique_ptr<Link> coll;    ///< messages of collectives, in program order
    std::unique_ptr<Link> p2p;     ///< messages of send and recv
    std::optional<Window> window;  ///< if it shares memory with this rank
    std::size_t local_index = 0;   ///< its place in the clique
    pid_t pid = 0;                 ///< for process_vm_readv; 0: not possible

    // The current operation; guarded by Comm::mutex_.
    std::deque<Outgoing> outbox;
    std::uint64_t checked = 0;  ///< the operation whose header has been compared
    OpHeader header;            ///< what it said then
    std::uint64_t posts = 0, awaits = 0;
    /// Its input and output, where they are shared and the operation reaches into them.
    struct Reach {
        std::shared_ptr<Mapping> mapping;
        std::byte* data = nullptr;
        std::size_t bytes = 0;  ///< up to the end of the mapping
    };
    Reach input, output;

    // What it has shared; written by the engine's thread.
    std::mutex segments_mutex;
    std::map<std::uint64_t, std::pair<std::shared_ptr<Mapping>, std::size_t>> segments;

    /// The rest of a segment from `offset` on; without data if it has not shared that.
    Reach find_shared(std::uint64_t segment, std::uint64_t offset) {
        const std::lock_guard lock(segments_mutex);
        const auto found = segments.find(segment);
        if (found == segments.end() || offset > found->second.second) return {};
        const auto& [mapping, bytes] = found->second;
        return {mapping, mapping->data() + offset, bytes - offset};
    }

    // Liveness; written by the engine's thread and by whoever finds a stream ended.
    std::atomic<std::int64_t> lost_at{0};  ///< when its end was noticed (Clock), 0: it is there
    std::atomic<bool> control_open{true};
    std::atomic<bool> exiting{false};  ///< it left because its process ended
    std::atomic<bool> left{false};     ///< it said goodbye first
    std::atomic<std::uint64_t> left_done{0};
    SharedHeader slow;  ///< the operation it said it is blocked in
    std::atomic<std::uint64_t> bytes_sent{0};

    bool is_local() const noexcept { return window.has_value(); }
    void note_lost() noexcept {
        std::int64_t none = 0;
        lost_at.compare_exchange_strong(none, Clock::now().time_since_epoch().count());
    }

    /// Wakes the peer's threads if they sleep. What was written to shared memory before is visible to them.
    void ring() noexcept override {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        ring_fenced();
    }
    /// The same, when a sequentially consistent fence stands between the write and this call.
    void ring_fenced() noexcept {
        if (!window) return;
        WindowControl& theirs = window->control();
        if (theirs.futex_sleepers.load(std::memory_order_relaxed) != 0) {
            theirs.doorbell.fetch_add(1, std::memory_order_release);
            futex_wake_all(theirs.doorbell);
        }
        if (theirs.poll_sleepers.load(std::memory_order_relaxed) != 0) control->ding();
    }
};

}  // namespace hcomm
