// y = x·Wᵀ + b for weights of whole numbers: 4 or 8 bits, with a scale and perhaps an offset for each group of columns,
// or the blocks of a GGUF file.
//
// Every 32 neighbours in a row of x are also rounded to whole numbers of 8 bits, with their own scale, as in ggml's
// products with blocks. So products and their sums over a few neighbours are exact, and only the sums of those are
// float32. Weights are read as stored, once for several rows of x. Each result is added up in a fixed order: the bits
// of a row do not depend on the batch.
//
// A step is 64 columns, two blocks A and B of 32. Its bytes are in the order A0-15, B0-15, A16-31, B16-31: then the
// halves of 4-bit codes need no shuffle, and a register's lower half belongs to A and its upper one to B.

#include <algorithm>
#include <type_traits>
#include <vector>

#include "blocks.h"
#include "threads.h"

#if defined(__AVX2__) && defined(__FMA__)
#define HAS_AVX2 1
#else
#define HAS_AVX2 0
#endif
#if HAS_AVX2 && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#define HAS_VNNI 1
#else
#define HAS_VNNI 0
#endif

namespace {

constexpr int64_t kLanesOfSums = 8;
using Floats = Of<kLanesOfSums>::Floats;
using Wholes = Of<kLanesOfSums>::Wholes;

constexpr int64_t kBlock = 32, kStep = 2 * kBlock;  // columns
constexpr int64_t kOutputs = 4, kRows = 4;          // computed together; rows are a maximum
constexpr int64_t kBytesOfRows = 128 << 10;         // of rounded x, chosen to stay in the second cache
// Bytes by which codes are prefetched into the first and the second cache: rows of a weight are too short for the
// processor's own prefetching.
constexpr int64_t kNear = 3 << 10, kFar = 16 << 10;

// See `IntegerMatrix`; a row has the bytes of whole steps. Blocks of a GGUF file have the number of their format, not
// 0, and groups of 32 columns; their scales and offsets are in the codes.
struct Weight {
    const uint8_t* codes;
    const float *scales, *offsets;  // [outputs, groups]; offsets may be null
    const float* bias;              // [outputs], or null
    const int64_t* order;           // [columns], or null
    int64_t outputs, columns, groups, bits, format;

    int64_t steps() const { return (columns + kStep - 1) / kStep; }
    int64_t group() const { return columns / groups; }
    // Whether no step has columns of two groups.
    bool has_whole_steps() const { return groups == 1 || group() % kStep == 0; }
    // Runs of steps with the same scales.
    int64_t runs() const { return has_whole_steps() ? groups : steps(); }
};

// Rounded columns of x. A lane is four neighbours in each half of `codes`.
struct alignas(64) Step {
    int8_t codes[kStep];
    float scales[kLanesOfSums];   // of each lane
    int32_t start[kLanesOfSums];  // of each lane's sum: corrects for codes that are larger by the format's kZero
};

// a · b + c, rounded once where the processor can: an expression may be rounded differently in another loop.
inline Floats fused(Floats a, Floats b, Floats c) {
#if HAS_AVX2
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

#if HAS_AVX2

struct Codes {
    __m256i low, high;
};

inline Codes codes_of(const Step& step) {
    const auto* from = reinterpret_cast<const __m256i*>(step.codes);
    return {_mm256_load_si256(from), _mm256_load_si256(from + 1)};
}

// Each lane's sum of products with weights 0 to 15 (AVX2) or 0 to 255 (VNNI).
inline Wholes dot(Wholes start, const Codes& weights, const Codes& x) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (Wholes)_mm256_dpbusd_epi32(_mm256_dpbusd_epi32((__m256i)start, weights.low, x.low), weights.high, x.high);
#elif HAS_VNNI
    return (Wholes)_mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32((__m256i)start, weights.low, x.low), weights.high,
                                           x.high);
#else
    const __m256i low = _mm256_maddubs_epi16(weights.low, x.low), high = _mm256_maddubs_epi16(weights.high, x.high);
    return start + (Wholes)_mm256_madd_epi16(_mm256_add_epi16(low, high), _mm256_set1_epi16(1));
#endif
}

