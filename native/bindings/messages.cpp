#include "bindings/messages.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <limits>
#include <optional>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace hcomm {
namespace {

/// An ordinary tensor, a rank of the communicator and a tag, as plain numbers.
struct Parcel {
    void* data;
    std::uint64_t bytes;
    std::uint8_t dtype;
    int peer, tag;
};

/// None for everything that has to be looked at more closely.
std::optional<Parcel> parcel(const CommHandle& self, nb::handle tensor, nb::handle peer, nb::handle tag) {
    if (!PyLong_CheckExact(peer.ptr()) || !PyLong_CheckExact(tag.ptr())) return {};
    int overflow = 0;
    const long rank = PyLong_AsLongAndOverflow(peer.ptr(), &overflow);
    if (overflow || rank < 0 || rank >= self.comm->size()) return {};
    const long number = PyLong_AsLongAndOverflow(tag.ptr(), &overflow);
    if (overflow || number < 0 || number > std::numeric_limits<std::int32_t>::max()) return {};
    const auto seen = self.shortcuts->see(tensor.ptr());
    if (!seen) return {};
    return Parcel{seen->data, seen->count * size_of(seen->dtype), static_cast<std::uint8_t>(seen->dtype),
                  static_cast<int>(rank), static_cast<int>(number)};
}

/// Sends an ordinary tensor that is small enough to be copied at once. False if it is not, or that cannot be:
/// then nothing has happened.
bool send_tensor(const CommHandle& self, nb::handle tensor, nb::handle dst, nb::handle tag) {
    const auto p = parcel(self, tensor, dst, tag);
    return p && p->bytes <= Comm::kSmallMessage &&
           self.comm->send_now(p->peer, p->tag, p->data, p->bytes, p->dtype);
}

/// Starts sending an ordinary tensor; none if it is not one.
std::optional<OpHandle> start_send(const CommHandle& self, nb::handle tensor, nb::handle dst, nb::handle tag,
                                   double timeout, std::string where) {
    const auto p = parcel(self, tensor, dst, tag);
    if (!p) return {};
    const nb::gil_scoped_release release;
    auto message = self.comm->send(p->peer, p->tag, p->data, p->bytes, p->dtype, timeout, std::move(where));
    return OpHandle{self.comm, message, message};
}

/// Receives into an ordinary tensor, blocking: True, or what failed. None if it is not an ordinary one.
nb::object receive_tensor(const CommHandle& self, nb::handle tensor, nb::handle src, nb::handle tag,
                          double timeout) {
    const auto p = parcel(self, tensor, src, tag);
    if (!p) return nb::none();
    std::shared_ptr<Message> message;
    {
        const nb::gil_scoped_release release;
        message =
            self.comm->receive_now(p->peer, p->tag, p->data, p->bytes, p->dtype, timeout, check_signals);
    }
    const Status status = message->status.load();
    if (status == Status::Ok) return nb::bool_(true);
    if (PyErr_Occurred()) throw nb::python_error();  // Ctrl-C, whatever the message ended with
    return nb::cast(OpHandle{self.comm, message, message});
}

OpHandle send(const CommHandle& self, int dst, int tag, std::uintptr_t data, std::uint64_t bytes, int dtype,
              double timeout, std::string where) {
    const nb::gil_scoped_release release;
    if (dst < 0 || dst >= self.comm->size()) throw std::invalid_argument("dst outside the communicator");
    auto message = self.comm->send(dst, tag, reinterpret_cast<void*>(data), bytes,
                                   static_cast<std::uint8_t>(dtype), timeout, std::move(where));
    return {self.comm, message, message};
}

OpHandle receive(const CommHandle& self, int src, int tag, std::uintptr_t data, std::uint64_t bytes,
                 int dtype, double timeout, std::string where) {
    const nb::gil_scoped_release release;
    if (src < -1 || src >= self.comm->size()) throw std::invalid_argument("src outside the communicator");
    auto message = self.comm->receive(src, tag, reinterpret_cast<void*>(data), bytes,
                                      static_cast<std::uint8_t>(dtype), timeout, std::move(where));
    return {self.comm, message, message};
}

}  // namespace

void define_messages(nb::class_<CommHandle>& comm) {
    comm.def(
            "know", [](const CommHandle& c, nb::handle tensor) { c.shortcuts->know(Py_TYPE(tensor.ptr())); },
            "tensor"_a)
        .def("send_tensor", &send_tensor, "tensor"_a, "dst"_a, "tag"_a)
        .def("start_send", &start_send, "tensor"_a, "dst"_a, "tag"_a, "timeout"_a, "where"_a)
        .def("recv_tensor", &receive_tensor, "tensor"_a, "src"_a, "tag"_a, "timeout"_a)
        .def("send", &send, "dst"_a, "tag"_a, "ptr"_a, "nbytes"_a, "dtype"_a, "timeout"_a, "where"_a)
        .def("recv", &receive, "src"_a, "tag"_a, "ptr"_a, "nbytes"_a, "dtype"_a, "timeout"_a, "where"_a);
}

}  // namespace hcomm
