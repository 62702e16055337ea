// Linear layers over packed weights: y[m, n] = sum over k of x[m, k] * w[n, k], and what follows it done in place.
//
// Every output is one chain of multiply-adds over ascending k, in one lane of one register. How many rows are computed
// together, which ones, and how many threads share the work changes nothing about that chain: a row's result is bitwise
// the same in any batch. (So no sum is split here.)
//
// Packed weights are panels of 32 columns: [panel][k / GROUP][32][GROUP], where GROUP is the number of k that one
// instruction takes per lane: 1 (float32), 2 (bfloat16), 4 (int8). Columns beyond n are zero. Vectors and matrix tiles
// read the same panels, but round differently: a layer keeps to one of them.
#include <utility>

#include "share.h"
#include "tiles.h"
#include "vector.h"

namespace {

constexpr long PANEL = 2 * LANES;
#ifdef __AVX512F__
constexpr int ROWS_MAX = 14; // of 32 registers: 28 accumulators, two of weights, one of x
#else
constexpr int ROWS_MAX = 2; // of 16 half as wide: 8 accumulators, four of weights, one of x
#endif

constexpr int64_t WORTH_SHARING = 1 << 19; // multiply-adds: about what waking a thread costs

enum Epilogue : int32_t { STORE = 0, ADD = 1, ACTIVATED = 2, GATED = 3 };
enum Activation : int32_t { SILU = 0, GELU_TANH = 1, GELU = 2, GELU_QUICK = 3, RELU = 4, RELU_SQUARED = 5 };

struct LinearCall {
    const void* x;         // [rows, k], row stride x_stride elements: float32, bfloat16 or uint8
    const void* w;         // packed
    const float* bias;     // [panels * 32], or null
    void* out;             // float32 or bfloat16, row stride out_stride elements; ADD adds to float32
    const float* x_scale;  // int8: [rows]
    const float* w_scale;  // int8: [panels * 32]
    const int32_t* w_sum;  // int8: [panels * 32], each column's sum, for the offset of 128 in x
    int64_t rows, n, k, x_stride, out_stride;
    int32_t epilogue, activation, out_is_bfloat16;
    float factor;          // of what ADD adds
};

struct Float32 {
    using X = float;
    using Acc = floats;
    static constexpr long GROUP = 1, WEIGHT_BYTES = 4;
    static floats x(const X* p) { return splat(*p); }
    static floats w(const char* p) { return load((const float*)p); }
    static Acc multiply_add(Acc acc, floats x, floats w) { return x * w + acc; }
};

#ifdef __AVX512BF16__
struct BFloat16 {
    using X = uint16_t;
    using Acc = floats;
    static constexpr long GROUP = 2, WEIGHT_BYTES = 2;
    static __m512bh x(const X* p) {
        int32_t pair;
        memcpy(&pair, p, 4);
        return (__m512bh)_mm512_set1_epi32(pair);
    }
    static __m512bh w(const char* p) { return (__m512bh)_mm512_loadu_si512(p); }
    static Acc multiply_add(Acc acc, __m512bh x, __m512bh w) { return (floats)_mm512_dpbf16_ps((__m512)acc, x, w); }
#ifdef HAS_TILES
    static void multiply_add_upper() { _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); }
    static void multiply_add_lower() { _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); }
#endif
};
#endif

#ifdef __AVX512VNNI__
struct Int8 {
    using X = uint8_t;
    using Acc = ints;
    static constexpr long GROUP = 4, WEIGHT_BYTES = 1;
    static __m512i x(const X* p) {
        int32_t four;
        memcpy(&four, p, 4);
        return _mm512_set1_epi32(four);
    }
    static __m512i w(const char* p) { return _mm512_loadu_si512(p); }
    static Acc multiply_add(Acc acc, __m512i x, __m512i w) { return (ints)_mm512_dpbusd_epi32((__m512i)acc, x, w); }
#ifdef HAS_TILES
    static void multiply_add_upper() { _tile_dpbusd(0, 4, 6); _tile_dpbusd(1, 4, 7); }
    static void multiply_add_lower() { _tile_dpbusd(2, 5, 6); _tile_dpbusd(3, 5, 7); }
#endif
};
#endif