inline __m256i two_sixteenths(const uint8_t* a, const uint8_t* b) {
    const __m128i lower = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lower), *reinterpret_cast<const __m128i_u*>(b), 1);
}

#else

struct Codes {
    int8_t low[kStep / 2], high[kStep / 2];
};

inline Codes codes_of(const Step& step) {
    Codes codes;
    std::memcpy(&codes, step.codes, sizeof codes);
    return codes;
}

// Of A0-15, A16-31, B0-15 and B16-31.
inline Codes codes_of_quarters(const void* quarters) {
    const auto* from = static_cast<const uint8_t*>(quarters);
    Codes codes;
    for (int64_t block = 0; block < 2; ++block) {
        std::memcpy(codes.low + 16 * block, from + 32 * block, 16);
        std::memcpy(codes.high + 16 * block, from + 32 * block + 16, 16);
    }
    return codes;
}

// Each lane's sum of products.
inline Wholes dot(Wholes start, const Codes& weights, const Codes& x) {
    for (int64_t lane = 0; lane < kLanesOfSums; ++lane)
        for (int64_t i = 4 * lane; i < 4 * lane + 4; ++i)
            start[lane] += weights.low[i] * x.low[i] + weights.high[i] * x.high[i];
    return start;
}

#endif

// Each lane's sum of products of half a step with signed weights. AVX2 and VNNI need one unsigned factor: the sign of a
// weight moves to x.
#if HAS_AVX2
inline Wholes signed_dot(__m256i weights, __m256i x) {
    const __m256i sizes = _mm256_abs_epi8(weights), signs = _mm256_sign_epi8(x, weights);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (Wholes)_mm256_dpbusd_epi32(_mm256_setzero_si256(), sizes, signs);
#elif HAS_VNNI
    return (Wholes)_mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), sizes, signs);
#else
    return (Wholes)_mm256_madd_epi16(_mm256_maddubs_epi16(sizes, signs), _mm256_set1_epi16(1));
#endif
}
#else
inline Wholes signed_dot(const int8_t* weights, const int8_t* x) {
    Wholes sums = {};
    for (int64_t i = 0; i < kStep / 2; ++i) sums[i / 4] += weights[i] * x[i];
    return sums;
}
#endif

inline Codes ones() {
    Codes codes;
    std::memset(&codes, 1, sizeof codes);
    return codes;
}

// Each lane's sum of products with weights that are offset by `zero`.
template <int32_t zero>
inline Wholes sums_above(const Codes& weights, const Step& x) {
    Wholes start = {};
    if (zero) std::memcpy(&start, x.start, sizeof start);
    return dot(start, weights, codes_of(x));
}

// 4-bit codes; without offsets zero is code 8.
template <bool has_offsets>
struct FourBits {
    static constexpr bool kInBlocks = false, kHasOffsets = has_offsets;
    static constexpr int64_t kBytes = kStep / 2;
    static constexpr int32_t kZero = has_offsets ? 0 : 8;
    static inline Codes read(const uint8_t* from) {
#if HAS_AVX2
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), mask = _mm256_set1_epi8(15);
        return {_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16(both, 4), mask)};
#else
        Codes codes;
        for (int64_t i = 0; i < kBytes; ++i) {
            codes.low[i] = from[i] & 15;
            codes.high[i] = int8_t(from[i] >> 4);
        }
        return codes;
#endif
    }
    static inline Wholes sums(const Codes& weights, const Step& x) { return sums_above<kZero>(weights, x); }
};

