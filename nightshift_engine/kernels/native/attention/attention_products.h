// The small matrix products of attention: queries by keys, weights by values.
#pragma once
#include "attention_vectors.h"

namespace {

constexpr int CACHE_LINE = 64;
constexpr int ROWS_AT_ONCE = LANES == 16 ? 6 : 4;  // that the registers hold

// Memory that will be wanted next: a piece of it is asked for in each step of a product.
struct Ahead {
    const char* start;
    int step_bytes;
    void prefetch(int step) const {
        const char* piece = start + int64_t(step) * step_bytes;
        for (int at = 0; at < step_bytes; at += CACHE_LINE) __builtin_prefetch(piece + at);
    }
};
constexpr Ahead NOTHING_AHEAD = {nullptr, 0};

// c[R, VECS * LANES] (+)= a[R, depth] * b[depth, VECS * LANES].
template <int R, int VECS, bool ADD, ElementType B>
inline void multiply(const float* a, int64_t lda, const typename Element<B>::type* b, int64_t ldb, float* c,
                     int64_t ldc, int depth, Ahead ahead) {
    Vec sums[R][VECS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECS; v++) sums[r][v] = ADD ? load(c + r * ldc + v * LANES) : Vec{};
#pragma GCC unroll 1
    for (int k = 0; k < depth; k++) {
        Vec row[VECS];
        for (int v = 0; v < VECS; v++) row[v] = widen<B>(b + k * ldb + v * LANES);
        for (int r = 0; r < R; r++) {
            const Vec factor = broadcast(a[r * lda + k]);
            for (int v = 0; v < VECS; v++) sums[r][v] = fma(factor, row[v], sums[r][v]);
        }
        ahead.prefetch(k);
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECS; v++) store(c + r * ldc + v * LANES, sums[r][v]);
}

// `width` is a multiple of LANES.
template <int R, bool ADD, ElementType B>
inline void multiply_rows(const float* a, int64_t lda, const typename Element<B>::type* b, int64_t ldb, float* c,
                          int64_t ldc, int depth, int width, Ahead ahead) {
    int column = 0;
    if constexpr (R <= 4 && LANES == 16)
        for (; column + 4 * LANES <= width; column += 4 * LANES, ahead = NOTHING_AHEAD)
            multiply<R, 4, ADD, B>(a, lda, b + column, ldb, c + column, ldc, depth, ahead);
    for (; column + 2 * LANES <= width; column += 2 * LANES, ahead = NOTHING_AHEAD)
        multiply<R, 2, ADD, B>(a, lda, b + column, ldb, c + column, ldc, depth, ahead);
    for (; column < width; column += LANES, ahead = NOTHING_AHEAD)
        multiply<R, 1, ADD, B>(a, lda, b + column, ldb, c + column, ldc, depth, ahead);
}

template <bool ADD, ElementType B>
void multiply_all(const float* a, int64_t lda, const typename Element<B>::type* b, int64_t ldb, float* c,
                  int64_t ldc, int rows, int depth, int width, Ahead ahead) {
    constexpr int R = ROWS_AT_ONCE;
    for (; rows >= R; rows -= R, a += R * lda, c += R * ldc, ahead = NOTHING_AHEAD)
        multiply_rows<R, ADD, B>(a, lda, b, ldb, c, ldc, depth, width, ahead);
    switch (rows) {
        case 1: return multiply_rows<1, ADD, B>(a, lda, b, ldb, c, ldc, depth, width, ahead);
        case 2: return multiply_rows<2, ADD, B>(a, lda, b, ldb, c, ldc, depth, width, ahead);
        case 3: return multiply_rows<3, ADD, B>(a, lda, b, ldb, c, ldc, depth, width, ahead);
        case 4: return multiply_rows<4, ADD, B>(a, lda, b, ldb, c, ldc, depth, width, ahead);
        case 5: return multiply_rows<5, ADD, B>(a, lda, b, ldb, c, ldc, depth, width, ahead);
    }
}

}  // namespace
