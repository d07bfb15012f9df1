// Messages that are announced: how their receivers get them, and what they answer.

#include <algorithm>

#include "engine/comm.hpp"
#include "engine/messenger.hpp"
#include "kernels/kernels.hpp"
#include "links/cma.hpp"

namespace hcomm {
namespace {

/// What is fetched at a time: whoever waits for the lock in between must not wait long.
constexpr std::uint64_t kFetchPiece = 1 << 20;

}  // namespace

void Messenger::answer(Lane& lane, const MessageHeader& header, MessageHeader::Kind kind) {
    Frame frame;
    frame.header = header;
    frame.header.kind = kind;
    frame.header.bytes = frame.header.address = frame.header.place = 0;
    frame.header.is_shared = 0;
    push(lane, std::move(frame));
    // Nobody there may be looking, and then the message would not come.
    if (kind == MessageHeader::Grant && lane.peer->is_local()) lane.peer->control->ding();
}

void Messenger::on_request(Lane& lane, const MessageHeader& header, std::shared_ptr<Message> message) {
    if (!fits(header, *message, lane.peer->rank)) {
        answer(lane, header, MessageHeader::Refuse);
        return finish(*message, Status::MessageMismatch);
    }
    Fetch fetch{header, std::move(message), {}, 0};
    if (header.is_shared && lane.peer->is_local()) {
        const auto [segment, offset] = unpack_place(header.place);
        fetch.from = lane.peer->find_shared(segment, offset);
        if (fetch.from.bytes < header.bytes || !fetch.from.data) {
            finish(*fetch.message, Status::System);
            broken_protocol(lane, "a message in memory that it has not shared");
        }
    }
    lane.fetches.push_back(std::move(fetch));
    ++fetching_;
    if (lane.fetches.size() == 1) this->fetch(lane);
}

/// Takes the next piece of the first message that is to be fetched.
void Messenger::fetch(Lane& lane) {
    Fetch& fetch = lane.fetches.front();
    const MessageHeader header = fetch.header;
    const std::uint64_t n = std::min(header.bytes - fetch.got, kFetchPiece);
    std::byte* into = fetch.message->data + fetch.got;
    bool reached = true;
    if (!fetch.from.data)
        reached = lane.peer->pid != 0 && cma_read(lane.peer->pid, header.address + fetch.got, into, n);
    else
        copy_bytes(into, fetch.from.data + fetch.got, n, header.bytes);
    fetch.got += n;
    if (reached && fetch.got < header.bytes) return;
    const std::shared_ptr<Message> message = std::move(fetch.message);
    lane.fetches.pop_front();
    --fetching_;
    if (reached) {
        finish(*message, Status::Ok);
    } else {
        // Where the memory cannot be reached, the sender writes it to the link.
        lane.granted[header.id] = message;
    }
    answer(lane, header, reached ? MessageHeader::Done : MessageHeader::Grant);
}

/// The message that a peer answers. What it answers must have left this rank: the body may be the user's
/// tensor.
std::shared_ptr<Message> Messenger::take_announced(Lane& lane, std::uint64_t id) {
    const auto found = announced_.find(id);
    const bool waits = std::any_of(lane.out.begin(), lane.out.end(),
                                   [&](const Frame& frame) { return frame.header.id == id && frame.body; });
    if (found == announced_.end() || found->second->peer != lane.peer->rank || waits)
        broken_protocol(lane, "an answer to no message");
    auto message = std::move(found->second);
    announced_.erase(found);
    if (!lane.peer->is_local()) --far_;
    if (message->early) lane.early_bytes -= message->bytes;
    return message;
}

void Messenger::on_grant(Lane& lane, std::uint64_t id) {
    auto message = take_announced(lane, id);
    if (message->early) {
        finish(*message, Status::System);
        broken_protocol(lane, "a grant for what it has");
    }
    Frame frame;
    frame.header = header_of(*message, MessageHeader::Data);
    frame.body = message->data;
    frame.completes = std::move(message);
    push(lane, std::move(frame));
}

void Messenger::on_answer(Lane& lane) {
    auto message = take_announced(lane, lane.header.id);
    if (lane.header.kind == MessageHeader::Refuse)
        message->text = "rank " + std::to_string(lane.peer->rank) +
                        " expects another type or count than the " +
                        size_text(message->bytes, message->dtype) + " that rank " +
                        std::to_string(comm_.rank()) + " sends with tag " + std::to_string(message->tag);
    finish(*message, lane.header.kind == MessageHeader::Done ? Status::Ok : Status::MessageMismatch);
}

}  // namespace hcomm
