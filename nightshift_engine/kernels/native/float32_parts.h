// A float32 as the sum of three bfloat16, so that matrix tiles can multiply it (as cuBLAS does in BF16x9): its 24 bits are
// three times eight, so the sum is exact, but for numbers below 1e-30. Of the nine products of two numbers' parts six are
// made; what the other three would add is below 2^-22 of the product.
#pragma once
#include "tiles.h"
#include "vector.h"

#ifdef HAS_TILES
namespace {

constexpr long NUM_PARTS = 3;
constexpr long STEP_INPUTS = TILE_BYTES / 2; // k that a tile's row holds
constexpr long ROW_STEP_BYTES = NUM_PARTS * TILE_BYTES;
constexpr long PANEL_STEP_BYTES = ROW_STEP_BYTES * 2 * LANES;
constexpr long PANEL_PART_BYTES = PANEL_STEP_BYTES / NUM_PARTS;
constexpr uint32_t UPPER = 0xffff0000;

enum Cut { TO_NEAREST, TO_ZERO }; // to zero takes less time, and errs to one side

// In the upper half of each word; what is below does not count in the last.
struct InParts {
    bits part[NUM_PARTS];
    InParts(floats v, Cut cut) {
        for (int p = 0; p < NUM_PARTS - 1; p++) {
            part[p] = (cut == TO_NEAREST ? (bits)v + 0x8000 : (bits)v) & UPPER; // NaN stays in what is left
            v -= (floats)part[p];
        }
        part[NUM_PARTS - 1] = (bits)v;
    }
};

// A step's 32 inputs of a row: [part][32].
inline void split_inputs(const float* x, char* out) {
    alignas(64) static constexpr struct UpperHalves {
        uint16_t of[2 * LANES];
        constexpr UpperHalves() : of() { for (int i = 0; i < 2 * LANES; i++) of[i] = 2 * i + 1; }
    } upper_halves;
    const __m512i index = _mm512_load_si512(upper_halves.of);
    const InParts first(load(x), TO_NEAREST), second(load(x + LANES), TO_NEAREST);
    for (int p = 0; p < NUM_PARTS; p++)
        _mm512_storeu_si512(out + p * TILE_BYTES, _mm512_permutex2var_epi16((__m512i)first.part[p], index, (__m512i)second.part[p]));
}

// Pairs of inputs, of the 16 in a step, of a panel of 32 columns: from [k][32] to [part][k / 2][32][2].
inline void split_pairs(const float* w, char* out, long first, long end) {
    for (long pair = first; pair < end; pair++)
        for (long half = 0; half < 2; half++) {
            const float* from = w + pair * 4 * LANES + half * LANES;
            const InParts even(load(from), TO_ZERO), odd(load(from + 2 * LANES), TO_ZERO);
            for (int p = 0; p < NUM_PARTS; p++) {
                const __m512i lower = _mm512_srli_epi32((__m512i)even.part[p], 16), upper = (__m512i)odd.part[p];
                const __m512i both = _mm512_ternarylogic_epi32(lower, upper, _mm512_set1_epi32(UPPER), 0xf8); // a | (b & c)
                _mm512_storeu_si512(out + p * PANEL_PART_BYTES + (pair * 2 + half) * TILE_BYTES, both);
            }
        }
}

} // namespace
#endif
