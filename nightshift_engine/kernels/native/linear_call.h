// A linear layer's call, and what becomes of its sums: bias, activation, and where they go.
#pragma once
#include <stdlib.h>

#include "share.h"
#include "vector.h"

namespace {

constexpr long PANEL = 2 * LANES;

constexpr int64_t WORTH_SHARING = 1 << 19; // multiply-adds: about what waking a thread costs

enum Epilogue : int32_t { STORE = 0, ADD = 1, ACTIVATED = 2, GATED = 3, HALVES = 4 };
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

// Memory of this thread until it asks again, at a cache line, of a multiple of one; null if there is none.
inline char* memory_of_thread(long bytes) {
    static thread_local struct Memory {
        char* at = nullptr;
        long bytes = 0;
        ~Memory() { free(at); }
    } memory;
    if (memory.bytes < bytes) {
        free(memory.at);
        memory.at = (char*)aligned_alloc(64, bytes);
        memory.bytes = memory.at ? bytes : 0;
    }
    return memory.at;
}

inline bool is_worth_sharing(const LinearCall& call) { return call.rows * call.n * call.k > WORTH_SHARING; }

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
    } else if (call.epilogue == HALVES) { // the same panel before its activation: all of the gate, then all of the rest
        put(call, row, panel * LANES, low, call.n / 2 - panel * LANES);
        put(call, row, call.n / 2 + panel * LANES, high, call.n / 2 - panel * LANES);
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

// Not inlined: once for all heights of a tile. Flat: a call for each row takes a tenth of the time of small layers, and the
// larger a file is, the less the compiler inlines by itself.
template <class Acc>
__attribute__((noinline, flatten)) void finish_rows(const LinearCall& call, long row, long height, long panel, const Acc (*sums)[2]) {
    const long column = panel * PANEL;
    for (long r = 0; r < height; r++)
        finish(call, row + r, panel, to_floats(sums[r][0], call, row + r, column), to_floats(sums[r][1], call, row + r, column + LANES));
}

inline long panels_of(const LinearCall& call) { return (call.n + PANEL - 1) / PANEL; }

inline LinearCall some_rows(const LinearCall& call, long first, long count, long x_bytes) {
    LinearCall some = call;
    some.x = (const char*)call.x + first * call.x_stride * x_bytes;
    some.out = (char*)call.out + first * call.out_stride * (call.out_is_bfloat16 ? 2 : 4);
    if (call.x_scale) some.x_scale += first;
    some.rows = count;
    return some;
}

// Rows that stay in the second cache while all panels pass, where one takes so many bytes of it.
inline long band_rows(long row_bytes) {
    constexpr long CACHE_BYTES = 1 << 20, BLOCK_ROWS = 32;
    return std::max(1l, CACHE_BYTES / row_bytes / BLOCK_ROWS) * BLOCK_ROWS;
}

// Call compute(member, first, count) for one band of rows after the other, by all members of a team, or by this thread.
template <class Compute> void share_bands(Member* member, const LinearCall& call, long row_bytes, const Compute& compute) {
    const auto all = [&](Member* member) {
        const long band = band_rows(row_bytes);
        for (long first = 0; first < call.rows; first += band) compute(member, first, std::min<long>(band, call.rows - first));
    };
    if (!call.rows) return; // a step that samples nothing
    if (member || !is_worth_sharing(call)) all(member);
    else with_team(all);
}

} // namespace
