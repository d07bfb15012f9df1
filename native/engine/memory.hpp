#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "links/fd.hpp"
#include "links/shm/window.hpp"

namespace hcomm {

/// Memory of this process that other processes of the host can map: a file in memory, mapped here as a whole.
///
/// It stands for the addresses [begin, end). Either that is the mapping itself (allocated), or memory that
/// was there before (adopted): then the whole pages of it are the file's, too, and the ragged ends before and
/// after them are private, with a mirror in the file that operations keep up to date.
class Segment {
  public:
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    const std::uint64_t id;  ///< never reused in this process

    std::uintptr_t begin() const noexcept { return begin_; }
    std::uintptr_t end() const noexcept { return end_; }
    int fd() const noexcept { return fd_.get(); }
    std::size_t file_bytes() const noexcept { return file_bytes_; }
    /// Where `address`, which lies in [begin, end], is in the file.
    std::size_t offset(std::uintptr_t address) const noexcept { return address - begin_ + lead_; }
    /// Where `address` is in the mapping of the file.
    std::byte* alias(std::uintptr_t address) const noexcept { return mapping_.data() + offset(address); }

    /// Copies what of [address, address + bytes) lies in the ragged ends to the mirror, or back.
    void mirror(std::uintptr_t address, std::size_t bytes) const noexcept;
    void unmirror(std::uintptr_t address, std::size_t bytes) const noexcept;

    /// Whether [address, address + bytes) is still this memory. Adopted memory may have been given back to
    /// the system behind our back (a storage that was resized), and its addresses may be somebody else's by
    /// now. `writable`: nobody else reads or writes it meanwhile, which makes the question cheap.
    bool holds(std::uintptr_t address, std::size_t bytes, bool writable) const noexcept;

    /// Operations that use it now.
    std::atomic<int> users{0};

  private:
    friend class Memory;
    /// Allocated.
    Segment(std::uint64_t number, std::size_t bytes);
    /// Adopted.
    Segment(std::uint64_t number, std::uintptr_t address, std::size_t bytes);
    /// Makes the pages of adopted memory the file's, or private again with what is in them.
    void take_pages();
    void give_pages_back() noexcept;
    /// Whether the pages are still the file's: adopted memory may have been freed behind our back.
    bool holds_pages() const noexcept;
    bool shows_through(std::uintptr_t word) const noexcept;
    template <class Visit>
    void for_ragged(std::uintptr_t address, std::size_t bytes, Visit visit) const noexcept;

    const bool adopted_;
    const std::size_t lead_, file_bytes_;
    const Fd fd_;
    const Mapping mapping_;
    const std::uintptr_t begin_, end_;
    const std::uintptr_t inner_begin_, inner_end_;  ///< the whole pages
};

/// The segments of this rank. Any thread may use it.
class Memory {
  public:
    Memory();
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    /// New memory, zero. Throws SystemError.
    std::shared_ptr<Segment> allocate(std::size_t bytes);
    /// Makes the memory at [address, address + bytes) shared in place; its content stays, and nothing may
    /// write it meanwhile. Throws std::invalid_argument where that cannot be (mapped from a file, smaller
    /// than a page, overlapping another segment), SystemError if the system refuses.
    std::shared_ptr<Segment> adopt(std::uintptr_t address, std::size_t bytes);
    /// Adopted memory becomes private again, if it is still there; what others have mapped stays theirs.
    /// False if an operation uses it: then nothing happens.
    bool release(const Segment& segment);

    /// The segment that holds all of [address, address + bytes), or null. `writable`: see `Segment::holds`.
    std::shared_ptr<Segment> find(const void* address, std::size_t bytes, bool writable = false) const;
    /// In a forked child: what was shared with the parent becomes the child's own. The content of adopted
    /// memory is copied; allocated memory is copied on write.
    void part_from_parent() noexcept;

  private:
    void add(const std::shared_ptr<Segment>& segment);
    void forget_stale(std::uintptr_t begin, std::uintptr_t end);

    const pid_t pid_;
    mutable std::mutex mutex_;
    std::atomic<std::size_t> count_{0};
    std::map<std::uintptr_t, std::shared_ptr<Segment>> by_begin_;
    std::uint64_t last_id_ = 0;
};

/// Memory of a segment that an operation uses: meanwhile the segment stays what it is.
struct Shown {
    Shown() = default;
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;
    ~Shown() { reset(); }
    void show(std::shared_ptr<Segment> where, const std::byte* address, std::size_t length);
    void reset() noexcept;

    std::shared_ptr<Segment> segment;
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
};

/// How a place in a segment is told to a peer: the segment's number and the offset in one word.
inline constexpr unsigned kOffsetBits = 40;
inline constexpr std::uint64_t kMaxSegment = std::uint64_t{1} << (64 - kOffsetBits);
constexpr std::uint64_t pack_place(std::uint64_t segment, std::uint64_t offset) noexcept {
    return segment << kOffsetBits | offset;
}
constexpr std::pair<std::uint64_t, std::uint64_t> unpack_place(std::uint64_t place) noexcept {
    return {place >> kOffsetBits, place & ((std::uint64_t{1} << kOffsetBits) - 1)};
}

}  // namespace hcomm
