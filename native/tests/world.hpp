/// Ranks as threads of one process: they share one mapping of each window, so that ThreadSanitizer sees every
/// access.
#pragma once

#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "engine/comm.hpp"
#include "engine/engine.hpp"

namespace hcomm::test {

struct Rank {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Comm> comm;
};

/// Communicators of `size` ranks. Ranks of the same entry of `hosts` share memory, others are joined by
/// sockets.
inline std::vector<Rank> make_world(const std::vector<int>& hosts, bool cma = false,
                                    std::size_t buffer = 1 << 20) {
    const int size = static_cast<int>(hosts.size());
    std::vector<CommConfig> configs(hosts.size());
    const auto at = [](int i) { return static_cast<std::size_t>(i); };
    std::vector<std::shared_ptr<Mapping>> windows;
    for (int r = 0; r < size; ++r) {
        CommConfig& c = configs[at(r)];
        c.rank = r;
        c.size = size;
        c.buffer_bytes = buffer;
        c.crowded = true;
        for (int q = 0; q < size; ++q)
            if (hosts[at(q)] == hosts[at(r)]) c.local.push_back(q);
        c.windows.resize(hosts.size());
        c.control.assign(hosts.size(), -1);
        c.coll.assign(hosts.size(), -1);
        c.p2p.assign(hosts.size(), -1);
        c.pids.assign(hosts.size(), 0);
        windows.push_back(std::make_shared<Mapping>(WindowLayout(c.local.size(), buffer).total));
    }
    const auto join = [&](std::vector<int> CommConfig::* channel, int a, int b) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw SystemError("socketpair");
        (configs[at(a)].*channel)[at(b)] = pair[0];
        (configs[at(b)].*channel)[at(a)] = pair[1];
    };
    for (int a = 0; a < size; ++a) {
        configs[at(a)].windows[at(a)] = windows[at(a)];
        for (int b = a + 1; b < size; ++b) {
            join(&CommConfig::control, a, b);
            if (hosts[at(a)] == hosts[at(b)]) {
                configs[at(a)].windows[at(b)] = windows[at(b)];
                configs[at(b)].windows[at(a)] = windows[at(a)];
                if (cma) configs[at(a)].pids[at(b)] = configs[at(b)].pids[at(a)] = ::getpid();
            } else {
                join(&CommConfig::coll, a, b);
                join(&CommConfig::p2p, a, b);
            }
        }
    }
    std::vector<Rank> ranks;
    for (auto& config : configs) {
        auto engine = std::make_shared<Engine>();
        auto comm = std::make_shared<Comm>(engine, std::move(config));
        engine->add(comm);
        ranks.push_back({engine, comm});
    }
    return ranks;
}

inline void on_every_rank(std::vector<Rank>& ranks, const std::function<void(Comm&, int)>& body) {
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks.size(); ++r)
        threads.emplace_back([&, r] { body(*ranks[r].comm, static_cast<int>(r)); });
    for (auto& thread : threads) thread.join();
}

inline void close_world(std::vector<Rank>& ranks) {
    for (Rank& rank : ranks) rank.engine->close();
}

/// Writes programs the way hcomm.planning does.
class Encoder {
  public:
    using Words = std::array<std::int32_t, 7>;
    explicit Encoder(int window_slots = 0, bool access = false) : slots_(window_slots), access_(access) {}

    void block(int tile_bytes = 0, int buffers = 1, int stages = 1) {
        blocks_.push_back({{tile_bytes, buffers, stages}, 0, {}});
    }
    void step(StepKind kind, int peer, std::vector<Words> dst, std::vector<Words> src,
              std::vector<int> ranks = {}, int stage = 0, bool final = false) {
        if (blocks_.empty()) block();
        auto& b = blocks_.back();
        ++b.steps;
        for (int w : {static_cast<int>(kind), stage, peer, final ? 1 : 0, static_cast<int>(dst.size()),
                      static_cast<int>(src.size()), static_cast<int>(ranks.size())})
            b.words.push_back(w);
        for (const auto* side : {&dst, &src})
            for (const Words& r : *side) b.words.insert(b.words.end(), r.begin(), r.end());
        b.words.insert(b.words.end(), ranks.begin(), ranks.end());
    }
    std::vector<std::byte> bytes() const {
        std::vector<std::int32_t> words{0x48434D50, 1, static_cast<int>(blocks_.size()), slots_,
                                        access_ ? 1 : 0};
        for (const auto& b : blocks_) {
            words.insert(words.end(), b.head.begin(), b.head.end());
            words.push_back(b.steps);
            words.insert(words.end(), b.words.begin(), b.words.end());
        }
        const auto* p = reinterpret_cast<const std::byte*>(words.data());
        return {p, p + words.size() * 4};
    }

