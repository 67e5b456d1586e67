// Attention of new tokens, each a row of its own, over a paged cache, which is read in place.
//
// Written for vectors as wide as the processor's registers, which the compiler turns into instructions; intrinsics are
// used only to multiply bfloat16 in pairs. Sums are in float32. cpu.py and native_backend.py call it, and tests compare
// it with a naive implementation. attention_tiles.h is the same for tile registers. OpenMP runs sequences and heads in
// parallel, with the library that torch has loaded.

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "attention.h"
#include "attention_tiles.h"

namespace {

constexpr int64_t kMostGroup = 8;  // query heads that are computed together

// Some query heads of one key/value head of one sequence: online softmax over the visible tokens, tile by tile
// (FlashAttention, arXiv:2205.14135). Dims are multiples of kLanes.
template <typename T, int group>
class Head {
  public:
    Head(const AttentionCall& step, int64_t first_head)
        : step_(step), key_vectors_(step.key_dim / kWide), value_vectors_(step.value_dim / kWide) {
        for (int g = 0; g < group; ++g) {
            largest_[g] = first_score(step, first_head + g);
            total_[g] = first_total(step);
            for (int64_t i = 0; i < value_vectors_; ++i) sums_[g][i] = Wide{};
        }
    }

    // The queries of the tokens that are added next.
    void look_with(const T* query) {
        for (int g = 0; g < group; ++g)
            for (int64_t i = 0; i < key_vectors_; ++i)
                query_[g][i] = load<Wide>(query + g * step_.key_dim + i * kWide) * step_.scale;
    }

    // Adds the tokens [first, stop); `keys` and `values` point to the head's place in the cache's first token.
    void attend(const T* keys, const T* values, int64_t value_row, const int32_t* blocks, int64_t first, int64_t stop) {
        const int64_t size = step_.block_size, key_row = step_.kv_heads * step_.key_dim;
        for (int64_t token = first, count; token < stop; token += count) {
            count = size - token % size;
            count = count < kTile ? count : kTile;
            count = count < stop - token ? count : stop - token;
            const int64_t slot = int64_t(blocks[token / size]) * size + token % size;
            int64_t t = 0;
            for (; t + kAtOnce <= count; t += kAtOnce) multiply<kAtOnce>(keys + (slot + t) * key_row, key_row, t);
            for (; t < count; ++t) multiply<1>(keys + (slot + t) * key_row, key_row, t);
            for (int g = 0; g < group; ++g) weigh(g, count);
            add(values + slot * value_row, value_row, count);
        }
    }

    void write(T* out) const {
        for (int g = 0; g < group; ++g)
            for (int64_t i = 0; i < step_.value_dim; ++i)
                out[g * step_.value_dim + i] = T(sums_[g][i / kWide][i % kWide] / total_[g]);
    }

  private:
    // The products of some keys with every query.
    template <int keys>
    void multiply(const T* from, int64_t row, int64_t t) {
        Wide products[group][keys];
        for (int g = 0; g < group; ++g)
            for (int k = 0; k < keys; ++k) products[g][k] = Wide{};
        for (int64_t i = 0; i < key_vectors_; ++i)
            for (int k = 0; k < keys; ++k) {
                const Wide part = load<Wide>(from + k * row + i * kWide);
                for (int g = 0; g < group; ++g) products[g][k] += part * query_[g][i];
            }
        for (int g = 0; g < group; ++g) {
            if constexpr (keys == 4)
                store(scores_[g] + t, totals(products[g]));
            else
                for (int k = 0; k < keys; ++k) scores_[g][t + k] = total(products[g][k]);
        }
    }

    // Turns scores into weights relative to the largest score so far.
    void weigh(int g, int64_t count) {
        if (step_.soft_cap > 0)
            for (int64_t t = 0; t < kTile; t += kWide)  // those after `count` are not used
                store(scores_[g] + t, capped(load<Wide>(scores_[g] + t), step_.soft_cap));
        float best = largest_[g], added = 0;
        for (int64_t t = 0; t < count; ++t) best = scores_[g][t] > best ? scores_[g][t] : best;
        for (int64_t t = 0; t < kTile; t += kWide)
            store(scores_[g] + t, exponential(load<Wide>(scores_[g] + t) - best));
        for (int64_t t = 0; t < count; ++t) added += scores_[g][t];
        if (best != largest_[g]) {
            const float shrink = exponential(largest_[g] - best);
            for (int64_t i = 0; i < value_vectors_; ++i) sums_[g][i] *= shrink;
            total_[g] *= shrink;
            largest_[g] = best;
        }
        total_[g] += added;
    }

