/// Quantisation at every SIMD level of this machine, against bounds and values worked out by hand.

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/quantise.hpp"
#include "kernels/quantise_levels.hpp"

using hcomm::DType;
using hcomm::kernels::Level;
using hcomm::kernels::QuantiseTable;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

std::vector<const QuantiseTable*> levels() {
    std::vector<const QuantiseTable*> found;
    for (int level = 0; level < hcomm::kernels::kLevels; ++level) {
        if (const auto* table = hcomm::kernels::quantise_table_at(static_cast<Level>(level)))
            found.push_back(table);
    }
    return found;
}

using Piece = std::vector<std::byte>;

Piece piece_of(const QuantiseTable& table, const std::vector<float>& values) {
    Piece piece(hcomm::quantised_bytes(values.size()), std::byte{0xAA});
    hcomm::kernels::quantise_with(table, DType::F32, values.data(), values.size(), piece.data());
    return piece;
}

std::vector<float> sum_of(const QuantiseTable& table, const std::vector<Piece>& pieces, std::size_t count,
                          float weight = 1.0F) {
    std::vector<const std::byte*> at;
    for (const Piece& piece : pieces) at.push_back(piece.data());
    std::vector<float> sum(count);
    hcomm::kernels::dequantise_with(table, {.pieces = at, .weight = weight, .count = count}, DType::F32,
                                    sum.data());
    return sum;
}

std::vector<float> there_and_back(const QuantiseTable& table, const std::vector<float>& values) {
    return sum_of(table, {piece_of(table, values)}, values.size());
}

std::vector<float> uniform(std::size_t count, float lo, float hi, unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> any(lo, hi);
    std::vector<float> values(count);
    for (float& value : values) value = any(generator);
    return values;
}

}  // namespace

TEST(sizes) {
    CHECK_EQ(hcomm::quantised_bytes(0), 0);
    CHECK_EQ(hcomm::quantised_bytes(1), 16);       // 8 + 1
    CHECK_EQ(hcomm::quantised_bytes(1024), 1040);  // 16 + 1024
    CHECK_EQ(hcomm::quantised_bytes(1025), 1056);  // 24 + 1025, in sixteens
    CHECK(hcomm::quantisable(DType::BF16));
    CHECK(!hcomm::quantisable(DType::I32));
    CHECK(!hcomm::quantisable(DType::C64));
}

TEST(no_value_is_off_by_more_than_half_a_step) {
    for (const auto* table : levels()) {
        for (const std::size_t count : {1, 2, 15, 16, 17, 1023, 1024, 1025, 5000}) {
            const auto values = uniform(count, -1.0F, 1.0F, 7);
            const auto back = there_and_back(*table, values);
            for (std::size_t i = 0; i < count; ++i) CHECK(std::abs(back[i] - values[i]) <= 2.0F / 510.0F);
        }
    }
}

TEST(zeros_and_constants_are_exact) {
    for (const auto* table : levels()) {
        for (const float value : {0.0F, 0.37F, -1e-45F, 1e-38F, -kLargest, kLargest}) {
            for (const float found : there_and_back(*table, std::vector<float>(1500, value)))
                CHECK_EQ(found, value);
        }
    }
}

TEST(extreme_ranges_stay_finite) {
    for (const auto* table : levels()) {
        auto values = uniform(1000, -1.0F, 1.0F, 3);
        values[10] = kLargest;
        values[20] = -kLargest;
        for (const float found : there_and_back(*table, values)) CHECK(std::isfinite(found));
        const std::vector<float> tiny = {-3e-38F, 1e-39F, 2e-38F, 0.0F};  // steps of denormals
        const auto back = there_and_back(*table, tiny);
        for (std::size_t i = 0; i < tiny.size(); ++i) CHECK(std::abs(back[i] - tiny[i]) <= 5e-38F / 500);
    }
}

TEST(an_average_of_the_largest_does_not_overflow) {
    for (const auto* table : levels()) {
        const auto piece = piece_of(*table, std::vector<float>(100, kLargest));
        for (const float found : sum_of(*table, {piece, piece, piece, piece}, 100, 0.25F))
            CHECK_EQ(found, kLargest);
    }
}

