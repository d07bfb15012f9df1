#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/program.hpp"

namespace hcomm {

struct DLTensor;

/// Plans of collectives on ordinary tensors, found by one look at the call and its tensors.
///
/// A tensor is read through the table of C functions that its type offers (`__dlpack_c_exchange_api__`): no
/// Python object is made. The key holds all that decides whether a call is valid and which plan it has, but
/// for where the tensors lie, which is looked at each time. What is not plain contiguous CPU memory, or
/// differs in anything from what was remembered, is not found, and takes the general way. Used under the GIL.
class Shortcuts {
  public:
    Shortcuts() = default;
    ~Shortcuts();
    Shortcuts(const Shortcuts&) = delete;
    Shortcuts& operator=(const Shortcuts&) = delete;

    /// A collective as it was called. Any object may be anything: what does not fit is not found.
    struct Call {
        std::uint32_t operation;
        PyObject* tensor;  ///< None: this rank has no input
        PyObject* out;     ///< None: in place, or this rank has no output
        PyObject* op;      ///< the operator's name; None if there is none
        PyObject* root;    ///< an int; -1 if there is none
    };
    struct Memory {
        void* data = nullptr;
        std::size_t bytes = 0;
    };
    struct Hit {
        const std::shared_ptr<const Plan>* plan;
        Memory in, out;
    };
    std::optional<Hit> find(const Call& call) noexcept;
    /// From now on calls like this one are found. Does nothing if its tensors are not ordinary. `inside`: the
    /// input may lie so many bytes into the output; otherwise they must not overlap.
    void remember(const Call& call, std::shared_ptr<const Plan> plan, std::optional<std::size_t> inside);

    struct Plain {
        void* data;
        std::uint64_t count;
        DType dtype;
    };
    /// The memory of a tensor of a known type, if it is ordinary and its elements are of a type of hcomm's.
    std::optional<Plain> see(PyObject* tensor) const noexcept;
    /// From now on tensors of this type are seen.
    void know(PyTypeObject* type);
    /// Nothing is seen or found from now on, until something is remembered again.
    void clear() noexcept;

  private:
    /// Dimensions of both tensors together that a key has room for; what has more is rare.
    static constexpr std::size_t kDimensions = 8;
    /// More calls than this are rare; they are looked up in Python again.
    static constexpr std::size_t kCapacity = 256;

    struct Key {
        std::array<std::int64_t, kDimensions> sizes{};  ///< of the input, then of the output
        std::uint32_t operation = 0, op = 0;
        std::int32_t root = 0;
        std::uint16_t in_dtype = 0, out_dtype = 0;  ///< code and bits of DLPack; 0: no such tensor
        std::uint32_t in_dims = 0, out_dims = 0;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const noexcept;
    };
    struct Known {
        std::shared_ptr<const Plan> plan;
        std::optional<std::size_t> inside;
    };
    using Read = int (*)(void*, DLTensor*);

    std::optional<Key> key(const Call& call, Memory& in, Memory& out) const noexcept;
    bool look(PyObject* tensor, DLTensor& view) const noexcept;
    Read reader(PyTypeObject* type) const noexcept;

    std::vector<std::pair<PyTypeObject*, Read>> readers_;  ///< with a reference to each type
    std::unordered_map<Key, Known, Hash> plans_;
};

}  // namespace hcomm
