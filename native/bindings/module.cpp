// The Python module hcomm._native: thin; see src/hcomm/_native.pyi for the interface.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "bindings/handles.hpp"
#include "bindings/memory.hpp"
#include "bindings/messages.hpp"
#include "bindings/quantise.hpp"
#include "engine/comm.hpp"
#include "engine/engine.hpp"
#include "kernels/kernels.hpp"
#include "links/cma.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace hcomm {
namespace {

std::span<const std::byte> view(const nb::bytes& bytes) {
    return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

std::shared_ptr<Mapping> map_window(int fd, std::size_t bytes) {
    const Fd owned(fd);
    struct stat info{};
    if (::fstat(fd, &info) != 0)
        throw SystemError(std::string("cannot look at a window: ") + std::strerror(errno));
    if (static_cast<std::size_t>(info.st_size) < bytes)
        throw SystemError("a window of " + std::to_string(info.st_size) + " bytes where " +
                          std::to_string(bytes) +
                          " are needed (does HCOMM_BUFFER_SIZE differ between ranks?)");
    return std::make_shared<Mapping>(fd, bytes);
}

std::vector<int> by_rank(std::vector<int> fds, int size, const char* name) {
    if (fds.size() != static_cast<std::size_t>(size))
        throw std::invalid_argument(std::string(name) + " needs one entry for each rank");
    return fds;
}

void make_comm(CommHandle* self, std::shared_ptr<Engine> engine, std::uint64_t uid, int rank, int size,
               std::vector<int> local, std::vector<int> windows, std::vector<int> control,
               std::vector<int> coll, std::vector<int> p2p, std::vector<int> pids, std::size_t buffer_bytes,
               bool crowded, bool overlap, int priority, std::string label) {
    if (size < 1 || rank < 0 || rank >= size) throw std::invalid_argument("rank outside 0..size-1");
    CommConfig config;
    config.uid = uid;
    config.rank = rank;
    config.size = size;
    config.local = std::move(local);
    config.control = by_rank(std::move(control), size, "control");
    config.coll = by_rank(std::move(coll), size, "coll");
    config.p2p = by_rank(std::move(p2p), size, "p2p");
    config.pids = by_rank(std::move(pids), size, "pids");
    config.buffer_bytes = buffer_bytes;
    config.crowded = crowded;
    config.overlap = overlap;
    config.priority = priority;
    config.label = std::move(label);
    const WindowLayout layout(config.local.size(), buffer_bytes);
    for (int fd : by_rank(std::move(windows), size, "windows"))
        config.windows.push_back(fd < 0 ? nullptr : map_window(fd, layout.total));
    auto comm = std::make_shared<Comm>(engine, std::move(config));
    engine->add(comm);
    new (self) CommHandle{std::move(comm), ::getpid()};
}

std::shared_ptr<const Plan> make_plan(const CommHandle& self, nb::bytes program, nb::bytes fallback,
                                      int operation, int dtype, int op, int root, std::uint64_t count,
                                      std::uint64_t n_in, std::uint64_t n_out,
                                      std::vector<std::uint64_t> bounds_in,
                                      std::vector<std::uint64_t> bounds_out, std::uint64_t algorithm,
                                      std::uint64_t agreed, std::uint64_t tile_bytes,
                                      const std::vector<bool>& reaches_input,
                                      const std::vector<bool>& reaches_output, bool through_process) {
    OpHeader header;
    header.operation = static_cast<std::uint8_t>(operation);
    header.dtype = static_cast<std::uint8_t>(dtype);
    header.op = static_cast<std::uint8_t>(op);
    header.root = root;
    header.count = count;
    header.algorithm = algorithm;
    header.agreed = agreed;
    const Sizes sizes{count, n_in, n_out, std::move(bounds_in), std::move(bounds_out)};
    return self.comm->plan(view(program), view(fallback), header, sizes, tile_bytes,
                           {reaches_input, reaches_output, through_process});
}

int run(const CommHandle& self, std::shared_ptr<const Plan> plan, std::uintptr_t in, std::uintptr_t out,
        double timeout) {
    return finish_call(without_gil([&] {
        return self.comm->run(std::move(plan), reinterpret_cast<void*>(in), reinterpret_cast<void*>(out),
                              timeout, check_signals);
    }));
}

/// Whether Python takes note of this operation's tensors: they are large, and not all of them are shared.
bool is_noted(const CommHandle& self, const Shortcuts::Hit& hit) {
    const Plan& plan = **hit.plan;
    if (plan.header.count * size_of(plan.dtype) < self.noted_bytes) return false;
    // What a root sends, and an input, may be read by others meanwhile.
    const bool alone = plan.header.root < 0;
    const bool in_place = hit.in.data == hit.out.data;
    const auto shared = [&](const Shortcuts::Memory& memory, bool written) {
        return !memory.data || self.comm->is_shared(memory.data, memory.bytes, written);
    };
    return !shared(hit.out, alone) || (!in_place && !shared(hit.in, false));
}

/// Runs the remembered operation for such a call; -1 if none is remembered, or it is not ordinary.
int call(const CommHandle& self, std::uint32_t operation, nb::handle tensor, nb::handle out, nb::handle op,
         nb::handle root, double timeout) {
    const auto hit = self.shortcuts->find({operation, tensor.ptr(), out.ptr(), op.ptr(), root.ptr()});
    if (!hit || is_noted(self, *hit)) return -1;
    std::shared_ptr<const Plan> plan = *hit->plan;
    return finish_call(without_gil([&] {
        return self.comm->run(std::move(plan), hit->in.data, hit->out.data, timeout, check_signals);
    }));
}

void remember(const CommHandle& self, std::uint32_t operation, nb::handle tensor, nb::handle out,
              nb::handle op, nb::handle root, std::shared_ptr<const Plan> plan,
              std::optional<std::size_t> inside) {
    self.shortcuts->remember({operation, tensor.ptr(), out.ptr(), op.ptr(), root.ptr()}, std::move(plan),
                             inside);
}

OpHandle start(const CommHandle& self, std::shared_ptr<const Plan> plan, std::uintptr_t in,
               std::uintptr_t out, double timeout, std::string where) {
    const nb::gil_scoped_release release;
    return {self.comm,
            self.comm->start(std::move(plan), reinterpret_cast<void*>(in), reinterpret_cast<void*>(out),
                             timeout, std::move(where)),
            nullptr};
}

int wait(const OpHandle& self, double timeout) {
    if (!self.task->pending()) return static_cast<int>(self.task->status.load());
    return finish_call(without_gil([&] { return self.comm->wait(*self.task, timeout, check_signals); }));
}

nb::bytes read_memory(int pid, std::uint64_t address, std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    if (!cma_read(pid, address, data.data(), bytes)) {
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return nb::bytes(data.data(), data.size());
}

nb::tuple address_of(nb::handle object, bool writable) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0)
        throw nb::python_error();
    auto result =
        nb::make_tuple(reinterpret_cast<std::uintptr_t>(buffer.buf), static_cast<std::size_t>(buffer.len));
    PyBuffer_Release(&buffer);
    return result;
}

struct Ranked {
    int rank;
    RankReport report;
};

nb::list reports(const CommHandle& self, const std::string& what, const std::string& where, double timeout) {
    std::vector<RankReport> reports;
    {
        const nb::gil_scoped_release release;
        reports = self.comm->reports(what, where, timeout);
    }
    nb::list out;
    for (std::size_t i = 0; i < reports.size(); ++i)
        out.append(nb::cast(Ranked{static_cast<int>(i), std::move(reports[i])}));
    return out;
}

void define_failure(nb::module_& m) {
    nb::class_<Failure>(m, "Failure")
        .def_prop_ro("kind", [](const Failure& f) { return static_cast<int>(f.kind); })
        .def_ro("ranks", &Failure::ranks)
        .def_ro("seq", &Failure::seq)
        .def_ro("text", &Failure::text);
    nb::class_<Ranked>(m, "Report")
        .def_ro("rank", &Ranked::rank)
        .def_prop_ro("heard", [](const Ranked& r) { return r.report.heard; })
        .def_prop_ro("alive", [](const Ranked& r) { return r.report.alive; })
        .def_prop_ro("left", [](const Ranked& r) { return r.report.left; })
        .def_prop_ro("pid", [](const Ranked& r) { return r.report.pid; })
        .def_prop_ro("posted", [](const Ranked& r) { return r.report.posted; })
        .def_prop_ro("done", [](const Ranked& r) { return r.report.done; })
        .def_prop_ro("what", [](const Ranked& r) { return r.report.what; })
        .def_prop_ro("recent", [](const Ranked& r) { return r.report.recent; })
        .def_prop_ro("where", [](const Ranked& r) { return r.report.where; });
}

void define_comm(nb::module_& m) {
    nb::class_<Plan>(m, "Plan");
    nb::class_<OpHandle>(m, "Op")
        .def_prop_ro("done",
                     [](const OpHandle& o) {
                         if (!o.task->pending()) return true;
                         const nb::gil_scoped_release release;
                         return o.message && o.comm->look(*o.task);
                     })
        .def_prop_ro("over", [](const OpHandle& o) { return !o.task->pending(); })
        .def_prop_ro("status", [](const OpHandle& o) { return static_cast<int>(o.task->status.load()); })
        .def_prop_ro("source", [](const OpHandle& o) { return o.message ? o.message->source : -1; })
        .def_prop_ro("nbytes", [](const OpHandle& o) { return o.message ? o.message->bytes : 0; })
        .def_prop_ro("text",
                     [](const OpHandle& o) {
                         return o.message && !o.task->pending() ? o.message->text : std::string();
                     })
        .def("wait", &wait, "timeout"_a);
    nb::class_<CommHandle> comm(m, "Comm");
    define_messages(comm);
    comm.def("__init__", &make_comm, "engine"_a, nb::kw_only(), "uid"_a, "rank"_a, "size"_a, "local"_a,
             "windows"_a, "control"_a, "coll"_a, "p2p"_a, "pids"_a, "buffer_bytes"_a, "crowded"_a,
             "overlap"_a = true, "priority"_a = 0, "label"_a = "")
        .def("plan", &make_plan, "program"_a, "fallback"_a, nb::kw_only(), "operation"_a, "dtype"_a, "op"_a,
             "root"_a, "count"_a, "n_in"_a, "n_out"_a, "bounds_in"_a, "bounds_out"_a, "algorithm"_a,
             "agreed"_a, "tile_bytes"_a, "reaches_input"_a = std::vector<bool>(),
             "reaches_output"_a = std::vector<bool>(), "through_process"_a = true)
        .def("run", &run, "plan"_a, "in_ptr"_a, "out_ptr"_a, "timeout"_a)
        .def("call", &call, "operation"_a, "tensor"_a.none(), "out"_a.none(), "op"_a.none(), "root"_a.none(),
             "timeout"_a)
        .def("remember", &remember, "operation"_a, "tensor"_a.none(), "out"_a.none(), "op"_a.none(), "root"_a,
             "plan"_a, "inside"_a.none() = nb::none())
        .def_rw("noted_bytes", &CommHandle::noted_bytes)
        .def("forget", [](const CommHandle& c) { c.shortcuts->clear(); })
        .def("start", &start, "plan"_a, "in_ptr"_a, "out_ptr"_a, "timeout"_a, "where"_a)
        .def("failure", [](const CommHandle& c) { return c.comm->failure(); })
        .def("reports", &reports, "what"_a, "where"_a, "timeout"_a)
        .def(
            "abort",
            [](const CommHandle& c, const std::string& text) {
                c.comm->fail({Status::Aborted, 0, {c.comm->rank()}, text});
            },
            "text"_a)
        .def(
            "bytes_sent", [](const CommHandle& c, int rank) { return c.comm->bytes_sent(rank); }, "rank"_a)
        .def(
            "share",
            [](const CommHandle& c, std::uintptr_t address, std::size_t bytes, double timeout) {
                const nb::gil_scoped_release release;
                return c.comm->share(reinterpret_cast<const void*>(address), bytes, timeout);
            },
            "ptr"_a, "nbytes"_a, "timeout"_a)
        .def("shared_bytes", [](const CommHandle& c) { return c.comm->shared_bytes(); })
        .def("lost", [](const CommHandle& c) { return c.comm->lost(); })
        .def(
            "close",
            [](const CommHandle& c, bool exiting) {
                const nb::gil_scoped_release release;
                if (::getpid() == c.pid) c.comm->close(exiting);
            },
            "exiting"_a = false);
}

}  // namespace
}  // namespace hcomm

