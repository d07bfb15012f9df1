#include "engine/messenger.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm.hpp"
#include "kernels/kernels.hpp"
#include "links/cma.hpp"

namespace hcomm {
namespace {

constexpr std::uint64_t kMagic = 0x48434F4D4D503250ULL;
/// Messages up to this size travel at once and wait at the receiver.
constexpr std::uint64_t kEagerShm = Comm::kSmallMessage;
constexpr std::uint64_t kEagerTcp = 32 << 10;
constexpr std::uint64_t kEagerMost = 64 << 10;  ///< no peer may announce more

std::string size_text(std::uint64_t bytes, std::uint8_t dtype) {
    const std::uint64_t item = size_of(static_cast<DType>(dtype));
    return std::to_string(item ? bytes / item : bytes) + " " + name_of(static_cast<DType>(dtype));
}

}  // namespace

Messenger::Messenger(Comm& comm) : comm_(comm), lanes_(static_cast<std::size_t>(comm.size())) {
    for (Peer* peer : comm.others_) {
        Lane& lane = lanes_[static_cast<std::size_t>(peer->rank)];
        lane.peer = peer;
        lane.link = peer->p2p.get();
    }
}

Messenger::~Messenger() = default;

void Messenger::finish(Message& message, Status status) {
    if (!message.pending()) return;
    message.finish(status);
    --unfinished_;
}

void Messenger::broken_protocol(const Lane& lane, const char* what) {
    comm_.raise({Status::System,
                 comm_.done_.load(),
                 {lane.peer->rank},
                 "rank " + std::to_string(lane.peer->rank) + " broke the message protocol: " + what});
}

// --- sending
// -------------------------------------------------------------------------------------------------------

void Messenger::send(std::shared_ptr<Message> message) {
    ++unfinished_;
    message->id = next_id_++;
    if (message->peer == comm_.rank()) return send_to_self(message);
    Lane& lane = lanes_[static_cast<std::size_t>(message->peer)];
    Frame frame;
    frame.header = {kMagic,
                    message->id,
                    message->bytes,
                    reinterpret_cast<std::uint64_t>(message->data),
                    message->tag,
                    MessageHeader::Eager,
                    message->dtype,
                    0,
                    {}};
    // To a rank that is gone even a small message must fail: it waits, and Comm::check_lost finds it.
    const bool eager =
        message->bytes <= (lane.peer->is_local() ? kEagerShm : kEagerTcp) && lane.peer->lost_at == 0;
    if (!eager) {
        frame.header.kind = MessageHeader::Request;
        announced_[message->id] = message;
        push(lane, std::move(frame));
        return;
    }
    frame.body = message->data;
    frame.bytes = message->bytes;
    push(lane, std::move(frame));
    if (!lane.out.empty()) {
        // The link is full: keep a copy, so that the caller may reuse its tensor.
        Frame& last = lane.out.back();
        last.copy.assign(message->data, message->data + message->bytes);
        last.body = last.copy.data();
    }
    finish(*message, Status::Ok);
}

void Messenger::send_to_self(const std::shared_ptr<Message>& message) {
    const MessageHeader header{
        kMagic, message->id, message->bytes, 0, message->tag, MessageHeader::Request, message->dtype, 0, {}};
    Lane& lane = lanes_[static_cast<std::size_t>(comm_.rank())];
    Arrived arrived{header, {}, message};
    if (message->bytes <=
        kEagerShm) {  // as to any other rank: a small message does not wait for its receiver
        arrived.body.assign(message->data, message->data + message->bytes);
        arrived.header.kind = MessageHeader::Eager;
        arrived.own = nullptr;
        finish(*message, Status::Ok);
    }
    if (auto receiver = take_posted(comm_.rank(), message->tag)) return deliver(lane, arrived, *receiver);
    lane.arrived.push_back(std::move(arrived));
}

void Messenger::push(Lane& lane, Frame frame) {
    lane.out.push_back(std::move(frame));
    ++unsent_;
    flush(lane);
}

void Messenger::flush(Lane& lane) {
    bool wrote = false;
    while (!lane.out.empty()) {
        Frame& frame = lane.out.front();
        ssize_t n = 1;
        while (n > 0 && frame.sent < sizeof(MessageHeader)) {
            const auto* head = reinterpret_cast<const std::byte*>(&frame.header);
            n = comm_.write(*lane.link, head + frame.sent, sizeof(MessageHeader) - frame.sent);
            if (n > 0) frame.sent += static_cast<std::uint64_t>(n);
        }
        while (n > 0 && frame.sent < sizeof(MessageHeader) + frame.bytes) {
            const std::uint64_t at = frame.sent - sizeof(MessageHeader);
            n = comm_.write(*lane.link, frame.body + at, frame.bytes - at);
            if (n > 0) frame.sent += static_cast<std::uint64_t>(n);
        }
        wrote |= frame.sent > 0;
        if (n < 0) lane.peer->note_lost();
        if (frame.sent < sizeof(MessageHeader) + frame.bytes) break;
        lane.link->pad();
        lane.peer->bytes_sent.fetch_add(frame.sent, std::memory_order_relaxed);
        if (frame.completes) finish(*frame.completes, Status::Ok);
        lane.out.pop_front();
        --unsent_;
    }
    if (wrote) lane.peer->ring();
}

// --- receiving
// -----------------------------------------------------------------------------------------------------

void Messenger::receive(std::shared_ptr<Message> message) {
    ++unfinished_;
    for (Lane& lane : lanes_) {
        const int source = static_cast<int>(&lane - lanes_.data());
        if (message->peer >= 0 && message->peer != source) continue;
        const auto found = std::find_if(lane.arrived.begin(), lane.arrived.end(),
                                        [&](const Arrived& a) { return a.header.tag == message->tag; });
        if (found == lane.arrived.end()) continue;
        Arrived arrived = std::move(*found);
        lane.arrived.erase(found);
        if (arrived.own || arrived.header.kind == MessageHeader::Eager)
            return deliver(lane, arrived, *message);
        return on_request(lane, arrived.header, std::move(message));
    }
    posted_.push_back(std::move(message));
}

std::shared_ptr<Message> Messenger::take_posted(int source, int tag) {
    const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const auto& m) {
        return m->tag == tag && (m->peer < 0 || m->peer == source);
    });
    if (found == posted_.end()) return nullptr;
    auto message = *found;
    posted_.erase(found);
    return message;
}

