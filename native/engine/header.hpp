#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace hcomm {

/// What a rank says about an operation before any of its data is used (one cache line).
///
/// It is compared by every peer that meets this rank in the operation: in shared memory through a slot of
/// the window, on streams in front of every message.
struct OpHeader {
    std::uint64_t seq = 0;  ///< number of the collective in its communicator, from 1
    std::uint64_t signature =
        0;                    ///< hash of all that ranks must agree on; the fields below explain a difference
    std::uint64_t count = 0;  ///< elements
    std::uint64_t algorithm = 0;  ///< hash of the chosen algorithm and its options
    std::uint64_t agreed = 0;     ///< hash of other agreed data (uneven sizes, ...)
    std::uint64_t first = 0;      ///< window: where the input is; stream: bytes of this message
    std::uint64_t second = 0;     ///< window: where the output is; stream: kMessageMagic
    std::int32_t root = -1;
    std::uint8_t operation = 0;
    std::uint8_t dtype = 0;
    std::uint8_t op = 0;
    std::uint8_t flags = 0;  ///< kFused, kOffersAccess, …

    friend bool operator==(const OpHeader&, const OpHeader&) = default;
};
static_assert(sizeof(OpHeader) == 64);

inline constexpr std::uint64_t kMessageMagic = 0x48434F4D4D4D5347ULL;
inline constexpr std::uint8_t kFused = 1;  ///< publishing the header was this rank's first post to everybody
inline constexpr std::uint8_t kOffersAccess =
    2;  ///< peers reach this rank's ordinary memory through its process
/// The input, the output lie in a segment that all local peers have mapped: `first`, `second` say where.
inline constexpr std::uint8_t kSharesInput = 4, kSharesOutput = 8;

/// An OpHeader that one thread writes and others read at any time; `seq` is written last.
class SharedHeader {
  public:
    /// Makes `header` visible. The release store of seq pairs with the acquire load in `read`.
    void publish(const OpHeader& header) noexcept;
    /// The sequence number now there; everything its writer did before `publish` is visible.
    std::uint64_t seq() const noexcept { return words_[0].load(std::memory_order_acquire); }
    /// The header, which must not be rewritten meanwhile (or is only shown to a person).
    OpHeader read() const noexcept;
    std::uint64_t signature() const noexcept { return words_[1].load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> words_[8];
};
static_assert(sizeof(SharedHeader) == 64);

/// Hash over the fields that ranks must agree on.
std::uint64_t signature_of(const OpHeader& header) noexcept;

/// The signature of an operation after others: ranks whose histories differ find out whenever they next meet,
/// even if nothing of the operation that differed was ever compared.
std::uint64_t chain_signatures(std::uint64_t history, std::uint64_t signature) noexcept;

/// For people: "all_reduce(float32, 100 elements, sum)".
std::string describe(const OpHeader& header);

const char* operation_name(std::uint8_t operation) noexcept;

}  // namespace hcomm
