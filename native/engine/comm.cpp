#include "engine/comm.hpp"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "engine/engine.hpp"
#include "links/tcp/tcp_link.hpp"

namespace hcomm {

Comm::Comm(std::shared_ptr<Engine> engine, CommConfig config)
    : engine_(std::move(engine)),
      config_(std::move(config)),
      layout_(config_.local.size(), config_.buffer_bytes),
      reports_(static_cast<std::size_t>(config_.size)) {
    const auto position = std::find(config_.local.begin(), config_.local.end(), config_.rank);
    local_index_ = static_cast<std::size_t>(position - config_.local.begin());
    const auto window_of = [&](int r) { return config_.windows[static_cast<std::size_t>(r)]; };
    auto mine = window_of(config_.rank);
    own_.emplace(mine ? mine : std::make_shared<Mapping>(layout_.total), layout_);
    for (int r = 0; r < config_.size; ++r) {
        const auto i = static_cast<std::size_t>(r);
        peers_.push_back(r == config_.rank ? nullptr : std::make_unique<Peer>(r));
        if (r == config_.rank) continue;
        Peer& peer = *peers_.back();
        others_.push_back(&peer);
        peer.control = std::make_unique<ControlChannel>(config_.control[i]);
        peer.pid = config_.pids[i];
        if (auto window = window_of(r)) {
            peer.window.emplace(window, layout_);
            const auto place = std::find(config_.local.begin(), config_.local.end(), r);
            peer.local_index = static_cast<std::size_t>(place - config_.local.begin());
            peer.coll = std::make_unique<ShmLink>(peer.window->coll_ring(local_index_),
                                                  own_->coll_ring(peer.local_index), peer);
            peer.p2p = std::make_unique<ShmLink>(peer.window->p2p_ring(local_index_),
                                                 own_->p2p_ring(peer.local_index), peer);
            local_.push_back(&peer);
        } else {
            peer.coll = std::make_unique<TcpLink>(config_.coll[i]);
            peer.p2p = std::make_unique<TcpLink>(config_.p2p[i]);
            has_tcp_ = true;
        }
    }
    wake_ = Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!wake_) throw SystemError(std::string("cannot make an eventfd: ") + std::strerror(errno));
    messenger_ = std::make_unique<Messenger>(*this);
}

Comm::~Comm() = default;

std::shared_ptr<const Plan> Comm::plan(std::span<const std::byte> program,
                                       std::span<const std::byte> fallback, const OpHeader& header,
                                       const Sizes& sizes, std::uint64_t tile_bytes,
                                       const Access& access) const {
    auto plan = std::make_shared<Plan>();
    plan->dtype = static_cast<DType>(header.dtype);
    plan->op = static_cast<ReduceOp>(header.op);
    if (size_of(plan->dtype) == 0) throw std::invalid_argument("unknown element type");
    if (plan->op != ReduceOp::None) {
        plan->kernel = reduce_kernel(plan->dtype, plan->op);
        if (!plan->kernel) throw std::invalid_argument("this operator is not defined for this element type");
    }
    const auto bind = [&](std::span<const std::byte> bytes) {
        const Program decoded = Program::decode(bytes, config_.rank, config_.size, config_.local);
        for (const Block& block : decoded.blocks)
            for (const Step& step : block.steps)
                if (!plan->kernel && (step.kind == StepKind::RecvReduce || step.src.size() > 1))
                    throw std::invalid_argument("a program that reduces, without an operator");
        return BoundProgram::bind(decoded, sizes, plan->dtype, config_.local, layout_.operation_bytes,
                                  tile_bytes, config_.overlap);
    };
    plan->program = bind(program);
    plan->has_fallback = !fallback.empty();
    if (plan->has_fallback) plan->fallback = bind(fallback);
    plan->access = access;
    for (auto* ranks : {&plan->access.input, &plan->access.output}) {
        if (ranks->empty()) ranks->assign(peers_.size(), true);
        if (ranks->size() != peers_.size())
            throw std::invalid_argument("access must be told for every rank, or for none");
    }
    plan->header = header;
    plan->header.signature = signature_of(header);
    const bool reachable =
        std::all_of(local_.begin(), local_.end(), [](const Peer* p) { return p->pid != 0; });
    if (reachable) plan->header.flags |= kOffersAccess;
    plan->n_in = sizes.n_in;
    plan->n_out = sizes.n_out;
    return plan;
}

