#include "bindings/memory.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "engine/engine.hpp"
#include "kernels/kernels.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace hcomm {
namespace {

/// Memory shared with other ranks, as Python holds it.
struct SegmentHandle {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Segment> segment;

    ~SegmentHandle() {
        // An operation that uses it keeps it alive; nothing else does.
        if (segment) engine->release(*segment);
    }
};

/// The buffer protocol: the memory itself, writable, kept alive by the view.
int view_segment(PyObject* self, Py_buffer* view, int flags) {
    const auto& segment = *nb::inst_ptr<SegmentHandle>(self)->segment;
    return PyBuffer_FillInfo(view, self, reinterpret_cast<void*>(segment.begin()),
                             static_cast<Py_ssize_t>(segment.end() - segment.begin()), 0, flags);
}

PyType_Slot segment_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(view_segment)}, {0, nullptr}};

}  // namespace

void define_memory(nb::module_& m) {
    nb::class_<SegmentHandle>(m, "Segment", nb::type_slots(segment_slots))
        .def_prop_ro("ptr", [](const SegmentHandle& s) { return s.segment->begin(); })
        .def_prop_ro("nbytes", [](const SegmentHandle& s) { return s.segment->end() - s.segment->begin(); })
        .def("release", [](const SegmentHandle& s) { return s.engine->release(*s.segment); });
    m.def(
        "allocate",
        [](std::shared_ptr<Engine> engine, std::size_t bytes) {
            auto segment = engine->memory().allocate(bytes);
            return new SegmentHandle{std::move(engine), std::move(segment)};
        },
        "engine"_a, "nbytes"_a);
    m.def(
        "adopt",
        [](std::shared_ptr<Engine> engine, std::uintptr_t address, std::size_t bytes) {
            auto segment = engine->memory().adopt(address, bytes);
            return new SegmentHandle{std::move(engine), std::move(segment)};
        },
        "engine"_a, "ptr"_a, "nbytes"_a);
    m.def(
        "copy",
        [](std::uintptr_t dst, std::uintptr_t src, std::size_t bytes) {
            const nb::gil_scoped_release release;
            copy_bytes(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), bytes);
        },
        "dst"_a, "src"_a, "nbytes"_a);
}

}  // namespace hcomm
