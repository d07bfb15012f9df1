// Quantisation for Python: addresses in, addresses out, without the GIL; see src/hcomm/_native.pyi.

#include "kernels/quantise.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "bindings/quantise.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace hcomm {
namespace {

DType checked(int code) {
    const auto dtype = static_cast<DType>(code);
    if (code < 0 || code >= kDTypes || !quantisable(dtype))
        throw std::invalid_argument("only floats can be quantised");
    return dtype;
}

/// A vector of `count` values cut into `pieces` of `length`, the last of which may be shorter or empty.
struct Cut {
    std::size_t count, pieces, length;

    std::size_t begin(std::size_t piece) const { return std::min(count, piece * length); }
    std::size_t size(std::size_t piece) const { return std::min(count, (piece + 1) * length) - begin(piece); }
    std::size_t stride() const { return quantised_bytes(length); }
};

Cut cut(std::size_t count, std::size_t pieces, std::size_t length) {
    if (pieces == 0 || (count + pieces - 1) / pieces > length)
        throw std::invalid_argument("the pieces are too short for the vector");
    return {count, pieces, length};
}

void quantise_pieces(std::uintptr_t values, int dtype, std::size_t count, std::size_t pieces,
                     std::size_t length, std::uintptr_t out) {
    const DType type = checked(dtype);
    const Cut parts = cut(count, pieces, length);
    const nb::gil_scoped_release release;
    for (std::size_t i = 0; i < pieces; ++i) {
        auto* piece = reinterpret_cast<std::byte*>(out) + i * parts.stride();
        // What is not used is sent too: it must not be memory that held something else.
        std::fill(piece + quantised_bytes(parts.size(i)), piece + parts.stride(), std::byte{});
        quantise(type, reinterpret_cast<const std::byte*>(values) + parts.begin(i) * size_of(type),
                 parts.size(i), piece);
    }
}

void dequantise_pieces(std::uintptr_t in, std::size_t pieces, std::size_t length, std::size_t count,
                       int dtype, std::uintptr_t values) {
    const DType type = checked(dtype);
    const Cut parts = cut(count, pieces, length);
    const nb::gil_scoped_release release;
    for (std::size_t i = 0; i < pieces; ++i) {
        const auto* piece = reinterpret_cast<const std::byte*>(in) + i * parts.stride();
        dequantise({.pieces = {&piece, 1}, .count = parts.size(i)}, type,
                   reinterpret_cast<std::byte*>(values) + parts.begin(i) * size_of(type));
    }
}

std::vector<const std::byte*> pieces_at(std::uintptr_t first, std::size_t stride, std::size_t number,
                                        std::size_t left_out) {
    std::vector<const std::byte*> found;
    for (std::size_t i = 0; i < number; ++i) {
        if (i != left_out) found.push_back(reinterpret_cast<const std::byte*>(first) + i * stride);
    }
    return found;
}

void dequantise_sum(std::uintptr_t in, std::size_t stride, std::size_t number, float weight,
                    std::size_t count, int dtype, std::uintptr_t values) {
    const DType type = checked(dtype);
    const auto pieces = pieces_at(in, stride, number, number);
    const nb::gil_scoped_release release;
    dequantise({.pieces = pieces, .weight = weight, .count = count}, type, reinterpret_cast<void*>(values));
}

void requantise_sum(std::uintptr_t in, std::size_t stride, std::size_t number, std::size_t own, float weight,
                    std::size_t count, int dtype, std::uintptr_t values, std::size_t room,
                    std::uintptr_t out) {
    const DType type = checked(dtype);
    if (room < quantised_bytes(count)) throw std::invalid_argument("no room for the piece");
    const auto pieces = pieces_at(in, stride, number, own);
    auto* piece = reinterpret_cast<std::byte*>(out);
    const nb::gil_scoped_release release;
    std::fill(piece + quantised_bytes(count), piece + room, std::byte{});
    requantise({.pieces = pieces,
                .exact = reinterpret_cast<const void*>(values),
                .exact_type = type,
                .weight = weight,
                .count = count},
               piece);
}

}  // namespace

void define_quantise(nb::module_& m) {
    m.attr("QUANTISE_CHUNK") = kQuantiseChunk;
    m.def("quantised_bytes", &quantised_bytes, "count"_a);
    m.def("quantise", &quantise_pieces, "values"_a, "dtype"_a, "count"_a, "pieces"_a, "length"_a, "out"_a);
    m.def("dequantise", &dequantise_pieces, "pieces_at"_a, "pieces"_a, "length"_a, "count"_a, "dtype"_a,
          "values"_a);
    m.def("dequantise_sum", &dequantise_sum, "pieces_at"_a, "stride"_a, "pieces"_a, "weight"_a, "count"_a,
          "dtype"_a, "values"_a);
    m.def("requantise_sum", &requantise_sum, "pieces_at"_a, "stride"_a, "pieces"_a, "own"_a, "weight"_a,
          "count"_a, "dtype"_a, "values"_a, "room"_a, "out"_a);
}

}  // namespace hcomm
