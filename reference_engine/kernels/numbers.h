// Numbers that rows.cpp, attention.cpp and quantised.cpp compute with.

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

// e^x to one unit in the last place of float32 or two, without a branch, so that a loop of it becomes vector code:
// 2^n * e^r with n whole. What is below e^-87 is e^-87.
inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float n = std::nearbyint(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const int32_t power = (int32_t(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &power, sizeof scale);
    return taylor(r) * scale;
}

// Sixteen numbers at a time, whatever the processor: the compiler makes of them what it has.
typedef float Vector __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(64)));
constexpr int64_t kLanes = 16;

inline Vector load(const float* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline Vector load(const bf16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    Vector value;
    std::memcpy(&value, &words, sizeof value);
    return value;
}

inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }

inline void store(bf16* to, Vector value) {  // rounded as bf16 rounds one
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)value);
#else
    Words words;
    std::memcpy(&words, &value, sizeof value);
    const Halves halves = __builtin_convertvector((words + 0x7FFF + ((words >> 16) & 1)) >> 16, Halves);
#endif
    std::memcpy(to, &halves, sizeof halves);
}

// The same as the function above for sixteen numbers that are not above 0.
inline Vector exponential(Vector x) {
    typedef int32_t Whole __attribute__((vector_size(64)));
    x = x < -87.0f ? Vector{} - 87.0f : x;
    const Whole whole = __builtin_convertvector(x * 1.44269504f - 0.5f, Whole);  // towards 0, so to the nearest
    const Vector n = __builtin_convertvector(whole, Vector);
    const Vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    const Whole power = (whole + 127) << 23;
    Vector scale;
    std::memcpy(&scale, &power, sizeof scale);
    return taylor(r) * scale;
}

typedef float Four __attribute__((vector_size(16)));

inline Four quarters(Vector vector) {
    typedef float Eight __attribute__((vector_size(32)));
    Eight eight[2];
    Four four[2];
    std::memcpy(eight, &vector, sizeof vector);
    const Eight half = eight[0] + eight[1];
    std::memcpy(four, &half, sizeof half);
    return four[0] + four[1];
}

inline float total(Vector vector) {
    const Four quarter = quarters(vector);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

// The totals of four vectors, with a third of the work.
inline Four totals(const Vector* v) {
    typedef int32_t Places __attribute__((vector_size(64)));
    const Places low = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
    const Places low_pairs = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    const Vector first = __builtin_shuffle(v[0], v[1], low) + __builtin_shuffle(v[0], v[1], low + 2);
    const Vector second = __builtin_shuffle(v[2], v[3], low) + __builtin_shuffle(v[2], v[3], low + 2);
    return quarters(__builtin_shuffle(first, second, low_pairs) + __builtin_shuffle(first, second, low_pairs + 2));
}

}  // namespace
