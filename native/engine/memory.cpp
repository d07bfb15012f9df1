#include "engine/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>

#include "engine/status.hpp"
#include "links/shm/pages.hpp"

namespace hcomm {
namespace {

std::size_t page_bytes() noexcept {
    static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

std::uintptr_t page_down(std::uintptr_t address) noexcept { return address / page_bytes() * page_bytes(); }
std::uintptr_t page_up(std::uintptr_t address) noexcept { return page_down(address + page_bytes() - 1); }

/// Where memory that is adopted begins in its file: as far behind the beginning of a page, and of a huge one
/// if it may hold any, as in memory. Nothing before it is ever touched.
std::size_t lead_of(std::uintptr_t address, std::size_t bytes) noexcept {
    return address % (bytes < 2 * kHugePage ? page_bytes() : kHugePage);
}

[[noreturn]] void refuse(const std::string& what) {
    const int error = errno;
    throw SystemError(what + ": " + std::strerror(error) +
                      (error == EMFILE
                           ? " (each piece of shared memory holds a descriptor; raise `ulimit -n`, or "
                             "make few large pieces and take slices)"
                           : ""));
}

/// A file in memory of this size, which can neither shrink nor grow.
Fd make_file(std::size_t bytes) {
    Fd fd(::memfd_create("hcomm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) refuse("cannot make a file in memory");
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        refuse("cannot make a file of " + std::to_string(bytes) + " bytes in memory");
    // Peers map it: it must not be cut short under them.
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        refuse("cannot seal a file in memory");
    return fd;
}

struct Area {  ///< a line of /proc/self/maps
    std::uintptr_t begin, end;
    char mode[5];
    ino_t inode;
};

/// Calls `visit` with the mapped areas that overlap [begin, end), in order, until it returns false. False if
/// they cannot be read.
bool for_areas(std::uintptr_t begin, std::uintptr_t end, const std::function<bool(const Area&)>& visit) {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), &std::fclose);
    if (!maps) return false;
    char line[4500];
    while (std::fgets(line, sizeof line, maps.get())) {
        Area area{};
        std::uint64_t inode = 0;
        if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*x %*x:%*x %" SCNu64, &area.begin, &area.end,
                        area.mode, &inode) != 4)
            continue;
        area.inode = static_cast<ino_t>(inode);
        if (area.begin >= end) break;
        if (area.end > begin && !visit(area)) break;
    }
    return true;
}

/// Why the pages [begin, end) cannot be exchanged for others; empty if they can.
std::string obstacle(std::uintptr_t begin, std::uintptr_t end) {
    std::uintptr_t covered = begin;
    std::string why;
    const bool known = for_areas(begin, end, [&](const Area& area) {
        if (area.begin > covered) return false;
        if (area.inode != 0 || std::strcmp(area.mode, "rw-p") != 0)
            why = std::string("its pages are not ordinary private memory (mode ") + area.mode +
                  (area.inode ? ", mapped from a file)" : ")");
        covered = area.end;
        return why.empty();
    });
    if (!known) return std::string("/proc/self/maps cannot be read: ") + std::strerror(errno);
    if (why.empty() && covered < end) why = "it is not all mapped";
    return why;
}

/// Whether the page at an address is a file's, or shared (bit 61 of its entry, which needs no privilege), by
/// the process's page map.
bool is_file_page(const Fd& pages, std::uintptr_t address) noexcept {
    constexpr std::uint64_t kPresent = std::uint64_t{1} << 63, kFile = std::uint64_t{1} << 61;
    static_cast<void>(*reinterpret_cast<const volatile char*>(address));  // so that it is present
    std::uint64_t entry = 0;
    const auto at = static_cast<off_t>(address / page_bytes() * sizeof entry);
    if (!pages || ::pread(pages.get(), &entry, sizeof entry, at) != sizeof entry) return false;
    return (entry & kPresent) && (entry & kFile);
}

}  // namespace

