// How a collective comes to reach into the buffers of other ranks: what each offers, what all conclude from
// it.

#include <algorithm>

#include "engine/comm.hpp"
#include "engine/operation.hpp"

namespace hcomm {
namespace {

/// Whether nothing comes before the first meeting of the clique: what comes before it must not be passed
/// over.
bool begins_with_meeting(const BoundProgram& program) {
    const BoundBlock* first = program.blocks.empty() ? nullptr : &program.blocks.front();
    return first && first->tile == 0 && !first->steps.empty() &&
           first->steps.front().kind == StepKind::Meet && first->steps.front().fused;
}

}  // namespace

/// Says in the header where this rank's input and output are shared, as far as others reach into them.
void Operation::offer() {
    const auto me = static_cast<std::size_t>(comm_.rank());
    // What a root sends may be read by others meanwhile.
    const bool alone = header_.root < 0;
    const auto show = [&](Shown& shown, const std::byte* data, std::uint64_t count, bool written,
                          std::uint64_t& place) {
        auto segment = comm_.shared_segment(data, count * item_, written);
        if (!segment) return false;
        place = pack_place(segment->id, segment->offset(reinterpret_cast<std::uintptr_t>(data)));
        shown.show(std::move(segment), data, count * item_);
        return true;
    };
    if (plan_->access.input[me] && show(shown_in_, in_, plan_->n_in, alone && in_place_, header_.first))
        header_.flags |= kSharesInput;
    if (plan_->access.output[me] && show(shown_out_, out_, plan_->n_out, alone, header_.second))
        header_.flags |= kSharesOutput;
}

/// Whether this header offers all that the program needs of its rank.
bool Operation::is_offered(const OpHeader& header, int rank) const noexcept {
    const auto r = static_cast<std::size_t>(rank);
    if (plan_->access.through_process && (header.flags & kOffersAccess)) return true;
    return (!plan_->access.input[r] || (header.flags & kSharesInput)) &&
           (!plan_->access.output[r] || (header.flags & kSharesOutput));
}

/// With two programs to choose from, the headers of all ranks that have something to offer are read first;
/// every rank comes to the same choice. One whose own offer falls short knows it at once.
bool Operation::choose_program() {
    bool everybody = true;
    for (Peer* peer : comm_.local_) {
        const auto r = static_cast<std::size_t>(peer->rank);
        if (!plan_->access.input[r] && !plan_->access.output[r]) continue;
        if (peer->checked != header_.seq) {
            const SharedHeader& slot = peer->window->control().headers[header_.seq % kHeaderSlots];
            if (slot.seq() != header_.seq) {
                waiting_ = peer;
                return false;
            }
            comm_.check_headers(*this);
            peer->header = slot.read();
            peer->checked = header_.seq;
        }
        everybody = everybody && is_offered(peer->header, peer->rank);
    }
    chosen_ = true;
    if (everybody) {
        reach_into_peers();
    } else {
        use(plan_->fallback);
        shown_in_.reset();
        shown_out_.reset();
    }
    return true;
}

/// Finds the peers' inputs and outputs in the mappings of what they share, and this rank's own in its.
void Operation::reach_into_peers() {
    const auto reach = [&](Peer& peer, bool shared, std::uint64_t place) {
        if (!shared) return Peer::Reach{};
        const auto [segment, offset] = unpack_place(place);
        const Peer::Reach found = peer.find_shared(segment, offset);
        if (!found.data)
            comm_.raise({Status::System,
                         header_.seq,
                         {peer.rank},
                         "rank " + std::to_string(peer.rank) + " offers memory that it has not shared"});
        return found;
    };
    for (Peer* peer : comm_.local_) {
        const auto r = static_cast<std::size_t>(peer->rank);
        const auto flags = peer->header.flags;
        peer->input = reach(*peer, plan_->access.input[r] && (flags & kSharesInput), peer->header.first);
        peer->output = reach(*peer, plan_->access.output[r] && (flags & kSharesOutput), peer->header.second);
    }
    if (shown_in_.segment) in_ = shown_in_.segment->alias(shown_in_.begin);
    if (shown_out_.segment) out_ = shown_out_.segment->alias(shown_out_.begin);
    // One memory, one mapping of it: the ragged ends differ between the two until the operation is complete.
    if (in_place_ && shown_out_.segment) in_ = out_;
    if (in_place_ && shown_in_.segment) out_ = in_;
    // Everybody waited for everybody: the meeting that the program begins with has taken place.
    const auto all = [](const std::vector<bool>& ranks) {
        return std::all_of(ranks.begin(), ranks.end(), [](bool r) { return r; });
    };
    implied_ = begins_with_meeting(*program_) && (all(plan_->access.input) || all(plan_->access.output));
}

}  // namespace hcomm
