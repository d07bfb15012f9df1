#pragma once

#include <nanobind/nanobind.h>

namespace hcomm {

/// Adds Segment, allocate and adopt to the module: memory that other ranks can map.
void define_memory(nanobind::module_& m);

}  // namespace hcomm
