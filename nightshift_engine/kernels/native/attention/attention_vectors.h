// As many floats as a register holds, and the elements of memory as such. Nothing here may be reassociated.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "attention_call.h"

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

constexpr int KEY_TILE = 32;
constexpr int PAIR_DEPTH = 32;    // what one product of matrix tiles sums over
constexpr int SPLIT = 1024;      // keys that one thread takes of a long sequence; a multiple of KEY_TILE
constexpr int TARGET_ROWS = 48;  // of the small matrix: enough to pay for laying a key tile out
constexpr int64_t WORK_WORTH_THREADS = 1 << 18;  // multiply-adds; about what waking a thread costs
constexpr float NOTHING_SEEN = -1e30f;  // finite: the difference of two infinities would be NaN

typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t VecInt __attribute__((vector_size(4 * LANES)));
typedef float VecLoose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Vec load(const float* p) { return *reinterpret_cast<const VecLoose*>(p); }
inline void store(float* p, Vec v) { *reinterpret_cast<VecLoose*>(p) = v; }

inline Vec broadcast(float x) {
#if defined(__AVX512F__)
    return (Vec)_mm512_set1_ps(x);
#elif defined(__AVX__)
    return (Vec)_mm256_set1_ps(x);
#else
    return Vec{x, x, x, x};
#endif
}

inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

#if defined(__AVX512F__)
inline float sum(Vec v) { return _mm512_reduce_add_ps((__m512)v); }
inline float largest(Vec v) { return _mm512_reduce_max_ps((__m512)v); }
#else
inline float sum(Vec v) {
    float lane[LANES];
    store(lane, v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

inline float largest(Vec v) {
    float lane[LANES];
    store(lane, v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}
#endif

// e^x after Cephes' expf (Moshier): within 2 ulp from -87 to 88, 0 below, e^88 above, exactly 1 at 0.
// NaN stays NaN.
inline Vec exponential(Vec x) {
    const Vec too_small = broadcast(-87.0f), too_large = broadcast(88.0f);
    const Vec shift = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    x = x > too_large ? too_large : x;
    const Vec shifted = fma(x, broadcast(1.44269504088896341f), shift);
    const Vec n = shifted - shift;
    Vec r = fma(n, broadcast(-0.693359375f), x);
    r = fma(n, broadcast(2.12194440e-4f), r);
    Vec p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r) + broadcast(1.0f);
    const VecInt exponent = ((VecInt)shifted - 0x4b400000 + 127) << 23;
    return x < too_small ? Vec{} : p * (Vec)exponent;
}

// e^x within 2^-16 for x up to 0, where bfloat16 rounds it anyway; exactly 1 at 0. NaN stays NaN.
inline Vec rough_exponential(Vec x) {
#if defined(__AVX512F__)
    const Vec power = x * broadcast(1.44269504088896341f);
    const Vec whole = (Vec)_mm512_roundscale_ps((__m512)power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = power - whole;
    Vec p = broadcast(9.5828e-3f); // minimax of (2^r - 1) / r
    p = fma(p, r, broadcast(5.590632e-2f));
    p = fma(p, r, broadcast(2.4024099e-1f));
    p = fma(p, r, broadcast(6.9312421e-1f));
    return (Vec)_mm512_scalef_ps((__m512)fma(p, r, broadcast(1.0f)), (__m512)whole);
#else
    return exponential(x);
#endif
}

inline float exponential(float x) { return exponential(broadcast(x))[0]; }

// tanh after Cephes' tanhf: a polynomial near 0, where the quotient would cancel.
inline Vec hyperbolic_tangent(Vec x) {
    const Vec magnitude = x < Vec{} ? -x : x;
    const Vec quotient = broadcast(1.0f) - broadcast(2.0f) / (exponential(magnitude + magnitude) + 1.0f);
    const Vec z = x * x;
    Vec p = broadcast(-5.70498872745e-3f);
    p = fma(p, z, broadcast(2.06390887954e-2f));
    p = fma(p, z, broadcast(-5.37397155531e-2f));
    p = fma(p, z, broadcast(1.33314422036e-1f));
    p = fma(p, z, broadcast(-3.33332819422e-1f));
    p = fma(p * z, x, x);
    return magnitude < broadcast(0.625f) ? p : (x < Vec{} ? -quotient : quotient);
}

// Whether the memory of a call holds pairs: keys as [.., key_dim / 2, block_size, 2], values as [.., block_size / 2,
// value_dim, 2]. That is what products of bfloat16 want, and what attention_pairs.h computes with.
inline bool lies_in_pairs(const AttentionCall& c) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    return c.input_type == BF16 && c.memory_type == BF16 && c.block_size % KEY_TILE == 0 && c.key_dim % PAIR_DEPTH == 0 &&
           c.value_dim % LANES == 0;
#else
    (void)c;
    return false;
#endif
}

// ---- elements of the four types, as fp32 ----

template <ElementType> struct Element;
template <> struct Element<F32> { typedef float type; };
template <> struct Element<F16> { typedef uint16_t type; };
template <> struct Element<BF16> { typedef uint16_t type; };
template <> struct Element<INT8> { typedef int8_t type; };

template <ElementType T> inline Vec widen(const typename Element<T>::type* p) {
    if constexpr (T == F32) {
        return load(p);
    } else if constexpr (T == F16) {
#if defined(__AVX512F__)
        return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
        return (Vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
        return Vec{};  // supports() refuses it
#endif
    } else if constexpr (T == BF16) {
#if defined(__AVX512F__)
        return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#else
        typedef uint16_t Half __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
        return (Vec)(__builtin_convertvector(*(const Half*)p, VecInt) << 16);
#endif
    } else {
#if defined(__AVX512F__)
        return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#else
        typedef int8_t Byte __attribute__((vector_size(LANES), aligned(1), may_alias));
        return __builtin_convertvector(__builtin_convertvector(*(const Byte*)p, VecInt), Vec);
#endif
    }
}

// As above, where only `count` elements may be touched; the rest is 0.
template <ElementType T> inline Vec widen(const typename Element<T>::type* p, int count) {
    if (count >= LANES) return widen<T>(p);
    typename Element<T>::type padded[LANES] = {};
    memcpy(padded, p, count * sizeof(padded[0]));
    return widen<T>(padded);
}

template <ElementType T> inline float widen_one(typename Element<T>::type x) {
    if constexpr (T == F32 || T == INT8) return x;
    return widen<T>(&x, 1)[0];
}

inline uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return (bits >> 16) | 0x40;  // still NaN when its low half is gone
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
}

inline uint16_t to_f16(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    (void)x;
    return 0;
#endif
}

template <ElementType T> inline typename Element<T>::type narrow(float x) {
    if constexpr (T == F32) return x;
    if constexpr (T == F16) return to_f16(x);
    if constexpr (T == BF16) return to_bf16(x);
    return 0;
}

}  // namespace
