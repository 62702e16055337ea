// Paged attention on CPU: one entry for decoding sequences and prompt chunks, in one varlen step.
//
// Values lie in blocks [blocks, kv_heads, block_size, dim] and keys in [blocks, kv_heads, dim, block_size], so
// that a tile of either is read as it lies, in whole vectors. They are fp32, fp16, bf16, or int8 with one
// scale per token and head; all arithmetic is fp32. The query heads of one KV head and a run of tokens make
// the rows of a small matrix that walks over the keys in tiles of KEY_TILE (online softmax, Milakov and
// Gimelshein 2018; in tiles, Dao et al. 2022).
//
// Invariance: what comes out for one query is bitwise the same whatever else is in the step, however the
// prompt was cut into chunks, wherever its blocks lie and on how many threads. Therefore
//   - tiles and splits begin at absolute positions of the sequence, never at a chunk's or a block's edge;
//   - every row is summed in the same order in every shape of `multiply`: one chain of fused multiply-adds
//     per element, so this file is compiled without -fassociative-math;
//   - a tile of which a row sees nothing changes no bit of the row: its weights are exactly 0, its factor 1.
// Never read into a result: what lies behind a sequence's last token, which may be NaN.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

extern "C" {

enum ElementType : int32_t { F32 = 0, F16 = 1, BF16 = 2, INT8 = 3 };

// Strides count elements. Mirrored by `_Call` in execution/native_attention.py, field by field.
struct AttentionCall {
    const void* query;  // [heads, tokens, key_dim]
    const void* key;    // [kv_heads, tokens, key_dim], the step's new keys
    const void* value;  // [kv_heads, tokens, value_dim]
    void* out;          // [tokens, heads, value_dim], contiguous
    void* key_memory;    // [blocks, kv_heads, key_dim, block_size]
    void* value_memory;  // [blocks, kv_heads, block_size, value_dim]
    float* key_scales;  // [blocks, kv_heads, block_size]; null unless the memory is int8
    float* value_scales;
    const float* sinks;           // [heads] or null
    const int32_t* query_starts;  // [sequences + 1]
    const int32_t* seq_lens;      // [sequences]
    const int32_t* block_tables;  // [sequences, blocks_max]
    const int64_t* slots;         // [tokens]
    int64_t query_head_stride, query_token_stride;
    int64_t key_head_stride, key_token_stride;
    int64_t value_head_stride, value_token_stride;
    int64_t table_stride;
    int32_t num_sequences, num_tokens, num_heads, num_kv_heads, key_dim, value_dim, block_size;
    int32_t window;  // tokens a token sees, itself included; 0 if all
    ElementType input_type, memory_type;
    int32_t num_threads;
    float scale, softcap;  // softcap 0 if none
};

}  // extern "C"

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

constexpr int KEY_TILE = 32;
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

// ---- the matrix at the heart of it ----

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

// ---- the walk over the keys ----

struct LaneNumbers {
    VecInt all;
    LaneNumbers() {
        for (int lane = 0; lane < LANES; lane++) all[lane] = lane;
    }
};
const LaneNumbers LANE_NUMBERS;

struct Item {
    int sequence, kv_head, first_token, num_tokens;  // tokens count from the sequence's first new one
    int partial;  // the split it computes, into its place in the workspace; -1: all splits, to the output
    int64_t workspace;
};

// What the rows of an item have seen so far: largest score, sum of weights, weighted values.
struct Seen {
    float *largest, *total, *values;
};

class Walk {
  public:
    Walk(const AttentionCall& call)
        : c(call), group(call.num_heads / call.num_kv_heads), width((call.value_dim + LANES - 1) / LANES * LANES) {}

    int64_t rows_of(int num_tokens) const { return int64_t(num_tokens) * group; }
    int64_t partial_size(int num_tokens) const { return rows_of(num_tokens) * (width + 2); }

    int first_position(const Item& item) const {
        const int num_new = c.query_starts[item.sequence + 1] - c.query_starts[item.sequence];
        return c.seq_lens[item.sequence] - num_new + item.first_token;
    }
    int first_key(int position) const { return c.window > 0 ? std::max(0, position - c.window + 1) : 0; }

