// What comes out of a socket is checked before it is used: a peer that sends nonsense ends the operation,
// nothing else.

#include <random>

#include "check.hpp"
#include "world.hpp"

using namespace hcomm;
using namespace hcomm::test;

namespace {

/// One rank of two, whose peer is the test: the other ends of its sockets.
struct Lonely {
    Rank rank;
    Fd control, coll, p2p;
};

Lonely make_lonely() {
    Lonely lonely;
    CommConfig config;
    config.size = 2;
    config.local = {0};
    config.windows.resize(2);
    config.pids = {0, 0};
    const auto join = [](std::vector<int>& mine) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw SystemError("socketpair");
        mine = {-1, pair[0]};
        return Fd(pair[1]);
    };
    lonely.control = join(config.control);
    lonely.coll = join(config.coll);
    lonely.p2p = join(config.p2p);
    lonely.rank.engine = std::make_shared<Engine>();
    lonely.rank.comm = std::make_shared<Comm>(lonely.rank.engine, std::move(config));
    lonely.rank.engine->add(lonely.rank.comm);
    return lonely;
}

std::vector<std::byte> noise(std::mt19937& random, std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    return data;
}

void write_all(const Fd& fd, std::span<const std::byte> data) {
    while (!data.empty()) {
        const ssize_t n = ::send(fd.get(), data.data(), data.size(), MSG_NOSIGNAL);
        if (n <= 0) return;
        data = data.subspan(static_cast<std::size_t>(n));
    }
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
    return {reinterpret_cast<const std::byte*>(&value), sizeof value};
}

Status reduce(Comm& comm, double timeout) {
    std::vector<float> data(1000, 1.0F);
    auto plan = comm.plan(ring(0, 2), {}, all_reduce_header(1000), all_reduce_sizes(1000), 0);
    return comm.run(plan, data.data(), data.data(), timeout, {});
}

OpHeader good_header() {
    OpHeader header = all_reduce_header(1000);
    header.signature = chain_signatures(0, signature_of(header));
    header.seq = 1;
    header.first = 2016;  // chunk 1 of 1000 floats: elements 496 to 1000
    header.second = kMessageMagic;
    return header;
}

}  // namespace

TEST(noise_instead_of_a_message) {
    std::mt19937 random(1);
    for (int i = 0; i < 50; ++i) {
        Lonely lonely = make_lonely();
        write_all(lonely.coll, noise(random, 64 + random() % 1000));
        CHECK(reduce(*lonely.rank.comm, 5) == Status::System);
        lonely.rank.engine->close();
    }
}

TEST(a_header_with_one_field_wrong) {
    std::mt19937 random(2);
    for (std::size_t at = 0; at < sizeof(OpHeader); at += 3) {
        Lonely lonely = make_lonely();
        OpHeader header = good_header();
        const bool compared = at < 16 || (at >= 40 && at < 56);  // seq, signature, bytes, magic
        reinterpret_cast<std::byte*>(&header)[at] ^= static_cast<std::byte>(1 + random() % 255);
        write_all(lonely.coll, bytes_of(header));
        const Status status = reduce(*lonely.rank.comm, compared ? 5 : 0.2);
        if (compared) CHECK(status == Status::Mismatch || status == Status::System);
        if (!compared)
            CHECK(status == Status::Timeout);  // the fields that only explain are not trusted with anything
        lonely.rank.engine->close();
    }
}

TEST(lengths_at_the_edge_of_64_bits) {
    for (std::uint64_t bytes : {~0ULL, ~0ULL - 63, 1ULL << 63, 2015ULL, 2017ULL, 0ULL}) {
        Lonely lonely = make_lonely();
        OpHeader header = good_header();
        header.first = bytes;
        write_all(lonely.coll, bytes_of(header));
        CHECK(reduce(*lonely.rank.comm, 5) == Status::Mismatch);
        lonely.rank.engine->close();
    }
}

TEST(noise_instead_of_point_to_point_messages) {
    std::mt19937 random(3);
    for (int i = 0; i < 200; ++i) {
        Lonely lonely = make_lonely();
        MessageHeader header{0x48434F4D4D503250ULL,
                             random(),
                             random() % 3 ? random() : ~0ULL,
                             random(),
                             0,
                             static_cast<std::uint8_t>(random() % 8),
                             5,
                             static_cast<std::uint8_t>(random() % 2),
                             0,
                             random(),
                             {}};
        if (i % 4 == 0) header.magic = random();
        write_all(lonely.p2p, bytes_of(header));
        write_all(lonely.p2p, noise(random, random() % 500));
        std::uint8_t data[100];
        auto message = lonely.rank.comm->receive(1, 0, data, sizeof data, 5, 0.3, "");
        const Status status = lonely.rank.comm->wait(*message, -1, {});
        CHECK(status != Status::Ok && status != Status::Pending);
        lonely.rank.engine->close();
    }
}

TEST(noise_on_the_control_channel) {
    std::mt19937 random(4);
    for (int i = 0; i < 30; ++i) {
        Lonely lonely = make_lonely();
        struct {
            std::uint32_t magic = 0x4843544C;
            std::uint16_t kind, reserved = 0;
            std::uint32_t bytes;
        } frame;
        frame.kind = static_cast<std::uint16_t>(random() % 8);
        frame.bytes =
            i % 5 == 0 ? static_cast<std::uint32_t>(random()) : static_cast<std::uint32_t>(random() % 200);
        if (i % 7 == 0) frame.magic = static_cast<std::uint32_t>(random());
        write_all(lonely.control, bytes_of(frame));
        write_all(lonely.control, noise(random, frame.bytes % 20000));
        const Status status = reduce(*lonely.rank.comm, 0.1);
        CHECK(status != Status::Ok && status != Status::Pending);
        lonely.rank.engine->close();
    }
}