    // The weighted sum of a tile's values.
    void add(const T* values, int64_t row, int64_t count) {
        int64_t i = 0;
        for (; i + kAtOnce <= value_vectors_; i += kAtOnce) add_at<kAtOnce>(values, row, count, i);
        for (; i < value_vectors_; ++i) add_at<1>(values, row, count, i);
    }

    // The same for some vectors of their dims.
    template <int vectors>
    void add_at(const T* values, int64_t row, int64_t count, int64_t i) {
        Wide sums[vectors][group];
        for (int v = 0; v < vectors; ++v)
            for (int g = 0; g < group; ++g) sums[v][g] = sums_[g][i + v];
        for (int64_t t = 0; t < count; ++t)
            for (int v = 0; v < vectors; ++v) {
                const Wide part = load<Wide>(values + t * row + (i + v) * kWide);
                for (int g = 0; g < group; ++g) sums[v][g] += part * scores_[g][t];
            }
        for (int v = 0; v < vectors; ++v)
            for (int g = 0; g < group; ++g) sums_[g][i + v] = sums[v][g];
    }

    // Keys, or vectors of values, that are added together; limited by the registers for their sums.
    static constexpr int kAtOnce = group <= 3 ? 4 : group <= 6 ? 2 : 1;

    const AttentionCall& step_;
    const int64_t key_vectors_, value_vectors_;
    Wide query_[group][kMostDims / kWide], sums_[group][kMostDims / kWide];
    float scores_[group][kTile] = {}, largest_[group], total_[group];
};

#if defined(__AVX512BF16__)

// The same for bfloat16 where the processor multiplies pairs of it: keys and values are not widened, and weights are
// rounded to bfloat16 before they are multiplied by values. Dims are multiples of 32, blocks of kTile tokens.
template <int group>
class PairHead {
  public:
    PairHead(const AttentionCall& step, int64_t first_head)
        : step_(step), key_parts_(step.key_dim / 32), value_parts_(step.value_dim / 32) {
        for (int g = 0; g < group; ++g) {
            largest_[g] = first_score(step, first_head + g);
            total_[g] = first_total(step);
            for (int64_t i = 0; i < 2 * value_parts_; ++i) sums_[g][i] = _mm512_setzero_ps();
        }
    }

    void look_with(const bf16* query) { query_ = query; }

    void attend(const bf16* keys, const bf16* values, int64_t value_row, const int32_t* blocks, int64_t first,
                int64_t stop) {
        const int64_t size = step_.block_size, key_row = step_.kv_heads * step_.key_dim;
        int64_t slots[kTiles];
        for (int64_t token = first - first % kTile; token < stop;) {
            int tiles = 0;
            for (; tiles < kTiles && token < stop; ++tiles, token += kTile) {
                slots[tiles] = int64_t(blocks[token / size]) * size + token % size;
                const int from = token < first ? int(first - token) : 0;
                const int to = stop - token < kTile ? int(stop - token) : int(kTile);
                const __mmask16 seen = __mmask16((0xFFFFu >> (kTile - to)) & (0xFFFFu << from));
                for (int g = 0; g < group; ++g) multiply(g, tiles, keys + slots[tiles] * key_row, key_row, seen);
            }
            for (int g = 0; g < group; ++g) weigh(g, tiles);
            add(values, value_row, slots, tiles);
        }
    }

    void write(bf16* out) const {
        for (int g = 0; g < group; ++g)
            for (int64_t d = 0; d < step_.value_dim; ++d) {
                alignas(64) float part[16];
                // `add` has split the pairs of values into groups of four dims.
                _mm512_store_ps(part, sums_[g][2 * (d / 32) + d % 8 / 4]);
                out[g * step_.value_dim + d] = bf16(part[d % 32 / 8 * 4 + d % 4] / total_[g]);
            }
    }

  private:
    static __m512bh pairs(const bf16* from) { return (__m512bh)_mm512_loadu_si512(from); }

    // The products of one query with a tile of keys; minus infinity for invisible ones.
    void multiply(int g, int tile, const bf16* keys, int64_t row, __mmask16 seen) {
        __m512 products[kTile];
        for (int t = 0; t < kTile; ++t) products[t] = _mm512_setzero_ps();
        for (int64_t i = 0; i < key_parts_; ++i) {
            const __m512bh part = pairs(query_ + g * step_.key_dim + 32 * i);
            for (int t = 0; t < kTile; ++t)
                products[t] = _mm512_dpbf16_ps(products[t], pairs(keys + t * row + 32 * i), part);
        }
        const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        Vector scores = Vector(_mm512_mul_ps(row_sums(products), _mm512_set1_ps(step_.scale)));
        if (step_.soft_cap > 0) scores = capped(scores, step_.soft_cap);
        scores_[g][tile] = _mm512_mask_mov_ps(lowest, seen, __m512(scores));
    }