// Signed 8-bit codes; VNNI's product needs the sign in x only, so they are raised by 128. On AVX2 the sign of a weight
// moves to x, so no pair of products exceeds 16 bits: 2 · 128 · 127.
template <bool has_offsets>
struct EightBits {
    static constexpr bool kInBlocks = false, kHasOffsets = has_offsets;
    static constexpr int64_t kBytes = kStep;
    static constexpr int32_t kZero = HAS_VNNI ? 128 : 0;
    static inline Codes read(const uint8_t* from) {
#if HAS_AVX2
        const __m256i low = two_sixteenths(from, from + 32), high = two_sixteenths(from + 16, from + 48);
#if HAS_VNNI
        const __m256i raise = _mm256_set1_epi8(-128);
        return {_mm256_xor_si256(low, raise), _mm256_xor_si256(high, raise)};
#else
        return {low, high};
#endif
#else
        return codes_of_quarters(from);
#endif
    }
    static inline Wholes sums(const Codes& weights, const Step& x) {
        if constexpr (kZero) return sums_above<kZero>(weights, x);
        const Codes codes = codes_of(x);
        return signed_dot(weights.low, codes.low) + signed_dot(weights.high, codes.high);
    }
};

inline Floats every(float value) { return Floats{} + value; }

inline Floats both(float lower, float upper) {
    return Floats{lower, lower, lower, lower, upper, upper, upper, upper};
}

// A format of blocks.h. A unit is two small blocks, or a large one of four steps.
template <typename Format>
struct Blocks {
    static constexpr bool kInBlocks = true, kHasOffsets = Format::kHasLeast, kIsSmall = Format::kElements == kBlock;
    static constexpr bool kHasSigns = std::is_same_v<Format, Q8_0>, kHasSixteenths = std::is_same_v<Format, Q6_K>;
    static constexpr int64_t kBlocks = kIsSmall ? 2 : 1, kBytes = kBlocks * Format::kBytes;
    static constexpr int64_t kSteps = kBlocks * Format::kElements / kStep;
    // Q6_K has a scale for every 16 weights, so its lanes are two sums, of signed weights. Those of Q8_0 are
    // raised for VNNI.
    static constexpr int32_t kZero = kHasSixteenths ? 0 : kHasSigns ? (HAS_VNNI ? 128 : 0) : Format::kZero;

    struct Scales {
        decltype(Format::scales(nullptr)) of[kBlocks];
    };
    static inline Scales scales(const uint8_t* unit) {
        Scales made;
        for (int64_t b = 0; b < kBlocks; ++b) made.of[b] = Format::scales(unit + b * Format::kBytes);
        return made;
    }

    // Of a step, A0-15, A16-31, B0-15 and B16-31 are quarters 0 to 3.
    static inline int sixteenth(int step, int quarter) { return kIsSmall ? quarter % 2 : 4 * step + quarter; }
    static inline int block(int quarter) { return kIsSmall ? quarter / 2 : 0; }
    static inline Floats lane_scales(const Scales& scales, int step, int quarter) {
        const auto of = [&](int q) { return Format::step(scales.of[block(q)], sixteenth(step, q)); };
        return both(of(quarter), of(quarter + 2));
    }
    static inline Floats lane_offsets(const Scales& scales, int step) {
        const auto of = [&](int q) { return Format::least(scales.of[block(q)], sixteenth(step, q)); };
        return both(of(0), of(2));
    }

    static inline Codes read(const uint8_t* unit, int step) {
        Bytes quarters[4];
        for (int q = 0; q < 4; ++q) {
            quarters[q] = Format::codes(unit + block(q) * Format::kBytes, sixteenth(step, q));
            if (kHasSixteenths) quarters[q] -= Format::kZero;
            if (kHasSigns && kZero) quarters[q] ^= uint8_t(kZero);
        }
#if HAS_AVX2
        return {_mm256_set_m128i((__m128i)quarters[2], (__m128i)quarters[0]),
                _mm256_set_m128i((__m128i)quarters[3], (__m128i)quarters[1])};
#else
        return codes_of_quarters(quarters);
#endif
    }

