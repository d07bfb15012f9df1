#include "engine/header.hpp"

#include <cstring>

#include "kernels/types.hpp"

namespace hcomm {

void SharedHeader::publish(const OpHeader& header) noexcept {
    std::uint64_t words[8];
    std::memcpy(words, &header, sizeof words);
    for (int i = 1; i < 8; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    words_[0].store(words[0], std::memory_order_release);
}

OpHeader SharedHeader::read() const noexcept {
    std::uint64_t words[8];
    for (int i = 0; i < 8; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    OpHeader header;
    std::memcpy(&header, words, sizeof words);
    return header;
}

namespace {

/// A round of splitmix64: cheap, and every bit of the value reaches every bit of the result.
std::uint64_t mix(std::uint64_t h, std::uint64_t value) noexcept {
    h += value + 0x9E3779B97F4A7C15ULL;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBULL;
    return h ^ (h >> 31);
}

}  // namespace

std::uint64_t chain_signatures(std::uint64_t history, std::uint64_t signature) noexcept {
    return mix(history, signature);
}

std::uint64_t signature_of(const OpHeader& header) noexcept {
    std::uint64_t h = mix(0, header.operation | header.dtype << 8 | header.op << 16);
    h = mix(h, static_cast<std::uint32_t>(header.root));
    h = mix(h, header.count);
    h = mix(h, header.algorithm);
    return mix(h, header.agreed);
}

const char* operation_name(std::uint8_t operation) noexcept {
    static constexpr const char* names[] = {"all_reduce", "broadcast",      "reduce",
                                            "all_gather", "reduce_scatter", "all_to_all",
                                            "gather",     "scatter",        "barrier"};
    return operation < std::size(names) ? names[operation] : "unknown operation";
}

std::string describe(const OpHeader& header) {
    std::string text = operation_name(header.operation);
    if (text == "barrier") return text + "()";
    text += std::string("(") + name_of(static_cast<DType>(header.dtype)) + ", " +
            std::to_string(header.count) + (header.count == 1 ? " element" : " elements");
    if (header.op != static_cast<std::uint8_t>(ReduceOp::None))
        text += std::string(", ") + name_of(static_cast<ReduceOp>(header.op));
    if (header.root >= 0) text += ", root " + std::to_string(header.root);
    return text + ")";
}

}  // namespace hcomm
