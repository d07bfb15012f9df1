// What a messenger tells of what it waits for, and how all of it ends.

#include <algorithm>

#include "engine/comm.hpp"
#include "engine/messenger.hpp"

namespace hcomm {

void Messenger::fail(Status status) {
    for (auto& message : posted_) finish(*message, status);
    posted_.clear();
    for (auto& [id, message] : announced_) finish(*message, status);
    announced_.clear();
    far_ = 0;
    for (Lane& lane : lanes_) {
        for (auto& [id, message] : lane.granted) finish(*message, status);
        lane.granted.clear();
        for (Fetch& fetch : lane.fetches) finish(*fetch.message, status);
        fetching_ -= lane.fetches.size();
        lane.fetches.clear();
        if (lane.target) finish(*lane.target, status);
        lane.target.reset();
        for (Frame& frame : lane.out)
            if (frame.completes) finish(*frame.completes, status);
        unsent_ -= lane.out.size();
        lane.out.clear();
        lane.early_bytes = 0;
        for (Arrived& arrived : lane.arrived)
            if (arrived.own) finish(*arrived.own, status);
        lane.arrived.clear();
        lane.in_body = false;
    }
}

namespace {

/// Calls `visit` with every unfinished message until it returns true.
template <class Posted, class Announced, class Lanes, class Visit>
void for_each_unfinished(const Posted& posted, const Announced& announced, const Lanes& lanes, Visit visit) {
    for (const auto& message : posted)
        if (visit(message)) return;
    for (const auto& [id, message] : announced)
        if (visit(message)) return;
    for (const auto& lane : lanes) {
        for (const auto& [id, message] : lane.granted)
            if (visit(message)) return;
        for (const auto& arrived : lane.arrived)
            if (arrived.own && visit(arrived.own)) return;
        for (const auto& fetch : lane.fetches)
            if (visit(fetch.message)) return;
        if (lane.target && visit(lane.target)) return;
        for (const auto& frame : lane.out)
            if (frame.completes && visit(frame.completes)) return;
    }
}

}  // namespace

std::shared_ptr<Message> Messenger::overdue(Clock::time_point now) const {
    std::shared_ptr<Message> late;
    if (unfinished_ == 0) return late;
    for_each_unfinished(posted_, announced_, lanes_, [&](const std::shared_ptr<Message>& message) {
        if (message->deadline <= now) late = message;
        return late != nullptr;
    });
    return late;
}

Clock::time_point Messenger::next_deadline() const {
    auto first = Clock::time_point::max();
    if (unfinished_ == 0) return first;
    for_each_unfinished(posted_, announced_, lanes_, [&](const std::shared_ptr<Message>& message) {
        first = std::min(first, message->deadline);
        return false;
    });
    return first;
}

bool Messenger::needs(int rank, bool nobody_else) const {
    if (unfinished_ == 0) return false;
    const Link* link = lanes_[static_cast<std::size_t>(rank)].link;
    // What a rank on another host sent before it left may still be on the way; memory shows it at once.
    const bool silent = link && (link->fd() < 0 || link->ended());
    bool needed = false;
    for_each_unfinished(posted_, announced_, lanes_, [&](const std::shared_ptr<Message>& message) {
        const bool anyone = message->peer < 0 && message->source < 0;
        const bool theirs = message->peer == rank || message->source == rank || (anyone && nobody_else);
        needed = theirs && (message->is_send || silent);
        return needed;
    });
    return needed;
}

std::string Messenger::describe() const {
    std::string text;
    if (unfinished_ == 0) return text;
    for_each_unfinished(posted_, announced_, lanes_, [&](const std::shared_ptr<Message>& message) {
        const std::string peer = message->peer < 0 ? "anyone" : "rank " + std::to_string(message->peer);
        text = (message->is_send ? "sending " : "receiving ") + size_text(message->bytes, message->dtype) +
               (message->is_send ? " to " : " from ") + peer + ", tag " + std::to_string(message->tag);
        if (unfinished_ > 1) text += " (and " + std::to_string(unfinished_ - 1) + " more messages)";
        return true;
    });
    return text;
}

bool Messenger::awaits_answers_only() const noexcept {
    return unsent_ == 0 && far_ == 0 && unfinished_ == announced_.size();
}

void Messenger::collect_fds(std::vector<pollfd>& fds) const {
    for (const Lane& lane : lanes_) {
        if (!lane.link || lane.link->fd() < 0 || lane.peer->lost_at != 0) continue;
        short events = 0;
        if (unfinished_ > 0) events |= POLLIN;
        if (!lane.out.empty()) events |= POLLOUT;
        if (events) fds.push_back({lane.link->fd(), events, 0});
    }
}

}  // namespace hcomm
