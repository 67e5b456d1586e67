// Attention in bfloat16 on tile registers: 16 queries at a time, heads that share keys and consecutive tokens of one
// sequence.
//
// A tile of keys [16 tokens][32 dims] is read in place and multiplied by queries [16 pairs of dims][16 queries][2], so
// that scores have one query in each lane and softmax needs no sum across lanes. A query's bits depend only on the
// keys that it sees: tiles begin at fixed tokens, sums have a fixed order, and hidden tokens add 0. That holds for finite
// numbers; a NaN or an infinity reaches the queries whose spans of tokens hold it.

#pragma once

#include "tiles.h"

#if HAS_TILES

#include <algorithm>
#include <memory>
#include <vector>

#include "attention.h"

namespace {

constexpr int64_t kQueries = 16;  // lanes of a register, rows of a tile
constexpr int64_t kTogether = 8;  // tiles of keys that are weighed together
constexpr int64_t kSpan = kTogether * kTile;
constexpr int64_t kBlocks = 8;  // of queries for which keys are fetched from memory once

// Some query heads of one key/value head, at most kQueries, of consecutive tokens of one sequence.
struct Strip {
    int64_t row, rows;                // of the batch
    int64_t head, first_head, heads;  // key/value head; query heads
    int64_t rows_together() const { return kQueries / heads; }
};

// A transposition of [16][16] words.
inline void transpose(const __m512i* rows, __m512i* columns) {
    __m512i pairs[16], fours[16];
    for (int i = 0; i < 8; ++i) {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i* p = pairs + 4 * i;
        fours[4 * i] = _mm512_unpacklo_epi64(p[0], p[2]);
        fours[4 * i + 1] = _mm512_unpackhi_epi64(p[0], p[2]);
        fours[4 * i + 2] = _mm512_unpacklo_epi64(p[1], p[3]);
        fours[4 * i + 3] = _mm512_unpackhi_epi64(p[1], p[3]);
    }
    for (int i = 0; i < 4; ++i) {
        const __m512i a = fours[i], b = fours[4 + i], c = fours[8 + i], d = fours[12 + i];
        const __m512i low = _mm512_shuffle_i32x4(a, b, 0x88), low_right = _mm512_shuffle_i32x4(c, d, 0x88);
        const __m512i high = _mm512_shuffle_i32x4(a, b, 0xDD), high_right = _mm512_shuffle_i32x4(c, d, 0xDD);
        columns[i] = _mm512_shuffle_i32x4(low, low_right, 0x88);
        columns[8 + i] = _mm512_shuffle_i32x4(low, low_right, 0xDD);
        columns[4 + i] = _mm512_shuffle_i32x4(high, high_right, 0x88);
        columns[12 + i] = _mm512_shuffle_i32x4(high, high_right, 0xDD);
    }
}

// Before tiles are loaded: the compiler does not know that they read memory.
inline void written() { asm volatile("" ::: "memory"); }

// The same tokens for all queries of a strip: kTogether tiles, of which some may be out of every query's sight.
struct Tokens {
    int64_t first;
    bool seen[kTogether], any;
    int64_t slots[kTogether];
    bool seen_pair(int64_t pair) const { return seen[2 * pair] || seen[2 * pair + 1]; }
};

// The queries of a strip's rows [row, row + rows), and what they have seen so far.
class QueryBlock {
  public:
    void begin(const AttentionCall& step, const Strip& strip, int64_t row, int64_t rows, const bf16* query) {
        step_ = &step;
        strip_ = &strip;
        row_ = row;
        count_ = rows * strip.heads;
        std::memset(queries_, 0, step.key_dim * 2 * kQueries);
        std::memset(sums_, 0, step.value_dim * sizeof(float) * kQueries);
        for (int64_t c = 0; c < kQueries; ++c) {
            largest_[c] = total_[c] = 0;
            begins_[c] = ends_[c] = 0;  // a lane without a query sees nothing
            if (c >= count_) continue;
            const bf16* from = query + row_of(c) * step.query_stride + head_of(c) * step.key_dim;
            for (int64_t w = 0; w < step.key_dim / 2; ++w) std::memcpy(queries_[w][c], from + 2 * w, 4);
            largest_[c] = first_score(step, head_of(c));
            total_[c] = first_total(step);
            ends_[c] = step.ends[row_of(c)];
            begins_[c] = step.window && ends_[c] > step.window ? ends_[c] - step.window : 0;
        }
    }