    // Each lane's sum of products, times the scales of the weights, without their offsets and without the scale of x.
    static inline Floats sums(const Codes& weights, const Scales& scales, int step, const Step& x) {
        const Floats lower = lane_scales(scales, step, 0);
        if constexpr (kHasSixteenths) {
            const Codes codes = codes_of(x);
            const Floats low = __builtin_convertvector(signed_dot(weights.low, codes.low), Floats);
            const Floats high = __builtin_convertvector(signed_dot(weights.high, codes.high), Floats);
            return fused(high, lane_scales(scales, step, 1), low * lower);
        } else if constexpr (kHasSigns) {
            return __builtin_convertvector(EightBits<false>::sums(weights, x), Floats) * lower;
        } else {
            return __builtin_convertvector(sums_above<kZero>(weights, x), Floats) * lower;
        }
    }
};

// Rounds 32 numbers to whole multiples of the returned scale, which is infinite or NaN if one of them is.
inline float round_block(int8_t* lower, int8_t* upper, const float* values) {
    Wholes largest = {};  // in bits, of which those of NaN are the largest
    for (int64_t i = 0; i < kBlock; i += kLanesOfSums) {
        const Wholes size = (Wholes)load<Floats>(values + i) & 0x7FFFFFFF;
        largest = size > largest ? size : largest;
    }
    int32_t bits = 0;
    for (int64_t lane = 0; lane < kLanesOfSums; ++lane) bits = std::max(bits, largest[lane]);
    float found;
    std::memcpy(&found, &bits, sizeof found);
    const float inverse = found > 1e-30f ? 127.0f / found : 0.0f;
    for (int64_t i = 0; i < kBlock; i += kLanesOfSums) {
        typedef int8_t Bytes __attribute__((vector_size(kLanesOfSums)));
        const Floats placed = load<Floats>(values + i) * inverse + 0x1.8p23f;  // its last bits are the whole number
        const Bytes bytes = __builtin_convertvector((Wholes)placed - 0x4B400000, Bytes);
        std::memcpy((i < 16 ? lower : upper) + i % 16, &bytes, sizeof bytes);
    }
    return found * (1.0f / 127);
}

// The row's steps; and, if there are offsets, the lanes' sums for each run of steps, [runs].
template <typename Format, typename T>
void round_row(const Weight& weight, Step* steps, Floats* sums, const T* x) {
    constexpr bool has_offsets = Format::kHasOffsets;
    constexpr int32_t zero = Format::kZero;
    const int64_t per_run = weight.has_whole_steps() ? (weight.steps() + weight.groups - 1) / weight.groups : 1;
    for (int64_t s = 0; s < weight.steps(); ++s) {
        float values[kStep] = {};
        const int64_t first = s * kStep, count = std::min(kStep, weight.columns - first);
        if (weight.order) {
            for (int64_t i = 0; i < count; ++i) values[i] = x[weight.order[first + i]];
        } else {
            for (int64_t i = 0; i < count; ++i) values[i] = x[first + i];
        }
        Step& step = steps[s];
        const float a = round_block(step.codes, step.codes + 32, values);
        const float b = round_block(step.codes + 16, step.codes + 48, values + kBlock);
        const Floats scales = both(a, b);
        store(step.scales, scales);
        if (!zero && !has_offsets) continue;
        const Wholes wholes = dot(Wholes{}, ones(), codes_of(step)), start = wholes * -zero;
        std::memcpy(step.start, &start, sizeof start);
        if (!has_offsets) continue;
        const Floats before = s % per_run ? sums[s / per_run] : Floats{};
        sums[s / per_run] = fused(__builtin_convertvector(wholes, Floats), scales, before);
    }
}

// The groups of a run's blocks A and B; if steps are whole, one group.
struct Groups {
    int64_t a, b;
    Groups(const Weight& weight, int64_t run) : a(run), b(run) {
        if (weight.has_whole_steps()) return;
        a = run * kStep / weight.group();
        b = std::min(run * kStep + kBlock, weight.columns - 1) / weight.group();
    }
    template <bool whole_steps>
    Floats lanes(const float* of_groups) const {
        return whole_steps ? every(of_groups[a]) : both(of_groups[a], of_groups[b]);
    }
};