TEST(infinities_and_nan_stay_what_they_are_and_where_they_are) {
    for (const auto* table : levels()) {
        auto values = uniform(2000, -1.0F, 1.0F, 5);
        values[3] = kInfinity;
        values[700] = -kInfinity;
        values[1000] = std::numeric_limits<float>::quiet_NaN();
        values[1001] = -std::numeric_limits<float>::quiet_NaN();
        const auto back = there_and_back(*table, values);
        CHECK_EQ(back[3], kInfinity);
        CHECK_EQ(back[700], -kInfinity);
        CHECK(std::isnan(back[1000]) && std::isnan(back[1001]));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (std::isfinite(values[i])) CHECK(std::abs(back[i] - values[i]) <= 2.0F / 504.0F);
        }
        const auto only = there_and_back(*table, std::vector<float>(5, -kInfinity));
        for (const float found : only) CHECK_EQ(found, -kInfinity);
        const std::vector<float> plus(40, kInfinity), minus(40, -kInfinity);
        for (const float found : sum_of(*table, {piece_of(*table, plus), piece_of(*table, minus)}, 40))
            CHECK(std::isnan(found));
    }
}

TEST(the_bits_do_not_depend_on_the_level) {
    auto values = uniform(4321, -3.0F, 5.0F, 11);
    values[4000] = kInfinity;
    const auto expected = piece_of(*levels().front(), values);
    const auto sum = sum_of(*levels().front(), {expected, expected}, values.size(), 0.3F);
    for (const auto* table : levels()) {
        CHECK(piece_of(*table, values) == expected);
        const auto found = sum_of(*table, {expected, expected}, values.size(), 0.3F);
        CHECK(std::memcmp(found.data(), sum.data(), sum.size() * sizeof(float)) == 0);
    }
}

TEST(what_is_not_quantised_is_added_exactly) {
    const std::vector<float> own = {1.0F, 2.0F, 4.0F};
    for (const auto* table : levels()) {
        const auto piece = piece_of(*table, std::vector<float>(3, 8.0F));
        const std::byte* at = piece.data();
        const hcomm::QuantisedSum sum{
            .pieces = {&at, 1}, .exact = own.data(), .exact_type = DType::F32, .weight = 0.5F, .count = 3};
        std::vector<float> found(3);
        hcomm::kernels::dequantise_with(*table, sum, DType::F32, found.data());
        CHECK(found == std::vector<float>({4.5F, 5.0F, 6.0F}));
        Piece again(hcomm::quantised_bytes(3));
        hcomm::kernels::requantise_with(*table, sum, again.data());
        const auto back = sum_of(*table, {again}, 3);
        for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(back[i] - found[i]) <= 1.5F / 509);
    }
}

TEST(other_types) {
    const std::uint16_t halves[] = {0x3C00, 0xC000, 0x7C00, 0x0000};  // 1, -2, inf, 0
    const std::uint16_t brains[] = {0x3F80, 0xC000, 0x7F80, 0x0000};
    const double doubles[] = {1.0, -2.0, std::numeric_limits<double>::infinity(), 0.0};
    const std::pair<DType, const void*> all[] = {
        {DType::F16, halves}, {DType::BF16, brains}, {DType::F64, doubles}};
    for (const auto* table : levels()) {
        for (const auto& [dtype, values] : all) {
            Piece piece(hcomm::quantised_bytes(4));
            hcomm::kernels::quantise_with(*table, dtype, values, 4, piece.data());
            const auto back = sum_of(*table, {piece}, 4);
            CHECK(std::abs(back[0] - 1.0F) < 0.006F && std::abs(back[1] + 2.0F) < 0.006F);
            CHECK(back[2] == kInfinity && std::abs(back[3]) < 0.006F);
            std::byte narrow[32];
            const std::byte* at = piece.data();
            hcomm::kernels::dequantise_with(*table, {.pieces = {&at, 1}, .count = 4}, dtype, narrow);
            CHECK(std::memcmp(narrow + 2 * hcomm::size_of(dtype),
                              static_cast<const std::byte*>(values) + 2 * hcomm::size_of(dtype),
                              hcomm::size_of(dtype)) == 0);
        }
    }
}
