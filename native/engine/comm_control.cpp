// What a communicator says and hears besides data: failures, goodbyes, reports.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "engine/comm.hpp"
#include "engine/engine.hpp"

namespace hcomm {

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
            std::uint64_t done = 0;
            if (frame.body.size() == sizeof done) std::memcpy(&done, frame.body.data(), sizeof done);
            peer.left_done = done;
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
    const OpHeader last = now_.read();
    mine.posted = last.seq;
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
    return mine;
}

std::vector<RankReport> Comm::ask_all(RankReport mine, double timeout, bool want_final) {
    const auto body = encode_report(mine, true);
    {
        const std::lock_guard lock(report_mutex_);
        for (RankReport& report : reports_)
            if (!report.is_final) report.heard = false;
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

void Comm::close() {
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
        settle(Status::Aborted);
    }
    const auto failure = this->failure();
    const std::uint64_t done = done_.load();
    for (Peer* peer : others_) {
        if (!peer->control_open) continue;
        if (failure) peer->control->send(ControlKind::Abort, encode_failure(*failure));
        peer->control->send(ControlKind::Bye, {reinterpret_cast<const std::byte*>(&done), sizeof done});
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
