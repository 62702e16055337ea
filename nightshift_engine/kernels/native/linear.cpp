// Linear layers over packed weights: y[m, n] = sum over k of x[m, k] * w[n, k], and what follows it done in place.
//
// Every output is one chain of multiply-adds over ascending k, in one lane of one register. How many rows are computed
// together, which ones, and how many threads share the work changes nothing about that chain: a row's result is bitwise
// the same in any batch. (So no sum is split here.)
//
// Packed weights are panels of 32 columns: [panel][k / GROUP][32][GROUP], where GROUP is the number of k that one
// instruction takes per lane: 1 (float32; 2 where its weights are bfloat16), 2 (bfloat16), 4 (int8). Columns beyond n are zero. Vectors and matrix tiles
// read the same panels, but round differently: a layer keeps to one of them. How tiles multiply float32 is in
// linear_float32_tiles.h.
#include <utility>

#include "linear_call.h"
#include "linear_float32_tiles.h"
#include "narrow_panel.h"
#include "share.h"
#include "tiles.h"

namespace {

#ifdef __AVX512F__
constexpr int ROWS_MAX = 14; // of 32 registers: 28 accumulators, two of weights, one of x
#else
constexpr int ROWS_MAX = 2; // of 16 half as wide: 8 accumulators, four of weights, one of x
#endif

struct Float32 {
    using X = float;
    using Acc = floats;
    static constexpr long GROUP = 1, AT_ONCE = 1, WEIGHT_BYTES = 4; // AT_ONCE: k of one multiply_add
    static floats x(const X* p, int) { return splat(*p); }
    static floats w(const char* p, int) { return load((const float*)p); }
    static Acc multiply_add(Acc acc, floats x, floats w) { return x * w + acc; }
};

// float32 where all weights are bfloat16, and read as such: bit for bit what Float32 computes.
struct Float32ByBFloat16 {
    using X = float;
    using Acc = floats;
    static constexpr long GROUP = 2, AT_ONCE = 1, WEIGHT_BYTES = 2;
    static floats x(const X* p, int k) { return splat(p[k]); }
    static floats w(const char* p, int k) {
        bits pairs;
        memcpy(&pairs, p, 64);
        return (floats)(k == 0 ? pairs << 16 : pairs & 0xffff0000);
    }
    static Acc multiply_add(Acc acc, floats x, floats w) { return x * w + acc; }
};

#ifdef __AVX512BF16__
struct BFloat16 {
    using X = uint16_t;
    using Acc = floats;
    static constexpr long GROUP = 2, AT_ONCE = 2, WEIGHT_BYTES = 2;
    static __m512bh x(const X* p, int) {
        int32_t pair;
        memcpy(&pair, p, 4);
        return (__m512bh)_mm512_set1_epi32(pair);
    }
    static __m512bh w(const char* p, int) { return (__m512bh)_mm512_loadu_si512(p); }
    static Acc multiply_add(Acc acc, __m512bh x, __m512bh w) { return (floats)_mm512_dpbf16_ps((__m512)acc, x, w); }
#ifdef HAS_TILES
    static void multiply_add_upper() { multiply_upper_bfloat16(); }
    static void multiply_add_lower() { multiply_lower_bfloat16(); }
#endif
};
#endif

#ifdef __AVX512VNNI__
struct Int8 {
    using X = uint8_t;
    using Acc = ints;
    static constexpr long GROUP = 4, AT_ONCE = 4, WEIGHT_BYTES = 1;
    static __m512i x(const X* p, int) {
        int32_t four;
        memcpy(&four, p, 4);
        return _mm512_set1_epi32(four);
    }
    static __m512i w(const char* p, int) { return _mm512_loadu_si512(p); }
    static Acc multiply_add(Acc acc, __m512i x, __m512i w) { return (ints)_mm512_dpbusd_epi32((__m512i)acc, x, w); }
#ifdef HAS_TILES
    static void multiply_add_upper() { _tile_dpbusd(0, 4, 6); _tile_dpbusd(1, 4, 7); }
    static void multiply_add_lower() { _tile_dpbusd(2, 5, 6); _tile_dpbusd(3, 5, 7); }
#endif
};
#endif

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
#pragma GCC unroll 2
        for (int k = 0; k < T::GROUP; k += T::AT_ONCE) {
            const auto w_low = T::w(w, k), w_high = T::w(w + group_bytes / 2, k);
#pragma GCC unroll 14
            for (int r = 0; r < ROWS; r++) {
                const auto value = T::x(x + r * call.x_stride, k);
                low[r] = T::multiply_add(low[r], value, w_low);
                high[r] = T::multiply_add(high[r], value, w_high);
            }
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

// All rows against one panel, in parts of at most ROWS_MAX rows, of nearly equal height. `next`: memory wanted for the next panel.
template <class T> void rows_in_vectors(const LinearCall& call, long panel, const char* next, long next_bytes, Parts& parts) {
    const long blocks = (call.rows + ROWS_MAX - 1) / ROWS_MAX, fetch = next_bytes / blocks;
    for (long block = 0, row = 0; block < blocks; block++) {
        const long height = (call.rows - row) / (blocks - block);
        const Tile tile = tile_of<T>(height, std::make_integer_sequence<int, ROWS_MAX>{});
        if (block >= parts.first && !tile(call, row, panel, next + block * fetch, fetch, parts)) return;
        row += height;
    }
}

using RunRows = void (*)(const LinearCall&, long, const char*, long, Parts&);

template <class T, RunRows run_rows> void stored_panel(const void* context, long panel, Parts& parts) {
    const LinearCall& call = *(const LinearCall*)context;
    const long panel_bytes = PANEL * call.k * T::WEIGHT_BYTES;
    run_rows(call, panel, (const char*)call.w + (panel + 1) * panel_bytes, panel + 1 < panels_of(call) ? panel_bytes : 0, parts);
}

template <class T> void panel_in_vectors(const void* context, long panel, Parts& parts) {
    stored_panel<T, rows_in_vectors<T>>(context, panel, parts);
}

// A panel of narrow weights, written out as T's weights first. So every sum is that over the weights written out.
template <class T, RunRows run_rows> void narrow_panel(const void* context, long panel, Parts& parts) {
    const auto& [call, status] = *(const SharedNarrowCall*)context;
    const long panel_bytes = PANEL * call.all.k * T::WEIGHT_BYTES, narrow_bytes = panel_bytes_of(call);
    LinearCall written = call.all;
    char* memory = memory_of_thread(panel_bytes);
    if (!memory) {
        *status = 1;
        return;
    }
    write_panel<typename T::X>(call, panel, memory);
    written.w = memory - panel * panel_bytes;
    const char* next = (const char*)call.all.w + (panel + 1) * narrow_bytes;
    run_rows(written, panel, next, panel + 1 < panels_of(call.all) ? narrow_bytes : 0, parts);
}

// 0, or 1 if there is no memory for a panel.
template <class T> int share_narrow(const NarrowCall& call, Member* member, RunChunk panel) {
    constexpr long X_BYTES = sizeof(typename T::X);
    std::atomic<int> status{0};
    share_bands(member, call.all, call.all.k * X_BYTES, [&](Member* member, long first, long count) {
        SharedNarrowCall some{call, &status};
        some.call.all = some_rows(call.all, first, count, X_BYTES);
        share_parts(member, is_worth_sharing(call.all), panels_of(some.call.all), panel, &some);
    });
    return status;
}

template <class T> int share_panels(const LinearCall& call, Member* member, RunChunk panel) {
    constexpr long X_BYTES = sizeof(typename T::X);
    share_bands(member, call, call.k * X_BYTES, [&](Member* member, long first, long count) {
        const LinearCall some = some_rows(call, first, count, X_BYTES);
        share_parts(member, is_worth_sharing(call), panels_of(some), panel, &some);
    });
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
    if (all.rows) share_parts(member, is_worth_sharing(all), call.groups * panels_of(all), panel, &call);
    return 0;
}

#ifdef HAS_TILES
const bool has_tiles = ask_for_tiles();

// Up to 32 rows against one panel, in the machine's matrix tiles; k is a multiple of what a tile's row holds.
// False: another thread writes what this one has computed.
template <class T>
bool matrix_tile(const LinearCall& call, long row, long height, long panel, const char* ahead, long ahead_bytes, Parts& parts) {
    const long x_stride = call.x_stride * T::WEIGHT_BYTES, steps = call.k * T::WEIGHT_BYTES / TILE_BYTES;
    constexpr long STEP_BYTES = PANEL * TILE_BYTES, W_STRIDE = 2 * TILE_BYTES;
    const char* x = (const char*)call.x + row * x_stride;
    const char* w = (const char*)call.w + panel * steps * STEP_BYTES;
    const long ahead_step = (ahead_bytes / steps + 63) / 64 * 64;
    zero_sums(height);
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
    typename T::Acc sums[BLOCK_ROWS][2];
    store_sums(height, sums);
    if (!parts.may_write()) return false;
    finish_rows(call, row, height, panel, sums);
    parts.written();
    return true;
}

template <class T> void rows_in_tiles(const LinearCall& call, long panel, const char* next, long next_bytes, Parts& parts) {
    const long blocks = (call.rows + BLOCK_ROWS - 1) / BLOCK_ROWS, fetch = next_bytes / blocks;
    Tiles tiles;
    for (long block = parts.first; block < blocks; block++) {
        const long row = block * BLOCK_ROWS, height = std::min<long>(BLOCK_ROWS, call.rows - row);
        tiles.set_up_block(height);
        if (!matrix_tile<T>(call, row, height, panel, next + block * fetch, fetch, parts)) return;
    }
}

template <class T> void panel_in_tiles(const void* context, long panel, Parts& parts) {
    stored_panel<T, rows_in_tiles<T>>(context, panel, parts);
}
#endif

} // namespace

extern "C" {

int narrow_float32(const NarrowCall* call, Member* member) {
    return share_narrow<Float32>(*call, member, narrow_panel<Float32, rows_in_vectors<Float32>>);
}

int linear_float32(const LinearCall* call, Member* member) { return share_panels<Float32>(*call, member, panel_in_vectors<Float32>); }
int grouped_float32(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Float32, panel_in_vectors<Float32>>);
}

int linear_float32_by_bfloat16(const LinearCall* call, Member* member) {
    return share_panels<Float32ByBFloat16>(*call, member, panel_in_vectors<Float32ByBFloat16>);
}
int grouped_float32_by_bfloat16(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Float32ByBFloat16, panel_in_vectors<Float32ByBFloat16>>);
}