    Seen seen_at(float* place, int64_t rows) const { return {place, place + rows, place + 2 * rows}; }

    void run(const Item& item, float* workspace, std::vector<float>& scratch) {
        switch (c.memory_type) {
            case F32: return run_typed<F32>(item, workspace, scratch);
            case F16: return run_typed<F16>(item, workspace, scratch);
            case BF16: return run_typed<BF16>(item, workspace, scratch);
            case INT8: return run_typed<INT8>(item, workspace, scratch);
        }
    }

    // `into` sees what `from` has seen beside its own. Rows that saw nothing of `from` keep their bits.
    void merge(const Seen& into, const Seen& from, int64_t rows) const {
        for (int64_t row = 0; row < rows; row++) {
            const float top = std::max(into.largest[row], from.largest[row]);
            const float mine = exponential(into.largest[row] - top), theirs = exponential(from.largest[row] - top);
            const Vec mine_all = broadcast(mine), theirs_all = broadcast(theirs);
            into.largest[row] = top;
            into.total[row] = std::fma(from.total[row], theirs, into.total[row] * mine);
            float *a = into.values + row * width, *b = from.values + row * width;
            for (int v = 0; v < width; v += LANES) store(a + v, fma(load(b + v), theirs_all, load(a + v) * mine_all));
        }
    }

    // Let the sink take its weight, divide, and write the item's rows of the output.
    void finish(const Item& item, const Seen& seen) const {
        switch (c.input_type) {
            case F32: return finish_typed<F32>(item, seen);
            case F16: return finish_typed<F16>(item, seen);
            default: return finish_typed<BF16>(item, seen);
        }
    }

  private:
    const AttentionCall& c;
    const int group;  // query heads of one KV head
    const int width;  // value_dim, up to whole vectors

    // Rows: query heads of token 0, of token 1, ...
    template <ElementType T> void load_queries(const Item& item, float* queries) const {
        const auto* query = static_cast<const typename Element<T>::type*>(c.query);
        const Vec scale = broadcast(c.scale);
        const int64_t first = c.query_starts[item.sequence] + item.first_token;
        for (int64_t row = 0; row < rows_of(item.num_tokens); row++) {
            const int64_t head = int64_t(item.kv_head) * group + row % group, token = first + row / group;
            const auto* from = query + head * c.query_head_stride + token * c.query_token_stride;
            float* to = queries + row * c.key_dim;
            int d = 0;
            for (; d + LANES <= c.key_dim; d += LANES) store(to + d, widen<T>(from + d) * scale);
            if (d == c.key_dim) continue;
            const Vec tail = widen<T>(from + d, c.key_dim - d) * scale;
            for (int lane = 0; d + lane < c.key_dim; lane++) to[d + lane] = tail[lane];
        }
    }

    template <ElementType T> void run_typed(const Item& item, float* workspace, std::vector<float>& scratch) {
        const int64_t rows = rows_of(item.num_tokens);
        const int64_t sizes[] = {rows * c.key_dim,        int64_t(c.key_dim) * KEY_TILE,
                                 int64_t(KEY_TILE) * width, rows * KEY_TILE, 2 * partial_size(item.num_tokens)};
        float* parts[5];
        int64_t size = 0;
        for (int64_t one : sizes) size += (one + 15) / 16 * 16;
        if (int64_t(scratch.size()) < size + 16) scratch.resize(size + 16);
        float* at = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / 4;
        for (int i = 0; i < 5; i++) parts[i] = at, at += (sizes[i] + 15) / 16 * 16;
        queries = parts[0], keys = parts[1], values = parts[2], scores = parts[3];

        switch (c.input_type) {
            case F32: load_queries<F32>(item, queries); break;
            case F16: load_queries<F16>(item, queries); break;
            default: load_queries<BF16>(item, queries);
        }
        const int position = first_position(item);
        const int begin = first_key(position), end = position + item.num_tokens;
        if (item.partial >= 0) {
            const Seen seen = seen_at(workspace + item.workspace, rows);
            return walk<T>(item, seen, std::max(begin, item.partial * SPLIT), std::min(end, (item.partial + 1) * SPLIT));
        }
        const Seen total = seen_at(parts[4], rows), split = seen_at(parts[4] + partial_size(item.num_tokens), rows);
        for (int from = begin; from < end;) {
            const int to = std::min(end, (from / SPLIT + 1) * SPLIT);
            walk<T>(item, from == begin ? total : split, from, to);
            if (from != begin) merge(total, split, rows);
            from = to;
        }
        finish(item, total);
    }