Segment::Segment(std::uint64_t number, std::size_t bytes)
    : id(number),
      adopted_(false),
      lead_(0),
      file_bytes_(page_up(std::max<std::size_t>(bytes, 1))),
      fd_(make_file(file_bytes_)),
      mapping_(fd_.get(), file_bytes_),
      begin_(reinterpret_cast<std::uintptr_t>(mapping_.data())),
      end_(begin_ + bytes),
      inner_begin_(begin_),
      inner_end_(begin_ + file_bytes_) {
    take_huge_pages(fd_.get(), mapping_.data(), 0, file_bytes_);
}

Segment::Segment(std::uint64_t number, std::uintptr_t address, std::size_t bytes)
    : id(number),
      adopted_(true),
      lead_(lead_of(address, bytes)),
      file_bytes_(page_up(lead_ + bytes)),
      fd_(make_file(file_bytes_)),
      mapping_(fd_.get(), file_bytes_),
      begin_(address),
      end_(address + bytes),
      inner_begin_(page_up(address)),
      inner_end_(page_down(end_)) {}

Segment::~Segment() = default;

template <class Visit>
void Segment::for_ragged(std::uintptr_t address, std::size_t bytes, Visit visit) const noexcept {
    if (!adopted_) return;
    const std::uintptr_t last = address + bytes;
    if (address < inner_begin_) visit(address, std::min(last, inner_begin_) - address);
    const std::uintptr_t from = std::max(address, inner_end_);
    if (last > from) visit(from, last - from);
}

void Segment::mirror(std::uintptr_t address, std::size_t bytes) const noexcept {
    for_ragged(address, bytes, [&](std::uintptr_t from, std::size_t n) {
        std::memcpy(alias(from), reinterpret_cast<const void*>(from), n);
    });
}

void Segment::unmirror(std::uintptr_t address, std::size_t bytes) const noexcept {
    for_ragged(address, bytes, [&](std::uintptr_t from, std::size_t n) {
        std::memcpy(reinterpret_cast<void*>(from), alias(from), n);
    });
}

void Segment::take_pages() {
    const std::size_t bytes = inner_end_ - inner_begin_;
    auto* pages = reinterpret_cast<void*>(inner_begin_);
    take_huge_pages(fd_.get(), mapping_.data(), offset(inner_begin_), bytes);
    std::memcpy(alias(inner_begin_), pages, bytes);
    if (::mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(),
               static_cast<off_t>(offset(inner_begin_))) == MAP_FAILED)
        refuse("cannot share " + std::to_string(bytes) + " bytes of memory");
}

bool Segment::holds_pages() const noexcept {
    struct stat file{};
    if (::fstat(fd_.get(), &file) != 0) return false;
    std::uintptr_t covered = inner_begin_;
    const bool known = for_areas(inner_begin_, inner_end_, [&](const Area& area) {
        if (area.begin > covered || area.inode != file.st_ino) return false;
        covered = area.end;
        return true;
    });
    return known && covered >= inner_end_;
}

bool Segment::holds(std::uintptr_t address, std::size_t bytes, bool writable) const noexcept {
    constexpr std::uintptr_t kWord = sizeof(std::uint64_t);
    const std::uintptr_t first = (std::max(address, inner_begin_) + kWord - 1) / kWord * kWord;
    const std::uintptr_t last = std::min(address + bytes, inner_end_) / kWord * kWord;
    // The ragged ends are copied at each use, whoever they belong to.
    if (!adopted_ || first + kWord > last) return true;
    if (writable) return shows_through(first) && shows_through(last - kWord);
    const Fd pages(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    return is_file_page(pages, first) && is_file_page(pages, last - kWord);
}

/// Whether a word that is written through the mapping of the file is seen at its own address.
bool Segment::shows_through(std::uintptr_t word) const noexcept {
    auto* there = reinterpret_cast<volatile std::uint64_t*>(alias(word));
    const auto* here = reinterpret_cast<const volatile std::uint64_t*>(word);
    const std::uint64_t value = *there;
    if (*here != value) return false;
    *there = ~value;
    const bool same = *here == ~value;
    *there = value;
    return same;
}

void Segment::give_pages_back() noexcept {
    if (!adopted_ || !holds_pages()) return;
    const std::size_t bytes = inner_end_ - inner_begin_;
    auto* pages = reinterpret_cast<void*>(inner_begin_);
    void* fresh = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) return;  // they stay shared with whoever mapped them: nothing else goes wrong
    std::memcpy(fresh, pages, bytes);
    // One call puts the copy in the place of the shared pages: no thread ever finds a hole.
    if (::mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages) == MAP_FAILED)
        ::munmap(fresh, bytes);
}

