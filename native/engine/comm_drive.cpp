// How a communicator waits: spin, yield, sleep; and what it looks for while nothing moves.

#include <sched.h>

#include <algorithm>

#include "engine/comm.hpp"
#include "engine/engine.hpp"

namespace hcomm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

/// Rounds of spinning before the first yield: about 5 us. No more, because the peer that would have to answer
/// may have been scheduled on this very core, even where there are enough (measured: 140 us instead of 2.3 us
/// for 8 bytes when spinning 60 us on a busy machine). With more ranks than cores that is the rule, so there
/// is next to none.
constexpr int kSpins = 64;
constexpr int kSpinsCrowded = 2;
/// Time spent yielding before a real sleep, which costs two system calls and a wake-up on the other side.
constexpr auto kYield = microseconds(200);
constexpr auto kYieldCrowded = microseconds(2000);
/// The longest sleep at once: bounds how late Ctrl-C and deadlines are noticed.
constexpr auto kSlice = milliseconds(100);
/// Seconds given to the others to answer when an operation is overdue.
constexpr double kAsk = 0.6;
/// A rank that has been blocked for this long tells the others what it is in.
constexpr auto kSlow = milliseconds(500);

}  // namespace

/// One sleep of a driver. Constructed before the last look for progress, so that no wake-up falls in between.
class Comm::Nap {
  public:
    explicit Nap(Comm& comm) : comm_(comm), control_(comm.own().control()) {
        if (comm_.has_tcp_) {
            comm_.poll_drivers_.fetch_add(1, std::memory_order_seq_cst);
            control_.poll_sleepers.fetch_add(1, std::memory_order_seq_cst);
        } else {
            seen_ = control_.doorbell.load(std::memory_order_acquire);
            control_.futex_sleepers.fetch_add(1, std::memory_order_seq_cst);
        }
        ++comm_.sleepers_;
    }
    ~Nap() {
        --comm_.sleepers_;
        if (comm_.has_tcp_) {
            comm_.poll_drivers_.fetch_sub(1, std::memory_order_relaxed);
            control_.poll_sleepers.fetch_sub(1, std::memory_order_relaxed);
        } else {
            control_.futex_sleepers.fetch_sub(1, std::memory_order_relaxed);
        }
    }
    Nap(const Nap&) = delete;
    Nap& operator=(const Nap&) = delete;

    void sleep(std::unique_lock<std::mutex>& lock, std::chrono::nanoseconds limit) {
        if (!comm_.has_tcp_) {
            lock.unlock();
            futex_wait(control_.doorbell, seen_, limit);
            lock.lock();
            return;
        }
        std::vector<pollfd> fds{{comm_.wake_.get(), POLLIN, 0}};
        comm_.collect_data_fds(fds);
        lock.unlock();
        const auto milli = std::chrono::ceil<milliseconds>(limit).count();
        if (::poll(fds.data(), fds.size(), static_cast<int>(milli)) > 0 && fds[0].revents) {
            std::uint64_t count;
            [[maybe_unused]] const auto n = ::read(comm_.wake_.get(), &count, sizeof count);
        }
        lock.lock();
    }

  private:
    Comm& comm_;
    WindowControl& control_;
    std::uint32_t seen_ = 0;
};

/// The lock, for a moment: a thread that moves much in pieces hands it over in between.
std::unique_lock<std::mutex> Comm::enter() noexcept {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) return lock;
    callers_.fetch_add(1, std::memory_order_relaxed);
    lock.lock();
    callers_.fetch_sub(1, std::memory_order_relaxed);
    return lock;
}

/// A mutex is not fair: whoever unlocks and locks again would mostly have it before those that wait.
void Comm::let_in(std::unique_lock<std::mutex>& lock) noexcept {
    if (callers_.load(std::memory_order_relaxed) == 0) return;
    lock.unlock();
    for (int i = 0; i < 1000 && callers_.load(std::memory_order_relaxed) > 0; ++i) ::sched_yield();
    lock.lock();
}

/// What is unfinished is left to whoever drives, or to the engine's thread. That is not woken for sends whose
/// receivers have all they need: their answers are read by whoever asks for them, or in the thread's own
/// time.
void Comm::hand_over() {
    if (drivers_ > 0) {
        if (messenger_->busy()) wake_self();
    } else if (head() == nullptr && messenger_->awaits_answers_only()) {
        if (messenger_->active()) engine_->expect();
    } else {
        engine_->wake();
    }
}

bool Comm::look(const Task& task) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock && !closed_ && task.pending()) progress();
    return !task.pending();
}

/// Ctrl-C ends the communicator on all ranks.
void Comm::stop_interrupted() {
    fail({Status::Interrupted,
          posted_,
          {config_.rank},
          "rank " + std::to_string(config_.rank) + " was interrupted (Ctrl-C)"});
    fail_tasks();
}