    // All tiles with keys in [begin, end), which lies in one split.
    template <ElementType T> void walk(const Item& item, const Seen& seen, int begin, int end) {
        const int64_t rows = rows_of(item.num_tokens);
        std::fill_n(seen.largest, rows, NOTHING_SEEN);
        std::fill_n(seen.total, rows, 0.0f);
        std::fill_n(seen.values, rows * width, 0.0f);
        typedef typename Element<T>::type E;
        const int position = first_position(item);
        // A tile is used as it lies if the vectors fit, and widened first if many rows would widen it again.
        const bool in_one_block = c.block_size % KEY_TILE == 0, few_rows = rows <= ROWS_AT_ONCE;
        const bool keys_as_they_lie = in_one_block && (T == F32 || few_rows);
        const bool values_as_they_lie = in_one_block && width == c.value_dim && (T == F32 || few_rows);
        for (int tile = begin / KEY_TILE * KEY_TILE; tile < end; tile += KEY_TILE) {
            const int num_keys = std::min(KEY_TILE, end - tile);
            const E *keys_here = key_at<T>(item, tile), *values_here = value_at<T>(item, tile);
            Ahead ahead = NOTHING_AHEAD;
            if (values_as_they_lie) ahead = {(const char*)values_here, int(KEY_TILE * sizeof(E))};
            if (keys_as_they_lie) {
                multiply_all<false, T>(queries, c.key_dim, keys_here, c.block_size, scores, KEY_TILE, rows, c.key_dim,
                                       KEY_TILE, ahead);
            } else {
                widen_keys<T>(item, tile, num_keys);
                multiply_all<false, F32>(queries, c.key_dim, keys, KEY_TILE, scores, KEY_TILE, rows, c.key_dim,
                                         KEY_TILE, NOTHING_AHEAD);
            }
            if constexpr (T == INT8) collect_scales(item, tile, num_keys);
            for (int64_t row = 0; row < rows; row++) weigh<T == INT8>(seen, row, position + row / group, tile);
            if (values_as_they_lie) {
                ahead = NOTHING_AHEAD;
                if (tile + KEY_TILE < end) ahead = {(const char*)key_at<T>(item, tile + KEY_TILE), int(c.key_dim * sizeof(E))};
                multiply_all<true, T>(scores, KEY_TILE, values_here, c.value_dim, seen.values, width, rows, num_keys,
                                      width, ahead);
            } else {
                widen_values<T>(item, tile, num_keys);
                multiply_all<true, F32>(scores, KEY_TILE, values, width, seen.values, width, rows, num_keys, width,
                                        NOTHING_AHEAD);
            }
        }
    }