NB_MODULE(_native, m) {
    using namespace hcomm;
    m.doc() = "The C++ core of hcomm: it moves bytes as programs say.";
    nb::set_leak_warnings(false);  // at exit, works and communicators may be alive: that is the user's right
    m.attr("OK") = static_cast<int>(Status::Ok);
    m.attr("MISMATCH") = static_cast<int>(Status::Mismatch);
    m.attr("TIMEOUT") = static_cast<int>(Status::Timeout);
    m.attr("PEER_LOST") = static_cast<int>(Status::PeerLost);
    m.attr("INTERRUPTED") = static_cast<int>(Status::Interrupted);
    m.attr("ABORTED") = static_cast<int>(Status::Aborted);
    m.attr("MESSAGE_MISMATCH") = static_cast<int>(Status::MessageMismatch);
    m.attr("SYSTEM") = static_cast<int>(Status::System);
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const SystemError& e) {
            PyErr_SetString(PyExc_OSError, e.what());
        }
    });
    m.def(
        "window_bytes",
        [](std::size_t local, std::size_t buffer) { return WindowLayout(local, buffer).total; },
        "local_size"_a, "buffer_bytes"_a);
    m.def(
        "operation_window_bytes", [](std::size_t buffer) { return WindowLayout(1, buffer).operation_bytes; },
        "buffer_bytes"_a);
    m.def("simd_level", [] { return std::string(simd_level()); });
    m.def(
        "reduce_supported",
        [](int dtype, int op) { return supported(static_cast<DType>(dtype), static_cast<ReduceOp>(op)); },
        "dtype"_a, "op"_a);
    m.def("cma_read", &read_memory, "pid"_a, "address"_a, "nbytes"_a);
    m.def("address_of", &address_of, "buffer"_a, "writable"_a);
    nb::class_<Engine>(m, "Engine")
        .def(
            "__init__", [](Engine* self, int most) { new (self) Engine(most); }, "max_concurrent"_a = 4)
        .def(
            "is_shared",
            [](Engine& e, std::uintptr_t address, std::size_t bytes) {
                return e.memory().find(reinterpret_cast<const void*>(address), bytes) != nullptr;
            },
            "ptr"_a, "nbytes"_a)
        .def("part_from_parent", [](Engine& e) { e.memory().part_from_parent(); })
        .def("close", [](Engine& e) {
            const nb::gil_scoped_release release;
            e.close();
        });
    define_memory(m);
    define_comm(m);
    define_failure(m);
    define_quantise(m);
}
