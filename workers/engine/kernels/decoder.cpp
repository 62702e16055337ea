// What a decoder does between its linear layers and its attention, on activations in float32: one row per token.
//
// Sums run over fixed lanes in a fixed order, so a row's result does not depend on its neighbours or on the threads.
#include "team.h"
#include "vector.h"

#include <math.h>

extern "C" {

// Mirrored in execution/decoder/kernels.py, field by field.
struct NormCall {
    const float* x;         // [.., n]
    const int64_t* x_rows;  // [rows] or null
    const float* weight;    // [n]
    void* out;              // [rows, n], float32 or bfloat16
    int64_t rows, n;
    int32_t out_is_bfloat16;
    float eps;
};

struct RotateCall {
    void* qkv;                         // [rows, query heads and key heads and more], float32 or bfloat16
    const int64_t* positions;          // [rows]
    const float *cosine, *sine;        // [positions, half]
    const float *query_norm, *key_norm; // [head_dim] or null
    int64_t row_stride, rows, half, query_heads, key_heads, head_dim; // head_dim is at most 512
    int32_t is_bfloat16;
    float eps;
};

struct WrittenCall {
    int (*kernel)(const void* call, void* team);
    const void* call;
};
}

namespace {

constexpr int64_t WORTH_SHARING = 1 << 14; // elements: about what waking a thread costs
constexpr int64_t ELEMENTS_PER_PIECE = 1 << 12;

// body(row) for all rows of so many elements.
template <class Body> void share_rows(Team* team, long rows, long elements, const Body& body) {
    const long piece = elements ? (ELEMENTS_PER_PIECE + elements - 1) / elements : rows;
    share(team, rows * elements > WORTH_SHARING, rows, piece, [&](long first, long end) {
        for (long row = first; row < end; row++) body(row);
    });
}

template <class X, class T> void norm_row(const X* x, const float* weight, float eps, long n, T* out) {
    floats squares = {};
    const long whole = n / LANES * LANES, rest = n - whole;
    for (long i = 0; i < whole; i += LANES) squares += load(x + i) * load(x + i);
    if (rest) {
        const floats tail = load_some(x + whole, rest);
        squares += tail * tail;
    }
    const float scale = 1.f / sqrtf(sum(squares) / n + eps);
    for (long i = 0; i < whole; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    if (rest) store_some(out + whole, load_some(x + whole, rest) * scale * load_some(weight + whole, rest), rest);
}

constexpr long HEAD_DIM_MAX = 512;

template <class T> void rotate(T* head, const float* cosine, const float* sine, long half) {
    float first[HEAD_DIM_MAX], second[HEAD_DIM_MAX];
    for (long i = 0; i < half; i++) first[i] = to_float(head[i]), second[i] = to_float(head[i + half]);
    for (long i = 0; i < half; i++) {
        head[i] = from_float<T>(first[i] * cosine[i] - second[i] * sine[i]);
        head[i + half] = from_float<T>(second[i] * cosine[i] + first[i] * sine[i]);
    }
}

template <class T> void rotate_row(T* row, const RotateCall& c, int64_t position) {
    const float *cosine = c.cosine + position * c.half, *sine = c.sine + position * c.half;
    for (long h = 0; h < c.query_heads + c.key_heads; h++) {
        T* head = row + h * c.head_dim;
        const float* norm = h < c.query_heads ? c.query_norm : c.key_norm;
        if (norm) norm_row(head, norm, c.eps, c.head_dim, head);
        if (c.half) rotate(head, cosine, sine, c.half);
    }
}

template <class T> void gather_rows(const T* table, const int64_t* ids, float* out, long rows, long n) {
    share_rows(nullptr, rows, n, [&](long row) {
        const T* from = table + ids[row] * n;
        float* to = out + row * n;
        const long whole = n / LANES * LANES;
        for (long i = 0; i < whole; i += LANES) store(to + i, load(from + i));
        if (whole < n) store_some(to + whole, load_some(from + whole, n - whole), n - whole);
    });
}

template <class T> void quantize_row(const T* x, long k, uint8_t* out, float* scale) {
    floats largest = {};
    for (long i = 0; i < k; i += LANES) {
        const floats v = load_some(x + i, k - i < LANES ? k - i : LANES), size = where(v < 0.f, -v, v);
        largest = where(size > largest, size, largest);
    }
    float top = 0;
    for (long lane = 0; lane < LANES; lane++) top = largest[lane] > top ? largest[lane] : top;
    *scale = top / 127;
    const float inverse = top > 0 ? 127 / top : 0;
    for (long i = 0; i < k; i += LANES) {
        const long count = k - i < LANES ? k - i : LANES;
        const floats v = load_some(x + i, count) * inverse + 12582912.f; // rounds to an integer in the low bits
        const bytes whole = __builtin_convertvector((ints)v - 0x4B400000 + 128, bytes);
        memcpy(out + i, &whole, count);
    }
}

} // namespace

extern "C" {

// out[row] = x[r] / rms(x[r]) * weight, where r is x_rows[row], or row if there are none.
int rms_norm(const NormCall* call, Team* team) {
    const NormCall& c = *call;
    share_rows(team, c.rows, c.n, [&](long row) {
        const float* x = c.x + (c.x_rows ? c.x_rows[row] : row) * c.n;
        if (c.out_is_bfloat16) norm_row(x, c.weight, c.eps, c.n, (uint16_t*)c.out + row * c.n);
        else norm_row(x, c.weight, c.eps, c.n, (float*)c.out + row * c.n);
    });
    return 0;
}

// In place, on the heads of queries and keys at the front of each row: an RMS norm per head (if weights are given), then
// the rotary embedding of the first 2 * half elements.
int rotate_heads(const RotateCall* call, Team* team) {
    const RotateCall& c = *call;
    share_rows(team, c.rows, (c.query_heads + c.key_heads) * c.head_dim, [&](long row) {
        if (c.is_bfloat16) rotate_row((uint16_t*)c.qkv + row * c.row_stride, c, c.positions[row]);
        else rotate_row((float*)c.qkv + row * c.row_stride, c, c.positions[row]);
    });
    return 0;
}

// Calls written down, in their order, by one team; stops at the first that fails.
int run_calls(const WrittenCall* calls, int64_t count) {
    int status = 0;
    with_team([&](Team* team) {
        for (long i = 0; i < count && status == 0; i++) status = calls[i].kernel(calls[i].call, team);
    });
    return status;
}

// Rows `ids` of a table [ids, n] of float32 or bfloat16, as float32.
void gather_rows(const void* table, int32_t table_is_bfloat16, const int64_t* ids, float* out, int64_t rows, int64_t n) {
    if (table_is_bfloat16) gather_rows((const uint16_t*)table, ids, out, rows, n);
    else gather_rows((const float*)table, ids, out, rows, n);
}

// x[row] ~ (out[row] - 128) * scale[row]: symmetric, one scale a row.
void quantize_rows(const void* x, int32_t x_is_bfloat16, int64_t rows, int64_t k, uint8_t* out, float* scale) {
    share_rows(nullptr, rows, k, [&](long row) {
        if (x_is_bfloat16) quantize_row((const uint16_t*)x + row * k, k, out + row * k, scale + row);
        else quantize_row((const float*)x + row * k, k, out + row * k, scale + row);
    });
}
}
