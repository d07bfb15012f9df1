#pragma once

#include <Python.h>

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

/// Plans of operations in place on ordinary tensors, found by one look at the tensor.
///
/// A tensor is read through the table of C functions that its type offers (`__dlpack_c_exchange_api__`): no
/// Python object is made. What is not plain contiguous CPU memory of a type that was remembered is not found,
/// and takes the general way. Used under the GIL.
class Shortcuts {
  public:
    Shortcuts() = default;
    ~Shortcuts();
    Shortcuts(const Shortcuts&) = delete;
    Shortcuts& operator=(const Shortcuts&) = delete;

    struct Hit {
        const std::shared_ptr<const Plan>* plan;
        void* data;
        std::size_t bytes;
    };
    /// The plan for `tensor` and the operator `op` (a str).
    std::optional<Hit> find(PyObject* tensor, PyObject* op) noexcept;
    struct Plain {
        void* data;
        std::uint64_t count;
        DType dtype;
    };
    /// The memory of a tensor of a known type, if it is ordinary and its elements are of a type of hcomm's.
    std::optional<Plain> see(PyObject* tensor) const noexcept;
    /// From now on tensors of this type are seen.
    void know(PyTypeObject* type);
    /// From now on tensors of this type, element type and length are found. Does nothing for a type without
    /// the table, or a tensor that is not ordinary.
    void remember(PyObject* tensor, PyObject* op, std::shared_ptr<const Plan> plan);
    /// Nothing is seen or found from now on, until something is remembered again.
    void clear() noexcept;

  private:
    struct Key {
        std::uint64_t count;
        std::uint32_t dtype, op;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const noexcept {
            const std::uint64_t h = (key.count + 1) * 0x9E3779B97F4A7C15ULL;
            return h ^ (h >> 29) ^ (static_cast<std::uint64_t>(key.op) << 32 | key.dtype);
        }
    };
    using Read = int (*)(void*, DLTensor*);

    struct Look {
        void* data;
        std::uint64_t count;
        std::uint8_t code, bits;  ///< of DLPack
    };
    std::optional<Look> look(PyObject* tensor) const noexcept;
    static Key key(const Look& seen, std::uint32_t op) noexcept {
        return {seen.count, static_cast<std::uint32_t>(seen.code << 8 | seen.bits), op};
    }
    Read reader(PyTypeObject* type) const noexcept;

    /// More shapes than this are rare; they are looked up in Python again.
    static constexpr std::size_t kCapacity = 256;

    std::vector<std::pair<PyTypeObject*, Read>> readers_;  ///< with a reference to each type
    std::unordered_map<Key, std::shared_ptr<const Plan>, Hash> plans_;
};

}  // namespace hcomm