bool Messenger::fits(const MessageHeader& header, Message& message, int source) {
    message.source = source;
    if (header.bytes == message.bytes && header.dtype == message.dtype) return true;
    message.text = "rank " + std::to_string(source) + " sent " + size_text(header.bytes, header.dtype) +
                   " with tag " + std::to_string(header.tag) + ", but rank " + std::to_string(comm_.rank()) +
                   " expects " + size_text(message.bytes, message.dtype);
    return false;
}

/// Gives a message that waits here to its receiver.
void Messenger::deliver(Lane& lane, Arrived& arrived, Message& message) {
    const int source = static_cast<int>(&lane - lanes_.data());
    const bool good = fits(arrived.header, message, source);
    if (good && message.bytes > 0)
        copy_bytes(message.data, arrived.own ? arrived.own->data : arrived.body.data(), message.bytes);
    if (arrived.own) {
        arrived.own->text = message.text;
        finish(*arrived.own, good ? Status::Ok : Status::MessageMismatch);
    }
    finish(message, good ? Status::Ok : Status::MessageMismatch);
}

void Messenger::progress() {
    for (Lane& lane : lanes_) {
        if (!lane.link) continue;
        if (!lane.out.empty()) flush(lane);
        if (unfinished_ > 0) read(lane);
    }
}

void Messenger::read(Lane& lane) {
    // Nothing is read that nobody waits for: then the link fills up and the sender waits.
    while (unfinished_ > 0) {
        if (!lane.in_body) {
            const auto head = lane.link->peek(sizeof(MessageHeader));
            if (head.size() < sizeof(MessageHeader)) break;
            std::memcpy(&lane.header, head.data(), sizeof(MessageHeader));
            lane.link->consume(sizeof(MessageHeader));
            on_header(lane);
            if (!lane.in_body) {
                lane.link->skip_pad();
                continue;
            }
        }
        if (!read_body(lane)) break;
        lane.link->skip_pad();
        lane.in_body = false;
        end_of_body(lane);
    }
    if (lane.link->ended()) lane.peer->note_lost();
}

bool Messenger::read_body(Lane& lane) {
    while (lane.got < lane.header.bytes) {
        const std::size_t n = lane.link->read(lane.into + lane.got, lane.header.bytes - lane.got);
        if (n == 0) return false;
        lane.got += n;
    }
    return true;
}