    // The first and one past the last token that any query sees, sinks apart.
    int64_t first() const { return begins_[0]; }
    int64_t end() const { return ends_[count_ - 1]; }

    void attend(const Tokens& tokens, const bf16* keys, int64_t key_row, const __m512i* values) {
        multiply(tokens, keys, key_row);
        weigh(tokens, masked(tokens));
        add(tokens, values);
    }

    void write(bf16* out) const {
        for (int64_t c = 0; c < count_; ++c) {
            bf16* to = out + (row_of(c) * step_->heads + head_of(c)) * step_->value_dim;
            const float* from = sums_ + c * step_->value_dim;
            for (int64_t d = 0; d < step_->value_dim; ++d)
                to[d] = bf16(from[d / 32 * 32 + d % 8 / 4 * 16 + d % 32 / 8 * 4 + d % 4] / total_[c]);
        }
    }

  private:
    int64_t head_of(int64_t query) const { return strip_->first_head + query % strip_->heads; }
    int64_t row_of(int64_t query) const { return row_ + query / strip_->heads; }

    // Products of the tokens' keys with the queries, two tiles at a time.
    void multiply(const Tokens& tokens, const bf16* keys, int64_t key_row) {
        written();
        for (int64_t pair = 0; pair < kTogether / 2; ++pair) {
            if (!tokens.seen_pair(pair)) continue;
            const bf16* left = keys + tokens.slots[2 * pair] * key_row;
            const bf16* right = keys + tokens.slots[2 * pair + 1] * key_row;
            _tile_zero(0);
            _tile_zero(1);
            for (int64_t d = 0; d < step_->key_dim; d += 32) {
                _tile_loadd(2, queries_[d / 2], 64);
                _tile_loadd(3, left + d, key_row * 2);
                _tile_dpbf16ps(0, 3, 2);
                _tile_loadd(4, right + d, key_row * 2);
                _tile_dpbf16ps(1, 4, 2);
            }
            _tile_stored(0, scores_[2 * pair], 64);
            _tile_stored(1, scores_[2 * pair + 1], 64);
        }
    }

    // Turns products into scores, minus infinity where hidden; returns the largest of each query so far.
    __m512 masked(const Tokens& tokens) {
        const __m512 scale = _mm512_set1_ps(step_->scale);
        const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        __m512 best = _mm512_load_ps(largest_);
        for (int64_t t = 0; t < kTogether; ++t) {
            if (!tokens.seen[t]) continue;
            const int64_t token = tokens.first + t * kTile;
            const bool all = token >= begins_[count_ - 1] && token + kTile <= ends_[0];
            for (int64_t k = 0; k < kTile; ++k) {
                __m512 score = _mm512_mul_ps(_mm512_load_ps(scores_[t][k]), scale);
                if (step_->soft_cap > 0) score = __m512(capped(Vector(score), step_->soft_cap));
                if (!all || count_ < kQueries) score = _mm512_mask_mov_ps(lowest, visible(token + k), score);
                _mm512_store_ps(scores_[t][k], score);
                best = _mm512_max_ps(best, score);
            }
        }
        return best;
    }

    __mmask16 visible(int64_t token) const {
        const __m512i at = _mm512_set1_epi64(token);
        __mmask16 seen = 0;
        for (int half = 0; half < 2; ++half) {
            const __mmask8 before = _mm512_cmplt_epi64_mask(at, _mm512_load_si512(ends_ + 8 * half));
            const __mmask8 within =
                token < step_->sinks ? 0xFF : _mm512_cmpge_epi64_mask(at, _mm512_load_si512(begins_ + 8 * half));
            seen |= __mmask16((before & within) << (8 * half));
        }
        return seen;
    }

