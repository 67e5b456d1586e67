// The small operations between the matrix products of a step.
//
// Plain loops that a compiler turns into vector code for the processor it runs on. Sums are in float32 for all types of
// data. Every function has an equivalent in torch in cpu.py, which tests compare it with. OpenMP runs rows in parallel,
// with the library that torch has loaded.

#include <limits>

#include "numbers.h"

namespace {

// out[row] = norm(residual[row] += x[row]) * weight; x may be null.
template <typename T, typename Weight>
void add_rms_norm(T* out, T* residual, const T* x, const Weight* weight, int64_t rows, int64_t dim, float eps) {
#pragma omp parallel for schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; ++row) {
        T* kept = residual + row * dim;
        T* target = out + row * dim;
        if (x) {
            const T* added = x + row * dim;
            for (int64_t i = 0; i < dim; ++i) kept[i] = T(float(kept[i]) + float(added[i]));
        }
        float sum = 0;
        for (int64_t i = 0; i < dim; ++i) sum += float(kept[i]) * float(kept[i]);
        const float scale = 1.0f / std::sqrt(sum / float(dim) + eps);
        for (int64_t i = 0; i < dim; ++i) target[i] = T(float(kept[i]) * scale * float(weight[i]));
    }
}

// out[row] = silu(gate) * up, where gate_up[row] = [gate, up].
template <typename T>
void silu_mul(T* out, const T* gate_up, int64_t rows, int64_t dim) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const T* gate = gate_up + row * 2 * dim;
        const T* up = gate + dim;
        T* target = out + row * dim;
        for (int64_t i = 0; i < dim; ++i) {
            const float g = gate[i];
            target[i] = T(float(T(g / (1.0f + exponential(-g)))) * float(up[i]));
        }
    }
}

// Rotates each head's vector in place by its row's position: [a, b] -> [a cos - b sin, b cos + a sin], halves a and b.
// heads: rows of `stride` elements that begin with count * dim; cosine: [rows, dim], both halves the same; signed_sine:
// the same with the first half negated.
template <typename T>
void apply_rope(T* heads, int64_t stride, const T* cosine, const T* signed_sine, int64_t rows, int64_t count,
                int64_t dim) {
    const int64_t half = dim / 2;
#pragma omp parallel for schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t head = 0; head < count; ++head) {
            T* first = heads + row * stride + head * dim;
            T* second = first + half;
            for (int64_t i = 0; i < half; ++i) {
                const float a = first[i], b = second[i];
                const float c = cosine[row * dim + i], s = signed_sine[row * dim + half + i];
                first[i] = T(a * c - b * s);
                second[i] = T(b * c + a * s);
            }
        }
}

// Integers that compare as the floats they are made from.
inline int16_t ordered(bf16 value) {
    const int16_t bits = int16_t(value.bits);
    return bits ^ ((bits >> 15) & 0x7FFF);
}

inline int32_t ordered(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// The index of each row's largest number, the first of equal ones. Rows have `dim` elements.
template <typename T>
void argmax(int64_t* out, const T* x, int64_t rows, int64_t dim) {
    constexpr int64_t kSpan = 1024;
    using Key = decltype(ordered(T()));
#pragma omp parallel for schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = x + row * dim;
        Key best = std::numeric_limits<Key>::min();
        int64_t best_start = 0;
        for (int64_t start = 0; start < dim; start += kSpan) {
            const int64_t stop = start + kSpan < dim ? start + kSpan : dim;
            Key most = std::numeric_limits<Key>::min();
            for (int64_t i = start; i < stop; ++i) most = ordered(from[i]) > most ? ordered(from[i]) : most;
            if (most > best) {
                best = most;
                best_start = start;
            }
        }
        int64_t i = best_start;
        while (i < dim - 1 && ordered(from[i]) != best) ++i;
        out[row] = i;
    }
}

}  // namespace

#define EXPORT(T, SUFFIX)                                                                                              \
    extern "C" void add_rms_norm_##SUFFIX(T* out, T* residual, const T* x, const T* weight, int64_t rows, int64_t dim, \
                                          float eps) {                                                                 \
        add_rms_norm(out, residual, x, weight, rows, dim, eps);                                                        \
    }                                                                                                                  \
    extern "C" void add_rms_norm_f32_weight_##SUFFIX(T* out, T* residual, const T* x, const float* weight,             \
                                                     int64_t rows, int64_t dim, float eps) {                           \
        add_rms_norm(out, residual, x, weight, rows, dim, eps);                                                        \
    }                                                                                                                  \
    extern "C" void silu_mul_##SUFFIX(T* out, const T* gate_up, int64_t rows, int64_t dim) {                           \
        silu_mul<T>(out, gate_up, rows, dim);                                                                          \
    }                                                                                                                  \
    extern "C" void apply_rope_##SUFFIX(T* heads, int64_t stride, const T* cosine, const T* signed_sine, int64_t rows, \
                                    int64_t count, int64_t dim) {                                                      \
        apply_rope<T>(heads, stride, cosine, signed_sine, rows, count, dim);                                           \
    }                                                                                                                  \
    extern "C" void argmax_##SUFFIX(int64_t* out, const T* x, int64_t rows, int64_t dim) {                             \
        argmax<T>(out, x, rows, dim);                                                                                  \
    }

EXPORT(float, f32)
EXPORT(bf16, bf16)