Status Comm::drive(Task& task, Clock::time_point limit, const Interrupt& interrupt) {
    std::unique_lock lock = enter();
    ++drivers_;
    const int spins = config_.crowded ? kSpinsCrowded : kSpins;
    for (int i = 0; i < spins; ++i) {
        progress();
        if (!task.pending()) break;
        if (i % 32 == 31) {  // let others have a look
            lock.unlock();
            lock.lock();
        }
        let_in(lock);
        for (int k = 0; k < 4; ++k) cpu_relax();
    }
    // A small operation is complete by now, and looking at the clock is no small part of its cost.
    Clock::time_point now = task.pending() ? Clock::now() : Clock::time_point{};
    Clock::time_point sleepy = now + (config_.crowded ? kYieldCrowded : kYield);
    bool interrupted = false;
    while (task.pending() && now < limit) {
        std::optional<Nap> nap;
        if (now >= sleepy) nap.emplace(*this);
        progress();
        if (!task.pending()) break;
        check_slow(now, lock);
        if (!task.pending()) break;
        const bool busy = messenger_->busy();  // there is no need to wait for anybody
        if (busy || nap) {
            if (busy)
                sleepy = now + kYield;
            else
                nap->sleep(lock, std::min(next_due(now), limit) - now);
            nap.reset();
            lock.unlock();
            interrupted = interrupt && interrupt();
            lock.lock();
            if (interrupted) {
                stop_interrupted();
                break;
            }
            if (busy) let_in(lock);
        } else {
            lock.unlock();
            ::sched_yield();
            lock.lock();
        }
        now = Clock::now();
    }
    --drivers_;
    hand_over();
    lock.unlock();
    return interrupted ? Status::Interrupted : task.status.load(std::memory_order_acquire);
}

/// When the next look is due even if nothing wakes this rank.
Clock::time_point Comm::next_due(Clock::time_point now) const {
    if (messenger_->busy()) return now;
    Clock::time_point due = now + (any_lost() ? milliseconds(20) : kSlice);
    if (current_) due = std::min(due, current_->deadline);
    for (const auto& operation : queue_) due = std::min(due, operation->deadline);
    return std::max(std::min(due, messenger_->next_deadline()), now);
}

/// What is looked for while nothing moves: deadlines, peers that are gone, peers that are in something else.
void Comm::check_slow(Clock::time_point now, std::unique_lock<std::mutex>& lock) {
    try {
        if (Operation* operation = head()) {
            if (operation->started == Clock::time_point{}) operation->started = now;
            if (operation->begun()) check_headers(*operation);
            if (now - operation->started >= kSlow) say_slow(*operation);
        }
        check_lost(now);
    } catch (const OperationFailed&) {
        // Comm::fail has the reason.
    }
    if (failed_) return end_if_failed();
    const Operation* late = overdue(now);
    auto message = messenger_->overdue(now);
    if ((late || message) && !timing_out_) time_out(lock, late, std::move(message));
}

/// The first collective that is due: one that waits behind a slower one has its own deadline.
const Operation* Comm::overdue(Clock::time_point now) const {
    if (current_ && current_->deadline <= now) return current_;
    const auto late =
        std::find_if(queue_.begin(), queue_.end(), [&](const auto& o) { return o->deadline <= now; });
    return late == queue_.end() ? nullptr : late->get();
}

void Comm::check_headers(const Operation& operation) {
    const OpHeader& mine = operation.header();
    for (Peer* peer : others_) {
        const SharedHeader& said =
            peer->window ? peer->window->control().headers[mine.seq % kHeaderSlots] : peer->slow;
        if (said.seq() != mine.seq || said.signature() == mine.signature) continue;
        mismatch(mine, peer->rank, said.read());
    }
}

/// Ranks joined by TCP see each other's headers only where the algorithm joins them; a rank that is stuck
/// shows its header to all, once.
void Comm::say_slow(const Operation& operation) {
    if (!has_tcp_ || said_slow_ >= operation.header().seq) return;
    said_slow_ = operation.header().seq;
    const auto* body = reinterpret_cast<const std::byte*>(&operation.header());
    for (Peer* peer : others_)
        if (!peer->window) peer->control->send(ControlKind::Slow, {body, sizeof(OpHeader)});
}

/// Whether something here waits for a peer that is gone, and in vain. What it sent before it left still
/// counts.
bool Comm::is_needed(const Peer& peer) const {
    const auto lost = [](const Peer* p) { return p->lost_at != 0; };
    if (messenger_->needs(peer.rank, std::all_of(others_.begin(), others_.end(), lost))) return true;
    const Operation* operation = head();
    if (!operation) return false;
    if (!peer.outbox.empty() || never_completes(peer, operation->header().seq)) return true;
    return operation->waiting_for() == &peer && peer.coll->ended();
}