// Not inlined: elsewhere the same expression may be summed in another order.
__attribute__((noinline)) Four four_totals(const Floats* lanes) { return totals(lanes); }

struct Product {
    const Weight& weight;
    float* out;  // [rows, outputs]; one of the two
    bf16* rounded_out;
    const Step* steps;   // [rows, steps]
    const Floats* sums;  // [rows, runs]; not read without offsets

    void write(int64_t place, float value) const {
        if (out)
            out[place] = value;
        else
            rounded_out[place] = value;
    }
};

inline Product product_of(const Weight& weight, float* out, const Step* steps, const Floats* sums) {
    return {weight, out, nullptr, steps, sums};
}

inline Product product_of(const Weight& weight, bf16* out, const Step* steps, const Floats* sums) {
    return {weight, nullptr, out, steps, sums};
}

inline void fetch(const uint8_t* codes) {
    __builtin_prefetch(codes + kNear);
    __builtin_prefetch(codes + kFar, 0, 2);
}

template <int64_t rows>
inline void write_tile(const Product& job, int64_t row, int64_t output, const Floats* lanes) {
    const Weight& weight = job.weight;
    const int64_t count = std::min(kOutputs, weight.outputs - output);
    for (int64_t r = 0; r < rows; ++r) {
        const Four found = four_totals(lanes + r * kOutputs);
        const int64_t place = (row + r) * weight.outputs + output;
        for (int64_t o = 0; o < count; ++o)
            job.write(place + o, weight.bias ? found[o] + weight.bias[output + o] : found[o]);
    }
}

// Some rows of x from `row`, and some outputs from `output`; past the last output, that one is recomputed and dropped.
template <typename Format, int64_t rows>
inline void multiply_blocks(const Product& job, int64_t row, int64_t output) {
    constexpr int64_t outputs = kOutputs;
    const int64_t steps = job.weight.steps(), units = steps / Format::kSteps;
    const uint8_t* codes[outputs];
    for (int64_t o = 0; o < outputs; ++o)
        codes[o] = job.weight.codes + std::min(output + o, job.weight.outputs - 1) * units * Format::kBytes;
    const Step* x = job.steps + row * steps;
    Floats lanes[rows * outputs] = {};
    for (int64_t unit = 0; unit < units; ++unit) {
        typename Format::Scales scales[outputs];
        for (int64_t o = 0; o < outputs; ++o) scales[o] = Format::scales(codes[o] + unit * Format::kBytes);
#pragma GCC unroll 4
        for (int64_t part = 0; part < Format::kSteps; ++part) {
            const int64_t s = unit * Format::kSteps + part;
#pragma GCC unroll 4
            for (int64_t o = 0; o < outputs; ++o) {
                const uint8_t* from = codes[o] + unit * Format::kBytes;
                fetch(from + part * Format::kBytes / Format::kSteps);
                const Codes read = Format::read(from, part);
#pragma GCC unroll 4
                for (int64_t r = 0; r < rows; ++r) {
                    const Step& step = x[r * steps + s];
                    const Floats sums = Format::sums(read, scales[o], part, step);
                    Floats& sum = lanes[r * outputs + o];
                    sum = fused(sums, load<Floats>(step.scales), sum);
                    if constexpr (Format::kHasOffsets)
                        sum = fused(job.sums[(row + r) * steps + s], Format::lane_offsets(scales[o], part), sum);
                }
            }
        }
    }
    write_tile<rows>(job, row, output, lanes);
}