    // Turn a row's scores into weights, and what it has seen to the new scale.
    template <bool SCALED> void weigh(const Seen& seen, int64_t row, int position, int tile) const {
        constexpr int VECS = KEY_TILE / LANES;
        float* score = scores + row * KEY_TILE;
        Vec s[VECS];
        for (int v = 0; v < VECS; v++) s[v] = load(score + v * LANES);
        if constexpr (SCALED)
            for (int v = 0; v < VECS; v++) s[v] *= load(key_scales + v * LANES);
        if (c.softcap > 0) {
            const Vec cap = broadcast(c.softcap), inverse = broadcast(1.0f / c.softcap);
            for (int v = 0; v < VECS; v++) s[v] = hyperbolic_tangent(s[v] * inverse) * cap;
        }
        const int first = first_key(position);
        const bool all_seen = tile >= first && tile + KEY_TILE - 1 <= position;
        VecInt hidden[VECS] = {};
        if (!all_seen)
            for (int v = 0; v < VECS; v++) {
                const VecInt key = LANE_NUMBERS.all + (tile + v * LANES);
                hidden[v] = (key > position) | (key < first);
                s[v] = hidden[v] ? broadcast(NOTHING_SEEN) : s[v];
            }
        Vec tops = s[0];
        for (int v = 1; v < VECS; v++) tops = s[v] > tops ? s[v] : tops;
        const float before = seen.largest[row], top = std::max(before, largest(tops));
        const Vec top_all = broadcast(top);
        Vec sums = {};
        for (int v = 0; v < VECS; v++) {
            Vec weight = exponential(s[v] - top_all);
            if (!all_seen) weight = hidden[v] ? Vec{} : weight;
            sums += weight;
            if constexpr (SCALED) weight *= load(value_scales + v * LANES);
            store(score + v * LANES, weight);
        }
        if (top == before) {
            seen.total[row] += sum(sums);
            return;
        }
        const float factor = exponential(before - top);
        seen.largest[row] = top;
        seen.total[row] = std::fma(seen.total[row], factor, sum(sums));
        float* values_row = seen.values + row * width;
        for (int v = 0; v < width; v += LANES) store(values_row + v, load(values_row + v) * factor);
    }

    // The place of a token's scales, and, times dim, of its block of keys or of its values.
    int64_t place_of(const Item& item, int position) const {
        const int64_t block = c.block_tables[item.sequence * c.table_stride + position / c.block_size];
        return (block * c.num_kv_heads + item.kv_head) * c.block_size + position % c.block_size;
    }

    template <ElementType T> const typename Element<T>::type* value_at(const Item& item, int position) const {
        return static_cast<const typename Element<T>::type*>(c.value_memory) + place_of(item, position) * c.value_dim;
    }

    // Its first element; the others follow at a distance of block_size.
    template <ElementType T> const typename Element<T>::type* key_at(const Item& item, int position) const {
        const int64_t offset = position % c.block_size, block_start = place_of(item, position) - offset;
        return static_cast<const typename Element<T>::type*>(c.key_memory) + block_start * c.key_dim + offset;
    }

    // A tile of keys as fp32 [key_dim, KEY_TILE]. Columns behind the last key are masked later.
    template <ElementType T> void widen_keys(const Item& item, int tile, int num_keys) const {
        if (c.block_size % KEY_TILE == 0) {
            const auto* from = key_at<T>(item, tile);
            for (int d = 0; d < c.key_dim; d++)
                for (int column = 0; column < KEY_TILE; column += LANES)
                    store(keys + d * KEY_TILE + column, widen<T>(from + d * c.block_size + column));
            return;
        }
        for (int key = 0; key < KEY_TILE; key++) {
            const auto* from = key_at<T>(item, tile + std::min(key, num_keys - 1));
            for (int d = 0; d < c.key_dim; d++) keys[d * KEY_TILE + key] = widen_one<T>(from[d * c.block_size]);
        }
    }

    // A tile of values as fp32 [num_keys, width].
    template <ElementType T> void widen_values(const Item& item, int tile, int num_keys) const {
        for (int key = 0; key < num_keys; key++) {
            const auto* from = value_at<T>(item, tile + key);
            for (int d = 0; d < c.value_dim; d += LANES)
                store(values + key * width + d, widen<T>(from + d, c.value_dim - d));
        }
    }

    void collect_scales(const Item& item, int tile, int num_keys) {
        if (c.block_size % KEY_TILE == 0) {
            const int64_t place = place_of(item, tile);
            memcpy(key_scales, c.key_scales + place, sizeof(key_scales));
            memcpy(value_scales, c.value_scales + place, sizeof(value_scales));
            return;
        }
        for (int key = 0; key < KEY_TILE; key++) {
            const int64_t place = place_of(item, tile + std::min(key, num_keys - 1));
            key_scales[key] = c.key_scales[place], value_scales[key] = c.value_scales[place];
        }
    }