Memory::Memory() : pid_(::getpid()) {}

Memory::~Memory() {
    if (::getpid() != pid_) return;
    for (auto& [begin, segment] : by_begin_) segment->give_pages_back();
}

void Memory::add(const std::shared_ptr<Segment>& segment) {
    by_begin_[segment->begin()] = segment;
    count_ = by_begin_.size();
}

std::shared_ptr<Segment> Memory::allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Segment> segment(new Segment(++last_id_, bytes));
    add(segment);
    return segment;
}

std::shared_ptr<Segment> Memory::adopt(std::uintptr_t address, std::size_t bytes) {
    if (page_up(address) >= page_down(address + bytes))
        throw std::invalid_argument("it holds no whole page: " + std::to_string(bytes) + " bytes");
    const std::lock_guard lock(mutex_);
    forget_stale(address, address + bytes);
    auto next = by_begin_.lower_bound(address);
    const bool before = next != by_begin_.begin() && std::prev(next)->second->end() > address;
    if (before || (next != by_begin_.end() && next->first < address + bytes))
        throw std::invalid_argument("part of it is shared already");
    if (const auto why = obstacle(page_up(address), page_down(address + bytes)); !why.empty())
        throw std::invalid_argument(why);
    std::shared_ptr<Segment> segment(new Segment(++last_id_, address, bytes));
    segment->take_pages();
    add(segment);
    return segment;
}

/// Adopted memory in this range that was freed behind our back is nobody's any more.
void Memory::forget_stale(std::uintptr_t begin, std::uintptr_t end) {
    for (auto place = by_begin_.begin(); place != by_begin_.end();) {
        const Segment& segment = *place->second;
        const bool overlaps = segment.begin() < end && begin < segment.end();
        place = overlaps && segment.adopted_ && !segment.holds_pages() ? by_begin_.erase(place) : ++place;
    }
    count_ = by_begin_.size();
}

bool Memory::release(const Segment& segment) {
    const std::lock_guard lock(mutex_);
    const auto place = by_begin_.find(segment.begin());
    if (place == by_begin_.end() || place->second.get() != &segment) return true;
    if (segment.users != 0) return false;
    if (::getpid() == pid_) place->second->give_pages_back();
    by_begin_.erase(place);
    count_ = by_begin_.size();
    return true;
}

std::shared_ptr<Segment> Memory::find(const void* address, std::size_t bytes, bool writable) const {
    if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
    const auto from = reinterpret_cast<std::uintptr_t>(address);
    const std::lock_guard lock(mutex_);
    auto next = by_begin_.upper_bound(from);
    if (next == by_begin_.begin()) return nullptr;
    const auto& segment = std::prev(next)->second;
    return from + bytes <= segment->end() && segment->holds(from, bytes, writable) ? segment : nullptr;
}

void Memory::part_from_parent() noexcept {
    // Another thread of the parent may have held the lock when it forked; it does not exist here.
    for (auto& [begin, segment] : by_begin_) {
        if (segment->adopted_) {
            segment->give_pages_back();
            continue;
        }
        ::mmap(segment->mapping_.data(), segment->file_bytes_, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_FIXED, segment->fd(), 0);
    }
}

void Shown::show(std::shared_ptr<Segment> where, const std::byte* address, std::size_t length) {
    reset();
    segment = std::move(where);
    begin = reinterpret_cast<std::uintptr_t>(address);
    bytes = length;
    ++segment->users;
    segment->mirror(begin, bytes);
}

void Shown::reset() noexcept {
    if (segment) --segment->users;
    segment.reset();
}

}  // namespace hcomm