template <typename Format, bool whole_steps, int64_t rows>
inline void multiply_groups(const Product& job, int64_t row, int64_t output) {
    constexpr bool has_offsets = Format::kHasOffsets;
    constexpr int64_t outputs = kOutputs;
    const Weight& weight = job.weight;
    const int64_t steps = weight.steps(), runs = weight.runs(), per_run = (steps + runs - 1) / runs;
    const uint8_t* codes[outputs];
    const float *scales[outputs], *offsets[outputs];
    for (int64_t o = 0; o < outputs; ++o) {
        const int64_t place = std::min(output + o, weight.outputs - 1);
        codes[o] = weight.codes + place * steps * Format::kBytes;
        scales[o] = weight.scales + place * weight.groups;
        offsets[o] = has_offsets ? weight.offsets + place * weight.groups : nullptr;
    }
    const Step* x = job.steps + row * steps;
    Floats lanes[rows * outputs] = {};
    for (int64_t run = 0, first = 0; run < runs; ++run, first += per_run) {
        Floats parts[rows * outputs] = {};
        for (int64_t s = first; s < first + per_run; ++s)
#pragma GCC unroll 4
            for (int64_t o = 0; o < outputs; ++o) {
                fetch(codes[o] + s * Format::kBytes);
                const Codes read = Format::read(codes[o] + s * Format::kBytes);
#pragma GCC unroll 4
                for (int64_t r = 0; r < rows; ++r) {
                    const Step& step = x[r * steps + s];
                    const Floats part = __builtin_convertvector(Format::sums(read, step), Floats);
                    parts[r * outputs + o] = fused(part, load<Floats>(step.scales), parts[r * outputs + o]);
                }
            }
        const Groups groups(weight, run);
#pragma GCC unroll 4
        for (int64_t o = 0; o < outputs; ++o) {
            const Floats scale = groups.lanes<whole_steps>(scales[o]);
            const Floats offset = has_offsets ? groups.lanes<whole_steps>(offsets[o]) : Floats{};
#pragma GCC unroll 4
            for (int64_t r = 0; r < rows; ++r) {
                Floats& sum = lanes[r * outputs + o];
                sum = fused(parts[r * outputs + o], scale, sum);
                if (has_offsets) sum = fused(job.sums[(row + r) * runs + run], offset, sum);
            }
        }
    }
    write_tile<rows>(job, row, output, lanes);
}

template <typename Format, bool whole_steps, int64_t rows>
inline void multiply_tile(const Product& job, int64_t row, int64_t output) {
    if constexpr (Format::kInBlocks)
        multiply_blocks<Format, rows>(job, row, output);
    else
        multiply_groups<Format, whole_steps, rows>(job, row, output);
}

template <typename Format, bool whole_steps>
void multiply_share(const Product& job, int64_t rows) {
    const Share share((job.weight.outputs + kOutputs - 1) / kOutputs);
    const int64_t row_bytes = job.weight.steps() * int64_t(sizeof(Step));
    const int64_t some = std::max(kBytesOfRows / row_bytes / kRows, int64_t(1)) * kRows;
    for (int64_t first = 0; first < rows; first += some) {
        const int64_t stop = std::min(first + some, rows);
        for (int64_t output = share.first * kOutputs; output < share.stop * kOutputs; output += kOutputs) {
            int64_t row = first;
            for (; row + 4 <= stop; row += 4) multiply_tile<Format, whole_steps, 4>(job, row, output);
            for (; row + 2 <= stop; row += 2) multiply_tile<Format, whole_steps, 2>(job, row, output);
            if (row < stop) multiply_tile<Format, whole_steps, 1>(job, row, output);
        }
    }
}

template <typename Format, typename T, typename Out>
void multiply(const Weight& weight, Out* out, const T* x, int64_t x_row, int64_t rows) {
    thread_local std::vector<Vector> scratch;  // aligned to the lines of the cache
    const int64_t steps = weight.steps(), runs = Format::kHasOffsets ? weight.runs() : 0;
    const size_t wanted = size_t(rows) * (size_t(steps) * sizeof(Step) + size_t(runs) * sizeof(Floats));
    if (scratch.size() * sizeof(Vector) < wanted) scratch.resize(wanted / sizeof(Vector) + 1);
    Step* rounded = reinterpret_cast<Step*>(scratch.data());
    Floats* sums = reinterpret_cast<Floats*>(rounded + rows * steps);
    const auto round = [&](int64_t row) {
        round_row<Format>(weight, rounded + row * steps, sums + row * runs, x + row * x_row);
    };
    if (rows == 1) round(0);
    const Product job = product_of(weight, out, rounded, sums);
#pragma omp parallel
    {
        if (rows > 1) {
#pragma omp for schedule(static)
            for (int64_t row = 0; row < rows; ++row) round(row);
        }
        if (weight.has_whole_steps())
            multiply_share<Format, true>(job, rows);
        else
            multiply_share<Format, false>(job, rows);
    }
}

