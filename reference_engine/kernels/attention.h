// What every implementation of paged attention shares. cpu.py has the fields of AttentionCall in the same order.

#pragma once

#include <limits>

#include "numbers.h"

// Arguments that all layers of a group share in one step.
struct AttentionCall {
    const int32_t* const* tables;  // [batch], the engine's own block table of each row's sequence
    const int64_t* ends;           // [batch], tokens of the sequence up to the row's own, which is included
    const float* learned_sinks;    // [heads], see Scoring.sinks; may be null
    int64_t batch, block_size;
    int64_t heads, kv_heads, key_dim, value_dim;
    int64_t query_stride, key_stride, value_stride;  // elements from one row of the batch to the next
    int64_t window, sinks;                           // a window of 0 sees everything
    float scale;
    float soft_cap;  // see Scoring.soft_cap; 0 for none
};

namespace {

constexpr int64_t kMostDims = 576;  // of one head
constexpr int64_t kTile = 16;       // tokens that are multiplied together

// cap * tanh(x / cap), from e^(-2|x / cap|), which cannot overflow.
template <typename V>
inline V capped(V x, float cap) {
    const V size = (x < 0 ? -x : x) / cap;
    const V shrunk = exponential(-2.0f * size);
    const V bounded = cap * (1.0f - shrunk) / (1.0f + shrunk);
    return x < 0 ? -bounded : bounded;
}

// The largest score, and the sum of weights relative to it, before a head has seen any token.
inline float first_score(const AttentionCall& step, int64_t head) {
    return step.learned_sinks ? step.learned_sinks[head] : -std::numeric_limits<float>::infinity();
}
inline float first_total(const AttentionCall& step) { return step.learned_sinks ? 1.0f : 0.0f; }

// One layer's keys and values; a row has all heads of a token.
template <typename T>
struct Caches {
    T *keys, *values;  // values may be null: then they are the first elements of the keys
    int64_t key_row, value_row;
};

}  // namespace
