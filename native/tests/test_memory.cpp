// Memory shared with peers: allocated and adopted, whole and in slices, offered by all ranks or by some.

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "check.hpp"
#include "world.hpp"

using namespace hcomm;
using namespace hcomm::test;

namespace {

constexpr std::size_t kPage = 4096;

std::size_t open_files() {
    std::size_t n = 0;
    DIR* dir = ::opendir("/proc/self/fd");
    while (::readdir(dir)) ++n;
    ::closedir(dir);
    return n;
}

std::shared_ptr<const Plan> direct_plan(Comm& comm, std::uint64_t count, ReduceOp op = ReduceOp::Sum) {
    return comm.plan(direct(comm.rank(), comm.size()), staged(comm.rank(), comm.size(), 4096),
                     all_reduce_header(count, op), all_reduce_sizes(count), 0, {{}, {}, false});
}

/// A private block of pages, as malloc gives for a large request, from which a ragged piece is taken.
struct Pages {
    explicit Pages(std::size_t bytes)
        : size(bytes),
          data(static_cast<std::byte*>(
              ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
    ~Pages() { ::munmap(data, size); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    std::size_t size;
    std::byte* data;
};

void fill(float* data, std::size_t count, int rank) {
    for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(i % 1000) + static_cast<float>(rank);
}

bool is_sum(const float* data, std::size_t count, int size) {
    for (std::size_t i = 0; i < count; ++i)
        if (data[i] != static_cast<float>(size) * static_cast<float>(i % 1000) +
                           static_cast<float>(size * (size - 1) / 2))
            return false;
    return true;
}

void sum_allocated(int size, std::size_t count = 50'001) {
    auto ranks = make_world(std::vector<int>(static_cast<std::size_t>(size), 0));
    on_every_rank(ranks, [&](Comm& comm, int r) {
        Engine& engine = *ranks[static_cast<std::size_t>(r)].engine;
        auto segment = engine.memory().allocate(count * sizeof(float));
        auto* data = reinterpret_cast<float*>(segment->begin());
        CHECK_EQ(comm.share(data, count * sizeof(float), 10), std::string());
        // A slice of it counts as shared as well.
        for (std::size_t first : {std::size_t{0}, std::size_t{16}, std::size_t{12'345}}) {
            fill(data, first, r);
            fill(data + first, count - first, r);
            auto plan = direct_plan(comm, count - first);
            CHECK(comm.run(plan, data + first, data + first, 20, {}) == Status::Ok);
            CHECK(is_sum(data + first, count - first, size));
            for (std::size_t i = 0; i < first; ++i)
                CHECK_EQ(data[i], static_cast<float>(i % 1000 + static_cast<std::size_t>(r)));
        }
        CHECK_EQ(segment->users.load(), 0);
        CHECK(engine.release(*segment));
    });
    close_world(ranks);
}

void sum_adopted(int size, std::size_t lead, std::size_t count) {
    auto ranks = make_world(std::vector<int>(static_cast<std::size_t>(size), 0));
    on_every_rank(ranks, [&](Comm& comm, int r) {
        Engine& engine = *ranks[static_cast<std::size_t>(r)].engine;
        // Every rank's tensor begins elsewhere in its page.
        const std::size_t at = lead + 64 * static_cast<std::size_t>(r);
        Pages pages(at + count * sizeof(float) + 2 * kPage);
        std::memset(pages.data, 0x5A, pages.size);
        auto* data = reinterpret_cast<float*>(pages.data + at);
        fill(data, count, r);
        auto segment = engine.memory().adopt(reinterpret_cast<std::uintptr_t>(data), count * sizeof(float));
        for (std::size_t i = 0; i < count; ++i)
            CHECK_EQ(data[i], static_cast<float>(i % 1000 + static_cast<std::size_t>(r)));
        CHECK_EQ(comm.share(data, count * sizeof(float), 10), std::string());
        auto plan = direct_plan(comm, count);
        for (int turn = 0; turn < 3; ++turn) {
            fill(data, count, r);
            CHECK(comm.run(plan, data, data, 20, {}) == Status::Ok);
            CHECK(is_sum(data, count, size));
        }
        CHECK(engine.release(*segment));
        CHECK(is_sum(data, count, size));
        // Private again, and offered by nobody: the other program runs.
        fill(data, count, r);
        CHECK(comm.run(plan, data, data, 20, {}) == Status::Ok);
        CHECK(is_sum(data, count, size));
        for (std::size_t i = 0; i < at; ++i) CHECK(pages.data[i] == std::byte{0x5A});
        for (std::size_t i = at + count * sizeof(float); i < pages.size; ++i)
            CHECK(pages.data[i] == std::byte{0x5A});
    });
    close_world(ranks);
}

}  // namespace

TEST(allocated_memory_is_summed_in_place) {
    for (int size : {2, 3, 5}) sum_allocated(size);
}

TEST(adopted_memory_keeps_its_ragged_ends) {
    sum_adopted(2, 64, 100'003);
    sum_adopted(3, 4000, 30'001);
    sum_adopted(4, 0, 8 * 1024);
}

/// What a resized storage does: the pages go back to the system, and others come to the same addresses.
TEST(large_memory_lies_alike_in_huge_pages_everywhere) {
    constexpr std::size_t kHuge = std::size_t{2} << 20, kCount = (2 * kHuge + 40) / sizeof(float);
    sum_adopted(2, 3 * kPage + 64, kCount);
    sum_allocated(2, kCount);
    hcomm::Memory memory;
    Pages pages(6 * kHuge + kPage);
    const auto address = reinterpret_cast<std::uintptr_t>(pages.data) + kPage + 64;
    std::memset(pages.data, 1, pages.size);
    const auto adopted = memory.adopt(address, 5 * kHuge);
    CHECK_EQ((reinterpret_cast<std::uintptr_t>(adopted->alias(address)) - address) % kHuge, 0);
    CHECK_EQ(adopted->offset(address) % kHuge, address % kHuge);
    const auto allocated = memory.allocate(3 * kHuge + 1);
    CHECK_EQ(allocated->begin() % kHuge, 0);
    const auto* bytes = reinterpret_cast<const std::byte*>(allocated->begin());
    CHECK(std::all_of(bytes, bytes + 3 * kHuge + 1, [](std::byte b) { return b == std::byte{0}; }));
    CHECK(memory.release(*adopted));
    CHECK(std::all_of(pages.data, pages.data + pages.size, [](std::byte b) { return b == std::byte{1}; }));
}

TEST(memory_that_was_replaced_behind_our_back_is_not_taken_for_shared) {
    auto ranks = make_world({0, 0});
    on_every_rank(ranks, [&](Comm& comm, int r) {
        Engine& engine = *ranks[static_cast<std::size_t>(r)].engine;
        const std::size_t count = 50'000, bytes = count * sizeof(float);
        Pages pages(64 + bytes + kPage);
        auto* data = reinterpret_cast<float*>(pages.data + 64);
        auto segment = engine.memory().adopt(reinterpret_cast<std::uintptr_t>(data), bytes);
        CHECK_EQ(comm.share(data, bytes, 10), std::string());
        auto plan = direct_plan(comm, count);
        for (int turn = 0; turn < 3; ++turn) {
            if (turn == 1)
                CHECK(::mmap(pages.data, pages.size, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == pages.data);
            fill(data, count, r);
            CHECK(comm.run(plan, data, data, 20, {}) == Status::Ok);
            CHECK(is_sum(data, count, 2));
        }
        CHECK(!engine.memory().find(data, bytes, false));
        // The addresses may be shared anew, and the old handle then means nothing.
        auto again = engine.memory().adopt(reinterpret_cast<std::uintptr_t>(data), bytes);
        CHECK(engine.release(*segment));
        CHECK(engine.memory().find(data, bytes, false) == again);
        CHECK(engine.release(*again));
        CHECK(is_sum(data, count, 2));
    });
    close_world(ranks);
}

TEST(one_rank_without_shared_memory_sends_all_another_way) {
    auto ranks = make_world({0, 0, 0});
    on_every_rank(ranks, [&](Comm& comm, int r) {
        Engine& engine = *ranks[static_cast<std::size_t>(r)].engine;
        const std::size_t count = 20'000;
        auto segment = engine.memory().allocate(count * sizeof(float));
        std::vector<float> ordinary(count);
        auto plan = direct_plan(comm, count);
        for (int turn = 0; turn < 12; ++turn) {
            float* data = turn % 4 == r ? ordinary.data() : reinterpret_cast<float*>(segment->begin());
            fill(data, count, r);
            CHECK(comm.run(plan, data, data, 20, {}) == Status::Ok);
            CHECK(is_sum(data, count, 3));
        }
        CHECK(engine.release(*segment));
    });
    close_world(ranks);
}

/// Rank 0's input is reached into, nobody else's: nobody else has to offer anything.
TEST(a_broadcast_needs_the_offer_of_its_root_only) {
    auto ranks = make_world({0, 0, 0});
    on_every_rank(ranks, [&](Comm& comm, int r) {
        Engine& engine = *ranks[static_cast<std::size_t>(r)].engine;
        const std::size_t count = 10'000;
        std::shared_ptr<Segment> segment;
        std::vector<float> ordinary(count, -1.0F);
        float* data = ordinary.data();
        if (r == 0) {
            segment = engine.memory().allocate(count * sizeof(float));
            data = reinterpret_cast<float*>(segment->begin());
            CHECK_EQ(comm.share(data, count * sizeof(float), 10), std::string());
        }
        Encoder e(0, true);
        std::vector<int> all{0, 1, 2};
        e.step(StepKind::Meet, -1, {}, {}, all);
        if (r != 0) e.step(StepKind::Move, -1, {whole()}, {{0, 0, -1, 0, 0, 0, 0}});
        e.step(StepKind::Meet, -1, {}, {}, all);
        OpHeader header = all_reduce_header(count, ReduceOp::None);
        header.operation = 1;
        header.root = 0;
        Encoder other;
        other.step(StepKind::Meet, -1, {}, {}, all);  // moves nothing: a wrong choice is seen
        auto plan = comm.plan(e.bytes(), other.bytes(), header, all_reduce_sizes(count), 0,
                              {{true, false, false}, {false, false, false}, false});
        for (int turn = 0; turn < 3; ++turn) {
            if (r == 0) fill(data, count, turn);
            CHECK(comm.run(plan, data, data, 20, {}) == Status::Ok);
            for (std::size_t i = 0; i < count; ++i)
                CHECK_EQ(data[i], static_cast<float>(i % 1000 + static_cast<std::size_t>(turn)));
        }
        if (segment) CHECK(engine.release(*segment));
    });
    close_world(ranks);
}

TEST(what_cannot_be_adopted_is_refused) {
    Memory memory;
    Pages pages(8 * kPage);
    const auto at = reinterpret_cast<std::uintptr_t>(pages.data);
    const auto refused = [&](std::uintptr_t address, std::size_t bytes) {
        try {
            memory.adopt(address, bytes);
        } catch (const std::invalid_argument&) {
            return true;
        }
        return false;
    };
    CHECK(refused(at + 64, kPage));  // holds no whole page
    auto first = memory.adopt(at + 64, 4 * kPage);
    CHECK(refused(at + kPage, 6 * kPage));  // overlaps
    CHECK(refused(at, 6 * kPage));
    auto own = memory.allocate(4 * kPage);
    CHECK(memory.release(*own));
    CHECK(refused(own->begin(), 4 * kPage));  // a file's pages
    CHECK(memory.release(*first));
    ::mprotect(pages.data, 8 * kPage, PROT_READ);
    CHECK(refused(at, 8 * kPage));
    ::mprotect(pages.data, 8 * kPage, PROT_READ | PROT_WRITE);
    ::munmap(pages.data + 4 * kPage, kPage);
    CHECK(refused(at, 8 * kPage));
    CHECK(memory.find(pages.data, 64) == nullptr);
}

TEST(a_thousand_cycles_leave_nothing_behind) {
    auto ranks = make_world({0, 0});
    Pages pages(64 * kPage);
    const std::size_t before = open_files();
    Engine& engine = *ranks[0].engine;
    for (int i = 0; i < 1000; ++i) {
        auto segment = engine.memory().adopt(reinterpret_cast<std::uintptr_t>(pages.data) + 64, 60 * kPage);
        CHECK_EQ(ranks[0].comm->share(pages.data + 64, 60 * kPage, 10), std::string());
        CHECK(engine.release(*segment));
    }
    for (int tries = 0; open_files() > before && tries < 500; ++tries) ::usleep(10'000);
    CHECK(open_files() <= before);
    close_world(ranks);
}

/// What the parent writes after a fork does not show in the child's adopted memory, nor the other way round.
TEST(a_forked_child_has_its_own_copy) {
    Memory memory;
    Pages pages(16 * kPage);
    auto adopted = memory.adopt(reinterpret_cast<std::uintptr_t>(pages.data), 16 * kPage);
    auto allocated = memory.allocate(kPage);
    auto* one = reinterpret_cast<volatile int*>(adopted->begin());
    auto* two = reinterpret_cast<volatile int*>(allocated->begin());
    *one = 1;
    *two = 1;
    int up[2], down[2];
    CHECK(::pipe(up) == 0 && ::pipe(down) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
        memory.part_from_parent();
        *two = 3;
        char word = 'r';
        if (::write(up[1], &word, 1) != 1 || ::read(down[0], &word, 1) != 1) ::_exit(9);
        ::_exit(*one == 1 && *two == 3 ? 0 : 1);
    }
    char word = 0;
    CHECK(::read(up[0], &word, 1) == 1);
    CHECK_EQ(*two, 1);
    *one = 2;
    CHECK(::write(down[1], &word, 1) == 1);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    for (int fd : {up[0], up[1], down[0], down[1]}) ::close(fd);
    CHECK(memory.release(*adopted));
    CHECK_EQ(*one, 2);
}