Clock::time_point Comm::deadline(double timeout) const {
    // A century is for ever, and does not overflow the clock.
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(timeout, 3e9)));
}

Operation* Comm::head() const noexcept {
    if (current_) return current_;
    return queue_.empty() ? nullptr : queue_.front().get();
}

Status Comm::run(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout,
                 const Interrupt& interrupt) {
    const Clock::time_point due = deadline(timeout);
    std::unique_lock lock = enter();
    if (failed_ || closed_) return refuse();
    if (head() != nullptr) {  // something asked for earlier is not finished: wait behind it
        lock.unlock();
        return wait(*start(std::move(plan), in, out, timeout, {}), -1, interrupt);
    }
    Operation operation(*this, std::move(plan), static_cast<std::byte*>(in), static_cast<std::byte*>(out),
                        ++posted_);
    operation.deadline = due;
    current_ = &operation;
    lock.unlock();
    const Status status = drive(operation, Clock::time_point::max(), interrupt);
    // Whoever comes last waits for nobody, but ranks that came before it may be waiting for this core.
    if (config_.crowded && operation.started == Clock::time_point{}) ::sched_yield();
    return status;
}

std::shared_ptr<Task> Comm::start(std::shared_ptr<const Plan> plan, void* in, void* out, double timeout,
                                  std::string where) {
    const auto lock = enter();
    auto operation = std::make_shared<Operation>(*this, std::move(plan), static_cast<std::byte*>(in),
                                                 static_cast<std::byte*>(out), posted_ + 1);
    operation->deadline = deadline(timeout);
    operation->where = std::move(where);
    if (failed_ || closed_) {
        operation->finish(refuse());
        return operation;
    }
    ++posted_;
    queue_.push_back(operation);
    engine_->wake();
    return operation;
}

std::shared_ptr<Message> Comm::make_message(bool is_send, int peer, int tag, void* data, std::uint64_t bytes,
                                            std::uint8_t dtype, double timeout, std::string where) const {
    auto message = std::make_shared<Message>();
    message->is_send = is_send;
    message->peer = peer;
    message->tag = tag;
    message->data = static_cast<std::byte*>(data);
    message->bytes = bytes;
    message->dtype = dtype;
    message->deadline = deadline(timeout);
    message->where = std::move(where);
    return message;
}

std::shared_ptr<Message> Comm::send(int dst, int tag, void* data, std::uint64_t bytes, std::uint8_t dtype,
                                    double timeout, std::string where) {
    auto message = make_message(true, dst, tag, data, bytes, dtype, timeout, std::move(where));
    const auto lock = enter();
    if (failed_ || closed_) {
        message->finish(Status::Aborted);
        return message;
    }
    try {
        messenger_->send(message);
    } catch (const OperationFailed&) {
        fail_tasks();
    }
    hand_over();
    return message;
}

bool Comm::send_now(int dst, int tag, const void* data, std::uint64_t bytes, std::uint8_t dtype) {
    const auto lock = enter();
    if (failed_ || closed_) return false;
    const bool sent = messenger_->send_now(dst, tag, static_cast<const std::byte*>(data), bytes, dtype);
    if (messenger_->unsent()) hand_over();
    return sent;
}

std::shared_ptr<Message> Comm::post_receive(int src, int tag, void* data, std::uint64_t bytes,
                                            std::uint8_t dtype, double timeout, std::string where) {
    auto message = make_message(false, src, tag, data, bytes, dtype, timeout, std::move(where));
    const auto lock = enter();
    if (failed_ || closed_) {
        message->finish(Status::Aborted);
        return message;
    }
    try {
        messenger_->receive(message);
        if (message->pending()) messenger_->progress();
    } catch (const OperationFailed&) {
        fail_tasks();
    }
    return message;
}

