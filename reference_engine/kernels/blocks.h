// The block formats of GGUF files, and how their weights become float32.
//
// The layouts are ggml's (https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h): a block holds 32 or 256
// neighbouring weights of one row as small whole numbers, with scales in float16. Every product below is exact in
// float32 or rounded once, as in blocks.py, so that both give the same bits.
//
// A format states the `kElements` and `kBytes` of a block, unpacks its `scales`, and with them any 16 of its weights.
// Those that integers.cpp multiplies also give any 16 `codes`, the code of zero, and the step and, if `kHasLeast`, the
// least weight of those 16: weight = (code - kZero) * step + least.

#pragma once

#include "numbers.h"

namespace {

typedef uint8_t Bytes __attribute__((vector_size(16)));

template <typename Wanted>
inline Wanted read(const uint8_t* from) {
    Wanted value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline float half(const uint8_t* from) {
    const uint16_t bits = read<uint16_t>(from);
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#else
    const uint32_t wide = uint32_t(bits & 0x7FFF) << 13;  // a float32 with an exponent that is 112 too low
    float value;
    std::memcpy(&value, &wide, sizeof value);
    value *= 0x1p112f;
    return bits & 0x8000 ? -value : value;
#endif
}

// A sixteenth of a large block or half of a small one, in as many registers as needed. A single vector that needs two
// registers would be computed by gcc 12 through memory, a number at a time.
struct Piece {
    Wide parts[kLanes / kWide];
    Piece operator*(float factor) const { return each([=](Wide part) { return part * factor; }); }
    Piece operator+(float term) const { return each([=](Wide part) { return part + term; }); }
    Piece operator-(float term) const { return each([=](Wide part) { return part - term; }); }

  private:
    template <typename Change>
    Piece each(const Change& change) const {
        Piece made;
#pragma GCC unroll 4
        for (int64_t p = 0; p < kLanes / kWide; ++p) made.parts[p] = change(parts[p]);
        return made;
    }
};

template <typename T>
inline void write(T* to, const Piece& piece) {
#pragma GCC unroll 4
    for (int64_t p = 0; p < kLanes / kWide; ++p) store(to + p * kWide, piece.parts[p]);
}

inline Piece numbers(Bytes bytes) {
    Piece made;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m128i upper = _mm_srli_si128((__m128i)bytes, 8);
    made.parts[0] = (Wide)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32((__m128i)bytes));
    made.parts[1] = (Wide)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(upper));
#else
    for (int64_t p = 0; p < kLanes / kWide; ++p) {
        typedef uint8_t Some __attribute__((vector_size(kWide)));
        Some some;
        std::memcpy(&some, reinterpret_cast<const uint8_t*>(&bytes) + p * kWide, sizeof some);
        made.parts[p] = __builtin_convertvector(__builtin_convertvector(some, Of<kWide>::Wholes), Wide);
    }
#endif
    return made;
}

inline Piece signed_numbers(Bytes bytes) { return numbers(bytes ^ 128) - 128.0f; }

// 16 for each bit that is set, else 0.
inline Bytes fifth_bits(uint16_t mask) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (Bytes)_mm_maskz_set1_epi8(mask, 16);
#else
    const Bytes places = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint64_t low = (mask & 255) * 0x0101010101010101u, high = (mask >> 8) * 0x0101010101010101u;
    Bytes spread;
    std::memcpy(&spread, &low, 8);
    std::memcpy(reinterpret_cast<uint8_t*>(&spread) + 8, &high, 8);
    return Bytes((spread & places) == places) & 16;
#endif
}

struct Line {  // weight = number * step + least
    float step, least;
};

struct Q8_0 {  // with signed codes
    static constexpr int kElements = 32, kBytes = 34, kZero = 0;
    static constexpr bool kHasLeast = false;
    static inline float scales(const uint8_t* block) { return half(block); }
    static inline float step(float step, int) { return step; }
    static inline Bytes codes(const uint8_t* block, int sixteenth) { return read<Bytes>(block + 2 + 16 * sixteenth); }
    static inline Piece weights(const uint8_t* block, float step, int sixteenth) {
        return signed_numbers(codes(block, sixteenth)) * step;
    }
};

// Q4_0, Q4_1, Q5_0 and Q5_1: four bits of each weight, the first 16 in the low halves of bytes; a fifth bit in a mask;
// the least weight, or else half of all numbers are below zero.
template <bool has_least, bool has_fifth>
struct Small {
    static constexpr int kElements = 32, kMask = has_least ? 4 : 2, kHeader = kMask + 4 * has_fifth;
    static constexpr int kBytes = kHeader + 16, kZero = has_least ? 0 : has_fifth ? 16 : 8;
    static constexpr bool kHasLeast = has_least;
    static inline Line scales(const uint8_t* block) {
        const float step = half(block);
        return {step, has_least ? half(block + 2) : step * -kZero};
    }
    static inline float step(Line line, int) { return line.step; }
    static inline float least(Line line, int) { return line.least; }
    static inline Bytes codes(const uint8_t* block, int sixteenth) {
        const Bytes both = read<Bytes>(block + kHeader);
        Bytes four = sixteenth ? both >> 4 : both & 15;
        if (has_fifth) four |= fifth_bits(read<uint16_t>(block + kMask + 2 * sixteenth));
        return four;
    }
    static inline Piece weights(const uint8_t* block, Line line, int sixteenth) {
        return numbers(codes(block, sixteenth)) * line.step + line.least;
    }
};

struct Steps {
    float steps[16];
};

struct Lines {
    float steps[16], least[16];
};

