// y = x·Wᵀ + b for bfloat16 weights that are packed once, with sums in float32; y is rounded to bfloat16 or is not.
//
// Decoding reads every weight once per step, so a product of few rows is limited by memory bandwidth; this layout is
// read from front to back. W [n, k] is cut into panels of 32 outputs and 32 inputs, each two tiles of [16 pairs of
// inputs][16 outputs][2]: the content of one tile register (AMX), and of one dot product of bf16 pairs (AVX-512).
// A processor with neither uses other products; see gemm.py.

#include <cstdint>

#include "tiles.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

#include <cstring>

#include "threads.h"

namespace {

using Element = uint16_t;  // bfloat16

constexpr int64_t kPanel = 32;            // outputs, and inputs
constexpr int64_t kTile = 16 * 16 * 2;    // elements
constexpr int64_t kAhead = 4 * 2 * kTile; // elements that are prefetched: 8 KiB
constexpr int64_t kFarAhead = 5 * kAhead; // and into the second cache: 40 KiB

inline void write_row(Element* out, __m512 sums, const float* bias) {
    if (bias) sums = _mm512_add_ps(sums, _mm512_loadu_ps(bias));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums)));
}

// Bypasses the caches: the rows of logits are a multiple of 4 KiB apart, so the lines of one panel would evict each
// other. Writes whole lines only: `out` and the length of its rows are multiples of 64 bytes.
inline void write_row(float* out, __m512 sums, const float* bias) {
    _mm512_stream_ps(out, bias ? _mm512_add_ps(sums, _mm512_loadu_ps(bias)) : sums);
}

template <typename Out>
struct Product {
    Out* out;
    const Element* x;
    int64_t x_row;  // elements from one row of x to the next
    const Element* packed;
    const float* bias;  // [n], or null
    int64_t rows, n, k;

    const Element* panel(int64_t p) const { return packed + p * (k / kPanel) * 2 * kTile; }
};

#if HAS_TILES

inline void fetch(const Element* panel) {
    const char* ahead = reinterpret_cast<const char*>(panel + kAhead);
    for (int64_t line = 0; line < 2 * kTile * int64_t(sizeof(Element)); line += 64)
        _mm_prefetch(ahead + line, _MM_HINT_T0);
}

// Tiles 0 … 3 hold sums of [rows 0-15, rows 16-31] x [outputs 0-15, 16-31]; 4 and 5 rows of x; 6 and 7 weights.
void configure(int64_t upper, int64_t lower) {
    const auto above = uint8_t(upper), below = uint8_t(lower ? lower : 1);
    configure_tiles({above, above, below, below, above, below, 16, 16});
}

template <typename Out>
void write_sums(const Product<Out>& job, const float* sums, int64_t row, int64_t column, int64_t count) {
    const float* bias = job.bias ? job.bias + column : nullptr;
    for (int64_t r = 0; r < count; ++r)
        write_row(job.out + (row + r) * job.n + column, _mm512_load_ps(sums + 16 * r), bias);
}

template <typename Out>
void multiply(const Product<Out>& job) {
#pragma omp parallel
    {
        const Share share(job.n / kPanel);
        alignas(64) float sums[256];
        for (int64_t row = 0; row < job.rows; row += 32) {
            const int64_t left = job.rows - row, upper = left < 16 ? left : 16;
            const int64_t lower = left - upper < 16 ? left - upper : 16;
            configure(upper, lower);
            const Element* x = job.x + row * job.x_row;
            for (int64_t p = share.first; p < share.stop; ++p) {
                const Element* weights = job.panel(p);
                _tile_zero(0);
                _tile_zero(1);
                if (lower) {
                    _tile_zero(2);
                    _tile_zero(3);
                    for (int64_t i = 0; i < job.k; i += kPanel, weights += 2 * kTile) {
                        _tile_loadd(6, weights, 64);
                        _tile_loadd(7, weights + kTile, 64);
                        _tile_loadd(4, x + i, job.x_row * 2);
                        _tile_loadd(5, x + 16 * job.x_row + i, job.x_row * 2);
                        fetch(weights);
                        _tile_dpbf16ps(0, 4, 6);
                        _tile_dpbf16ps(1, 4, 7);
                        _tile_dpbf16ps(2, 5, 6);
                        _tile_dpbf16ps(3, 5, 7);
                    }
                    _tile_stored(2, sums, 64);
                    write_sums(job, sums, row + 16, p * kPanel, lower);
                    _tile_stored(3, sums, 64);
                    write_sums(job, sums, row + 16, p * kPanel + 16, lower);
                } else {
                    for (int64_t i = 0; i < job.k; i += kPanel, weights += 2 * kTile) {
                        _tile_loadd(6, weights, 64);
                        _tile_loadd(7, weights + kTile, 64);
                        _tile_loadd(4, x + i, job.x_row * 2);
                        fetch(weights);
                        _tile_dpbf16ps(0, 4, 6);
                        _tile_dpbf16ps(1, 4, 7);
                    }
                }
                _tile_stored(0, sums, 64);
                write_sums(job, sums, row, p * kPanel, upper);
                _tile_stored(1, sums, 64);
                write_sums(job, sums, row, p * kPanel + 16, upper);
            }
        }
        _tile_release();
        _mm_sfence();  // before other threads read what was written past the caches
    }
}

