// Sixteen floats as one value, on whatever the machine has: one register of AVX-512, two of AVX2, four of NEON.
// GCC's vector extensions do the splitting; a * b + c becomes a fused multiply-add where there is one.
#pragma once
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace {

constexpr long LANES = 16;
typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef uint32_t bits __attribute__((vector_size(64)));
typedef uint16_t halves __attribute__((vector_size(32)));
typedef uint8_t bytes __attribute__((vector_size(16)));

inline floats splat(float value) { return value - (floats){}; }
inline floats load(const float* p) { floats v; memcpy(&v, p, 64); return v; }
inline void store(float* p, floats v) { memcpy(p, &v, 64); }

// bfloat16 is the upper half of a float32.
inline floats load(const uint16_t* p) {
    halves h;
    memcpy(&h, p, 32);
    return (floats)(__builtin_convertvector(h, bits) << 16);
}

// Rounds to nearest, ties to even, as torch does; NaN stays NaN.
inline void store(uint16_t* p, floats v) {
#ifdef __AVX512BF16__
    const __m256bh h = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &h, 32);
#else
    const bits raw = (bits)v;
    const bits rounded = (raw + 0x7fff + ((raw >> 16) & 1)) >> 16;
    const bits nan = (bits)(v != v);
    const halves h = __builtin_convertvector((rounded & ~nan) | (0x7fc0 & nan), halves);
    memcpy(p, &h, 32);
#endif
}

// One at a time, with the same rounding.
inline float to_float(float v) { return v; }
inline float to_float(uint16_t h) {
    const uint32_t raw = (uint32_t)h << 16;
    float v;
    memcpy(&v, &raw, 4);
    return v;
}
template <class T> inline T from_float(float v);
template <> inline float from_float<float>(float v) { return v; }
template <> inline uint16_t from_float<uint16_t>(float v) {
    uint32_t raw;
    memcpy(&raw, &v, 4);
    return v != v ? 0x7fc0 : (uint16_t)((raw + 0x7fff + ((raw >> 16) & 1)) >> 16);
}

template <class T> inline floats load_some(const T* p, long count) {
    T all[LANES] = {};
    memcpy(all, p, count * sizeof(T));
    return load(all);
}

template <class T> inline void store_some(T* p, floats v, long count) {
    T all[LANES];
    store(all, v);
    memcpy(p, all, count * sizeof(T));
}

template <class T> inline floats load_upto(const T* p, long count) { return count >= LANES ? load(p) : load_some(p, count); }
template <class T> inline void store_upto(T* p, floats v, long count) {
    if (count >= LANES) store(p, v);
    else store_some(p, v, count);
}

inline floats where(ints condition, floats yes, floats no) { return (floats)(((bits)condition & (bits)yes) | (~(bits)condition & (bits)no)); }
inline floats at_least(floats v, float low) { return where(v < low, splat(low), v); } // NaN passes
inline floats at_most(floats v, float high) { return where(v > high, splat(high), v); }

// Always the same tree of additions.
inline float sum(floats v) {
    float lane[LANES];
    store(lane, v);
    for (long half = LANES / 2; half; half /= 2)
        for (long i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

// e^x within 2 ulp on [-87.3, 88.3], clamped beyond: 2^n e^r with |r| <= ln 2 / 2 and the Taylor polynomial of degree 6 of
// e^r. ln 2 is taken off in two parts (Cody and Waite), so that r loses nothing.
inline floats exp(floats x) {
    x = at_most(at_least(x, -87.33654f), 88.37626f);
    const float to_integer = 12582912.f; // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    const floats shifted = x * 1.44269504f + to_integer, n = shifted - to_integer;
    floats r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    floats p = splat(1.f / 720);
    p = p * r + 1.f / 120;
    p = p * r + 1.f / 24;
    p = p * r + 1.f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    return (floats)((ints)p + (__builtin_convertvector(n, ints) << 23));
}

// 1 / x within 1 ulp: an estimate of 14 bits, and one step of Newton's method. A division takes five times as long.
inline floats reciprocal(floats x) {
#ifdef __AVX512F__
    const floats estimate = (floats)_mm512_rcp14_ps((__m512)x);
    return estimate * (2.f - x * estimate);
#else
    return 1.f / x;
#endif
}

inline floats sigmoid(floats x) { return reciprocal(1.f + exp(-x)); }
inline floats silu(floats x) { return x * sigmoid(x); }

// x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): GELU's tanh form.
inline floats gelu_tanh(floats x) { return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x)); }

// Within 4e-7 of the error function: the rational minimax approximation on [-4, 4] of Eigen and XLA, clamped beyond.
inline floats erf(floats x) {
    x = at_most(at_least(x, -4.f), 4.f);
    const floats y = x * x;
    floats p = splat(-2.72614225801306e-10f);
    p = p * y + 2.77068142495902e-08f;
    p = p * y - 2.10102402082508e-06f;
    p = p * y - 5.69250639462346e-05f;
    p = p * y - 7.34990630326855e-04f;
    p = p * y - 2.95459980854025e-03f;
    p = p * y - 1.60960333262415e-02f;
    floats q = splat(-1.45660718464996e-05f);
    q = q * y - 2.13374055278905e-04f;
    q = q * y - 1.68282697438203e-03f;
    q = q * y - 7.37332916720468e-03f;
    q = q * y - 1.42647390514189e-02f;
    return x * p * reciprocal(q);
}

inline floats gelu(floats x) { return 0.5f * x * (1.f + erf(x * 0.70710678118f)); }
inline floats gelu_quick(floats x) { return x * sigmoid(1.702f * x); }
inline floats relu(floats x) { return at_least(x, 0.f); }
inline floats relu_squared(floats x) { return relu(x) * relu(x); }

inline floats tanh(floats x) { return 2.f * sigmoid(2.f * x) - 1.f; }

} // namespace