    template <ElementType T> void finish_typed(const Item& item, const Seen& seen) const {
        auto* out = static_cast<typename Element<T>::type*>(c.out);
        const int64_t first = c.query_starts[item.sequence] + item.first_token;
        for (int64_t row = 0; row < rows_of(item.num_tokens); row++) {
            const int64_t head = int64_t(item.kv_head) * group + row % group, token = first + row / group;
            float total = seen.total[row], factor = 1.0f;
            if (c.sinks != nullptr) {
                const float top = std::max(seen.largest[row], c.sinks[head]);
                factor = exponential(seen.largest[row] - top);
                total = std::fma(total, factor, exponential(c.sinks[head] - top));
            }
            const float inverse = factor / total;
            const float* from = seen.values + row * width;
            auto* to = out + (token * c.num_heads + head) * c.value_dim;
            for (int d = 0; d < c.value_dim; d++) to[d] = narrow<T>(from[d] * inverse);
        }
    }

    float *queries = nullptr, *keys = nullptr, *values = nullptr, *scores = nullptr;
    float key_scales[KEY_TILE], value_scales[KEY_TILE];
};

// ---- storing the step's keys and values ----

// One key or value; `step` is the distance of its elements in the memory.
template <ElementType FROM, ElementType TO>
inline void store_row(const typename Element<FROM>::type* from, typename Element<TO>::type* to, int64_t step,
                      float* scale, int dim) {
    if constexpr (FROM == TO) {
        if (step == 1) {
            memcpy(to, from, dim * sizeof(*to));
        } else {
            for (int d = 0; d < dim; d++) to[d * step] = from[d];
        }
        return;
    }
    float inverse = 1.0f;
    if constexpr (TO == INT8) {
        Vec tops = {};
        for (int d = 0; d < dim; d += LANES) {
            const Vec x = widen<FROM>(from + d, dim - d), magnitude = x < Vec{} ? -x : x;
            tops = magnitude <= tops ? tops : magnitude;  // which NaN passes: its scale tells of it
        }
        float most = 0;
        for (int lane = 0; lane < LANES; lane++) most = tops[lane] <= most ? most : tops[lane];
        *scale = most / 127.0f;
        inverse = most > 0 ? 127.0f / most : 0.0f;
    }
    for (int d = 0; d < dim; d += LANES) {
        const Vec x = widen<FROM>(from + d, dim - d);
        for (int lane = 0; lane < LANES && d + lane < dim; lane++) {
            if constexpr (TO == INT8) {
                to[(d + lane) * step] = int8_t(std::lrintf(std::min(127.0f, std::max(-127.0f, x[lane] * inverse))));
            } else {
                to[(d + lane) * step] = narrow<TO>(x[lane]);
            }
        }
    }
}

template <ElementType FROM, ElementType TO>
void store_all(const AttentionCall& c) {
    typedef typename Element<FROM>::type From;
    typedef typename Element<TO>::type To;
    const int num_threads = c.num_tokens >= 64 ? c.num_threads : 1;
#pragma omp parallel for schedule(static) num_threads(num_threads) if (num_threads > 1)
    for (int token = 0; token < c.num_tokens; token++) {
        const int64_t block = c.slots[token] / c.block_size, offset = c.slots[token] % c.block_size;
        for (int head = 0; head < c.num_kv_heads; head++) {
            const int64_t place = (block * c.num_kv_heads + head) * c.block_size + offset;
            const From* key = (const From*)c.key + head * c.key_head_stride + token * c.key_token_stride;
            const From* value = (const From*)c.value + head * c.value_head_stride + token * c.value_token_stride;
            float* key_scale = c.key_scales ? c.key_scales + place : nullptr;
            float* value_scale = c.value_scales ? c.value_scales + place : nullptr;
            To* key_to = (To*)c.key_memory + (place - offset) * c.key_dim + offset;
            To* value_to = (To*)c.value_memory + place * c.value_dim;
            store_row<FROM, TO>(key, key_to, c.block_size, key_scale, c.key_dim);
            store_row<FROM, TO>(value, value_to, 1, value_scale, c.value_dim);
        }
    }
}