template <class T> inline void put(T* out, floats value, long count) {
    if (count >= LANES) store(out, value);
    else if (count > 0) store_some(out, value, count);
}

inline void put(const LinearCall& call, long row, long column, floats value, long count) {
    const long at = row * call.out_stride + column;
    if (call.out_is_bfloat16) put((uint16_t*)call.out + at, value, count);
    else put((float*)call.out + at, value, count);
}

inline void add(const LinearCall& call, long row, long column, floats value, long count) {
    float* out = (float*)call.out + row * call.out_stride + column;
    if (count >= LANES) store(out, load(out) + value);
    else if (count > 0) store_some(out, load_some(out, count) + value, count);
}

inline floats activate(int32_t activation, floats x) {
    switch (activation) {
        case SILU: return silu(x);
        case GELU_TANH: return gelu_tanh(x);
        case GELU: return gelu(x);
        case GELU_QUICK: return gelu_quick(x);
        case RELU: return relu(x);
        default: return relu_squared(x);
    }
}

inline void finish(const LinearCall& call, long row, long panel, floats low, floats high) {
    const long column = panel * PANEL, left = call.n - column;
    if (call.bias) {
        low += load(call.bias + column);
        high += load(call.bias + column + LANES);
    }
    if (call.epilogue == GATED) { // a panel holds 16 columns of the gate, then the same 16 of what it gates
        put(call, row, panel * LANES, activate(call.activation, low) * high, call.n / 2 - panel * LANES);
    } else if (call.epilogue == ADD) {
        add(call, row, column, low * call.factor, left);
        add(call, row, column + LANES, high * call.factor, left - LANES);
    } else if (call.epilogue == ACTIVATED) {
        put(call, row, column, activate(call.activation, low), left);
        put(call, row, column + LANES, activate(call.activation, high), left - LANES);
    } else {
        put(call, row, column, low, left);
        put(call, row, column + LANES, high, left - LANES);
    }
}

inline floats to_floats(floats acc, const LinearCall&, long, long) { return acc; }

inline floats to_floats(ints acc, const LinearCall& call, long row, long column) {
    ints sum;
    memcpy(&sum, call.w_sum + column, 64);
    const floats exact = __builtin_convertvector(acc - sum * 128, floats); // x was stored as x + 128
    return exact * call.x_scale[row] * load(call.w_scale + column);
}

// Not inlined: once for all heights of a tile.
template <class Acc>
__attribute__((noinline)) void finish_rows(const LinearCall& call, long row, long height, long panel, const Acc (*sums)[2]) {
    const long column = panel * PANEL;
    for (long r = 0; r < height; r++)
        finish(call, row + r, panel, to_floats(sums[r][0], call, row + r, column), to_floats(sums[r][1], call, row + r, column + LANES));
}

