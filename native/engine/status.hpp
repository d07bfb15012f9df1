#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace hcomm {

/// How an operation ended. The numbers are part of the Python interface.
enum class Status : int {
    Pending = -1,
    Ok = 0,
    Mismatch = 1,         ///< ranks called different things
    Timeout = 2,          ///< the deadline passed
    PeerLost = 3,         ///< a rank died or left
    Interrupted = 4,      ///< Ctrl-C on this rank
    Aborted = 5,          ///< the communicator was closed or aborted
    MessageMismatch = 6,  ///< a point-to-point message does not fit its receiver
    System = 7,           ///< the operating system refused something
};

/// Why a communicator is broken: the first failure it saw, whoever saw it.
struct Failure {
    Status kind = Status::Ok;
    std::uint64_t seq = 0;   ///< the operation in which it was noticed
    std::vector<int> ranks;  ///< the ranks at fault
    std::string text;
};

/// Thrown inside the engine once Comm::fail has recorded the reason; never leaves it.
struct OperationFailed {};

/// A descriptor, mapping or socket that the operating system would not give us.
struct SystemError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace hcomm