    // The sum of each of sixteen vectors, in order, by adding halves of two at a time.
    static __m512 row_sums(const __m512* rows) {
        __m512 fours[4];
        for (int i = 0; i < 4; ++i) {
            const __m512 *r = rows + 4 * i;
            const __m512 left = _mm512_add_ps(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1]));
            const __m512 right = _mm512_add_ps(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));
            const __m512d a = _mm512_castps_pd(left), b = _mm512_castps_pd(right);
            fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
        }
        const __m512 upper = _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x44),
                                           _mm512_shuffle_f32x4(fours[0], fours[1], 0xEE));
        const __m512 lower = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2], fours[3], 0x44),
                                           _mm512_shuffle_f32x4(fours[2], fours[3], 0xEE));
        return _mm512_add_ps(_mm512_shuffle_f32x4(upper, lower, 0x88), _mm512_shuffle_f32x4(upper, lower, 0xDD));
    }

    // Turns products of some tiles into weights relative to the largest so far.
    void weigh(int g, int tiles) {
        __m512 most = scores_[g][0], sum = _mm512_setzero_ps();
        for (int i = 1; i < tiles; ++i) most = _mm512_max_ps(most, scores_[g][i]);
        const float here = _mm512_reduce_max_ps(most), best = here > largest_[g] ? here : largest_[g];
        for (int i = 0; i < tiles; ++i) {
            const __mmask16 seen = _mm512_cmp_ps_mask(scores_[g][i], _mm512_set1_ps(-1e30f), _CMP_GT_OQ);
            const __m512 below = _mm512_sub_ps(scores_[g][i], _mm512_set1_ps(best));
            const __m512 weights = _mm512_maskz_mov_ps(seen, __m512(exponential(Vector(below))));
            sum = _mm512_add_ps(sum, weights);
            const __m256bh rounded = _mm512_cvtneps_pbh(weights);
            _mm256_store_si256(reinterpret_cast<__m256i*>(weights_[g] + i * kTile), (__m256i)rounded);
        }
        if (best != largest_[g]) {
            const float shrink = exponential(largest_[g] - best);
            for (int64_t i = 0; i < 2 * value_parts_; ++i)
                sums_[g][i] = _mm512_mul_ps(sums_[g][i], _mm512_set1_ps(shrink));
            total_[g] *= shrink;
            largest_[g] = best;
        }
        total_[g] += _mm512_reduce_add_ps(sum);
    }

    // The weighted sum of values, two tokens at a time.
    void add(const bf16* values, int64_t row, const int64_t* slots, int tiles) {
        for (int64_t i = 0; i < value_parts_; ++i) {
            __m512 low[group], high[group];
            for (int g = 0; g < group; ++g) {
                low[g] = sums_[g][2 * i];
                high[g] = sums_[g][2 * i + 1];
            }
            for (int tile = 0; tile < tiles; ++tile) {
                const bf16* from = values + slots[tile] * row + 32 * i;
                for (int pair = 0; pair < kTile / 2; ++pair) {
                    const __m512i a = _mm512_loadu_si512(from + 2 * pair * row);
                    const __m512i b = _mm512_loadu_si512(from + (2 * pair + 1) * row);
                    const __m512bh left = (__m512bh)_mm512_unpacklo_epi16(a, b);
                    const __m512bh right = (__m512bh)_mm512_unpackhi_epi16(a, b);
                    for (int g = 0; g < group; ++g) {
                        int32_t two;
                        std::memcpy(&two, weights_[g] + tile * kTile + 2 * pair, sizeof two);
                        const __m512bh both = (__m512bh)_mm512_set1_epi32(two);
                        low[g] = _mm512_dpbf16_ps(low[g], both, left);
                        high[g] = _mm512_dpbf16_ps(high[g], both, right);
                    }
                }
            }
            for (int g = 0; g < group; ++g) {
                sums_[g][2 * i] = low[g];
                sums_[g][2 * i + 1] = high[g];
            }
        }
    }

    static constexpr int kTiles = 8;  // weighted together; a single tile would mostly wait for its own results

    const AttentionCall& step_;
    const bf16* query_ = nullptr;
    const int64_t key_parts_, value_parts_;
    __m512 sums_[group][kMostDims / 16], scores_[group][kTiles];
    alignas(32) uint16_t weights_[group][kTiles * kTile];
    float largest_[group], total_[group];
};