std::shared_ptr<Message> Comm::receive(int src, int tag, void* data, std::uint64_t bytes, std::uint8_t dtype,
                                       double timeout, std::string where) {
    auto message = post_receive(src, tag, data, bytes, dtype, timeout, std::move(where));
    if (message->pending()) {
        const auto lock = enter();
        hand_over();
    }
    return message;
}

std::shared_ptr<Message> Comm::receive_now(int src, int tag, void* data, std::uint64_t bytes,
                                           std::uint8_t dtype, double timeout, const Interrupt& interrupt) {
    auto message = post_receive(src, tag, data, bytes, dtype, timeout, {});
    if (message->pending()) drive(*message, Clock::time_point::max(), interrupt);
    return message;
}

Status Comm::wait(Task& task, double timeout, const Interrupt& interrupt) {
    const auto limit = timeout < 0 ? Clock::time_point::max() : deadline(timeout);
    return drive(task, limit, interrupt);
}

/// Moves everything that can be moved; the first failure ends all tasks.
void Comm::progress() {
    try {
        while (Operation* operation = head()) {
            if (!operation->advance()) break;
            if (operation == current_) {
                current_ = nullptr;
                operation->finish(Status::Ok);
            } else {
                queue_.front()->finish(Status::Ok);
                queue_.pop_front();
            }
        }
        if (!failed_ && messenger_->active()) messenger_->progress();
    } catch (const OperationFailed&) {
        // Comm::fail has the reason.
    } catch (const std::exception& error) {  // no memory, in all likelihood
        const OpHeader last = recent_[begun_ % kRecent].read();
        fail({Status::System,
              last.seq,
              {config_.rank},
              "rank " + std::to_string(config_.rank) + ": " + error.what()});
    }
    if (failed_) end_if_failed();
}

/// An operation before the one that failed may still complete: whoever reported the failure has completed it,
/// so what this rank needs is on its way. It gets a moment for that; everything else ends now.
void Comm::end_if_failed() {
    const Operation* operation = head();
    const bool earlier = operation && operation->begun() && operation->header().seq < failed_seq_;
    if (earlier && Clock::now() - failed_at_ < kGrace) return;
    fail_tasks();
}

/// What a collective gets that is asked for too late: the failure itself if it is the one that failed
/// elsewhere.
Status Comm::refuse() noexcept {
    if (posted_ >= failed_seq_) return Status::Aborted;
    ++posted_;
    return failed_status();
}

Status Comm::failed_status() const {
    const std::lock_guard lock(failure_mutex_);
    return failure_ && failure_->kind != Status::Interrupted ? failure_->kind : Status::Aborted;
}

void Comm::fail_tasks() { settle(failed_status()); }

/// Ends everything unfinished.
void Comm::settle(Status status) {
    if (current_) {
        Operation* operation = current_;
        current_ = nullptr;
        operation->finish(status);
    }
    for (auto& operation : queue_) operation->finish(status);
    queue_.clear();
    for (Peer* peer : others_) peer->outbox.clear();
    messenger_->fail(status);
    wake_self();
}

/// Kept between operations up to what a window takes: larger ones are rare, and their memory is given back.
void Comm::reserve_scratch(std::size_t bytes) {
    if (scratch_.size() >= bytes && scratch_.size() <= std::max(bytes, layout_.operation_bytes)) return;
    scratch_ = std::vector<std::byte>();
    scratch_.resize(bytes);
}

/// Writes what there is room for; a thread that is about to sleep is woken when there is more.
ssize_t Comm::write(Link& link, const std::byte* data, std::size_t bytes) noexcept {
    const ssize_t n = link.write(data, bytes);
    if (n != 0 || sleepers_ == 0) return n;
    link.want_room();
    return link.write(data, bytes);  // there may have been room just before the wish was seen
}

