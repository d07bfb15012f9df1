#include "engine/messenger.hpp"

#include <algorithm>
#include <cstring>

#include "engine/comm.hpp"
#include "kernels/kernels.hpp"

namespace hcomm {
namespace {

constexpr std::uint64_t kMagic = 0x48434F4D4D503250ULL;
/// Messages up to this size travel at once and wait at the receiver.
constexpr std::uint64_t kEagerShm = Comm::kSmallMessage;
constexpr std::uint64_t kEagerTcp = 32 << 10;
constexpr std::uint64_t kEagerMost = 64 << 10;  ///< no peer may announce more

std::uint64_t eager_most(const Peer& peer) noexcept { return peer.is_local() ? kEagerShm : kEagerTcp; }

}  // namespace

std::string size_text(std::uint64_t bytes, std::uint8_t dtype) {
    const std::uint64_t item = size_of(static_cast<DType>(dtype));
    return std::to_string(item ? bytes / item : bytes) + " " + name_of(static_cast<DType>(dtype));
}

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
    message.shown.reset();
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

MessageHeader Messenger::header_of(const Message& message, MessageHeader::Kind kind) const noexcept {
    MessageHeader header{};
    header.magic = kMagic;
    header.id = message.id;
    header.bytes = message.bytes;
    header.address = reinterpret_cast<std::uint64_t>(message.data);
    header.tag = message.tag;
    header.kind = kind;
    header.dtype = message.dtype;
    if (message.shown.segment) {
        header.is_shared = 1;
        header.place =
            pack_place(message.shown.segment->id, message.shown.segment->offset(message.shown.begin));
    }
    return header;
}

bool Messenger::send_now(int dst, int tag, const std::byte* data, std::uint64_t bytes, std::uint8_t dtype) {
    if (dst == comm_.rank()) return false;
    Lane& lane = lanes_[static_cast<std::size_t>(dst)];
    if (bytes > eager_most(*lane.peer) || lane.peer->lost_at != 0) return false;
    MessageHeader header{kMagic, next_id_++, bytes, 0, tag, MessageHeader::Eager, dtype, 0, 0, 0, {}};
    std::uint64_t sent = 0;
    if (lane.out.empty() && transmit(lane, header, data, sent)) return true;
    // The link is full: keep a copy, so that the caller may reuse its tensor.
    Frame rest;
    rest.header = header;
    rest.copy.assign(data, data + bytes);
    rest.body = rest.copy.data();
    rest.sent = sent;
    push(lane, std::move(rest));
    return true;
}

void Messenger::send(std::shared_ptr<Message> message) {
    // To a rank that is gone even a small message must fail: it waits, and Comm::check_lost finds it.
    if (send_now(message->peer, message->tag, message->data, message->bytes, message->dtype))
        return message->finish(Status::Ok);
    ++unfinished_;
    message->id = next_id_++;
    if (message->peer == comm_.rank()) return send_to_self(message);
    announce(lanes_[static_cast<std::size_t>(message->peer)], message);
}

/// Sends what its receiver has to answer.
void Messenger::announce(Lane& lane, const std::shared_ptr<Message>& message) {
    const bool local = lane.peer->is_local();
    if (local)
        if (auto segment = comm_.shared_segment(message->data, message->bytes, false))
            message->shown.show(std::move(segment), message->data, message->bytes);
    announced_[message->id] = message;
    if (!local) ++far_;
    Frame frame;
    // Their receiver may have to keep them, so no more are on the way than the ring holds.
    message->early = local && !message->shown.segment && message->bytes <= comm_.layout_.p2p_bytes / 2 &&
                     lane.early_bytes + message->bytes <= comm_.layout_.p2p_bytes;
    frame.header = header_of(*message, message->early ? MessageHeader::Early : MessageHeader::Request);
    if (message->early) {
        frame.body = message->data;
        lane.early_bytes += message->bytes;
    }
    push(lane, std::move(frame));
}

void Messenger::send_to_self(const std::shared_ptr<Message>& message) {
    Lane& lane = lanes_[static_cast<std::size_t>(comm_.rank())];
    Arrived arrived{header_of(*message, MessageHeader::Request), {}, message};
    if (message->bytes <=
        kEagerShm) {  // as to any other rank: a small message does not wait for its receiver
        arrived.body.assign(message->data, message->data + message->bytes);
        arrived.header.kind = MessageHeader::Eager;
        arrived.own = nullptr;
        finish(*message, Status::Ok);
    }
    if (auto receiver = take_posted(comm_.rank(), message->tag)) {
        deliver(lane, arrived, *receiver);
        return comm_.wake_self();  // another thread may sleep in that receive
    }
    lane.arrived.push_back(std::move(arrived));
}

void Messenger::push(Lane& lane, Frame frame) {
    lane.out.push_back(std::move(frame));
    ++unsent_;
    flush(lane);
}

/// Writes what there is room for; true when header and body are out.
bool Messenger::transmit(Lane& lane, const MessageHeader& header, const std::byte* body,
                         std::uint64_t& sent) {
    const std::uint64_t bytes = sizeof(MessageHeader) + (body ? header.bytes : 0), before = sent;
    ssize_t n = 1;
    while (n > 0 && sent < sizeof(MessageHeader)) {
        const auto* head = reinterpret_cast<const std::byte*>(&header);
        n = comm_.write(*lane.link, head + sent, sizeof(MessageHeader) - sent);
        if (n > 0) sent += static_cast<std::uint64_t>(n);
    }
    while (n > 0 && sent < bytes) {
        n = comm_.write(*lane.link, body + (sent - sizeof(MessageHeader)), bytes - sent);
        if (n > 0) sent += static_cast<std::uint64_t>(n);
    }
    if (n < 0) lane.peer->note_lost();
    if (sent == bytes) {
        lane.link->pad();  // rings
        lane.peer->bytes_sent.fetch_add(sent, std::memory_order_relaxed);
        return true;
    }
    if (sent > before) lane.peer->ring();
    return false;
}

void Messenger::flush(Lane& lane) {
    while (!lane.out.empty()) {
        Frame& frame = lane.out.front();
        if (!transmit(lane, frame.header, frame.body, frame.sent)) return;
        if (frame.completes) finish(*frame.completes, Status::Ok);
        lane.out.pop_front();
        --unsent_;
    }
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
        if (arrived.header.kind != MessageHeader::Request || arrived.own)
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
    if (arrived.header.kind == MessageHeader::Early)
        answer(lane, arrived.header, good ? MessageHeader::Done : MessageHeader::Refuse);
    finish(message, good ? Status::Ok : Status::MessageMismatch);
}

void Messenger::progress() {
    for (Lane& lane : lanes_) {
        if (!lane.link) continue;
        if (!lane.out.empty()) flush(lane);
        if (unfinished_ > 0) read(lane);
        if (!lane.fetches.empty()) fetch(lane);
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
        case MessageHeader::Early:
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
    const std::uint64_t most =
        lane.header.kind == MessageHeader::Eager ? kEagerMost : comm_.layout_.p2p_bytes / 2;
    if (lane.header.bytes > most) broken_protocol(lane, "an eager message that is too large");
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
        const bool good = lane.target->text.empty();
        if (lane.header.kind == MessageHeader::Early)
            answer(lane, lane.header, good ? MessageHeader::Done : MessageHeader::Refuse);
        finish(*lane.target, good ? Status::Ok : Status::MessageMismatch);
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

}  // namespace hcomm