/// A peer that is gone before it completed operation `seq`. Of a rank of another host that died nobody knows
/// how far it came; whoever waits for its data finds the end of its stream.
bool Comm::never_completes(const Peer& peer, std::uint64_t seq) const {
    if (peer.lost_at == 0) return false;
    if (peer.window) return peer.window->control().done.load(std::memory_order_acquire) < seq;
    return peer.left && peer.left_done < seq;
}

void Comm::check_lost(Clock::time_point now) {
    Peer* first = nullptr;
    for (Peer* peer : others_) {
        const auto at = peer->lost_at.load();
        if (at == 0) continue;
        // It must have been gone before the last attempt to make progress (`now` is older): then nothing more
        // comes.
        const auto gone_for = now - Clock::time_point(Clock::duration(at));
        if (gone_for < (peer->left ? Clock::duration(1) : Clock::duration(kGrace)) || !is_needed(*peer))
            continue;
        if (!first || at < first->lost_at.load()) first = peer;
    }
    if (!first) return;
    const std::string who = "rank " + std::to_string(first->rank);
    const std::uint64_t seq = head() ? head()->header().seq : done_.load();
    raise({Status::PeerLost,
           seq,
           {first->rank},
           first->left ? who + (first->exiting ? " exited without finalize()" : " left (finalised)") +
                             " after completing " + std::to_string(first->left_done) + " operations"
                       : who + " died: its connection closed without a goodbye"});
}

void Comm::time_out(std::unique_lock<std::mutex>& lock, const Operation* operation,
                    std::shared_ptr<Message> message) {
    timing_out_ = true;
    Failure failure{Status::Timeout, posted_, {}, ""};
    if (operation) {
        failure.seq = operation->header().seq;
        failure.text = describe(operation->header()) + " did not finish in time";
        const Peer* waiting = operation->waiting_for();
        lock.unlock();
        const auto reports = ask_all(self_report(), kAsk, false);
        lock.lock();
        for (int r = 0; r < config_.size; ++r) {
            const RankReport& report = reports[static_cast<std::size_t>(r)];
            if (r != config_.rank && (!report.heard || report.posted < failure.seq))
                failure.ranks.push_back(r);
        }
        if (failure.ranks.empty() && waiting) failure.ranks.push_back(waiting->rank);
    } else {
        const std::string peer = message->peer < 0 ? "any rank" : "rank " + std::to_string(message->peer);
        failure.text = (message->is_send ? "send to " : "recv from ") + peer + ", tag " +
                       std::to_string(message->tag) + ", did not finish in time on rank " +
                       std::to_string(config_.rank);
        if (message->peer >= 0 && message->peer != config_.rank) failure.ranks.push_back(message->peer);
    }
    timing_out_ = false;
    // It may have finished while the others were asked.
    const bool still = operation ? done_ < failure.seq : message->pending();
    if (!still) return;
    fail(std::move(failure));
    fail_tasks();
}

bool Comm::needs_engine() {
    const std::lock_guard lock(mutex_);
    return drivers_ == 0 && (head() != nullptr || messenger_->active());
}

bool Comm::drive_from_engine(Clock::time_point& due) {
    std::unique_lock lock(mutex_);
    if (drivers_ > 0) return false;
    const auto now = Clock::now();
    const Operation* before = head();
    const std::uint64_t position = before ? before->position() : 0;
    progress();
    const bool moved = head() != before || (before && before->position() != position);
    check_slow(now, lock);
    if (head() != nullptr || messenger_->active()) due = std::min(due, next_due(now));
    let_in(lock);
    return moved;
}

bool Comm::waits_for_sockets() {
    const std::lock_guard lock(mutex_);
    const Operation* operation = head();
    if (!operation || messenger_->active()) return false;
    const Peer* peer = operation->waiting_for();
    return peer ? peer->coll->fd() >= 0 : local_.empty();
}

void Comm::collect_data_fds(std::vector<pollfd>& fds) {
    if (const Operation* operation = head())
        if (Peer* peer = operation->waiting_for(); peer && peer->coll->fd() >= 0 && peer->lost_at == 0) {
            peer->coll->expect(operation->waiting_bytes());
            fds.push_back({peer->coll->fd(), POLLIN, 0});
        }
    for (Peer* peer : others_)
        if (!peer->outbox.empty() && peer->coll->fd() >= 0 && peer->lost_at == 0)
            fds.push_back({peer->coll->fd(), POLLOUT, 0});
    messenger_->collect_fds(fds);
}

void Comm::collect_data_fds_locked(std::vector<pollfd>& fds) {
    const std::lock_guard lock(mutex_);
    collect_data_fds(fds);
}

void Comm::arm_poll() {
    own().control().poll_sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::lock_guard lock(mutex_);
    ++sleepers_;
}

void Comm::disarm_poll() {
    own().control().poll_sleepers.fetch_sub(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    --sleepers_;
}

}  // namespace hcomm
