#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/messenger.hpp"
#include "engine/operation.hpp"
#include "engine/peer.hpp"
#include "engine/program.hpp"
#include "engine/status.hpp"

namespace hcomm {

class Engine;

/// What a communicator is made of. Descriptors are taken over.
struct CommConfig {
    std::uint64_t uid = 0;
    int rank = 0, size = 1;
    std::vector<int> local;                         ///< ranks of my clique, ascending, with mine
    std::vector<std::shared_ptr<Mapping>> windows;  ///< by rank; null outside the clique
    std::vector<int> control, coll, p2p;            ///< by rank; -1: none
    std::vector<pid_t> pids;                        ///< by rank; 0: process_vm_readv does not reach it
    std::size_t buffer_bytes = 16 << 20;
    bool crowded = false;  ///< more ranks than cores: yield early
    bool overlap = true;   ///< copies into and out of windows overlap
    int priority = 0;      ///< higher ones are driven first
    std::string label;     ///< the group in words, for reports of other communicators; empty: the world
};

/// How long news of a failure may take to reach everybody: a lost peer is held responsible only after this
/// time, and an operation before the failed one may take it to complete.
inline constexpr auto kGrace = std::chrono::milliseconds(150);

/// How many operations a rank can tell about when ranks disagree.
inline constexpr std::uint64_t kRecent = 16;

/// Says whether the caller wants to stop waiting (Ctrl-C). Called without locks.
using Interrupt = std::function<bool()>;

/// One rank of one communicator: its peers, the operations in progress, and its failure, once there is one.
///
/// Collectives run one after the other in the order they were asked for; sends and receives run beside them.
/// Whoever waits drives: a blocking call in the caller's thread, the engine's thread when nobody waits.
/// `mutex_` is held while anything moves and never while anybody sleeps.
class Comm : public std::enable_shared_from_this<Comm> {
  public:
    /// Messages up to this size are copied at once inside a host (bytes).
    static constexpr std::uint64_t kSmallMessage = 64 << 10;

    Comm(std::shared_ptr<Engine> engine, CommConfig config);
    ~Comm();

    std::shared_ptr<const Plan> plan(std::span<const std::byte> program, std::span<const std::byte> fallback,
                                     const OpHeader& header, const Sizes& sizes, std::uint64_t tile_bytes,
                                     const Access& access = {}) const;

    Status run(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout,
               const Interrupt& interrupt);
    std::shared_ptr<Task> start(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout,
                                std::string where);
    std::shared_ptr<Message> send(int dst, int tag, void* data, std::uint64_t bytes, std::uint8_t dtype,
                                  double timeout, std::string where);
    /// Sends a small message that can be copied at once; false if it cannot.
    bool send_now(int dst, int tag, const void* data, std::uint64_t bytes, std::uint8_t dtype);
    std::shared_ptr<Message> receive(int src, int tag, void* data, std::uint64_t bytes, std::uint8_t dtype,
                                     double timeout, std::string where);
    /// The same, and waits for it.
    std::shared_ptr<Message> receive_now(int src, int tag, void* data, std::uint64_t bytes,
                                         std::uint8_t dtype, double timeout, const Interrupt& interrupt);
    /// Waits at most `timeout` seconds (negative: as long as the task may take). Pending if it is not done by
    /// then.
    Status wait(Task& task, double timeout, const Interrupt& interrupt);

    /// Whether it is done, after a look for what has come in.
    bool look(const Task& task);

    std::optional<Failure> failure() const;
    /// Breaks the communicator; the first failure stays. `tell`: on all ranks.
    void fail(Failure failure, bool tell = true);
    /// Says what this rank was doing and collects the same from all, for at most `timeout` seconds.
    std::vector<RankReport> reports(const std::string& what, const std::string& where, double timeout);
    /// Leaves: unfinished work ends with Aborted, peers are told. Idempotent. `exiting`: the process ends
    /// without having been asked to leave.
    void close(bool exiting = false);
    /// Ranks whose connection has ended.
    std::vector<int> lost() const;
    /// What this rank is in, in words; empty if in nothing (or if that cannot be told right now).
    std::string activity();

    /// Offers the segment that holds this memory to all local ranks, and waits until all have mapped it.
    /// Empty, or why that failed.
    std::string share(const void* address, std::size_t bytes, double timeout);
    /// This memory lies in a segment, whether or not it has been offered. `writable`: see `Segment::holds`.
    bool is_shared(const void* address, std::size_t bytes, bool writable) const;
    /// This rank uses the segment no more.
    void unshare(std::uint64_t segment) noexcept;

    int rank() const noexcept { return config_.rank; }
    int size() const noexcept { return config_.size; }
    std::uint64_t bytes_sent(int rank) const;
    std::size_t shared_bytes() const noexcept { return layout_.total; }

    // For the engine's thread.
    void collect_control_fds(std::vector<pollfd>& fds) const;
    /// Reads what came in on the control channels.
    void read_control();
    /// Work that nobody drives.
    bool needs_engine();
    /// Drives what there is to drive; false if nothing moved. `due` becomes the latest time for the next
    /// call, if that is earlier.
    bool drive_from_engine(Clock::time_point& due);
    /// What it waits for wakes poll(2) by itself.
    bool waits_for_sockets();
    int priority() const noexcept { return config_.priority; }
    void collect_data_fds_locked(std::vector<pollfd>& fds);
    /// Before and after the engine's thread sleeps in poll(2).
    void arm_poll();
    void disarm_poll();