inline bool suits_pairs(const AttentionCall& step) {
    return step.key_dim % 32 == 0 && step.value_dim % 32 == 0 && step.block_size % kTile == 0;
}

#endif

// `count` query heads from `first_head` on, which share the key/value head `head`, of one row of the batch.
template <typename T, int count>
void attend_heads(const AttentionCall& step, const Caches<T>& caches, T* out, const T* query, const T* towards_sinks,
                  int64_t row, int64_t head, int64_t first_head) {
    const T* keys = caches.keys + head * step.key_dim;
    const T* values = caches.values ? caches.values + head * step.value_dim : keys;
    const int32_t* blocks = step.tables[row];
    const int64_t end = step.ends[row];
    const int64_t begin = step.window && end > step.window ? end - step.window : 0;
    const T* heads = query + row * step.query_stride + first_head * step.key_dim;
    const auto attend = [&](auto&& state) {
        int64_t sinks = step.sinks < begin ? step.sinks : begin, rest = begin;
        state.look_with(heads);
        if (towards_sinks) {
            sinks = step.sinks < end ? step.sinks : end;
            rest = sinks > begin ? sinks : begin;
            state.look_with(towards_sinks + (row * step.heads + first_head) * step.key_dim);
        }
        state.attend(keys, values, caches.value_row, blocks, 0, sinks);
        if (towards_sinks) state.look_with(heads);
        state.attend(keys, values, caches.value_row, blocks, rest, end);
        state.write(out + (row * step.heads + first_head) * step.value_dim);
    };
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>)
        if (suits_pairs(step)) return attend(PairHead<count>(step, first_head));
#endif
    attend(Head<T, count>(step, first_head));
}

// Writes the token of each row into the cache.
template <typename T>
void store(const AttentionCall& step, const Caches<T>& caches, const T* new_keys, const T* new_values) {
    for (int64_t row = 0; row < step.batch; ++row) {
        const int64_t token = step.ends[row] - 1, size = step.block_size;
        const int64_t slot = step.tables[row][token / size] * size + token % size;
        std::memcpy(caches.keys + slot * caches.key_row, new_keys + row * step.key_stride, caches.key_row * sizeof(T));
        if (caches.values)
            std::memcpy(caches.values + slot * caches.value_row, new_values + row * step.value_stride,
                        caches.value_row * sizeof(T));
    }
}

// Stores, then attends. out: [batch, heads * value_dim]. Without `new_keys` nothing is stored; without `towards_sinks`
// `query` is multiplied by the keys of sinks, too.
template <typename T>
void paged_attention(const AttentionCall& step, T* out, const T* query, const T* towards_sinks, const T* new_keys,
                     const T* new_values, T* keys, T* values) {
    const int64_t key_row = step.kv_heads * step.key_dim;
    const Caches<T> caches{keys, values, key_row, values ? step.kv_heads * step.value_dim : key_row};
    if (new_keys) store(step, caches, new_keys, new_values);
#if HAS_TILES
    if constexpr (std::is_same_v<T, bf16>)
        if (!towards_sinks && suits_pairs(step) && tiles_are_granted())
            return attend_in_tiles(step, caches, out, query);
#endif
    const int64_t group = step.heads / step.kv_heads, pieces = (group + kMostGroup - 1) / kMostGroup;
#pragma omp parallel for collapse(3) schedule(dynamic, 1)
    for (int64_t row = 0; row < step.batch; ++row)
        for (int64_t head = 0; head < step.kv_heads; ++head)
            for (int64_t piece = 0; piece < pieces; ++piece) {
                const int64_t first = head * group + piece * kMostGroup, left = group - piece * kMostGroup;
                switch (left < kMostGroup ? left : kMostGroup) {
#define CASE(count) \
    case count: attend_heads<T, count>(step, caches, out, query, towards_sinks, row, head, first); break;
                    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
                }
            }
}

}  // namespace

#define EXPORT(T, SUFFIX)                                                                                              \
    extern "C" void paged_attention_##SUFFIX(const AttentionCall* step, T* out, const T* query, const T* towards_sinks,\
                                             const T* new_keys, const T* new_values, T* keys, T* values) {             \
        paged_attention<T>(*step, out, query, towards_sinks, new_keys, new_values, keys, values);                      \
    }

EXPORT(float, f32)
EXPORT(bf16, bf16)