bool Comm::flush(Peer& peer) {
    bool wrote = false;
    while (!peer.outbox.empty()) {
        Outgoing& message = peer.outbox.front();
        ssize_t n = 1;
        while (n > 0 && message.sent < sizeof(OpHeader)) {
            const auto* head = reinterpret_cast<const std::byte*>(&message.header);
            n = write(*peer.coll, head + message.sent, sizeof(OpHeader) - message.sent);
            if (n > 0) message.sent += static_cast<std::size_t>(n);
        }
        while (n > 0 && message.sent < sizeof(OpHeader) + message.bytes) {
            const std::size_t at = message.sent - sizeof(OpHeader);
            n = write(*peer.coll, message.body + at, message.bytes - at);
            if (n > 0) message.sent += static_cast<std::size_t>(n);
        }
        wrote |= message.sent > 0;
        if (n < 0) peer.note_lost();
        if (message.sent < sizeof(OpHeader) + message.bytes) break;
        peer.coll->pad();
        peer.bytes_sent.fetch_add(message.sent, std::memory_order_relaxed);
        peer.outbox.pop_front();
    }
    if (wrote) peer.ring();
    return peer.outbox.empty();
}

bool Comm::flush_all() {
    bool empty = true;
    for (Peer* peer : others_)
        if (!peer->outbox.empty() && !flush(*peer)) empty = false;
    return empty;
}

bool Comm::all_done(std::uint64_t seq) noexcept {
    if (known_done_ >= seq) return true;
    std::uint64_t least = UINT64_MAX;
    for (Peer* peer : local_) {
        WindowControl& theirs = peer->window->control();
        std::uint64_t done = theirs.done.load(std::memory_order_acquire);
        if (done < seq) {
            // seq_cst on both sides: either this rank sees the new count or the peer sees the wish.
            theirs.want_done.store(1, std::memory_order_seq_cst);
            done = theirs.done.load(std::memory_order_seq_cst);
        }
        least = std::min(least, done);
    }
    if (!local_.empty()) known_done_ = std::max(known_done_, least);
    return local_.empty() || least >= seq;
}

void Comm::finished(std::uint64_t seq) noexcept {
    done_.store(seq, std::memory_order_relaxed);
    if (local_.empty()) return;
    WindowControl& mine = own_->control();
    mine.done.store(seq, std::memory_order_seq_cst);
    if (mine.want_done.load(std::memory_order_seq_cst) != 0) {
        mine.want_done.store(0, std::memory_order_seq_cst);
        ring_local();
    }
}

void Comm::ring_local() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (Peer* peer : local_) peer->ring_fenced();
}

bool Comm::any_lost() const noexcept {
    return std::any_of(others_.begin(), others_.end(), [](const Peer* p) { return p->lost_at.load() != 0; });
}

void Comm::raise(Failure failure) {
    fail(std::move(failure));
    throw OperationFailed{};
}

void Comm::mismatch(const OpHeader& mine, int other, const OpHeader& theirs) {
    std::string text = "rank " + std::to_string(config_.rank) + ": " + describe(mine) + "; rank " +
                       std::to_string(other) + ": " + describe(theirs);
    if (mine.seq != theirs.seq)
        text += " (call #" + std::to_string(mine.seq) + " here, #" + std::to_string(theirs.seq) + " there)";
    else if (describe(mine) == describe(theirs))
        text += mine.algorithm != theirs.algorithm ? " (with different algorithms)"
                : mine.agreed != theirs.agreed     ? " (with different sizes per rank)"
                                                   : " (alike, but an operation before it differed)";
    raise({Status::Mismatch, mine.seq, {std::min(config_.rank, other), std::max(config_.rank, other)}, text});
}

std::uint64_t Comm::bytes_sent(int rank) const {
    const auto& peer = peers_.at(static_cast<std::size_t>(rank));
    return peer ? peer->bytes_sent.load(std::memory_order_relaxed) : 0;
}

}  // namespace hcomm
