// y = x·Wᵀ + b for weights that stay in the blocks of a GGUF file, and such blocks as plain numbers.
//
// Some rows of W at a time are unpacked into the processor's cache and multiplied by all rows of x before the next
// rows, so only blocks are read from memory. Activations are not rounded and sums are in float32. Weights are float32
// with float32 activations; with bfloat16 they are rounded to it if the processor has dot products of its pairs, as they
// are when a file is dequantised at load.

#include <algorithm>
#include <vector>

#include "blocks.h"
#include "threads.h"

namespace {

constexpr int64_t kOutputs = 4;  // and rows of x computed together; limited by the registers for sums
#if defined(__AVX512F__)
constexpr int64_t kRows = 4;
#else
constexpr int64_t kRows = 1;
#endif

// Bytes of unpacked weights at a time. Few rows leave room for them in the first cache; many rows, which do not stay in
// any cache themselves, are read again for each tile, so it should be as large as the second cache allows.
inline int64_t tile_bytes(int64_t rows) { return rows <= 16 ? 16 << 10 : 256 << 10; }

// Multiplies some weights by the same number of activations.
template <typename Input>
struct Meeting {
    static constexpr int64_t kStep = kWide;
    static inline Wide add(Wide sum, const Input* weights, const Input* x) {
        return sum + load<Wide>(weights) * load<Wide>(x);
    }
};

#if defined(__AVX512BF16__)
using Inner = bf16;  // type in which bfloat16 activations and weights are multiplied
template <>
struct Meeting<bf16> {
    static constexpr int64_t kStep = 2 * kWide;
    static inline Wide add(Wide sum, const bf16* weights, const bf16* x) {
        return (Wide)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(weights),
                                        (__m512bh)_mm512_loadu_si512(x));
    }
};
#else
using Inner = float;
#endif

template <typename Format, typename T>
inline void unpack(T* out, const uint8_t* blocks, int64_t count) {
    for (int64_t i = 0; i < count; ++i, blocks += Format::kBytes, out += Format::kElements) {
        const auto scales = Format::scales(blocks);
#pragma GCC unroll 16
        for (int sixteenth = 0; sixteenth < Format::kElements / kLanes; ++sixteenth)
            write(out + sixteenth * kLanes, Format::weights(blocks, scales, sixteenth));
    }
}

template <typename T, typename Input>
struct Product {
    T* out;          // [rows, n]
    const Input* x;  // rows of k
    int64_t x_row;   // elements from one row of x to the next
    const uint8_t* blocks;
    const float* bias;  // [n], or null
    int64_t rows, n, k;
};

// Unpacked weights [count, k], of the outputs from `first` on, and room for `kRows` rows of their sums. Both are long
// enough to compute some outputs past the last, too.
template <typename Input>
struct Tile {
    const Input* weights;
    float* sums;
    int64_t first, count, width;
};

// sums[row] = x[row] · weights, for all of the tile.
template <int64_t rows, typename Input>
inline void sum_rows(const Tile<Input>& tile, const Input* x, int64_t x_row, int64_t k) {
    for (int64_t output = 0; output < tile.count; output += kOutputs) {
        const Input* weights = tile.weights + output * k;
        Wide sums[rows * kOutputs] = {};
        for (int64_t i = 0; i < k; i += Meeting<Input>::kStep)
#pragma GCC unroll 4
            for (int64_t r = 0; r < rows; ++r)
#pragma GCC unroll 4
                for (int64_t o = 0; o < kOutputs; ++o) {
                    Wide& sum = sums[r * kOutputs + o];
                    sum = Meeting<Input>::add(sum, weights + o * k + i, x + r * x_row + i);
                }
#pragma GCC unroll 4
        for (int64_t r = 0; r < rows; ++r) {
            const Four found = totals(sums + r * kOutputs);
            std::memcpy(tile.sums + r * tile.width + output, &found, sizeof found);
        }
    }
}

template <int64_t rows, typename T, typename Input>
inline void multiply_rows(const Product<T, Input>& job, const Tile<Input>& tile, int64_t row) {
    sum_rows<rows>(tile, job.x + row * job.x_row, job.x_row, job.k);
    for (int64_t r = 0; r < rows; ++r) {
        const float* sums = tile.sums + r * tile.width;
        T* out = job.out + (row + r) * job.n + tile.first;
        const float* bias = job.bias ? job.bias + tile.first : nullptr;
        for (int64_t o = 0; o < tile.count; ++o) out[o] = T(bias ? sums[o] + bias[o] : sums[o]);
    }
}