  private:
    friend class Operation;
    friend class Messenger;

    class Nap;  // how a driver sleeps

    std::shared_ptr<Message> make_message(bool is_send, int peer, int tag, void* data, std::uint64_t bytes,
                                          std::uint8_t dtype, double timeout, std::string where) const;
    std::shared_ptr<Message> post_receive(int src, int tag, void* data, std::uint64_t bytes,
                                          std::uint8_t dtype, double timeout, std::string where);
    Status drive(Task& task, Clock::time_point limit, const Interrupt& interrupt);
    void progress();
    void end_if_failed();
    void fail_tasks();
    Status refuse() noexcept;
    Status failed_status() const;
    void settle(Status status);
    Operation* head() const noexcept;
    void collect_data_fds(std::vector<pollfd>& fds);
    void check_slow(Clock::time_point now, std::unique_lock<std::mutex>& lock);
    bool is_needed(const Peer& peer) const;
    bool never_completes(const Peer& peer, std::uint64_t seq) const;
    Clock::time_point next_due(Clock::time_point now) const;
    void check_headers(const Operation& operation);
    void check_lost(Clock::time_point now);
    void say_slow(const Operation& operation);
    const Operation* overdue(Clock::time_point now) const;
    void time_out(std::unique_lock<std::mutex>& lock, const Operation* operation,
                  std::shared_ptr<Message> message);
    std::vector<RankReport> ask_all(RankReport mine, double timeout, bool want_final);
    RankReport self_report();
    void on_frame(Peer& peer, const ControlFrame& frame);
    void wake_self() noexcept;
    void ring_local() noexcept;
    ssize_t write(Link& link, const std::byte* data, std::size_t bytes) noexcept;
    bool flush(Peer& peer);
    bool flush_all();
    [[noreturn]] void mismatch(const OpHeader& mine, int other, const OpHeader& theirs);
    [[noreturn]] void raise(Failure failure);
    /// All local peers have completed operation `seq`.
    bool all_done(std::uint64_t seq) noexcept;
    void finished(std::uint64_t seq) noexcept;
    bool any_lost() const noexcept;
    void release();
    void check_stale();
    std::string recent() const;
    void reserve_scratch(std::size_t bytes);
    std::unique_lock<std::mutex> enter() noexcept;
    void let_in(std::unique_lock<std::mutex>& lock) noexcept;
    void hand_over();
    void stop_interrupted();
    std::shared_ptr<Segment> shared_segment(const void* address, std::size_t bytes, bool writable);
    bool offer_segment(const Segment& segment);
    void on_share(Peer& peer, const ShareNote& note);
    void on_shared(const Peer& peer, const ShareNote& note);
    Peer& peer(int rank) noexcept { return *peers_[static_cast<std::size_t>(rank)]; }
    Window& own() noexcept { return *own_; }
    Clock::time_point deadline(double timeout) const;

    std::shared_ptr<Engine> engine_;
    CommConfig config_;
    WindowLayout layout_;
    std::optional<Window> own_;
    std::vector<std::unique_ptr<Peer>> peers_;  ///< by rank; null for this one
    std::vector<Peer*> others_, local_;         ///< all peers; those of the clique
    std::size_t local_index_ = 0;
    bool has_tcp_ = false;
    Fd wake_;  ///< eventfd that ends a driver's poll(2)

    mutable std::mutex mutex_;
    std::unique_ptr<Messenger> messenger_;
    Operation* current_ = nullptr;                  ///< a blocking call's, on its stack
    std::deque<std::shared_ptr<Operation>> queue_;  ///< asked for later, or asynchronous
    std::uint64_t posted_ = 0;                      ///< collectives asked for
    std::uint64_t known_done_ = 0;                  ///< every local peer has completed this many
    std::uint64_t said_slow_ = 0;
    std::uint64_t history_ = 0;  ///< signature of the operation last begun, which holds all before it
    std::vector<std::byte> scratch_;
    SharedCopier copier_;  ///< into this rank's window
    /// Threads that want the lock for a moment; whoever moves large messages lets them in.
    std::atomic<int> callers_{0};
    int drivers_ = 0;
    int sleepers_ = 0;  ///< drivers that are about to sleep: a full link must wake them when there is room
    bool timing_out_ = false;
    std::atomic<int> poll_drivers_{0};

    /// Segments offered to the local peers.
    struct Sharing {
        std::size_t waiting = 0;   ///< peers that have not answered
        std::vector<int> refused;  ///< those that could not map it
    };
    std::mutex sharing_mutex_;
    std::condition_variable sharing_cv_;
    std::map<std::uint64_t, Sharing> sharing_;

    // What others may read at any time.
    SharedHeader recent_[kRecent];         ///< the operations last begun
    std::atomic<std::uint64_t> begun_{0};  ///< the number of the last one
    std::atomic<std::uint64_t> done_{0};   ///< collectives completed
    std::atomic<bool> failed_{false};
    std::atomic<std::uint64_t> failed_seq_{0};  ///< the operation that failed
    Clock::time_point failed_at_{};
    std::atomic<bool> closed_{false};
    mutable std::mutex failure_mutex_;
    std::optional<Failure> failure_;
    std::mutex report_mutex_;
    std::condition_variable report_cv_;
    std::vector<RankReport> reports_;
    std::optional<RankReport> own_report_;
};

}  // namespace hcomm
