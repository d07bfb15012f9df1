// What a communicator says and hears besides data: failures, goodbyes, reports.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/comm.hpp"
#include "engine/engine.hpp"

namespace hcomm {
namespace {

/// Body of a Bye.
struct Goodbye {
    std::uint64_t done = 0;     ///< collectives completed
    std::uint64_t exiting = 0;  ///< the process ended without finalize()
};

}  // namespace

std::optional<Failure> Comm::failure() const {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
}

void Comm::fail(Failure failure, bool tell) {
    const auto body = encode_failure(failure);
    {
        const std::lock_guard lock(failure_mutex_);
        if (failure_) return;
        failed_seq_ = failure.seq;
        failed_at_ = Clock::now();
        failure_ = std::move(failure);
        failed_.store(true);
    }
    if (tell)
        for (Peer* peer : others_)
            if (peer->control_open) peer->control->send(ControlKind::Abort, body);
    wake_self();
    engine_->wake();
}

/// Wakes this rank's own sleeping drivers.
void Comm::wake_self() noexcept {
    WindowControl& mine = own().control();
    mine.doorbell.fetch_add(1, std::memory_order_seq_cst);
    if (mine.futex_sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(mine.doorbell);
    if (poll_drivers_.load(std::memory_order_seq_cst) != 0) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
    }
}

void Comm::collect_control_fds(std::vector<pollfd>& fds) const {
    for (const Peer* peer : others_)
        if (peer->control_open) fds.push_back({peer->control->fd(), POLLIN, 0});
}

void Comm::read_control() {
    // All news first, ends of connections after: a survivor's word about who died comes before its own
    // goodbye.
    std::vector<Peer*> ended;
    for (Peer* peer : others_) {
        if (!peer->control_open) continue;
        std::vector<ControlFrame> frames;
        if (!peer->control->receive(frames)) ended.push_back(peer);
        for (const ControlFrame& frame : frames) on_frame(*peer, frame);
    }
    for (Peer* peer : ended) {
        peer->control_open = false;
        peer->note_lost();
        const std::lock_guard lock(report_mutex_);
        report_cv_.notify_all();
    }
    if (!ended.empty()) wake_self();
}

void Comm::on_frame(Peer& peer, const ControlFrame& frame) {
    switch (frame.kind) {
        case ControlKind::Ding:
            wake_self();
            return;
        case ControlKind::Abort:
            if (auto failure = decode_failure(frame.body, config_.size)) fail(std::move(*failure), false);
            return;
        case ControlKind::Bye: {
            Goodbye bye;
            if (frame.body.size() == sizeof bye) std::memcpy(&bye, frame.body.data(), sizeof bye);
            peer.left_done = bye.done;
            peer.exiting = bye.exiting != 0;
            peer.left = true;
            peer.note_lost();
            wake_self();
            return;
        }
        case ControlKind::Report: {
            bool asks = false;
            auto report = decode_report(frame.body, asks);
            if (!report) return;
            {
                const std::lock_guard lock(report_mutex_);
                RankReport& known = reports_[static_cast<std::size_t>(peer.rank)];
                if (!known.is_final || report->is_final) known = std::move(*report);
                report_cv_.notify_all();
            }
            if (asks) peer.control->send(ControlKind::Report, encode_report(self_report(), false));
            return;
        }
        case ControlKind::Slow: {
            if (frame.body.size() != sizeof(OpHeader)) return;
            OpHeader theirs;
            std::memcpy(&theirs, frame.body.data(), sizeof theirs);
            peer.slow.publish(theirs);
            wake_self();
            return;
        }
        case ControlKind::Share:
        case ControlKind::Shared:
        case ControlKind::Unshare: {
            ShareNote note;
            if (frame.body.size() == sizeof note) std::memcpy(&note, frame.body.data(), sizeof note);
            if (frame.kind == ControlKind::Share) return on_share(peer, note);
            if (frame.kind == ControlKind::Shared) return on_shared(peer, note);
            const std::lock_guard lock(peer.segments_mutex);
            peer.segments.erase(note.segment);
            return;
        }
    }
}

RankReport Comm::self_report() {
    {
        const std::lock_guard lock(report_mutex_);
        if (own_report_) return *own_report_;
    }
    RankReport mine;
    mine.heard = true;
    mine.pid = ::getpid();
    const OpHeader last = recent_[begun_ % kRecent].read();
    mine.posted = last.seq;
    mine.recent = recent();
    mine.done = done_.load();
    std::unique_lock lock(mutex_, std::try_to_lock);
    for (int tries = 0; !lock && tries < 20; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        lock.try_lock();
    }
    // A rank that is in no call has nothing to add later. One whose operation has just failed is about to.
    mine.is_final =
        lock && drivers_ == 0 && head() == nullptr && !messenger_->active() && mine.posted <= mine.done;
    if (lock) mine.what = messenger_->describe();
    if (lock && head()) mine.where = head()->where;
    const std::string operation = "#" + std::to_string(last.seq) + " " + describe(last);
    if (mine.posted > mine.done)
        mine.what = "in " + operation + (mine.what.empty() ? "" : ", and " + mine.what);
    else if (mine.what.empty())
        mine.what = last.seq == 0 ? "in no call; it has called no collective yet"
                                  : "in no call; it has completed " + operation;
    if (lock) lock.unlock();
    // Blocked elsewhere: two groups used in opposite order look like this.
    const std::string elsewhere = engine_->activity(this);
    if (!elsewhere.empty() && mine.posted <= mine.done) mine.what = "in " + elsewhere;
    return mine;
}

std::string Comm::activity() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || (drivers_ == 0 && head() == nullptr)) return {};
    const std::string where = config_.label.empty() ? " of the world" : " of " + config_.label;
    const Operation* operation = head();
    if (operation)
        return "#" + std::to_string(operation->header().seq) + " " + describe(operation->header()) + where;
    const std::string messages = messenger_->describe();
    return messages.empty() ? messages : messages + where;
}