#else

// Fetches two lines at a time: more would fill the processor's buffers, and the sums would wait. With few rows, a
// prefetch into the second cache runs further ahead and hides more of the memory's latency.
template <bool is_far>
void fetch_pair(const Element* weights) {
    for (int64_t tile = 0; tile < 2; ++tile, weights += kTile) {
        _mm_prefetch(reinterpret_cast<const char*>(weights + kAhead), _MM_HINT_T0);
        if constexpr (is_far) _mm_prefetch(reinterpret_cast<const char*>(weights + kFarAhead), _MM_HINT_T1);
    }
}

template <int count, typename Out>
void multiply_rows(const Product<Out>& job, int64_t row, int64_t p) {
    __m512 sums[count][2];
    for (int r = 0; r < count; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    const Element* weights = job.panel(p);
    for (int64_t i = 0; i < job.k; i += kPanel, weights += 2 * kTile) {
        for (int64_t pair = 0; pair < 16; ++pair) {
            if (row == 0) fetch_pair<count <= 4>(weights + pair * 32);
            const __m512bh left = (__m512bh)_mm512_loadu_si512(weights + pair * 32);
            const __m512bh right = (__m512bh)_mm512_loadu_si512(weights + kTile + pair * 32);
            for (int r = 0; r < count; ++r) {
                int32_t two;
                std::memcpy(&two, job.x + (row + r) * job.x_row + i + 2 * pair, sizeof two);
                const __m512bh inputs = (__m512bh)_mm512_set1_epi32(two);
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], inputs, left);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], inputs, right);
            }
        }
    }
    for (int r = 0; r < count; ++r)
        for (int half = 0; half < 2; ++half) {
            const int64_t column = p * kPanel + 16 * half;
            write_row(job.out + (row + r) * job.n + column, sums[r][half], job.bias ? job.bias + column : nullptr);
        }
}

// At most `most` rows from `row` on, at once: a panel is read once for all of them.
template <int most, typename Out>
void multiply_rest(const Product<Out>& job, int64_t row, int64_t p) {
    if constexpr (most > 0) {
        if (job.rows - row == most)
            multiply_rows<most>(job, row, p);
        else
            multiply_rest<most - 1>(job, row, p);
    }
}

template <typename Out>
void multiply(const Product<Out>& job) {
#pragma omp parallel
    {
        const Share share(job.n / kPanel);
        for (int64_t p = share.first; p < share.stop; ++p) {
            int64_t row = 0;
            for (; row + 8 <= job.rows; row += 8) multiply_rows<8>(job, row, p);
            multiply_rest<7>(job, row, p);
        }
        _mm_sfence();  // before other threads read what was written past the caches
    }
}

#endif

}  // namespace

// Whether this process may use the instructions; call it once before any other function.
extern "C" int32_t can_multiply() {
#if HAS_TILES
    return tiles_are_granted();
#else
    return 1;
#endif
}

extern "C" void pack(Element* packed, const Element* weight, int64_t n, int64_t k) {
#pragma omp parallel for
    for (int64_t p = 0; p < n / kPanel; ++p) {
        Element* to = packed + p * (k / kPanel) * 2 * kTile;
        for (int64_t i = 0; i < k; i += kPanel)
            for (int64_t half = 0; half < 2; ++half)
                for (int64_t pair = 0; pair < 16; ++pair)
                    for (int64_t output = 0; output < 16; ++output, to += 2) {
                        const Element* row = weight + (p * kPanel + half * 16 + output) * k;
                        std::memcpy(to, row + i + 2 * pair, 2 * sizeof(Element));
                    }
    }
}

extern "C" void multiply_packed(Element* out, const Element* x, int64_t x_row, const Element* packed, const float* bias,
                                int64_t rows, int64_t n, int64_t k) {
    multiply(Product<Element>{out, x, x_row, packed, bias, rows, n, k});
}

extern "C" void multiply_packed_f32(float* out, const Element* x, int64_t x_row, const Element* packed,
                                    const float* bias, int64_t rows, int64_t n, int64_t k) {
    multiply(Product<float>{out, x, x_row, packed, bias, rows, n, k});
}

#else

extern "C" int32_t can_multiply() { return 0; }

#endif
