/// What Python holds of a communicator and of an operation, and how it waits for them.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "bindings/shortcuts.hpp"
#include "engine/comm.hpp"

namespace hcomm {

/// A handle on a communicator that closes it when Python lets go of it.
struct CommHandle {
    std::shared_ptr<Comm> comm;
    pid_t pid;
    std::unique_ptr<Shortcuts> shortcuts = std::make_unique<Shortcuts>();
    /// Tensors of so many bytes take the general way as long as they are not shared: Python takes note of
    /// them.
    std::size_t noted_bytes = SIZE_MAX;

    ~CommHandle() {
        // In a forked child there is no engine thread, and the connections belong to the parent.
        if (comm && ::getpid() == pid) comm->close();
    }
};

struct OpHandle {
    std::shared_ptr<Comm> comm;
    std::shared_ptr<Task> task;
    std::shared_ptr<Message> message;  ///< null for collectives
};

/// Runs Python's signal handlers; true if one raised (Ctrl-C).
inline bool check_signals() {
    const nanobind::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
}

/// The status for Python; what a signal handler raised is raised.
inline int finish_call(Status status) {
    if (status == Status::Interrupted && PyErr_Occurred()) throw nanobind::python_error();
    return static_cast<int>(status);
}

template <class Call>
Status without_gil(Call call) {
    const nanobind::gil_scoped_release release;
    return call();
}

}  // namespace hcomm