template <ElementType FROM> void store_from(const AttentionCall& c) {
    switch (c.memory_type) {
        case F32: return store_all<FROM, F32>(c);
        case F16: return store_all<FROM, F16>(c);
        case BF16: return store_all<FROM, BF16>(c);
        case INT8: return store_all<FROM, INT8>(c);
    }
}

// ---- the work, cut up ----

// Items for the threads to take, and the decodes whose splits are merged afterwards.
struct Plan {
    std::vector<Item> items, to_merge;
    int64_t workspace = 0;
    int64_t work = 0;  // query heads times keys times dimensions

    bool is_worth_threads() const { return items.size() > 1 && work > WORK_WORTH_THREADS; }

    Plan(const AttentionCall& c, const Walk& walk) {
        const int group = c.num_heads / c.num_kv_heads;
        const int tokens_per_item = std::max(1, TARGET_ROWS / group);
        for (int sequence = 0; sequence < c.num_sequences; sequence++) {
            const int num_new = c.query_starts[sequence + 1] - c.query_starts[sequence];
            for (int head = 0; head < c.num_kv_heads; head++)
                for (int first = 0; first < num_new; first += tokens_per_item)
                    add({sequence, head, first, std::min(tokens_per_item, num_new - first), -1, 0}, c, walk);
        }
    }

    void add(Item item, const AttentionCall& c, const Walk& walk) {
        const int position = walk.first_position(item);
        work += walk.rows_of(item.num_tokens) * (position + 1 - walk.first_key(position)) * (c.key_dim + c.value_dim);
        const int first = walk.first_key(position) / SPLIT, last = position / SPLIT;
        if (item.num_tokens > 1 || first == last || c.num_threads == 1) return items.push_back(item);
        item.workspace = workspace;
        item.partial = first;
        to_merge.push_back(item);
        for (; item.partial <= last; item.partial++, item.workspace += walk.partial_size(1)) items.push_back(item);
        workspace = item.workspace;
    }
};

}  // namespace

extern "C" {

// Whether elements of this type can be read and written on the machine this was built for.
int supports(int32_t type) {
#if defined(__F16C__)
    return type >= F32 && type <= INT8;
#else
    return type == F32 || type == BF16 || type == INT8;
#endif
}

// Store the step's keys and values, then attend. Returns 0, or 1 if there was no memory for it.
int paged_attention(const AttentionCall* call) {
    const AttentionCall& c = *call;
    try {
        switch (c.input_type) {
            case F32: store_from<F32>(c); break;
            case F16: store_from<F16>(c); break;
            default: store_from<BF16>(c);
        }
        Walk shape(c);
        const Plan plan(c, shape);
        std::vector<float> workspace(plan.workspace);
        const int num_items = plan.items.size(), num_merges = plan.to_merge.size();
        bool is_out_of_memory = false;  // an exception must not leave the parallel region
#pragma omp parallel num_threads(c.num_threads) if (c.num_threads > 1 && plan.is_worth_threads())
        {
            static thread_local std::vector<float> scratch;
            Walk walk(c);
#pragma omp for schedule(dynamic, 1)
            for (int i = 0; i < num_items; i++) {
                try {
                    walk.run(plan.items[i], workspace.data(), scratch);
                } catch (const std::bad_alloc&) {
#pragma omp atomic write
                    is_out_of_memory = true;
                }
            }
#pragma omp for schedule(dynamic, 1) nowait
            for (int i = 0; i < num_merges; i++) {
                Item item = plan.to_merge[i];
                const int64_t rows = walk.rows_of(1), step = walk.partial_size(1);
                const int last = walk.first_position(item) / SPLIT;
                float* at = workspace.data() + item.workspace;
                const Seen total = walk.seen_at(at, rows);
                for (int split = item.partial + 1; split <= last; split++)
                    walk.merge(total, walk.seen_at(at += step, rows), rows);
                walk.finish(item, total);
            }
        }
        return is_out_of_memory ? 1 : 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // extern "C"
