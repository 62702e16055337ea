// The same products over bfloat16, two multiply-adds to a lane: by the processor's matrix tiles, or by its dot products
// of pairs. Keys and values lie in memory as these want them: b[k / 2, column, k % 2]. Sums are fp32.
// ldb counts pairs.
#pragma once
#include "attention_products.h"
#include "tiles.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__)

namespace {

constexpr bool HAS_PAIRS = true;
constexpr int PAIRED = 2 * LANES;

inline void store_bf16s(uint16_t* p, Vec low, Vec high) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
}

// c[R, VECS * LANES] (+)= a[R, depth] * b[depth / 2, VECS * LANES, 2].
template <int R, int VECS, bool ADD>
inline void multiply_pairs(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float* c, int64_t ldc, int depth) {
    __m512 sums[R][VECS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECS; v++) sums[r][v] = ADD ? (__m512)load(c + r * ldc + v * LANES) : __m512{};
#pragma GCC unroll 1
    for (int k = 0; k < depth; k += 2) {
        __m512bh row[VECS];
        for (int v = 0; v < VECS; v++) row[v] = (__m512bh)_mm512_loadu_si512(b + k * ldb + v * PAIRED);
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, a + r * lda + k, sizeof(pair));
            const __m512bh factors = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < VECS; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factors, row[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECS; v++) store(c + r * ldc + v * LANES, (Vec)sums[r][v]);
}

template <int R, bool ADD>
inline void multiply_paired_rows(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float* c, int64_t ldc, int depth, int width) {
    int column = 0;
    if constexpr (R <= 4)
        for (; column + 4 * LANES <= width; column += 4 * LANES)
            multiply_pairs<R, 4, ADD>(a, lda, b + 2 * column, ldb, c + column, ldc, depth);
    for (; column + 2 * LANES <= width; column += 2 * LANES)
        multiply_pairs<R, 2, ADD>(a, lda, b + 2 * column, ldb, c + column, ldc, depth);
    for (; column < width; column += LANES)
        multiply_pairs<R, 1, ADD>(a, lda, b + 2 * column, ldb, c + column, ldc, depth);
}

#ifdef HAS_TILES
const bool has_tiles = ask_for_tiles();

// Tiles 0 to 3 are sums, 4 rows of a, 5 to 7 columns of b.
template <int COLUMNS, bool ADD>
inline void multiply_tiles(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float* c, int64_t ldc, int depth) {
    const int64_t a_stride = lda * 2, b_stride = ldb * 4, c_stride = ldc * 4;
    if constexpr (ADD) {
        _tile_loadd(0, c, c_stride);
        if constexpr (COLUMNS > 1) _tile_loadd(1, c + LANES, c_stride);
        if constexpr (COLUMNS > 2) _tile_loadd(2, c + 2 * LANES, c_stride);
        if constexpr (COLUMNS > 3) _tile_loadd(3, c + 3 * LANES, c_stride);
    } else {
        _tile_zero(0);
        if constexpr (COLUMNS > 1) _tile_zero(1);
        if constexpr (COLUMNS > 2) _tile_zero(2);
        if constexpr (COLUMNS > 3) _tile_zero(3);
    }
    for (int k = 0; k < depth; k += PAIR_DEPTH) {
        const uint16_t* b_here = b + k * ldb;
        _tile_loadd(4, a + k, a_stride);
        _tile_loadd(5, b_here, b_stride);
        _tile_dpbf16ps(0, 4, 5);
        if constexpr (COLUMNS > 1) {
            _tile_loadd(6, b_here + PAIRED, b_stride);
            _tile_dpbf16ps(1, 4, 6);
        }
        if constexpr (COLUMNS > 2) {
            _tile_loadd(7, b_here + 2 * PAIRED, b_stride);
            _tile_dpbf16ps(2, 4, 7);
        }
        if constexpr (COLUMNS > 3) {
            _tile_loadd(5, b_here + 3 * PAIRED, b_stride);
            _tile_dpbf16ps(3, 4, 5);
        }
    }
    _tile_stored(0, c, c_stride);
    if constexpr (COLUMNS > 1) _tile_stored(1, c + LANES, c_stride);
    if constexpr (COLUMNS > 2) _tile_stored(2, c + 2 * LANES, c_stride);
    if constexpr (COLUMNS > 3) _tile_stored(3, c + 3 * LANES, c_stride);
}
#endif

// One thread's way to multiply. `depth` is a multiple of PAIR_DEPTH, `width` of LANES.
class PairProducts {
  public:
    template <bool ADD>
    void multiply(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float* c, int64_t ldc, int rows, int depth, int width) {
#ifdef HAS_TILES
        if (has_tiles) return multiply_in_tiles<ADD>(a, lda, b, ldb, c, ldc, rows, depth, width);
#endif
        constexpr int R = ROWS_AT_ONCE;
        for (; rows >= R; rows -= R, a += R * lda, c += R * ldc)
            multiply_paired_rows<R, ADD>(a, lda, b, ldb, c, ldc, depth, width);
        switch (rows) {
            case 1: return multiply_paired_rows<1, ADD>(a, lda, b, ldb, c, ldc, depth, width);
            case 2: return multiply_paired_rows<2, ADD>(a, lda, b, ldb, c, ldc, depth, width);
            case 3: return multiply_paired_rows<3, ADD>(a, lda, b, ldb, c, ldc, depth, width);
            case 4: return multiply_paired_rows<4, ADD>(a, lda, b, ldb, c, ldc, depth, width);
            case 5: return multiply_paired_rows<5, ADD>(a, lda, b, ldb, c, ldc, depth, width);
        }
    }

  private:
#ifdef HAS_TILES
    template <bool ADD>
    void multiply_in_tiles(const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float* c, int64_t ldc, int rows, int depth, int width) {
        for (; rows > 0; rows -= TILE_ROWS, a += TILE_ROWS * lda, c += TILE_ROWS * ldc) {
            const uint8_t height = rows < TILE_ROWS ? rows : TILE_ROWS;
            tiles.set_up({height, height, height, height, height, TILE_ROWS, TILE_ROWS, TILE_ROWS});
            int column = 0;
            for (; column + 4 * LANES <= width; column += 4 * LANES)
                multiply_tiles<4, ADD>(a, lda, b + 2 * column, ldb, c + column, ldc, depth);
            for (; column + 2 * LANES <= width; column += 2 * LANES)
                multiply_tiles<2, ADD>(a, lda, b + 2 * column, ldb, c + column, ldc, depth);
            for (; column < width; column += LANES)
                multiply_tiles<1, ADD>(a, lda, b + 2 * column, ldb, c + column, ldc, depth);
        }
    }

    Tiles tiles;
#endif
};

}  // namespace
#else

namespace {

constexpr bool HAS_PAIRS = false;

// Never called: the products over fp32 are taken.
inline void store_bf16s(uint16_t*, Vec, Vec) {}

struct PairProducts {
    template <bool ADD>
    void multiply(const uint16_t*, int64_t, const uint16_t*, int64_t, float*, int64_t, int64_t, int, int) {}
};

}  // namespace
#endif
