#include "bindings/shortcuts.hpp"

#include <cstring>

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

/// The operator's name as a number; 0 if it is none.
std::uint32_t name_code(PyObject* op) noexcept {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_Check(op) ? PyUnicode_AsUTF8AndSize(op, &length) : nullptr;
    if (!text) PyErr_Clear();
    if (!text || length < 1 || length > 4) return 0;
    std::uint32_t code = 0;
    std::memcpy(&code, text, static_cast<std::size_t>(length));
    return code;
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

std::optional<Shortcuts::Look> Shortcuts::look(PyObject* tensor) const noexcept {
    const Read read = reader(Py_TYPE(tensor));
    if (!read) return {};
    DLTensor view{};
    if (read(tensor, &view) != 0) {
        PyErr_Clear();
        return {};
    }
    if (view.device_type != kCpu || view.lanes != 1 || view.code == kComplex || !view.data) return {};
    const std::int64_t count = contiguous_count(view);
    if (count <= 0 || is_negated(tensor)) return {};
    return Look{static_cast<std::byte*>(view.data) + view.byte_offset, static_cast<std::uint64_t>(count),
                view.code, view.bits};
}

std::optional<Shortcuts::Plain> Shortcuts::see(PyObject* tensor) const noexcept {
    const auto seen = look(tensor);
    const auto dtype = seen ? dtype_of(seen->code, seen->bits) : std::nullopt;
    if (!dtype) return {};
    return Plain{seen->data, seen->count, *dtype};
}

std::optional<Shortcuts::Hit> Shortcuts::find(PyObject* tensor, PyObject* op) noexcept {
    const auto seen = look(tensor);
    const std::uint32_t name = name_code(op);
    if (!seen || name == 0) return {};
    const auto place = plans_.find(key(*seen, name));
    if (place == plans_.end()) return {};
    return Hit{&place->second, seen->data, seen->count * (seen->bits / 8U)};
}

void Shortcuts::remember(PyObject* tensor, PyObject* op, std::shared_ptr<const Plan> plan) {
    know(Py_TYPE(tensor));
    const auto seen = look(tensor);
    const std::uint32_t name = name_code(op);
    if (!seen || name == 0) return;
    if (plans_.size() >= kCapacity) plans_.clear();
    plans_[key(*seen, name)] = std::move(plan);
}

}  // namespace hcomm