// ROWS rows against one panel. `ahead` is memory that will be wanted soon; it is fetched while this tile computes.
// False: another thread writes what this one has computed.
template <class T, int ROWS>
bool tile(const LinearCall& call, long row, long panel, const char* ahead, long ahead_bytes, Parts& parts) {
    const auto* x = (const typename T::X*)call.x + row * call.x_stride;
    const long groups = call.k / T::GROUP, group_bytes = PANEL * T::GROUP * T::WEIGHT_BYTES;
    const char* w = (const char*)call.w + panel * groups * group_bytes;
    const long ahead_step = (ahead_bytes / groups + 63) / 64 * 64;
    typename T::Acc low[ROWS] = {}, high[ROWS] = {};
    for (long group = 0; group < groups; group++) {
        const auto w_low = T::w(w), w_high = T::w(w + group_bytes / 2);
#pragma GCC unroll 14
        for (int r = 0; r < ROWS; r++) {
            const auto value = T::x(x + r * call.x_stride);
            low[r] = T::multiply_add(low[r], value, w_low);
            high[r] = T::multiply_add(high[r], value, w_high);
        }
        w += group_bytes;
        x += T::GROUP;
        for (long line = 0; line < ahead_step; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        ahead += ahead_step;
    }
    typename T::Acc sums[ROWS][2];
#pragma GCC unroll 14
    for (int r = 0; r < ROWS; r++) sums[r][0] = low[r], sums[r][1] = high[r];
    if (!parts.may_write()) return false;
    finish_rows(call, row, ROWS, panel, sums);
    parts.written();
    return true;
}

using Tile = bool (*)(const LinearCall&, long, long, const char*, long, Parts&);

template <class T, int... ROWS> Tile tile_of(int rows, std::integer_sequence<int, ROWS...>) {
    static constexpr Tile tiles[] = {tile<T, ROWS + 1>...};
    return tiles[rows - 1];
}

long panels_of(const LinearCall& call) { return (call.n + PANEL - 1) / PANEL; }

// All rows against one panel, in parts of at most ROWS_MAX rows, of nearly equal height.
template <class T> void panel_in_vectors(const void* context, long panel, Parts& parts) {
    const LinearCall& call = *(const LinearCall*)context;
    const long panel_bytes = PANEL * call.k * T::WEIGHT_BYTES, blocks = (call.rows + ROWS_MAX - 1) / ROWS_MAX;
    const char* next = (const char*)call.w + (panel + 1) * panel_bytes;
    const long fetch = panel + 1 < panels_of(call) ? panel_bytes / blocks : 0;
    for (long block = 0, row = 0; block < blocks; block++) {
        const long height = (call.rows - row) / (blocks - block);
        const Tile tile = tile_of<T>(height, std::make_integer_sequence<int, ROWS_MAX>{});
        if (block >= parts.first && !tile(call, row, panel, next + block * fetch, fetch, parts)) return;
        row += height;
    }
}

int share_panels(const LinearCall& call, Member* member, RunChunk panel) {
    const bool is_worth_sharing = call.rows * call.n * call.k > WORTH_SHARING;
    if (call.rows) share_parts(member, is_worth_sharing, panels_of(call), panel, &call); // none: a step that samples nothing
    return 0;
}

// Several layers of one shape, each for its own run of rows: the experts of a mixture.
struct GroupedCall {
    LinearCall all;         // weights one layer after the other; rows is the number of all rows
    const int64_t* starts;  // [groups + 1]: group g computes rows starts[g] to starts[g + 1]
    int64_t groups;
};

template <class T> LinearCall group_of(const GroupedCall& call, long group) {
    LinearCall one = call.all;
    const int64_t first = call.starts[group], padded = panels_of(one) * PANEL;
    one.rows = call.starts[group + 1] - first;
    one.x = (const typename T::X*)one.x + first * one.x_stride;
    one.w = (const char*)one.w + group * padded * one.k * T::WEIGHT_BYTES;
    one.out = (char*)one.out + first * one.out_stride * (one.out_is_bfloat16 ? 2 : 4);
    if (one.bias) one.bias += group * padded;
    if (one.x_scale) one.x_scale += first, one.w_scale += group * padded, one.w_sum += group * padded;
    return one;
}

template <class T, RunChunk run_panel> void grouped_panel(const void* context, long chunk, Parts& parts) {
    const GroupedCall& call = *(const GroupedCall*)context;
    const long panels = panels_of(call.all);
    const LinearCall one = group_of<T>(call, chunk / panels);
    if (one.rows > 0) run_panel(&one, chunk % panels, parts); // negative: a late thread reads starts of two calls
}

int share_groups(const GroupedCall& call, Member* member, RunChunk panel) {
    const LinearCall& all = call.all;
    const bool is_worth_sharing = all.rows * all.n * all.k > WORTH_SHARING;
    if (all.rows) share_parts(member, is_worth_sharing, call.groups * panels_of(all), panel, &call);
    return 0;
}

#ifdef HAS_TILES
const bool has_tiles = ask_for_tiles();

// Up to 32 rows against one panel, in the machine's matrix tiles; k is a multiple of what a tile's row holds.
// Tiles 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 columns of weights.
// False: another thread writes what this one has computed.
template <class T>
bool matrix_tile(const LinearCall& call, long row, long height, long panel, const char* ahead, long ahead_bytes, Parts& parts) {
    const long x_stride = call.x_stride * T::WEIGHT_BYTES, steps = call.k * T::WEIGHT_BYTES / TILE_BYTES;
    constexpr long STEP_BYTES = PANEL * TILE_BYTES, W_STRIDE = 2 * TILE_BYTES;
    const char* x = (const char*)call.x + row * x_stride;
    const char* w = (const char*)call.w + panel * steps * STEP_BYTES;
    const long ahead_step = (ahead_bytes / steps + 63) / 64 * 64;
    _tile_zero(0);
    _tile_zero(1);
    if (height > TILE_ROWS) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (long step = 0; step < steps; step++) {
        _tile_loadd(6, w, W_STRIDE);
        _tile_loadd(7, w + TILE_BYTES, W_STRIDE);
        _tile_loadd(4, x, x_stride);
        T::multiply_add_upper();
        if (height > TILE_ROWS) {
            _tile_loadd(5, x + TILE_ROWS * x_stride, x_stride);
            T::multiply_add_lower();
        }
        w += STEP_BYTES;
        x += TILE_BYTES;
        for (long line = 0; line < ahead_step; line += 64) __builtin_prefetch(ahead + line, 0, 2);
        ahead += ahead_step;
    }
    typename T::Acc sums[2 * TILE_ROWS][2];
    constexpr long SUMS_STRIDE = sizeof(sums[0]);
    _tile_stored(0, &sums[0][0], SUMS_STRIDE);
    _tile_stored(1, &sums[0][1], SUMS_STRIDE);
    if (height > TILE_ROWS) {
        _tile_stored(2, &sums[TILE_ROWS][0], SUMS_STRIDE);
        _tile_stored(3, &sums[TILE_ROWS][1], SUMS_STRIDE);
    }
    if (!parts.may_write()) return false;
    finish_rows(call, row, height, panel, sums);
    parts.written();
    return true;
}

template <class T> void panel_in_tiles(const void* context, long panel, Parts& parts) {
    const LinearCall& call = *(const LinearCall*)context;
    constexpr long BLOCK = 2 * TILE_ROWS;
    const long panel_bytes = PANEL * call.k * T::WEIGHT_BYTES, blocks = (call.rows + BLOCK - 1) / BLOCK;
    const char* next = (const char*)call.w + (panel + 1) * panel_bytes;
    const long fetch = panel + 1 < panels_of(call) ? panel_bytes / blocks : 0;
    Tiles tiles;
    for (long block = parts.first; block < blocks; block++) {
        const long row = block * BLOCK, height = call.rows - row < BLOCK ? call.rows - row : BLOCK;
        const uint8_t upper = height < TILE_ROWS ? height : TILE_ROWS, lower = height - upper;
        tiles.set_up({upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS});
        if (!matrix_tile<T>(call, row, height, panel, next + block * fetch, fetch, parts)) return;
    }
}
#endif

} // namespace