#ifdef __AVX512BF16__
int linear_bfloat16(const LinearCall* call, Member* member) { return share_panels<BFloat16>(*call, member, panel_in_vectors<BFloat16>); }
int narrow_bfloat16(const NarrowCall* call, Member* member) {
    return share_narrow<BFloat16>(*call, member, narrow_panel<BFloat16, rows_in_vectors<BFloat16>>);
}
int grouped_bfloat16(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<BFloat16, panel_in_vectors<BFloat16>>);
}
#endif

#ifdef __AVX512VNNI__
int linear_int8(const LinearCall* call, Member* member) { return share_panels<Int8>(*call, member, panel_in_vectors<Int8>); }
int grouped_int8(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Int8, panel_in_vectors<Int8>>);
}
#endif

#ifdef HAS_TILES
int32_t has_matrix_tiles() { return has_tiles; }
int linear_float32_tiles(const LinearCall* call, Member* member) { return share_float32_tiles<SplitPanel>(*call, member); }
int linear_float32_by_bfloat16_tiles(const LinearCall* call, Member* member) { return share_float32_tiles<StoredPanel>(*call, member); }
int linear_bfloat16_tiles(const LinearCall* call, Member* member) { return share_panels<BFloat16>(*call, member, panel_in_tiles<BFloat16>); }
int narrow_bfloat16_tiles(const NarrowCall* call, Member* member) {
    return share_narrow<BFloat16>(*call, member, narrow_panel<BFloat16, rows_in_tiles<BFloat16>>);
}
int grouped_bfloat16_tiles(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<BFloat16, panel_in_tiles<BFloat16>>);
}
int linear_int8_tiles(const LinearCall* call, Member* member) { return share_panels<Int8>(*call, member, panel_in_tiles<Int8>); }
int grouped_int8_tiles(const GroupedCall* call, Member* member) {
    return share_groups(*call, member, grouped_panel<Int8, panel_in_tiles<Int8>>);
}
#endif
}
