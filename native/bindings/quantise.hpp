#pragma once

#include <nanobind/nanobind.h>

namespace hcomm {

/// The functions of compression.
void define_quantise(nanobind::module_& m);

}  // namespace hcomm