/// The operations begun last, oldest first.
std::string Comm::recent() const {
    std::string text;
    const std::uint64_t last = begun_.load(std::memory_order_acquire);
    for (std::uint64_t seq = last > kRecent - 1 ? last - kRecent + 2 : 1; seq <= last; ++seq) {
        const OpHeader header = recent_[seq % kRecent].read();
        if (header.seq == seq) text += std::to_string(seq) + " " + describe(header) + "\n";
    }
    return text;
}

std::vector<int> Comm::lost() const {
    std::vector<int> ranks;
    for (const Peer* peer : others_)
        if (peer->lost_at != 0) ranks.push_back(peer->rank);
    return ranks;
}

std::vector<RankReport> Comm::ask_all(RankReport mine, double timeout, bool want_final) {
    const auto body = encode_report(mine, true);
    {
        const std::lock_guard lock(report_mutex_);
        for (RankReport& report : reports_) {
            if (report.is_final && failed_) continue;
            report.heard = report.is_final = false;
        }
        if (mine.is_final && failed_) own_report_ = mine;
    }
    for (Peer* peer : others_)
        if (peer->control_open) peer->control->send(ControlKind::Report, body);
    std::unique_lock lock(report_mutex_);
    const auto complete = [&] {
        return std::all_of(others_.begin(), others_.end(), [&](const Peer* peer) {
            const RankReport& report = reports_[static_cast<std::size_t>(peer->rank)];
            return !peer->control_open || (report.heard && (!want_final || report.is_final));
        });
    };
    report_cv_.wait_for(lock, std::chrono::duration<double>(timeout), complete);
    auto result = reports_;
    for (const Peer* peer : others_) {
        RankReport& report = result[static_cast<std::size_t>(peer->rank)];
        report.alive = peer->control_open;
        report.left = peer->left;
        if (peer->left) report.done = std::max(report.done, peer->left_done.load());
        // A rank of this host need not answer: its window tells.
        if (peer->window) report.done = std::max(report.done, peer->window->control().done.load());
    }
    result[static_cast<std::size_t>(config_.rank)] = std::move(mine);
    return result;
}

std::vector<RankReport> Comm::reports(const std::string& what, const std::string& where, double timeout) {
    RankReport mine = self_report();
    mine.what = what;
    mine.where = where;
    mine.is_final = true;
    return ask_all(std::move(mine), timeout, true);
}

/// Looks for peers that were in another operation than this rank in one that both have completed: where a
/// rank only sends, nobody compares. Called at the end, when no later operation will.
void Comm::check_stale() {
    const std::uint64_t done = done_;
    const auto compare = [&](Peer& peer, const OpHeader& theirs) {
        if (theirs.seq == 0 || theirs.seq > done || theirs.seq + kRecent <= done) return;
        const OpHeader mine = recent_[theirs.seq % kRecent].read();
        if (theirs.signature != mine.signature) mismatch(mine, peer.rank, theirs);
    };
    try {
        for (Peer* peer : others_) {
            if (peer->window)
                for (const SharedHeader& slot : peer->window->control().headers) compare(*peer, slot.read());
            const auto head = peer->coll->peek(sizeof(OpHeader));
            if (head.size() < sizeof(OpHeader)) continue;
            OpHeader theirs;
            std::memcpy(&theirs, head.data(), sizeof theirs);
            if (theirs.second == kMessageMagic) compare(*peer, theirs);
        }
    } catch (const OperationFailed&) {
        // Comm::fail has the reason.
    }
}

void Comm::close(bool exiting) {
    if (closed_.exchange(true)) return;
    {
        // Small messages count as sent when they have been copied: they still have to leave.
        std::unique_lock lock(mutex_);
        const auto limit = Clock::now() + std::chrono::seconds(1);
        while (!failed_ && messenger_->unsent() && !any_lost() && Clock::now() < limit) {
            progress();
            lock.unlock();
            std::this_thread::sleep_for(std::chrono::microseconds(200));
            lock.lock();
        }
        if (!failed_ && head() == nullptr) check_stale();
        settle(Status::Aborted);
    }
    const auto failure = this->failure();
    const Goodbye bye{done_.load(), exiting ? 1U : 0U};
    for (Peer* peer : others_) {
        if (!peer->control_open) continue;
        if (failure) peer->control->send(ControlKind::Abort, encode_failure(*failure));
        peer->control->send(ControlKind::Bye, {reinterpret_cast<const std::byte*>(&bye), sizeof bye});
        peer->control->shutdown();
    }
    engine_->remove(this);
    release();
}

/// Gives the sockets back now, not when the last reference goes; unless a thread is still leaving a call.
void Comm::release() {
    const std::lock_guard lock(mutex_);
    if (drivers_ > 0) return;
    for (Peer* peer : others_) {
        peer->control_open = false;
        peer->coll.reset();
        peer->p2p.reset();
        peer->control->close();
    }
    wake_.reset();
}

}  // namespace hcomm