void Messenger::on_header(Lane& lane) {
    const MessageHeader& header = lane.header;
    if (header.magic != kMagic) broken_protocol(lane, "no message header where one is due");
    switch (header.kind) {
        case MessageHeader::Eager:
            return on_eager(lane);
        case MessageHeader::Request: {
            auto message = take_posted(lane.peer->rank, header.tag);
            if (message) return on_request(lane, header, std::move(message));
            lane.arrived.push_back({header, {}, nullptr});
            return;
        }
        case MessageHeader::Grant:
            return on_grant(lane, header.id);
        case MessageHeader::Done:
        case MessageHeader::Refuse:
            return on_answer(lane);
        case MessageHeader::Data: {
            const auto found = lane.granted.find(header.id);
            if (found == lane.granted.end() || found->second->bytes != header.bytes)
                broken_protocol(lane, "data that nobody asked for");
            lane.target = found->second;
            lane.granted.erase(found);
            lane.into = lane.target->data;
            lane.got = 0;
            lane.in_body = true;
            return;
        }
    }
    broken_protocol(lane, "unknown kind of message");
}

void Messenger::on_eager(Lane& lane) {
    if (lane.header.bytes > kEagerMost) broken_protocol(lane, "an eager message that is too large");
    lane.target = take_posted(lane.peer->rank, lane.header.tag);
    lane.got = 0;
    lane.in_body = true;
    if (lane.target && fits(lane.header, *lane.target, lane.peer->rank)) {
        lane.into = lane.target->data;
        return;
    }
    lane.body.resize(lane.header.bytes);
    lane.into = lane.body.data();
}

void Messenger::end_of_body(Lane& lane) {
    if (lane.target) {
        finish(*lane.target, lane.target->text.empty() ? Status::Ok : Status::MessageMismatch);
        lane.target.reset();
    } else {
        Arrived arrived{lane.header, std::move(lane.body), nullptr};
        // Somebody may have asked for it since it began to arrive.
        if (auto receiver = take_posted(lane.peer->rank, lane.header.tag))
            deliver(lane, arrived, *receiver);
        else
            lane.arrived.push_back(std::move(arrived));
    }
    lane.body = {};
}

void Messenger::on_request(Lane& lane, const MessageHeader& header, std::shared_ptr<Message> message) {
    Frame answer;
    answer.header = {kMagic, header.id, 0, 0, header.tag, MessageHeader::Grant, header.dtype, 0, {}};
    if (!fits(header, *message, lane.peer->rank)) {
        answer.header.kind = MessageHeader::Refuse;
        finish(*message, Status::MessageMismatch);
    } else if (lane.peer->pid != 0 &&
               cma_read(lane.peer->pid, header.address, message->data, message->bytes)) {
        answer.header.kind = MessageHeader::Done;
        finish(*message, Status::Ok);
    } else {
        // Where the memory cannot be reached, the sender writes it to the link.
        lane.granted[header.id] = std::move(message);
    }
    push(lane, std::move(answer));
}

void Messenger::on_grant(Lane& lane, std::uint64_t id) {
    const auto found = announced_.find(id);
    if (found == announced_.end() || found->second->peer != lane.peer->rank)
        broken_protocol(lane, "a grant for no message");
    auto message = std::move(found->second);
    announced_.erase(found);
    Frame frame;
    frame.header = {kMagic, id, message->bytes, 0, message->tag, MessageHeader::Data, message->dtype, 0, {}};
    frame.body = message->data;
    frame.bytes = message->bytes;
    frame.completes = std::move(message);
    push(lane, std::move(frame));
}

void Messenger::on_answer(Lane& lane) {
    const auto found = announced_.find(lane.header.id);
    if (found == announced_.end() || found->second->peer != lane.peer->rank)
        broken_protocol(lane, "an answer to no message");
    auto message = std::move(found->second);
    announced_.erase(found);
    if (lane.header.kind == MessageHeader::Refuse)
        message->text = "rank " + std::to_string(lane.peer->rank) +
                        " expects another type or count than the " +
                        size_text(message->bytes, message->dtype) + " that rank " +
                        std::to_string(comm_.rank()) + " sends with tag " + std::to_string(message->tag);
    finish(*message, lane.header.kind == MessageHeader::Done ? Status::Ok : Status::MessageMismatch);
}

// --- waiting and failing
// -------------------------------------------------------------------------------------------

void Messenger::fail(Status status) {
    for (auto& message : posted_) finish(*message, status);
    posted_.clear();
    for (auto& [id, message] : announced_) finish(*message, status);
    announced_.clear();
    for (Lane& lane : lanes_) {
        for (auto& [id, message] : lane.granted) finish(*message, status);
        lane.granted.clear();
        if (lane.target) finish(*lane.target, status);
        lane.target.reset();
        for (Frame& frame : lane.out)
            if (frame.completes) finish(*frame.completes, status);
        unsent_ -= lane.out.size();
        lane.out.clear();
        lane.arrived.clear();
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
