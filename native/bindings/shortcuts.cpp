#include "bindings/shortcuts.hpp"

#include <cstring>
#include <functional>

namespace hcomm {

// The stable part of DLPack's C structures (dmlc/dlpack, version 1), as far as it is read here.
struct DLTensor {
    void* data;
    std::int32_t device_type, device_id;
    std::int32_t ndim;
    std::uint8_t code, bits;
    std::uint16_t lanes;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

namespace {

struct ExchangeTable {
    std::uint32_t major, minor;
    void* older;
    void* allocate;
    void* export_owned;
    void* import_owned;
    int (*view)(void*, DLTensor*);  ///< may be null
    void* current_stream;
};

constexpr std::int32_t kCpu = 1;
constexpr std::uint8_t kComplex = 5;  // may be lazily conjugated, which the structure does not tell

/// The operator's name as a number, 0 for None; nothing if it is no name.
std::optional<std::uint32_t> name_code(PyObject* op) noexcept {
    if (op == Py_None) return 0;
    Py_ssize_t length = 0;
    const char* text = PyUnicode_Check(op) ? PyUnicode_AsUTF8AndSize(op, &length) : nullptr;
    if (!text) PyErr_Clear();
    if (!text || length < 1 || length > 4) return {};
    std::uint32_t code = 0;
    std::memcpy(&code, text, static_cast<std::size_t>(length));
    return code;
}

/// A rank given as an int and nothing else.
std::optional<std::int32_t> rank_number(PyObject* root) noexcept {
    if (!PyLong_CheckExact(root)) return {};
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(root, &overflow);
    if (overflow || value < INT32_MIN || value > INT32_MAX) return {};
    return static_cast<std::int32_t>(value);
}

/// Elements of a contiguous tensor; -1 if it is strided.
std::int64_t contiguous_count(const DLTensor& tensor) noexcept {
    std::int64_t count = 1;
    for (std::int32_t i = tensor.ndim; i-- > 0;) {
        if (tensor.strides && tensor.shape[i] != 1 && tensor.strides[i] != count) return -1;
        count *= tensor.shape[i];
    }
    return count;
}

void* address_of(const DLTensor& tensor) noexcept {
    return static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

/// torch's lazily negated tensors, which the structure does not tell from others.
bool is_negated(PyObject* tensor) noexcept {
    static PyObject* const name = PyUnicode_InternFromString("is_neg");
    PyObject* answer = PyObject_CallMethodNoArgs(tensor, name);
    if (!answer) PyErr_Clear();
    const bool plain = answer == Py_False;
    Py_XDECREF(answer);
    return !plain;
}

/// The function that shows a tensor of this type, or null.
int (*view_of(PyTypeObject* type))(void*, DLTensor*) {
    PyObject* capsule =
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
    const auto* table =
        capsule ? static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"))
                : nullptr;
    if (!table) PyErr_Clear();
    Py_XDECREF(capsule);  // the table itself lives as long as the process
    return table && table->major == 1 ? table->view : nullptr;
}

/// The element type of DLPack's code and width; none if hcomm has none like it.
std::optional<DType> dtype_of(std::uint8_t code, std::uint8_t bits) noexcept {
    constexpr std::uint8_t kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6;
    const auto among = [&](DType eight, DType sixteen, DType thirty_two, DType sixty_four) {
        return bits == 8 ? eight : bits == 16 ? sixteen : bits == 32 ? thirty_two : sixty_four;
    };
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64) return {};
    if (code == kInt) return among(DType::I8, DType::I16, DType::I32, DType::I64);
    if (code == kUint) return among(DType::U8, DType::U16, DType::U32, DType::U64);
    if (code == kFloat && bits > 8) return among(DType::F16, DType::F16, DType::F32, DType::F64);
    if (code == kBfloat && bits == 16) return DType::BF16;
    if (code == kBool && bits == 8) return DType::Bool;
    return {};
}

}  // namespace

Shortcuts::~Shortcuts() { clear(); }

void Shortcuts::clear() noexcept {
    plans_.clear();
    for (auto& [type, read] : readers_) Py_DECREF(type);
    readers_.clear();
}

Shortcuts::Read Shortcuts::reader(PyTypeObject* type) const noexcept {
    for (const auto& [known, read] : readers_)
        if (known == type) return read;
    return nullptr;
}

void Shortcuts::know(PyTypeObject* type) {
    if (reader(type)) return;
    const Read read = view_of(type);
    if (!read) return;
    Py_INCREF(type);
    readers_.emplace_back(type, read);
}

/// Reads a tensor; false if it is not ordinary.
bool Shortcuts::look(PyObject* tensor, DLTensor& view) const noexcept {
    const Read read = reader(Py_TYPE(tensor));
    if (!read) return false;
    if (read(tensor, &view) != 0) {
        PyErr_Clear();
        return false;
    }
    if (view.device_type != kCpu || view.lanes != 1 || view.code == kComplex || !view.data) return false;
    return contiguous_count(view) > 0 && !is_negated(tensor);
}

std::optional<Shortcuts::Plain> Shortcuts::see(PyObject* tensor) const noexcept {
    DLTensor view{};
    if (!look(tensor, view)) return {};
    const auto dtype = dtype_of(view.code, view.bits);
    if (!dtype) return {};
    return Plain{address_of(view), static_cast<std::uint64_t>(contiguous_count(view)), *dtype};
}

std::size_t Shortcuts::Hash::operator()(const Key& key) const noexcept {
    std::uint64_t hash = std::uint64_t{key.operation} << 32 | key.op;
    const auto mix = [&hash](std::uint64_t word) {
        hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
        hash ^= hash >> 29;
    };
    mix(static_cast<std::uint64_t>(key.root) << 32 | std::uint32_t{key.in_dtype} << 16 | key.out_dtype);
    for (std::size_t i = 0; i < key.in_dims + key.out_dims; ++i)
        mix(static_cast<std::uint64_t>(key.sizes[i]));
    return hash;
}

/// What identifies a call, and where its tensors lie; nothing if it is not ordinary.
std::optional<Shortcuts::Key> Shortcuts::key(const Call& call, Memory& in, Memory& out) const noexcept {
    const auto op = name_code(call.op);
    const auto root = rank_number(call.root);
    if (!op || !root) return {};
    Key key;
    key.operation = call.operation;
    key.op = *op;
    key.root = *root;
    std::size_t used = 0;
    const auto add = [&](PyObject* tensor, Memory& memory, std::uint16_t& dtype, std::uint32_t& dims) {
        if (tensor == Py_None) return true;
        DLTensor view{};
        if (!look(tensor, view)) return false;
        dims = static_cast<std::uint32_t>(view.ndim);
        if (used + dims > kDimensions) return false;
        for (std::uint32_t i = 0; i < dims; ++i) key.sizes[used++] = view.shape[i];
        dtype = static_cast<std::uint16_t>(view.code << 8 | view.bits);
        memory = {address_of(view), static_cast<std::size_t>(contiguous_count(view)) * (view.bits / 8U)};
        return true;
    };
    if (!add(call.tensor, in, key.in_dtype, key.in_dims)) return {};
    if (!add(call.out, out, key.out_dtype, key.out_dims)) return {};
    return key;
}

std::optional<Shortcuts::Hit> Shortcuts::find(const Call& call) noexcept {
    Hit hit{};
    const auto wanted = key(call, hit.in, hit.out);
    if (!wanted) return {};
    const auto place = plans_.find(*wanted);
    if (place == plans_.end()) return {};
    const Known& known = place->second;
    if (hit.in.data && hit.out.data) {
        const auto* in = static_cast<const std::byte*>(hit.in.data);
        const auto* out = static_cast<const std::byte*>(hit.out.data);
        const bool apart =
            std::less_equal<>()(in + hit.in.bytes, out) || std::less_equal<>()(out + hit.out.bytes, in);
        if (!apart && !(known.inside && in == out + *known.inside)) return {};
    } else if (known.plan->n_out > 0 && !hit.out.data) {
        hit.out = hit.in;  // in place
    }
    hit.plan = &known.plan;
    return hit;
}

void Shortcuts::remember(const Call& call, std::shared_ptr<const Plan> plan,
                         std::optional<std::size_t> inside) {
    for (PyObject* tensor : {call.tensor, call.out})
        if (tensor != Py_None) know(Py_TYPE(tensor));
    Memory in, out;
    const auto made = key(call, in, out);
    if (!made) return;
    if (plans_.size() >= kCapacity) plans_.clear();
    plans_[*made] = {std::move(plan), inside};
}

}  // namespace hcomm
