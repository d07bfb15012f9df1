#pragma once

#include <atomic>
#include <string>

#include "engine/futex.hpp"
#include "engine/status.hpp"

namespace hcomm {

/// Something a communicator was asked to do and that somebody may wait for.
struct Task {
    std::atomic<Status> status{Status::Pending};
    Clock::time_point deadline = Clock::time_point::max();
    std::string where;  ///< the line of Python that asked, if known

    bool pending() const noexcept { return status.load(std::memory_order_acquire) == Status::Pending; }
    /// Release: whoever sees the status sees the data.
    void finish(Status s) noexcept { status.store(s, std::memory_order_release); }
};

}  // namespace hcomm
