#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/memory.hpp"
#include "links/fd.hpp"

namespace hcomm {

class Comm;

/// The thread that listens to all communicators of a rank, and drives what nobody waits for.
///
/// It sleeps in poll(2) unless there is asynchronous work. It never touches Python.
class Engine {
  public:
    /// `most`: communicators whose asynchronous work advances side by side, by priority. Those behind them
    /// advance when these cannot, so that no order of calls can block.
    explicit Engine(int most = 4);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Starts the thread with the first communicator.
    void add(std::shared_ptr<Comm> comm);
    /// Returns when the thread no longer uses it.
    void remove(const Comm* comm);
    /// There is something to do.
    void wake() noexcept;
    /// Something will come in for which nobody rings: have a look every now and then.
    void expect() noexcept;
    /// What this rank is in, in another communicator than `except`; empty if in nothing.
    std::string activity(const Comm* except);
    /// Closes every communicator and ends the thread. Idempotent; in a forked child it does nothing.
    void close();

    Memory& memory() noexcept { return memory_; }
    /// Takes a segment back from everybody. False if an operation uses it now.
    bool release(const Segment& segment);

  private:
    void loop();
    void work(const std::vector<std::shared_ptr<Comm>>& comms);
    void sleep(const std::vector<std::shared_ptr<Comm>>& comms);
    bool is_child() const noexcept;

    const pid_t pid_;
    const int most_;
    Memory memory_;
    Fd wake_;
    std::mutex mutex_;
    std::vector<std::shared_ptr<Comm>> comms_;
    std::atomic<std::uint64_t> version_{0}, seen_{0};  ///< of comms_: changed, and taken over by the thread
    std::atomic<bool> sleeping_{false}, stop_{false};
    std::atomic<bool> expecting_{false};  ///< the thread has a look every now and then
    std::unique_ptr<std::thread> thread_;
};

}  // namespace hcomm
