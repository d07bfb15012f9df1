/// A test runner in one header. Each test program includes it and gets its main(); it prints what failed and
/// `N passed, N failed`. Arguments select the tests whose name contains one of them. Checks may run in any
/// thread.
#pragma once

#include <atomic>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace check {

struct Test {
    const char* name;
    void (*body)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

/// Failed checks of the running test.
inline std::atomic<int> failures{0};

inline void fail(const char* file, int line, const std::string& what) {
    if (failures.fetch_add(1) < 20)
        std::cerr << (std::string(file) + ":" + std::to_string(line) + ": " + what + "\n");
}

template <class T>
std::string show(const T& value) {
    std::ostringstream out;
    if constexpr (std::is_enum_v<T>) {
        out << +static_cast<std::underlying_type_t<T>>(value);
    } else if constexpr (std::is_arithmetic_v<T>) {
        out << +value;
    } else {
        out << value;
    }
    return out.str();
}

template <class A, class B>
bool same(const A& a, const B& b) {
    if constexpr (std::is_convertible_v<const A&, std::string_view> &&
                  std::is_convertible_v<const B&, std::string_view>) {
        return std::string_view(a) == std::string_view(b);
    } else if constexpr (std::is_integral_v<A> && std::is_integral_v<B>) {
        return std::cmp_equal(+a, +b);
    } else {
        return a == b;
    }
}

template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
    if (!same(a, b))
        fail(file, line, std::string(text) + "\n    left:  " + show(a) + "\n    right: " + show(b));
}

inline int run(int argc, char** argv) {
    int passed = 0, failed = 0;
    for (const Test& test : tests()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(test.name, argv[i]) != nullptr;
        if (!wanted) continue;
        failures = 0;
        try {
            test.body();
        } catch (const std::exception& error) {
            fail(test.name, 0, std::string("exception: ") + error.what());
        }
        if (failures > 0) std::cerr << "FAILED " << test.name << " (" << failures << " checks)\n";
        (failures > 0 ? failed : passed) += 1;
    }
    std::cout << passed << " passed, " << failed << " failed" << std::endl;
    return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                                                           \
    static void test_##name();                                                               \
    static const bool added_##name = (check::tests().push_back({#name, test_##name}), true); \
    static void test_##name()
#define CHECK(condition) ((condition) ? void() : check::fail(__FILE__, __LINE__, "CHECK(" #condition ")"))
#define CHECK_EQ(a, b) check::equal((a), (b), "CHECK_EQ(" #a ", " #b ")", __FILE__, __LINE__)
/// The expression must throw a `type` whose what() contains `text`.
#define CHECK_THROWS(expression, type, text)                                                              \
    do {                                                                                                  \
        std::string seen = "no exception";                                                                \
        try {                                                                                             \
            static_cast<void>(expression);                                                                \
        } catch (const type& error) {                                                                     \
            seen = std::strstr(error.what(), text) != nullptr ? "" : error.what();                        \
        }                                                                                                 \
        if (!seen.empty()) check::fail(__FILE__, __LINE__, "CHECK_THROWS(" #expression "): got " + seen); \
    } while (false)

/// Weak, so that a test program may have several files.
[[gnu::weak]] int main(int argc, char** argv) { return check::run(argc, argv); }
