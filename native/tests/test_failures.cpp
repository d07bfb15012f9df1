// Mismatches, timeouts and lost ranks: every rank hears of it, and of the same.

#include "check.hpp"
#include "world.hpp"

using namespace hcomm;
using namespace hcomm::test;

namespace {

const std::vector<std::vector<int>> kHosts = {{0, 0, 0}, {0, 1, 2}, {0, 0, 1}};

Status reduce(Comm& comm, int rank, int size, std::uint64_t count, double timeout,
              ReduceOp op = ReduceOp::Sum) {
    std::vector<float> data(count, 1.0F);
    auto plan = comm.plan(ring(rank, size), {}, all_reduce_header(count, op), all_reduce_sizes(count), 0);
    return comm.run(plan, data.data(), data.data(), timeout, {});
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

TEST(a_mismatch_reaches_every_rank) {
    for (const auto& hosts : kHosts) {
        auto world = make_world(hosts);
        std::vector<Status> status(3);
        on_every_rank(world, [&](Comm& comm, int rank) {
            CHECK(reduce(comm, rank, 3, 100, 30) == Status::Ok);
            status[static_cast<std::size_t>(rank)] =
                reduce(comm, rank, 3, 100, 30, rank == 1 ? ReduceOp::Max : ReduceOp::Sum);
        });
        for (int r = 0; r < 3; ++r) {
            CHECK(status[static_cast<std::size_t>(r)] == Status::Mismatch);
            const auto failure = world[static_cast<std::size_t>(r)].comm->failure();
            CHECK(failure.has_value());
            CHECK_EQ(failure->seq, 2u);
            CHECK(failure->text.find("all_reduce(float32, 100 elements, max)") != std::string::npos);
        }
        close_world(world);
    }
}

TEST(a_timeout_names_who_did_not_come) {
    for (const auto& hosts : kHosts) {
        auto world = make_world(hosts);
        std::vector<Status> status(3, Status::Ok);
        const auto start = Clock::now();
        on_every_rank(world, [&](Comm& comm, int rank) {
            if (rank != 2) status[static_cast<std::size_t>(rank)] = reduce(comm, rank, 3, 100, 1.0);
        });
        CHECK(seconds_since(start) >= 1.0);
        CHECK(seconds_since(start) < 2.0);
        for (std::size_t r : {0u, 1u}) {
            CHECK(status[r] == Status::Timeout);
            const auto failure = world[r].comm->failure();
            CHECK(failure.has_value());
            CHECK(failure->ranks == std::vector<int>{2});
        }
        close_world(world);
    }
}

TEST(a_rank_that_leaves_is_named) {
    for (const auto& hosts : kHosts) {
        auto world = make_world(hosts);
        std::vector<Status> status(3, Status::Ok);
        on_every_rank(world, [&](Comm& comm, int rank) {
            CHECK(reduce(comm, rank, 3, 1000, 30) == Status::Ok);
            if (rank == 2) return world[2].engine->close();
            status[static_cast<std::size_t>(rank)] = reduce(comm, rank, 3, 1000, 30);
        });
        for (std::size_t r : {0u, 1u}) {
            CHECK(status[r] == Status::PeerLost);
            const auto failure = world[r].comm->failure();
            CHECK(failure->ranks == std::vector<int>{2});
            CHECK(failure->text.find("after completing 1 operations") != std::string::npos);
        }
        close_world(world);
    }
}

TEST(the_last_operation_survives_an_early_goodbye) {
    for (const auto& hosts : kHosts) {
        for (int repeat = 0; repeat < 20; ++repeat) {
            auto world = make_world(hosts);
            std::vector<Status> status(3, Status::Ok);
            on_every_rank(world, [&](Comm& comm, int rank) {
                status[static_cast<std::size_t>(rank)] = reduce(comm, rank, 3, 5000, 30);
                world[static_cast<std::size_t>(rank)].engine->close();
            });
            for (Status s : status) CHECK(s == Status::Ok);
        }
    }
}

TEST(reports_say_what_everybody_does) {
    auto world = make_world({0, 0, 1});
    on_every_rank(world, [&](Comm& comm, int rank) { CHECK(reduce(comm, rank, 3, 10, 30) == Status::Ok); });
    const auto reports = world[0].comm->reports("looking around", "here.py:1", 2.0);
    CHECK_EQ(reports.size(), 3u);
    CHECK(reports[0].what == "looking around");
    for (std::size_t r : {1u, 2u}) {
        CHECK(reports[r].heard && reports[r].alive && !reports[r].left);
        CHECK_EQ(reports[r].done, 1u);
        CHECK(reports[r].what.find("completed #1 all_reduce(float32, 10 elements, sum)") !=
              std::string::npos);
    }
    close_world(world);
}

TEST(a_receive_that_nobody_answers_times_out) {
    for (const auto& hosts : kHosts) {
        auto world = make_world(hosts);
        int x = 0;
        Comm& comm = *world[0].comm;
        auto message = comm.receive(1, 0, &x, sizeof x, 0, 0.3, "");
        CHECK(comm.wait(*message, -1, {}) == Status::Timeout);
        CHECK(comm.failure()->text.find("recv from rank 1, tag 0") != std::string::npos);
        close_world(world);
    }
}

TEST(closing_ends_what_is_unfinished) {
    auto world = make_world({0, 1});
    std::vector<float> data(10);
    Comm& comm = *world[0].comm;
    auto plan = comm.plan(ring(0, 2), {}, all_reduce_header(10), all_reduce_sizes(10), 0);
    auto task = comm.start(plan, data.data(), data.data(), 30, "");
    comm.close();
    CHECK(task->status == Status::Aborted);
    close_world(world);
}

namespace {

/// A program in which rank `root` sends everything to everybody, and nobody compares anything with it
/// afterwards.
std::vector<std::byte> send_from(int root, int rank, int size) {
    Encoder e;
    for (int r = 0; r < size; ++r)
        if (rank == root && r != root) e.step(StepKind::Send, r, {}, {whole()});
    if (rank != root) e.step(StepKind::Recv, root, {whole()}, {});
    return e.bytes();
}

Status broadcast(Comm& comm, int rank, int root) {
    std::vector<float> data(10, 1.0F);
    OpHeader header = all_reduce_header(10, ReduceOp::None);
    header.operation = 1;
    header.root = root;
    auto plan = comm.plan(send_from(root, rank, comm.size()), {}, header, all_reduce_sizes(10), 0);
    return comm.run(plan, data.data(), data.data(), 10, {});
}

}  // namespace

TEST(a_difference_that_nobody_compared_is_found_in_the_next_operation) {
    for (const auto& hosts : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
        auto world = make_world(hosts);
        std::vector<Status> first(2), second(2);
        on_every_rank(world, [&](Comm& comm, int rank) {
            first[static_cast<std::size_t>(rank)] =
                broadcast(comm, rank, rank);  // each its own root: both only send
        });
        on_every_rank(world, [&](Comm& comm, int rank) {
            second[static_cast<std::size_t>(rank)] = reduce(comm, rank, 2, 100, 10);
        });
        for (std::size_t r : {0u, 1u}) {
            CHECK(first[r] == Status::Ok);
            CHECK(second[r] == Status::Mismatch);
        }
        const auto reports = world[0].comm->reports("", "", 1.0);
        CHECK(reports[0].recent.starts_with("1 broadcast(float32, 10 elements, root 0)\n"));
        CHECK(reports[1].recent.starts_with("1 broadcast(float32, 10 elements, root 1)\n"));
        close_world(world);
    }
}

TEST(a_difference_that_nobody_compared_is_found_at_the_end) {
    for (const auto& hosts : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
        auto world = make_world(hosts);
        on_every_rank(world, [&](Comm& comm, int rank) { CHECK(broadcast(comm, rank, rank) == Status::Ok); });
        world[0].comm->close();
        const auto failure = world[0].comm->failure();
        CHECK(failure.has_value() && failure->kind == Status::Mismatch);
        CHECK(failure && failure->text.find("broadcast(float32, 10 elements, root 1)") != std::string::npos);
        close_world(world);
    }
}

TEST(a_rank_that_did_its_part_may_leave) {
    for (const auto& hosts : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
        auto world = make_world(hosts);
        CHECK(broadcast(*world[0].comm, 0, 0) == Status::Ok);
        world[0].engine->close();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        CHECK(broadcast(*world[1].comm, 1, 0) == Status::Ok);
        CHECK(broadcast(*world[1].comm, 1, 0) == Status::PeerLost);
        close_world(world);
    }
}

TEST(a_queued_operation_has_its_own_deadline) {
    auto world = make_world({0, 0});
    Comm& comm = *world[0].comm;
    std::vector<float> data(10);
    auto plan = comm.plan(ring(0, 2), {}, all_reduce_header(10), all_reduce_sizes(10), 0);
    auto first = comm.start(plan, data.data(), data.data(), 300, "");
    const auto start = Clock::now();
    CHECK(comm.run(plan, data.data(), data.data(), 0.3, {}) == Status::Timeout);
    CHECK(seconds_since(start) < 2.0);
    close_world(world);
}