  private:
    struct Body {
        std::array<std::int32_t, 3> head;
        int steps;
        std::vector<std::int32_t> words;
    };
    int slots_;
    bool access_;
    std::vector<Body> blocks_;
};

// Regions: {space, owner, slot, part, begin, end, parts}.
inline Encoder::Words whole(int owner = -1) { return {1, owner, -1, 1, 0, 0, 0}; }
inline Encoder::Words chunk(int i, int n, int owner = -1) { return {1, owner, -1, 2, i % n, i % n + 1, n}; }
inline Encoder::Words window(int slot, Encoder::Words like, int owner = -1) {
    return {3, owner, slot, like[3], like[4], like[5], like[6]};
}

inline std::vector<std::byte> oneshot(int size) {
    Encoder e(1);
    std::vector<int> all;
    std::vector<Encoder::Words> sources;
    for (int r = 0; r < size; ++r) {
        all.push_back(r);
        sources.push_back(window(0, whole(), r));
    }
    e.step(StepKind::Move, -1, {window(0, whole())}, {whole()});
    e.step(StepKind::Meet, -1, {}, {}, all);
    e.step(StepKind::Move, -1, {whole()}, sources, {}, 0, true);
    return e.bytes();
}

inline std::vector<std::byte> ring(int rank, int size) {
    Encoder e;
    const int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    for (int s = 0; s < size - 1; ++s) {
        e.step(StepKind::Send, next, {}, {chunk(rank - s + size, size)});
        e.step(StepKind::RecvReduce, prev, {chunk(rank - s - 1 + size, size)}, {});
    }
    e.step(StepKind::Finish, -1, {chunk(rank + 1, size)}, {});
    for (int s = 0; s < size - 1; ++s) {
        e.step(StepKind::Send, next, {}, {chunk(rank - s + 1 + size, size)});
        e.step(StepKind::Recv, prev, {chunk(rank - s + size, size)}, {});
    }
    return e.bytes();
}

/// Double-buffered tiles through the windows, one meet to a tile.
inline std::vector<std::byte> staged(int rank, int size, int tile) {
    Encoder e(size + 1);
    std::vector<int> all;
    for (int r = 0; r < size; ++r) all.push_back(r);
    e.block(tile, 2, 3);
    for (int c = 0; c < size; ++c)
        if (c != rank) e.step(StepKind::Move, -1, {chunk(c, size)}, {window(size, chunk(c, size), c)}, {}, 2);
    std::vector<Encoder::Words> sources;
    for (int r = 0; r < size; ++r)
        sources.push_back(r == rank ? chunk(rank, size) : window(rank, chunk(rank, size), r));
    e.step(StepKind::Move, -1, {chunk(rank, size), window(size, chunk(rank, size))}, sources, {}, 1, true);
    for (int c = 0; c < size; ++c)
        if (c != rank) e.step(StepKind::Move, -1, {window(c, chunk(c, size))}, {chunk(c, size)}, {}, 0);
    e.step(StepKind::Meet, -1, {}, {}, all, -1);
    return e.bytes();
}

inline std::vector<std::byte> direct(int rank, int size) {
    Encoder e(0, true);
    std::vector<int> all;
    std::vector<Encoder::Words> everywhere;
    for (int r = 0; r < size; ++r) {
        all.push_back(r);
        everywhere.push_back(chunk(rank, size, r == rank ? -1 : r));
    }
    e.step(StepKind::Meet, -1, {}, {}, all);
    e.step(StepKind::Move, -1, everywhere, everywhere, {}, 0, true);
    e.step(StepKind::Meet, -1, {}, {}, all);
    return e.bytes();
}

inline OpHeader all_reduce_header(std::uint64_t count, ReduceOp op = ReduceOp::Sum,
                                  DType dtype = DType::F32) {
    OpHeader h;
    h.operation = 0;
    h.dtype = static_cast<std::uint8_t>(dtype);
    h.op = static_cast<std::uint8_t>(op);
    h.count = count;
    h.algorithm = 42;
    return h;
}

inline Sizes all_reduce_sizes(std::uint64_t count) { return {count, count, count, {}, {}}; }

}  // namespace hcomm::test