    // Turns scores into weights relative to the largest so far, and shrinks what has been added before.
    void weigh(const Tokens& tokens, __m512 best) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t pair = 0; pair < kTogether / 2; ++pair) {
            if (!tokens.seen_pair(pair)) continue;
            __m512i words[kTile];  // the weights of two tokens, for each query
            for (int64_t t = 0; t < 2; ++t)
                for (int64_t k = 0; k < kTile; k += 2) {
                    __m512 two[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
                    if (tokens.seen[2 * pair + t])
                        for (int64_t i = 0; i < 2; ++i) {
                            const __m512 score = _mm512_load_ps(scores_[2 * pair + t][k + i]);
                            const __mmask16 is_seen = _mm512_cmp_ps_mask(score, _mm512_set1_ps(-1e30f), _CMP_GT_OQ);
                            const __m512 weight = __m512(exponential(Vector(_mm512_sub_ps(score, best))));
                            two[i] = _mm512_maskz_mov_ps(is_seen, weight);
                            sum = _mm512_add_ps(sum, two[i]);
                        }
                    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(two[0]));
                    const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(two[1]));
                    words[t * kTile / 2 + k / 2] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
                }
            transpose(words, weights_[pair]);
        }
        const __m512 before = _mm512_load_ps(largest_);
        __m512 total = _mm512_load_ps(total_);
        const __mmask16 grown = _mm512_cmp_ps_mask(best, before, _CMP_GT_OQ);
        if (grown) {
            const __m512 ratio = __m512(exponential(Vector(_mm512_sub_ps(before, best))));
            const __m512 shrink = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), grown, ratio);
            total = _mm512_mul_ps(total, shrink);
            alignas(64) float factors[kQueries];
            _mm512_store_ps(factors, shrink);
            for (int64_t c = 0; c < count_; ++c) {
                const __m512 factor = _mm512_set1_ps(factors[c]);
                float *sum_of = sums_ + c * step_->value_dim, *stop = sum_of + step_->value_dim;
                for (; (grown >> c & 1) && sum_of < stop; sum_of += 16)
                    _mm512_store_ps(sum_of, _mm512_mul_ps(_mm512_load_ps(sum_of), factor));
            }
        }
        _mm512_store_ps(largest_, best);
        _mm512_store_ps(total_, _mm512_add_ps(total, sum));
    }

    // Adds the weighted values, which are as `pair_up` wrote them.
    void add(const Tokens& tokens, const __m512i* values) {
        const int64_t stride = step_->value_dim * sizeof(float);
        written();
        for (int64_t d = 0; d < step_->value_dim; d += 32) {
            _tile_loadd(0, sums_ + d, stride);
            _tile_loadd(1, sums_ + d + 16, stride);
            for (int64_t pair = 0; pair < kTogether / 2; ++pair, values += 2 * kTile) {
                if (!tokens.seen_pair(pair)) continue;
                _tile_loadd(2, weights_[pair], 64);
                _tile_loadd(3, values, 64);
                _tile_dpbf16ps(0, 2, 3);
                _tile_loadd(4, values + kTile, 64);
                _tile_dpbf16ps(1, 2, 4);
            }
            _tile_stored(0, sums_ + d, stride);
            _tile_stored(1, sums_ + d + 16, stride);
        }
    }

    const AttentionCall* step_;
    const Strip* strip_;
    int64_t row_, count_;
    alignas(64) int64_t begins_[kQueries], ends_[kQueries];
    alignas(64) float largest_[kQueries], total_[kQueries];
    alignas(64) uint16_t queries_[kMostDims / 2][kQueries][2];
    alignas(64) float scores_[kTogether][kTile][kQueries];
    alignas(64) __m512i weights_[kTogether / 2][kTile];
    alignas(64) float sums_[kQueries * kMostDims];
};