extern "C" {

int linear_float32(const LinearCall* call, Member* member) { return share_panels(*call, member, panel_in_vectors<Float32>); }
int grouped_float32(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Float32, panel_in_vectors<Float32>>);
}

#ifdef __AVX512BF16__
int linear_bfloat16(const LinearCall* call, Member* member) { return share_panels(*call, member, panel_in_vectors<BFloat16>); }
int grouped_bfloat16(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<BFloat16, panel_in_vectors<BFloat16>>);
}
#endif

#ifdef __AVX512VNNI__
int linear_int8(const LinearCall* call, Member* member) { return share_panels(*call, member, panel_in_vectors<Int8>); }
int grouped_int8(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Int8, panel_in_vectors<Int8>>);
}
#endif

#ifdef HAS_TILES
int32_t has_matrix_tiles() { return has_tiles; }
int linear_bfloat16_tiles(const LinearCall* call, Member* member) { return share_panels(*call, member, panel_in_tiles<BFloat16>); }
int grouped_bfloat16_tiles(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<BFloat16, panel_in_tiles<BFloat16>>);
}
int linear_int8_tiles(const LinearCall* call, Member* member) { return share_panels(*call, member, panel_in_tiles<Int8>); }
int grouped_int8_tiles(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Int8, panel_in_tiles<Int8>>);
}
#endif
}