template <typename Format, typename T, typename Input>
void multiply(const Product<T, Input>& job) {
    const int64_t blocks = job.k / Format::kElements, row_bytes = blocks * Format::kBytes;
    const int64_t fitting = tile_bytes(job.rows) / (job.k * int64_t(sizeof(Input))) / kOutputs * kOutputs;
    const int64_t width = std::max(fitting, kOutputs);
#pragma omp parallel
    {
        thread_local std::vector<Vector> scratch;  // aligned to the lines of the cache
        const size_t wanted = size_t(width * job.k) * sizeof(Input) + size_t(width * kRows) * sizeof(float);
        if (scratch.size() * sizeof(Vector) < wanted) scratch.resize(wanted / sizeof(Vector) + 1);
        Input* weights = reinterpret_cast<Input*>(scratch.data());
        float* sums = reinterpret_cast<float*>(weights + width * job.k);
        const Share share((job.n + kOutputs - 1) / kOutputs);
        const int64_t stop = std::min(share.stop * kOutputs, job.n);
        for (int64_t first = share.first * kOutputs; first < stop; first += width) {
            const Tile<Input> tile{weights, sums, first, std::min(width, stop - first), width};
            unpack<Format>(weights, job.blocks + first * row_bytes, tile.count * blocks);
            int64_t row = 0;
            for (; row + kRows <= job.rows; row += kRows) multiply_rows<kRows>(job, tile, row);
            if (kRows > 2 && row + 2 <= job.rows) {
                multiply_rows<2>(job, tile, row);
                row += 2;
            }
            for (; row < job.rows; ++row) multiply_rows<1>(job, tile, row);
        }
    }
}

inline const float* inputs(const float* x, int64_t&, int64_t, int64_t) { return x; }

// Rows of bfloat16 in the type in which they are multiplied; sets `x_row`, the distance between them.
const Inner* inputs(const bf16* x, int64_t& x_row, int64_t rows, int64_t k) {
    if constexpr (sizeof(Inner) == sizeof(bf16)) {
        return reinterpret_cast<const Inner*>(x);
    } else {
        thread_local std::vector<Inner> wide;
        wide.resize(size_t(rows * k));
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < k; ++i) wide[size_t(row * k + i)] = x[row * x_row + i];
        x_row = k;
        return wide.data();
    }
}

template <typename T, typename Out>
void multiply_any(int64_t format, Out* out, const T* x, int64_t x_row, const uint8_t* blocks, const float* bias,
                  int64_t rows, int64_t n, int64_t k) {
    const auto* ready = inputs(x, x_row, rows, k);
    const Product<Out, std::remove_const_t<std::remove_pointer_t<decltype(ready)>>> job{out,  ready, x_row, blocks,
                                                                                        bias, rows,  n,     k};
    with_format(format, [&](auto kind) { multiply<decltype(kind)>(job); });
}

template <typename T>
void dequantise(int64_t format, T* out, const uint8_t* blocks, int64_t count) {
    with_format(format, [&](auto kind) {
        using Format = decltype(kind);
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < count; ++i)
            unpack<Format>(out + i * Format::kElements, blocks + i * Format::kBytes, 1);
    });
}

}  // namespace

#define EXPORT(T, SUFFIX)                                                                                              \
    extern "C" void multiply_blocks_##SUFFIX(int64_t format, T* out, const T* x, int64_t x_row, const uint8_t* blocks, \
                                             const float* bias, int64_t rows, int64_t n, int64_t k) {                  \
        multiply_any<T>(format, out, x, x_row, blocks, bias, rows, n, k);                                              \
    }                                                                                                                  \
    extern "C" void dequantise_##SUFFIX(int64_t format, T* out, const uint8_t* blocks, int64_t count) {                \
        dequantise<T>(format, out, blocks, count);                                                                     \
    }

EXPORT(float, f32)
EXPORT(bf16, bf16)

extern "C" void multiply_blocks_bf16_to_f32(int64_t format, float* out, const bf16* x, int64_t x_row,
                                            const uint8_t* blocks, const float* bias, int64_t rows, int64_t n,
                                            int64_t k) {
    multiply_any(format, out, x, x_row, blocks, bias, rows, n, k);
}