// A thread's memory for one strip after the other.
class StripAttention {
  public:
    void run(const AttentionCall& step, const Caches<bf16>& caches, const Strip& strip, bf16* out, const bf16* query) {
        const bf16* keys = caches.keys + strip.head * step.key_dim;
        const bf16* values = caches.values ? caches.values + strip.head * step.value_dim : keys;
        int64_t count = 0;
        for (int64_t row = 0, rows; row < strip.rows; row += rows, ++count) {
            rows = std::min(strip.rows_together(), strip.rows - row);
            blocks_[count].begin(step, strip, strip.row + row, rows, query);
        }
        const int64_t begin = blocks_[0].first(), end = blocks_[count - 1].end();
        Tokens tokens;
        for (tokens.first = 0; tokens.first < end; tokens.first += kSpan) {
            if (tokens.first >= step.sinks && tokens.first + kSpan <= begin) {
                tokens.first = begin / kSpan * kSpan - kSpan;  // all between is out of the window
                continue;
            }
            place(tokens, step, step.tables[strip.row], begin, end);
            if (!tokens.any) continue;
            pair_up(tokens, values, caches.value_row, step.value_dim);
            for (int64_t i = 0; i < count; ++i)
                if (tokens.first < blocks_[i].end()) blocks_[i].attend(tokens, keys, caches.key_row, values_);
        }
        for (int64_t i = 0; i < count; ++i) blocks_[i].write(out);
    }

  private:
    // Where the tokens are. For a tile out of sight, its neighbour stands in: its weights are 0.
    static void place(Tokens& tokens, const AttentionCall& step, const int32_t* blocks, int64_t begin, int64_t end) {
        const int64_t size = step.block_size;
        tokens.any = false;
        for (int64_t t = 0; t < kTogether; ++t) {
            const int64_t token = tokens.first + t * kTile;
            tokens.seen[t] = token < end && (token < step.sinks || token + kTile > begin);
            if (tokens.seen[t]) tokens.slots[t] = int64_t(blocks[token / size]) * size + token % size;
            tokens.any |= tokens.seen[t];
        }
        for (int64_t t = 0; t < kTogether; ++t)
            if (!tokens.seen[t]) tokens.slots[t] = tokens.slots[t ^ 1];
    }

    // Values as a product reads them, [32 dims][pairs of tiles][halves][16 pairs of tokens]; a half has groups of four
    // dims.
    void pair_up(const Tokens& tokens, const bf16* values, int64_t row, int64_t dims) {
        __m512i* to = values_;
        for (int64_t d = 0; d < dims; d += 32)
            for (int64_t pair = 0; pair < kTogether / 2; ++pair, to += 2 * kTile) {
                if (!tokens.seen_pair(pair)) continue;
                for (int64_t k = 0; k < kTile; ++k) {
                    const int64_t slot = tokens.slots[2 * pair + k / 8] + 2 * (k % 8);
                    const bf16* from = values + slot * row + d;
                    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + row);
                    to[k] = _mm512_unpacklo_epi16(a, b);
                    to[kTile + k] = _mm512_unpackhi_epi16(a, b);
                }
            }
    }

    QueryBlock blocks_[kBlocks];
    alignas(64) __m512i values_[kMostDims / 32 * kTogether * kTile];
};

// The rows of a step in strips.
inline std::vector<Strip> strips_of(const AttentionCall& step) {
    const int64_t group = step.heads / step.kv_heads;
    const int64_t most_rows = kBlocks * (kQueries / std::min(group, kQueries));
    std::vector<Strip> strips;
    for (int64_t row = 0, rows; row < step.batch; row += rows) {
        for (rows = 1; rows < most_rows && row + rows < step.batch; ++rows)
            if (step.tables[row + rows] != step.tables[row] || step.ends[row + rows] != step.ends[row] + rows) break;
        for (int64_t head = 0; head < step.kv_heads; ++head)
            for (int64_t g = 0; g < group; g += kQueries)
                strips.push_back({row, rows, head, head * group + g, std::min(group - g, kQueries)});
    }
    return strips;
}

inline void attend_in_tiles(const AttentionCall& step, const Caches<bf16>& caches, bf16* out, const bf16* query) {
    const std::vector<Strip> strips = strips_of(step);
#pragma omp parallel
    {
        // Kept from call to call: it is large, and new memory costs page faults.
        static thread_local const std::unique_ptr<StripAttention> attention(new StripAttention);
        configure_tiles({16, 16, 16, 16, 16, 16, 16, 16});
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < strips.size(); ++i) attention->run(step, caches, strips[i], out, query);
        _tile_release();
    }
}

}  // namespace

#endif