// Q4_K and Q5_K: eight scales and eight minima of six bits, each for 32 weights.
template <bool has_fifth>
struct Middle {
    static constexpr int kElements = 256, kLow = 16 + 32 * has_fifth, kBytes = kLow + 128, kZero = 0;
    static constexpr bool kHasLeast = true;
    static inline Steps scales(const uint8_t* block) {
        const uint32_t scales = read<uint32_t>(block + 4), minima = read<uint32_t>(block + 8);
        const uint32_t rest = read<uint32_t>(block + 12);
        const uint32_t all[4] = {
            scales & 0x3F3F3F3F, (rest & 0x0F0F0F0F) | (scales >> 2 & 0x30303030),
            minima & 0x3F3F3F3F, (rest >> 4 & 0x0F0F0F0F) | (minima >> 2 & 0x30303030),
        };
        Bytes bytes;
        std::memcpy(&bytes, all, sizeof all);
        const float d = half(block), m = half(block + 2);
        Steps made;
        write(made.steps, numbers(bytes));
        for (int i = 0; i < 16; ++i) made.steps[i] *= i < 8 ? d : m;
        return made;
    }
    static inline float step(const Steps& scales, int sixteenth) { return scales.steps[sixteenth / 2]; }
    static inline float least(const Steps& scales, int sixteenth) { return -scales.steps[8 + sixteenth / 2]; }
    static inline Bytes codes(const uint8_t* block, int sixteenth) {
        const int part = sixteenth / 2, place = 16 * (sixteenth % 2);
        const Bytes both = read<Bytes>(block + kLow + 32 * (part / 2) + place);
        Bytes four = part % 2 ? both >> 4 : both & 15;
        if (has_fifth) four |= (read<Bytes>(block + 16 + place) >> part & 1) << 4;
        return four;
    }
    static inline Piece weights(const uint8_t* block, const Steps& scales, int sixteenth) {
        return numbers(codes(block, sixteenth)) * step(scales, sixteenth) + least(scales, sixteenth);
    }
};

struct Q6_K {
    static constexpr int kElements = 256, kBytes = 210, kZero = 32;
    static constexpr bool kHasLeast = false;
    static inline Steps scales(const uint8_t* block) {
        Steps made;
        write(made.steps, signed_numbers(read<Bytes>(block + 192)) * half(block + 208));
        return made;
    }
    static inline float step(const Steps& scales, int sixteenth) { return scales.steps[sixteenth]; }
    static inline Bytes codes(const uint8_t* block, int sixteenth) {
        const int side = sixteenth / 8, quarter = sixteenth / 2 % 4, place = 16 * (sixteenth % 2);
        const Bytes low = read<Bytes>(block + 64 * side + 32 * (quarter % 2) + place);
        const Bytes high = read<Bytes>(block + 128 + 32 * side + place) >> (2 * quarter) & 3;
        return (quarter / 2 ? low >> 4 : low & 15) | high << 4;
    }
    static inline Piece weights(const uint8_t* block, const Steps& scales, int sixteenth) {
        return (numbers(codes(block, sixteenth)) - float(kZero)) * scales.steps[sixteenth];
    }
};

// Two bits of each weight, as in Q2_K and Q3_K.
inline Bytes two_bits(const uint8_t* from, int sixteenth) {
    return read<Bytes>(from + 32 * (sixteenth / 8) + 16 * (sixteenth % 2)) >> (2 * (sixteenth / 2 % 4)) & 3;
}

struct Q2_K {
    static constexpr int kElements = 256, kBytes = 84;
    static inline Lines scales(const uint8_t* block) {
        const Bytes both = read<Bytes>(block);
        Lines made;
        write(made.steps, numbers(both & 15) * half(block + 80));
        write(made.least, numbers(both >> 4) * half(block + 82));
        return made;
    }
    static inline Piece weights(const uint8_t* block, const Lines& scales, int sixteenth) {
        return numbers(two_bits(block + 16, sixteenth)) * scales.steps[sixteenth] - scales.least[sixteenth];
    }
};

// Where the third bit is clear, four is subtracted; two of the scales' six bits are stored apart.
struct Q3_K {
    static constexpr int kElements = 256, kBytes = 110;
    static inline Steps scales(const uint8_t* block) {
        const uint64_t low = read<uint64_t>(block + 96);
        const uint32_t high = read<uint32_t>(block + 104);
        const uint64_t lows[2] = {low & 0x0F0F0F0F0F0F0F0Fu, low >> 4 & 0x0F0F0F0F0F0F0F0Fu};
        const uint32_t highs[4] = {high & 0x03030303, high >> 2 & 0x03030303, high >> 4 & 0x03030303,
                                   high >> 6 & 0x03030303};
        Bytes four, two;
        std::memcpy(&four, lows, sizeof lows);
        std::memcpy(&two, highs, sizeof highs);
        Steps made;
        write(made.steps, (numbers(four | two << 4) - 32.0f) * half(block + 108));
        return made;
    }
    static inline Piece weights(const uint8_t* block, const Steps& scales, int sixteenth) {
        const Bytes third = (read<Bytes>(block + 16 * (sixteenth % 2)) >> (sixteenth / 2) & 1) << 2;
        return (numbers(two_bits(block + 32, sixteenth) | third) - 4.0f) * scales.steps[sixteenth];
    }
};

// Calls `visit` with ggml's format of this number.
template <typename Visit>
void with_format(int64_t number, const Visit& visit) {
    switch (number) {
        case 2: return visit(Small<false, false>{});
        case 3: return visit(Small<true, false>{});
        case 6: return visit(Small<false, true>{});
        case 7: return visit(Small<true, true>{});
        case 8: return visit(Q8_0{});
        case 10: return visit(Q2_K{});
        case 11: return visit(Q3_K{});
        case 12: return visit(Middle<false>{});
        case 13: return visit(Middle<true>{});
        case 14: return visit(Q6_K{});
    }
}

}  // namespace
