#pragma once

#include "bindings/handles.hpp"

namespace hcomm {

/// Adds what sends and receives to the class Comm.
void define_messages(nanobind::class_<CommHandle>& comm);

}  // namespace hcomm