template <typename T, typename Out>
void multiply_any(const Weight& weight, Out* out, const T* x, int64_t x_row, int64_t rows) {
    switch (weight.format) {
        case 2: return multiply<Blocks<Small<false, false>>>(weight, out, x, x_row, rows);
        case 3: return multiply<Blocks<Small<true, false>>>(weight, out, x, x_row, rows);
        case 6: return multiply<Blocks<Small<false, true>>>(weight, out, x, x_row, rows);
        case 7: return multiply<Blocks<Small<true, true>>>(weight, out, x, x_row, rows);
        case 8: return multiply<Blocks<Q8_0>>(weight, out, x, x_row, rows);
        case 12: return multiply<Blocks<Middle<false>>>(weight, out, x, x_row, rows);
        case 13: return multiply<Blocks<Middle<true>>>(weight, out, x, x_row, rows);
        case 14: return multiply<Blocks<Q6_K>>(weight, out, x, x_row, rows);
    }
    if (weight.bits == 8 && weight.offsets) return multiply<EightBits<true>>(weight, out, x, x_row, rows);
    if (weight.bits == 8) return multiply<EightBits<false>>(weight, out, x, x_row, rows);
    if (weight.offsets) return multiply<FourBits<true>>(weight, out, x, x_row, rows);
    multiply<FourBits<false>>(weight, out, x, x_row, rows);
}

// Plain numbers of one output from its codes, which are not padded here.
template <bool kIsSmall, typename T>
void dequantise_row(const Weight& weight, T* out, int64_t output) {
    const int64_t group = weight.group();
    const uint8_t* codes = weight.codes + output * (kIsSmall ? weight.columns / 2 : weight.columns);
    for (int64_t g = 0; g < weight.groups; ++g, out += group, codes += kIsSmall ? group / 2 : group) {
        const float scale = weight.scales[output * weight.groups + g];
        const float offset = weight.offsets ? weight.offsets[output * weight.groups + g] : 0.0f;
        if constexpr (kIsSmall) {
            const int middle = weight.offsets ? 0 : 8;
            for (int64_t unit = 0; unit < group; unit += kBlock) {
                for (int64_t j = 0; j < kBlock / 2; ++j) {
                    const int code = codes[unit / 2 + j];
                    out[unit + j] = float((code & 15) - middle) * scale + offset;
                    out[unit + kBlock / 2 + j] = float((code >> 4) - middle) * scale + offset;
                }
            }
        } else {
            for (int64_t i = 0; i < group; ++i) out[i] = float(int8_t(codes[i])) * scale + offset;
        }
    }
}

template <typename T>
void dequantise(const Weight& weight, T* out) {
#pragma omp parallel for schedule(static)
    for (int64_t output = 0; output < weight.outputs; ++output) {
        T* row = out + output * weight.columns;
        weight.bits == 4 ? dequantise_row<true>(weight, row, output) : dequantise_row<false>(weight, row, output);
    }
}

}  // namespace

extern "C" void dequantise_integers_f32(const Weight* weight, float* out) { dequantise(*weight, out); }
extern "C" void dequantise_integers_bf16(const Weight* weight, bf16* out) { dequantise(*weight, out); }

#define EXPORT(T, OUT, SUFFIX)                                                                                        \
    extern "C" void multiply_integers_##SUFFIX(const Weight* weight, OUT* out, const T* x, int64_t x_row,             \
                                               int64_t rows) {                                                        \
        multiply_any(*weight, out, x, x_row, rows);                                                                   \
    }

EXPORT(float, float, f32)
EXPORT(bf16, bf16, bf16)
EXPORT(bf16, float, bf16_to_f32)
