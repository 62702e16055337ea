// Weights in fewer bits than are computed with: codes, which a scale and a zero per column and group of inputs make numbers.
//
// A panel of 32 columns: of four bits [k / 2][32] bytes, the even input in the lower half; of eight [k][32]. Its scales and
// zeros: [groups][32]. A panel is written out as float32 or bfloat16, in the order that linear.cpp reads, into memory that
// stays in the core's second cache, and read from there by all rows.
#pragma once
#include <atomic>

#include "linear_call.h"
#include "vector.h"

namespace {

enum Code : int32_t { INT4 = 0, INT8 = 1, FP8 = 2 };

struct NarrowCall {
    LinearCall all;        // w: codes
    const float* scales;   // [panels][groups][32]
    const int16_t* zeros;  // likewise, in units of the codes' values; null: all are 0
    int64_t group_size;    // inputs, an even number
    int32_t code;
};

// A call as threads share it.
struct SharedNarrowCall {
    NarrowCall call;
    std::atomic<int>* status; // 1 where a thread had no memory for a panel
};

typedef int16_t shorts __attribute__((vector_size(32)));

inline long panel_bytes_of(const NarrowCall& call) { return PANEL * call.all.k / (call.code == INT4 ? 2 : 1); }

inline bits load_codes(const uint8_t* p) {
#ifdef __AVX512F__
    return (bits)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)); // GCC makes many instructions of the below
#endif
    bytes codes;
    memcpy(&codes, p, 16);
    return __builtin_convertvector(codes, bits);
}

// Sixteen columns of the inputs 2 * pair (odd: 0) or 2 * pair + 1.
template <int CODE> floats code_values(const uint8_t* panel, long pair, int odd, long column) {
    if (CODE == INT4) {
        const bits codes = load_codes(panel + pair * PANEL + column);
#ifdef __AVX512F__
        const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        return (floats)_mm512_permutexvar_ps((__m512i)(odd ? codes >> 4 : codes), values); // by the lowest four bits
#endif
        return __builtin_convertvector((ints)(odd ? codes >> 4 : codes & 15) - 8, floats);
    }
    const uint8_t* at = panel + (2 * pair + odd) * PANEL + column;
#ifdef __AVX512F__
    if (CODE == INT8) return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at)));
#endif
    const bits codes = load_codes(at);
    if (CODE == INT8) return __builtin_convertvector((ints)(codes << 24) >> 24, floats);
    // e4m3: its exponent and mantissa at float32's, whose exponents are larger by 120; exact for subnormal numbers too.
    const bits magnitude = (bits)((floats)((codes & 0x7f) << 20) * 0x1p120f);
    return (floats)(magnitude | (codes & 0x80) << 24);
}

inline void write_pair(float* out, long pair, long column, floats even, floats odd) {
    store(out + 2 * pair * PANEL + column, even);
    store(out + (2 * pair + 1) * PANEL + column, odd);
}

inline bits rounded(floats v) {
    halves h;
    store((uint16_t*)&h, v);
    return __builtin_convertvector(h, bits);
}

inline void write_pair(uint16_t* out, long pair, long column, floats even, floats odd) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    alignas(64) static constexpr uint16_t ORDER[2 * LANES] = {0,  16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                              8,  24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    const __m512i both = _mm512_permutexvar_epi16(_mm512_load_si512(ORDER), halves);
#else
    const bits both = rounded(even) | rounded(odd) << 16;
#endif
    memcpy(out + (pair * PANEL + column) * 2, &both, 64);
}

template <int CODE, class X> void write_codes(const NarrowCall& call, long panel, X* out) {
    const long k = call.all.k, groups = (k + call.group_size - 1) / call.group_size;
    const uint8_t* codes = (const uint8_t*)call.all.w + panel * panel_bytes_of(call);
    for (long group = 0; group < groups; group++) {
        const long first = group * call.group_size / 2, end = std::min(k, (group + 1) * call.group_size) / 2;
        for (long column = 0; column < PANEL; column += LANES) {
            const long at = (panel * groups + group) * PANEL + column;
            const floats scale = load(call.scales + at);
            floats zero = {};
            if (call.zeros) {
                shorts stored;
                memcpy(&stored, call.zeros + at, 32);
                zero = __builtin_convertvector(__builtin_convertvector(stored, ints), floats);
            }
            for (long pair = first; pair < end; pair++)
                write_pair(out, pair, column, (code_values<CODE>(codes, pair, 0, column) - zero) * scale,
                           (code_values<CODE>(codes, pair, 1, column) - zero) * scale);
        }
    }
}

// X: float32 rows [k][32], or uint16_t for bfloat16 pairs [k / 2][32][2].
template <class X> void write_panel(const NarrowCall& call, long panel, char* memory) {
    X* out = (X*)memory;
    if (call.code == INT4) write_codes<INT4>(call, panel, out);
    else if (call.code == INT8) write_codes<INT8>(call, panel, out);
    else write_codes<FP8>(call, panel, out);
}

} // namespace
