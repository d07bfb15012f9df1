// Collectives on ranks that are threads: shared memory, sockets, and both.

#include <numeric>
#include <random>

#include "check.hpp"
#include "world.hpp"

using namespace hcomm;
using namespace hcomm::test;

namespace {

using Make = std::function<std::vector<std::byte>(int rank, int size)>;

/// Every rank contributes (i % 13) + rank; the sum over p ranks is p * (i % 13) + p (p - 1) / 2.
void check_all_reduce(std::vector<Rank>& world, const Make& make, std::uint64_t count, int rounds,
                      bool async = false) {
    const int p = static_cast<int>(world.size());
    std::atomic<int> wrong{0};
    on_every_rank(world, [&](Comm& comm, int rank) {
        auto plan = comm.plan(make(rank, p), {}, all_reduce_header(count), all_reduce_sizes(count), 0);
        std::vector<float> data(count);
        for (int round = 0; round < rounds; ++round) {
            for (std::uint64_t i = 0; i < count; ++i)
                data[i] = static_cast<float>(i % 13 + static_cast<std::uint64_t>(rank + round));
            Status status;
            if (async) {
                auto task = comm.start(plan, data.data(), data.data(), 60, "");
                status = comm.wait(*task, -1, {});
            } else {
                status = comm.run(plan, data.data(), data.data(), 60, {});
            }
            if (status != Status::Ok) ++wrong;
            for (std::uint64_t i = 0; i < count; ++i)
                if (data[i] != static_cast<float>(static_cast<std::uint64_t>(p) *
                                                      (i % 13 + static_cast<std::uint64_t>(round)) +
                                                  static_cast<std::uint64_t>(p * (p - 1) / 2))) {
                    ++wrong;
                    break;
                }
        }
    });
    CHECK_EQ(wrong.load(), 0);
}

std::vector<int> one_host(int size) { return std::vector<int>(static_cast<std::size_t>(size), 0); }
std::vector<int> own_hosts(int size) {
    std::vector<int> hosts(static_cast<std::size_t>(size));
    std::iota(hosts.begin(), hosts.end(), 0);
    return hosts;
}
const Make kOneshot = [](int, int size) { return oneshot(size); };
const Make kStaged = [](int rank, int size) { return staged(rank, size, 4096); };

}  // namespace

TEST(oneshot_on_shared_memory) {
    for (int size : {1, 2, 3, 5, 8, 16}) {
        auto world = make_world(one_host(size));
        for (std::uint64_t count : {0, 1, 7, 1000}) check_all_reduce(world, kOneshot, count, 20);
        close_world(world);
    }
}

TEST(staged_on_shared_memory) {
    for (int size : {1, 2, 3, 4, 7}) {
        auto world = make_world(one_host(size));
        for (std::uint64_t count : {0, 1, 3, 1000, 100003}) check_all_reduce(world, kStaged, count, 3);
        close_world(world);
    }
}

TEST(direct_through_process_memory) {
    for (int size : {2, 3, 4}) {
        auto world = make_world(one_host(size), true);
        for (std::uint64_t count : {1, 1000, 100003}) check_all_reduce(world, direct, count, 3);
        close_world(world);
    }
}

TEST(ring_on_shared_memory) {
    for (int size : {2, 3, 4, 6}) {
        auto world = make_world(one_host(size));
        for (std::uint64_t count : {0, 1, 7, 1000, 300007}) check_all_reduce(world, ring, count, 3);
        close_world(world);
    }
}

TEST(ring_on_sockets) {
    for (int size : {2, 3, 4}) {
        auto world = make_world(own_hosts(size));
        for (std::uint64_t count : {0, 1, 7, 1000, 300007}) check_all_reduce(world, ring, count, 3);
        close_world(world);
    }
}

TEST(ring_on_two_hosts) {
    auto world = make_world({0, 0, 1, 1});
    for (std::uint64_t count : {1, 1000, 300007}) {
        check_all_reduce(world, ring, count, 3);
        check_all_reduce(world, ring, count, 3, true);
    }
    close_world(world);
}

TEST(asynchronous_operations_in_order) {
    for (const auto& hosts : {one_host(3), own_hosts(3)}) {
        auto world = make_world(hosts);
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            constexpr std::uint64_t count = 5000;
            auto plan = comm.plan(ring(rank, 3), {}, all_reduce_header(count), all_reduce_sizes(count), 0);
            std::vector<std::vector<float>> data(20, std::vector<float>(count));
            std::vector<std::shared_ptr<Task>> tasks;
            for (std::size_t k = 0; k < data.size(); ++k) {
                std::fill(data[k].begin(), data[k].end(), static_cast<float>(rank) + static_cast<float>(k));
                tasks.push_back(comm.start(plan, data[k].data(), data[k].data(), 60, ""));
            }
            // The engine finishes them without anybody waiting.
            while (tasks.back()->pending()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            for (std::size_t k = 0; k < data.size(); ++k)
                if (tasks[k]->status != Status::Ok || data[k][count - 1] != 3 + 3 * static_cast<float>(k))
                    ++wrong;
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

TEST(a_fallback_is_chosen_by_all_when_one_offers_no_access) {
    for (bool cma : {true, false}) {
        auto world = make_world(one_host(3), cma);
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            constexpr std::uint64_t count = 1000;
            auto plan = comm.plan(direct(rank, 3), staged(rank, 3, 4096), all_reduce_header(count),
                                  all_reduce_sizes(count), 0);
            for (int round = 0; round < 20; ++round) {
                std::vector<float> data(count, 1.0F);
                if (comm.run(plan, data.data(), data.data(), 60, {}) != Status::Ok || data[17] != 3.0F)
                    ++wrong;
            }
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

TEST(average_is_finished_once) {
    for (const Make& make : {Make(ring), kOneshot, kStaged}) {
        auto world = make_world(one_host(3));
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            auto plan = comm.plan(make(rank, 3), {}, all_reduce_header(1000, ReduceOp::Avg),
                                  all_reduce_sizes(1000), 0);
            std::vector<float> data(1000, static_cast<float>(rank + 1));
            if (comm.run(plan, data.data(), data.data(), 60, {}) != Status::Ok) ++wrong;
            for (float x : data) wrong += x != 2.0F;
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

TEST(malformed_programs_are_refused) {
    auto world = make_world(one_host(2));
    Comm& comm = *world[0].comm;
    const auto good = staged(0, 2, 4096);
    std::mt19937 random(7);
    int refused = 0, accepted = 0;
    const auto attempt = [&](std::span<const std::byte> bytes) {
        try {
            (void)comm.plan(bytes, {}, all_reduce_header(1000), all_reduce_sizes(1000), 0);
            ++accepted;
        } catch (const std::invalid_argument&) {
            ++refused;
        }
    };
    for (std::size_t n = 0; n < good.size(); ++n) attempt(std::span(good).first(n));
    CHECK_EQ(accepted, 0);
    for (int i = 0; i < 20000; ++i) {
        auto bad = good;
        const std::size_t word = random() % (bad.size() / 4) * 4;
        const std::int32_t value =
            i % 2 ? static_cast<std::int32_t>(random()) : static_cast<std::int32_t>(random() % 9) - 2;
        std::memcpy(bad.data() + word, &value, 4);
        attempt(bad);
    }
    CHECK(refused > 10000);
    close_world(world);
}
