#include "engine/engine.hpp"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/comm.hpp"
#include "engine/futex.hpp"

namespace hcomm {
namespace {

/// How long the thread tries, yielding, before it sleeps while there is work: a peer that shares memory would
/// have to make two system calls to wake it. What comes through a socket wakes it anyway.
constexpr auto kEager = std::chrono::microseconds(50);
/// How often it looks after what is expected to come in without anybody ringing.
constexpr int kTickMilliseconds = 50;

}  // namespace

Engine::Engine(int most) : pid_(::getpid()), most_(most), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!wake_) throw SystemError(std::string("cannot make an eventfd: ") + std::strerror(errno));
}

Engine::~Engine() {
    close();
    // A forked child has no such thread: there is nothing to join, and the handle must not be destroyed.
    if (is_child()) static_cast<void>(thread_.release());
}

bool Engine::is_child() const noexcept { return ::getpid() != pid_; }

void Engine::add(std::shared_ptr<Comm> comm) {
    const std::lock_guard lock(mutex_);
    // By priority, and among equals in the order in which they were made.
    const auto place = std::find_if(comms_.begin(), comms_.end(),
                                    [&](const auto& c) { return c->priority() < comm->priority(); });
    comms_.insert(place, std::move(comm));
    ++version_;
    if (!thread_) {
        // Signals belong to the threads of Python.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        thread_ = std::make_unique<std::thread>([this] { loop(); });
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
}

void Engine::remove(const Comm* comm) {
    if (is_child()) return;
    std::uint64_t version;
    {
        const std::lock_guard lock(mutex_);
        const auto place =
            std::find_if(comms_.begin(), comms_.end(), [&](const auto& c) { return c.get() == comm; });
        if (place == comms_.end()) return;
        comms_.erase(place);
        version = ++version_;
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
    if (thread_ && thread_->get_id() == std::this_thread::get_id()) return;
    while (thread_ && seen_.load() < version && !stop_)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
}

void Engine::wake() noexcept {
    if (!sleeping_.load(std::memory_order_seq_cst)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
}

void Engine::expect() noexcept {
    if (!expecting_.exchange(true, std::memory_order_seq_cst)) wake();
}

std::string Engine::activity(const Comm* except) {
    std::vector<std::shared_ptr<Comm>> comms;
    {
        const std::lock_guard lock(mutex_);
        comms = comms_;
    }
    for (const auto& comm : comms) {
        if (comm.get() == except) continue;
        if (auto text = comm->activity(); !text.empty()) return text;
    }
    return {};
}

void Engine::close() {
    if (is_child()) return;
    std::vector<std::shared_ptr<Comm>> comms;
    {
        const std::lock_guard lock(mutex_);
        comms = comms_;
    }
    for (auto& comm : comms) comm->close();
    if (!thread_) return;
    stop_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one);
    thread_->join();
    thread_.reset();
    wake_.reset();
}

bool Engine::release(const Segment& segment) {
    const std::uint64_t id = segment.id;
    if (!memory_.release(segment)) return false;
    if (is_child()) return true;
    std::vector<std::shared_ptr<Comm>> comms;
    {
        const std::lock_guard lock(mutex_);
        comms = comms_;
    }
    for (const auto& comm : comms) comm->unshare(id);
    return true;
}

void Engine::loop() {
    std::vector<std::shared_ptr<Comm>> comms;
    while (!stop_) {
        if (seen_.load() != version_.load()) {
            const std::lock_guard lock(mutex_);
            comms = comms_;
            seen_ = version_.load();
        }
        work(comms);
        sleep(comms);
    }
    seen_ = UINT64_MAX;
}

/// Drives communicators that nobody else drives, for a short time.
void Engine::work(const std::vector<std::shared_ptr<Comm>>& comms) {
    const auto limit = Clock::now() + kEager;
    auto due = Clock::time_point::max();
    while (!stop_) {
        int active = 0;
        bool moved = false, near = false;
        for (const auto& comm : comms) {
            if (active >= most_ && moved) break;
            if (!comm->needs_engine()) continue;
            ++active;
            moved |= comm->drive_from_engine(due);
            near |= !comm->waits_for_sockets();
        }
        if (active == 0 || !(moved || near) || Clock::now() >= limit) return;
        ::sched_yield();
    }
}

void Engine::sleep(const std::vector<std::shared_ptr<Comm>>& comms) {
    sleeping_.store(true, std::memory_order_seq_cst);
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
    std::vector<Comm*> armed;
    auto due = Clock::time_point::max();
    for (const auto& comm : comms) comm->collect_control_fds(fds);
    const std::size_t controls = fds.size();
    for (const auto& comm : comms) {
        if (!comm->needs_engine()) continue;
        armed.push_back(comm.get());
        comm->arm_poll();
        comm->drive_from_engine(due);  // the last look, after the wish to be woken
        comm->collect_data_fds_locked(fds);
    }
    int timeout = -1;
    if (due != Clock::time_point::max()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now()).count();
        timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000));
    }
    const bool ticks =
        expecting_.load(std::memory_order_seq_cst) && (armed.empty() || due == Clock::time_point::max());
    if (ticks) timeout = timeout < 0 ? kTickMilliseconds : std::min(timeout, kTickMilliseconds);
    int events = 1;
    if (!stop_ && seen_.load() == version_.load()) events = ::poll(fds.data(), fds.size(), timeout);
    if (ticks && events == 0) expecting_.store(false, std::memory_order_seq_cst);
    sleeping_.store(false, std::memory_order_seq_cst);
    for (Comm* comm : armed) comm->disarm_poll();
    if (fds[0].revents) {
        std::uint64_t count;
        [[maybe_unused]] const auto n = ::read(wake_.get(), &count, sizeof count);
    }
    const bool news = std::any_of(fds.begin() + 1, fds.begin() + static_cast<std::ptrdiff_t>(controls),
                                  [](const pollfd& p) { return p.revents != 0; });
    if (news)
        for (const auto& comm : comms) comm->read_control();
}

}  // namespace hcomm
