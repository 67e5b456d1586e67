// Number types and vectors for rows.cpp, attention.cpp, quantised.cpp and integers.cpp.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

struct bf16 {
    uint16_t bits;
    operator float() const {
        uint32_t wide = uint32_t(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
    bf16() = default;
    bf16(float value) {  // to nearest, ties to even
        uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        bits = uint16_t((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
    }
};

// e^r for |r| <= ln 2 / 2.
template <typename Number>
inline Number taylor(Number r) {
    Number sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    return sum * r + 1.0f;
}

// e^x to one unit in the last place of float32 or two, without a branch, so that a loop over it becomes vector code:
// 2^n * e^r with n whole. Results below e^-87 become e^-87.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float n = std::nearbyint(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const int32_t power = (int32_t(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &power, sizeof scale);
    return taylor(r) * scale;
}

// Vectors of numbers. The compiler keeps vectors that need two registers in memory, which made attention on AVX2 four
// times as slow: so sums are `Wide`.
template <int64_t lanes>
struct Of {
    typedef float Floats __attribute__((vector_size(4 * lanes)));
    typedef int32_t Wholes __attribute__((vector_size(4 * lanes)));
    typedef uint32_t Words __attribute__((vector_size(4 * lanes)));
    typedef uint16_t Halves __attribute__((vector_size(2 * lanes)));
};

constexpr int64_t kLanes = 16;  // of a block's pieces
using Vector = Of<kLanes>::Floats;

#if defined(__AVX512F__)
constexpr int64_t kWide = 16;  // of a register
#elif defined(__AVX__)
constexpr int64_t kWide = 8;
#else
constexpr int64_t kWide = 4;
#endif
using Wide = Of<kWide>::Floats;

template <typename V>
using Same = Of<sizeof(V) / sizeof(float)>;

template <typename V>
inline V load(const float* from) {
    V value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <typename V>
inline V load(const bf16* from) {
    typename Same<V>::Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (V)(__builtin_convertvector(halves, typename Same<V>::Words) << 16);
}

template <typename V>
inline void store(float* to, V value) { std::memcpy(to, &value, sizeof value); }

template <typename V>
inline void store(bf16* to, V value) {  // rounds as bf16 does
#if defined(__AVX512BF16__)
    if constexpr (sizeof(V) == sizeof(__m512)) {
        const __m256bh halves = _mm512_cvtneps_pbh((__m512)value);
        std::memcpy(to, &halves, sizeof halves);
        return;
    }
#endif
    const auto words = (typename Same<V>::Words)value;
    const auto halves =
        __builtin_convertvector((words + 0x7FFF + ((words >> 16) & 1)) >> 16, typename Same<V>::Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// The same as the function above for numbers that are not above 0.
template <typename V>
inline V exponential(V x) {
    x = x < -87.0f ? V{} - 87.0f : x;
    const auto whole = __builtin_convertvector(x * 1.44269504f - 0.5f, typename Same<V>::Wholes);  // to the nearest
    const V n = __builtin_convertvector(whole, V);
    const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    return taylor(r) * (V)((whole + 127) << 23);
}

typedef float Four __attribute__((vector_size(16)));

template <typename V>
inline Four quarters(V vector) {
    if constexpr (sizeof(V) == sizeof(Four)) {
        return vector;
    } else {
        typename Of<sizeof(V) / sizeof(float) / 2>::Floats half[2];
        std::memcpy(half, &vector, sizeof vector);
        return quarters(half[0] + half[1]);
    }
}

template <typename V>
inline float total(V vector) {
    const Four quarter = quarters(vector);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// The totals of four vectors.
template <typename V>
inline Four totals(const V* v) {
    typedef int32_t Places __attribute__((vector_size(16)));
    const Places low = {0, 4, 1, 5}, first = {0, 1, 4, 5};
    const Four a = quarters(v[0]), b = quarters(v[1]), c = quarters(v[2]), d = quarters(v[3]);
    const Four left = __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, low + 2);
    const Four right = __builtin_shuffle(c, d, low) + __builtin_shuffle(c, d, low + 2);
    return __builtin_shuffle(left, right, first) + __builtin_shuffle(left, right, first + 2);
}

// The same for the widest vectors, with a third of the work.
inline Four totals(const Vector* v) {
    typedef int32_t Places __attribute__((vector_size(64)));
    const Places low = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
    const Places low_pairs = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const Vector first = __builtin_shuffle(v[0], v[1], low) + __builtin_shuffle(v[0], v[1], low + 2);
    const Vector second = __builtin_shuffle(v[2], v[3], low) + __builtin_shuffle(v[2], v[3], low + 2);
    return quarters(__builtin_shuffle(first, second, low_pairs) + __builtin_shuffle(first, second, low_pairs + 2));
}

}  // namespace
