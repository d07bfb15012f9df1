// Point-to-point messages between ranks that are threads.

#include "check.hpp"
#include "world.hpp"

using namespace hcomm;
using namespace hcomm::test;

namespace {

constexpr std::uint8_t kByte = static_cast<std::uint8_t>(DType::U8);

std::vector<std::uint8_t> pattern(std::size_t bytes, int seed) {
    std::vector<std::uint8_t> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        data[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(seed));
    return data;
}

struct Setup {
    std::vector<int> hosts;
    bool cma;
};
const std::vector<Setup> kSetups = {
    {{0, 0, 0}, false}, {{0, 0, 0}, true}, {{0, 1, 2}, false}, {{0, 0, 1}, false}};

}  // namespace

TEST(every_size_arrives) {
    for (const Setup& setup : kSetups) {
        auto world = make_world(setup.hosts, setup.cma);
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            for (std::size_t bytes :
                 {0, 1, 63, 64, 65, 8192, 40000, 65536, 65537, 131072, 1048577, 3000001}) {
                const int next = (rank + 1) % 3, prev = (rank + 2) % 3;
                auto out = pattern(bytes, rank);
                std::vector<std::uint8_t> in(bytes);
                auto s = comm.send(next, 5, out.data(), bytes, kByte, 30, "");
                auto r = comm.receive(prev, 5, in.data(), bytes, kByte, 30, "");
                if (comm.wait(*r, -1, {}) != Status::Ok || comm.wait(*s, -1, {}) != Status::Ok) ++wrong;
                if (in != pattern(bytes, prev) || r->source != prev) ++wrong;
            }
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

TEST(tags_match_and_order_is_kept) {
    for (const Setup& setup : kSetups) {
        auto world = make_world(setup.hosts, setup.cma);
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            constexpr std::size_t kLarge = 100000;
            if (rank == 0) {
                auto one = pattern(kLarge, 1), two = pattern(kLarge, 2);
                auto a = comm.send(1, 1, one.data(), kLarge, kByte, 30, "");
                auto b = comm.send(1, 2, two.data(), kLarge, kByte, 30, "");
                for (int i = 0; i < 100; ++i) comm.send(1, 3, &i, sizeof i, kByte, 30, "");  // copied at once
                if (comm.wait(*a, -1, {}) != Status::Ok || comm.wait(*b, -1, {}) != Status::Ok) ++wrong;
            } else if (rank == 1) {
                std::vector<std::uint8_t> one(kLarge), two(kLarge);
                auto b = comm.receive(0, 2, two.data(), kLarge, kByte, 30, "");
                if (comm.wait(*b, -1, {}) != Status::Ok || two != pattern(kLarge, 2)) ++wrong;
                for (int i = 0; i < 100; ++i) {
                    int got = -1;
                    auto r = comm.receive(-1, 3, &got, sizeof got, kByte, 30, "");
                    if (comm.wait(*r, -1, {}) != Status::Ok || got != i || r->source != 0) ++wrong;
                }
                auto a = comm.receive(0, 1, one.data(), kLarge, kByte, 30, "");
                if (comm.wait(*a, -1, {}) != Status::Ok || one != pattern(kLarge, 1)) ++wrong;
            }
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

TEST(messages_to_oneself) {
    auto world = make_world({0, 0});
    Comm& comm = *world[0].comm;
    for (std::size_t bytes : {4, 100000}) {
        auto out = pattern(bytes, 3);
        std::vector<std::uint8_t> in(bytes);
        auto s = comm.send(0, 9, out.data(), bytes, kByte, 5, "");
        auto r = comm.receive(-1, 9, in.data(), bytes, kByte, 5, "");
        CHECK(comm.wait(*r, -1, {}) == Status::Ok);
        CHECK(comm.wait(*s, -1, {}) == Status::Ok);
        CHECK(in == out);
    }
    close_world(world);
}

TEST(a_message_that_does_not_fit_fails_on_both_sides) {
    for (const Setup& setup : kSetups) {
        auto world = make_world(setup.hosts, setup.cma);
        std::vector<Status> sent(3), got(3);
        on_every_rank(world, [&](Comm& comm, int rank) {
            std::vector<std::uint8_t> data(200000);
            if (rank == 0) {
                auto s = comm.send(1, 0, data.data(), 100000, kByte, 10, "");
                sent[0] = comm.wait(*s, -1, {});
                comm.send(1, 0, data.data(), 8, kByte, 10, "");
            } else if (rank == 1) {
                auto r = comm.receive(0, 0, data.data(), 100001, kByte, 10, "");
                got[1] = comm.wait(*r, -1, {});
                auto next = comm.receive(0, 0, data.data(), 8, kByte, 10, "");
                if (comm.wait(*next, -1, {}) != Status::Ok) got[1] = Status::System;
            }
        });
        CHECK(sent[0] == Status::MessageMismatch);
        CHECK(got[1] == Status::MessageMismatch);  // and the communicator still works
        close_world(world);
    }
}

TEST(progress_without_waiting) {
    for (const Setup& setup : kSetups) {
        auto world = make_world(setup.hosts, setup.cma);
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            std::vector<std::uint8_t> data(500000, static_cast<std::uint8_t>(rank));
            std::shared_ptr<Message> m;
            if (rank == 0) m = comm.send(1, 0, data.data(), data.size(), kByte, 30, "");
            if (rank == 1) m = comm.receive(0, 0, data.data(), data.size(), kByte, 30, "");
            for (int i = 0; m && m->pending() && i < 2000; ++i)
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (m && m->pending()) ++wrong;
            if (rank == 1 && data[499999] != 0) ++wrong;
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

/// A message that nobody had asked for when it began to arrive, and somebody has before all of it is there.
TEST(a_receive_posted_in_the_middle_of_its_message_gets_it) {
    for (const Setup& setup : kSetups) {
        auto world = make_world(setup.hosts, setup.cma);
        std::atomic<int> wrong{0};
        on_every_rank(world, [&](Comm& comm, int rank) {
            // Copied at once by the sender, and longer than the ring, so that it arrives in pieces.
            constexpr std::size_t kBytes = 60'000;
            for (int turn = 0; turn < 300; ++turn) {
                std::vector<std::shared_ptr<Message>> work;
                auto out = pattern(kBytes, rank + turn);
                std::vector<std::uint8_t> in(kBytes), other(8);
                const int next = (rank + 1) % 3, prev = (rank + 2) % 3;
                work.push_back(comm.send(next, 1, out.data(), kBytes, kByte, 30, ""));
                // Makes this rank read what there is: the head of the large one, in all likelihood.
                work.push_back(comm.receive(prev, 2, other.data(), other.size(), kByte, 30, ""));
                work.push_back(comm.receive(prev, 1, in.data(), kBytes, kByte, 10, ""));
                work.push_back(comm.send(next, 2, out.data(), other.size(), kByte, 30, ""));
                for (auto& w : work)
                    if (comm.wait(*w, -1, {}) != Status::Ok) ++wrong;
                if (in != pattern(kBytes, prev + turn)) ++wrong;
                if (wrong != 0) return;
            }
        });
        CHECK_EQ(wrong.load(), 0);
        close_world(world);
    }
}

/// What the sender shares the receiver reads where it lies: no byte of it goes through the link.
TEST(shared_messages_are_fetched_by_the_receiver) {
    auto world = make_world({0, 0});
    constexpr std::size_t kBytes = 5'000'003, kFrom = 40'001, kLength = 3'000'002;
    std::atomic<int> wrong{0};
    on_every_rank(world, [&](Comm& comm, int rank) {
        Engine& engine = *world[static_cast<std::size_t>(rank)].engine;
        auto segment = engine.memory().allocate(kBytes);
        auto* memory = reinterpret_cast<std::uint8_t*>(segment->begin());
        if (!comm.share(memory, kBytes, 10).empty()) ++wrong;
        const auto sent = pattern(kBytes, rank), expected = pattern(kBytes, 1 - rank);
        std::copy(sent.begin(), sent.end(), memory);
        std::vector<std::uint8_t> in(kLength);
        const std::uint64_t before = comm.bytes_sent(1 - rank);
        auto s = comm.send(1 - rank, 0, memory + kFrom, kLength, kByte, 30, "");
        auto r = comm.receive_now(1 - rank, 0, in.data(), kLength, kByte, 30, {});
        if (r->status != Status::Ok || comm.wait(*s, -1, {}) != Status::Ok) ++wrong;
        if (!std::equal(in.begin(), in.end(), expected.begin() + kFrom)) ++wrong;
        if (comm.bytes_sent(1 - rank) - before > 10 * sizeof(MessageHeader)) ++wrong;
        if (segment->users != 0) ++wrong;
    });
    CHECK_EQ(wrong.load(), 0);
    close_world(world);
}

/// Nobody waits for these sends: whoever asks, or the engine's thread, finds that they are complete.
TEST(answers_are_found_without_waiting) {
    for (const Setup& setup : kSetups) {
        for (const bool asks : {true, false}) {
            auto world = make_world(setup.hosts, setup.cma);
            std::atomic<int> wrong{0};
            on_every_rank(world, [&](Comm& comm, int rank) {
                if (rank == 2) return;
                for (std::size_t bytes : {70'000, 2'000'000}) {
                    auto out = pattern(bytes, rank);
                    std::vector<std::uint8_t> in(bytes);
                    auto s = comm.send(1 - rank, 0, out.data(), bytes, kByte, 30, "");
                    auto r = comm.receive_now(1 - rank, 0, in.data(), bytes, kByte, 30, {});
                    if (r->status != Status::Ok || in != pattern(bytes, 1 - rank)) ++wrong;
                    const auto limit = Clock::now() + std::chrono::seconds(20);
                    while (asks ? !comm.look(*s) : s->pending()) {
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                        if (Clock::now() < limit) continue;
                        ++wrong;
                        break;
                    }
                }
            });
            CHECK_EQ(wrong.load(), 0);
            close_world(world);
        }
    }
}

/// A thread that starts something is let in between the pieces of a large message that another one moves.
TEST(large_messages_and_small_ones_side_by_side) {
    auto world = make_world({0, 0}, true);
    std::atomic<int> wrong{0};
    on_every_rank(world, [&](Comm& comm, int rank) {
        constexpr std::size_t kLarge = 40'000'000;
        auto out = pattern(kLarge, rank);
        std::vector<std::uint8_t> in(kLarge);
        auto s = comm.send(1 - rank, 1, out.data(), kLarge, kByte, 30, "");
        auto r = comm.receive(1 - rank, 1, in.data(), kLarge, kByte, 30, "");
        for (int i = 0; i < 50; ++i) {
            int mine = i + rank, theirs = -1;
            comm.send(1 - rank, 2, &mine, sizeof mine, kByte, 30, "");
            auto small = comm.receive_now(1 - rank, 2, &theirs, sizeof theirs, kByte, 30, {});
            if (small->status != Status::Ok || theirs != i + 1 - rank) ++wrong;
        }
        if (comm.wait(*r, -1, {}) != Status::Ok || comm.wait(*s, -1, {}) != Status::Ok) ++wrong;
        if (in != pattern(kLarge, 1 - rank)) ++wrong;
    });
    CHECK_EQ(wrong.load(), 0);
    close_world(world);
}

/// A message to oneself that nobody receives has its deadline, and ends with the communicator.
TEST(a_message_to_oneself_does_not_wait_for_ever) {
    const auto out = pattern(100'000, 1);
    auto* data = const_cast<std::uint8_t*>(out.data());
    auto world = make_world({0, 0});
    auto late = world[0].comm->send(0, 1, data, out.size(), kByte, 0.2, "");
    CHECK(world[0].comm->wait(*late, -1, {}) == Status::Timeout);
    close_world(world);
    world = make_world({0, 0});
    auto left = world[0].comm->send(0, 1, data, out.size(), kByte, 30, "");
    close_world(world);
    CHECK(!left->pending());
    CHECK(world[0].comm->look(*left));
}

/// More bodies than the ring holds: the rest is announced, and waits with its sender.
TEST(many_large_messages_that_nobody_asked_for_yet) {
    auto world = make_world({0, 0});
    std::atomic<int> wrong{0};
    on_every_rank(world, [&](Comm& comm, int rank) {
        constexpr std::size_t kBytes = 100'000;
        constexpr int kMessages = 100;
        if (rank == 0) {
            std::vector<std::vector<std::uint8_t>> out;
            std::vector<std::shared_ptr<Message>> sends;
            for (int i = 0; i < kMessages; ++i) out.push_back(pattern(kBytes, i));
            for (auto& body : out) sends.push_back(comm.send(1, 1, body.data(), kBytes, kByte, 30, ""));
            int last = 5;
            comm.send(1, 2, &last, sizeof last, kByte, 30, "");
            for (auto& s : sends)
                if (comm.wait(*s, -1, {}) != Status::Ok) ++wrong;
        } else {
            int last = 0;  // behind all of them
            if (comm.receive_now(0, 2, &last, sizeof last, kByte, 30, {})->status != Status::Ok) ++wrong;
            std::vector<std::uint8_t> in(kBytes);
            for (int i = 0; i < kMessages; ++i) {
                auto r = comm.receive_now(0, 1, in.data(), kBytes, kByte, 30, {});
                if (r->status != Status::Ok || in != pattern(kBytes, i)) ++wrong;
            }
        }
    });
    CHECK_EQ(wrong.load(), 0);
    close_world(world);
}
