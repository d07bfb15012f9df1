// The ring between two ranks: positions, padding, wrapping.

#include <numeric>
#include <thread>

#include "check.hpp"
#include "links/shm/window.hpp"

using namespace hcomm;

namespace {

struct Pair {
    Mapping memory{1 << 16};
    Ring ring{reinterpret_cast<RingControl*>(memory.data()), memory.data() + sizeof(RingControl), 1024};
    RingWriter writer{ring};
    RingReader reader{ring};
};

std::vector<std::byte> bytes(std::size_t n, unsigned seed) {
    std::vector<std::byte> data(n + 4096);  // more than is used: GCC 12 sees bounds that no call exceeds
    for (std::size_t i = 0; i < n; ++i) data[i] = static_cast<std::byte>(i * 31 + seed);
    data.resize(n);
    return data;
}

}  // namespace

TEST(a_reader_that_is_faster_than_the_padding_reads_nothing) {
    Pair pair;
    const auto data = bytes(10, 1);
    for (int lap = 0; lap < 100; ++lap) {  // so that the memory behind holds old messages
        CHECK_EQ(pair.writer.write(data.data(), data.size()), 10u);
        CHECK_EQ(pair.reader.peek(64).size(), 10u);
        pair.reader.consume(10);
        pair.reader.skip_pad();
        // The writer has written the whole message, but has not said yet that it is padded.
        CHECK(pair.reader.peek(64).empty());
        pair.writer.pad();
        CHECK(pair.reader.peek(64).empty());
    }
}

TEST(a_full_ring_takes_no_more_and_wraps) {
    Pair pair;
    const auto data = bytes(2000, 2);
    CHECK_EQ(pair.writer.write(data.data(), data.size()), 1024u);
    CHECK_EQ(pair.writer.write(data.data(), 1), 0u);
    std::vector<std::byte> got;
    std::size_t written = 1024;
    while (got.size() < data.size()) {
        const auto piece = pair.reader.peek(100);
        got.insert(got.end(), piece.begin(), piece.end());
        pair.reader.consume(piece.size());
        written += pair.writer.write(data.data() + written, data.size() - written);
    }
    CHECK(got == data);
}

TEST(messages_of_every_size_arrive_between_threads) {
    Pair pair;
    constexpr std::size_t kMessages = 20000;
    std::thread sender([&] {
        for (std::size_t m = 0; m < kMessages; ++m) {
            const auto data = bytes(m % 300, static_cast<unsigned>(m));
            for (std::size_t sent = 0; sent < data.size();) {
                const std::size_t n = pair.writer.write(data.data() + sent, data.size() - sent);
                sent += n;
                if (n == 0) std::this_thread::yield();
            }
            pair.writer.pad();
        }
    });
    std::size_t wrong = 0;
    for (std::size_t m = 0; m < kMessages; ++m) {
        const auto expected = bytes(m % 300, static_cast<unsigned>(m));
        std::vector<std::byte> got;
        while (got.size() < expected.size()) {
            const auto piece = pair.reader.peek(expected.size() - got.size());
            if (piece.empty()) std::this_thread::yield();
            got.insert(got.end(), piece.begin(), piece.end());
            pair.reader.consume(piece.size());
        }
        pair.reader.skip_pad();
        wrong += got != expected;
    }
    sender.join();
    CHECK_EQ(wrong, 0u);
}
