// What a decoder does between its linear layers and its attention, on activations in float32: one row per token.
//
// Sums run over fixed lanes in a fixed order, so a row's result does not depend on its neighbours or on the threads.
#include "share.h"
#include "vector.h"

#include <math.h>

extern "C" {

// Mirrored in execution/decoder/kernels.py, field by field.
enum NormKind : int32_t { NONE = 0, RMS = 1, LAYER = 2 };

struct NormCall {
    const float* x;         // [.., n]
    const int64_t* x_rows;  // [rows] or null
    const float *weight, *bias; // [n] or null
    void* out;              // [rows, n], float32 or bfloat16, row stride out_stride elements
    int64_t rows, n, out_stride;
    int32_t kind, out_is_bfloat16;
    int32_t adds;           // to `out`, which is float32, `factor` times what comes out
    float eps, factor;
};

struct HeadNorm {
    const float *weight, *bias; // or null
    int64_t weight_stride;      // from one head's to the next one's: 0 if they share it
    int32_t kind, spans_heads;  // spans_heads: one norm over all heads of a row
    float eps;
};

struct RotateCall {
    void* qkv;                         // [rows, query heads and key heads and more], float32 or bfloat16
    const int64_t* positions;          // [rows]
    const float *cosine, *sine;        // [positions, half]
    HeadNorm query_norm, key_norm;
    int64_t row_stride, rows, half, query_heads, key_heads, head_dim; // head_dim is at most 512
    int32_t is_interleaved;            // pairs of neighbours rotate; else the first half with the second
    int32_t is_bfloat16;
};

struct LogitsCall {
    float* logits;
    int64_t count;
    float scale, cap; // cap: 0 if there is none
};

struct QuantizeCall {
    const void* x; // [rows, k], row stride x_stride elements
    uint8_t* out;  // [rows, k]
    float* scale;  // [rows]
    int64_t rows, k, x_stride;
    int32_t x_is_bfloat16;
};

struct WrittenCall {
    int (*kernel)(const void* call, void* member);
    const void* call;
};
}

namespace {

template <class X> float mean_of(const X* x, long n) {
    floats total = {};
    for (long i = 0; i < n; i += LANES) total += load_upto(x + i, n - i);
    return sum(total) / n;
}

// Sum of the squares of what differs from `mean`.
template <class X> float squares_of(const X* x, float mean, long n) {
    floats squares = {};
    const long whole = n / LANES * LANES;
    for (long i = 0; i < whole; i += LANES) {
        const floats v = load(x + i) - mean;
        squares += v * v;
    }
    if (whole < n) {
        float all[LANES] = {};
        for (long i = whole; i < n; i++) all[i - whole] = to_float(x[i]) - mean;
        squares += load(all) * load(all);
    }
    return sum(squares);
}

struct Affine {
    const float *weight, *bias;
    floats operator()(floats v, long i, long count) const {
        if (weight) v *= load_upto(weight + i, count);
        if (bias) v += load_upto(bias + i, count);
        return v;
    }
};

// put(i, y, count) gets y for the elements from i on.
template <class X, class Put> void norm_row(const X* x, int32_t kind, float eps, const Affine& affine, long n, Put put) {
    const float mean = kind == LAYER ? mean_of(x, n) : 0.f;
    const float scale = kind == NONE ? 1.f : 1.f / sqrtf(squares_of(x, mean, n) / n + eps);
    for (long i = 0; i < n; i += LANES)
        put(i, affine((load_upto(x + i, n - i) - mean) * scale, i, n - i), n - i);
}

template <class T> void norm_and_store(const float* x, const NormCall& c, T* out) {
    norm_row(x, c.kind, c.eps, Affine{c.weight, c.bias}, c.n, [=](long i, floats y, long count) { store_upto(out + i, y, count); });
}

void norm_and_add(const float* x, const NormCall& c, float* out) {
    const float factor = c.factor;
    norm_row(x, c.kind, c.eps, Affine{c.weight, c.bias}, c.n, [=](long i, floats y, long count) {
        store_upto(out + i, load_upto(out + i, count) + y * factor, count);
    });
}

constexpr long HEAD_DIM_MAX = 512;

template <class T> void norm_heads(T* heads, const HeadNorm& norm, long count, long head_dim) {
    if (norm.kind == NONE) return;
    const long spans = norm.spans_heads ? 1 : count, n = norm.spans_heads ? count * head_dim : head_dim;
    for (long h = 0; h < spans; h++) {
        T* head = heads + h * n;
        const long at = h * norm.weight_stride;
        const Affine affine{norm.weight ? norm.weight + at : nullptr, norm.bias ? norm.bias + at : nullptr};
        norm_row(head, norm.kind, norm.eps, affine, n, [=](long i, floats y, long left) { store_upto(head + i, y, left); });
    }
}

template <class T> void rotate(T* head, const float* cosine, const float* sine, long half, bool is_interleaved) {
    float first[HEAD_DIM_MAX], second[HEAD_DIM_MAX];
    const long step = is_interleaved ? 2 : 1, apart = is_interleaved ? 1 : half;
    for (long i = 0; i < half; i++) first[i] = to_float(head[i * step]), second[i] = to_float(head[i * step + apart]);
    for (long i = 0; i < half; i++) {
        head[i * step] = from_float<T>(first[i] * cosine[i] - second[i] * sine[i]);
        head[i * step + apart] = from_float<T>(second[i] * cosine[i] + first[i] * sine[i]);
    }
}

template <class T> void rotate_row(T* row, const RotateCall& c, int64_t position) {
    norm_heads(row, c.query_norm, c.query_heads, c.head_dim);
    norm_heads(row + c.query_heads * c.head_dim, c.key_norm, c.key_heads, c.head_dim);
    if (!c.half) return;
    const float *cosine = c.cosine + position * c.half, *sine = c.sine + position * c.half;
    for (long h = 0; h < c.query_heads + c.key_heads; h++)
        rotate(row + h * c.head_dim, cosine, sine, c.half, c.is_interleaved);
}

template <class T> void gather_rows(const T* table, const int64_t* ids, float* out, long rows, long n, float scale, bool adds) {
    share_rows(nullptr, rows, n, [&](long row) {
        const T* from = table + ids[row] * n;
        float* to = out + row * n;
        for (long i = 0; i < n; i += LANES) {
            const floats v = load_upto(from + i, n - i) * scale;
            store_upto(to + i, adds ? load_upto(to + i, n - i) + v : v, n - i);
        }
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

// out[row] = (x[r] - mean) * scale * weight + bias, where r is x_rows[row], or row if there are none; scale is 1 / the root
// of the mean square (RMS), or of the variance (LAYER, which alone takes off the mean), or 1.
int norm(const NormCall* call, Member* member) {
    const NormCall& c = *call;
    share_rows(member, c.rows, c.n, [&](long row) {
        const float* x = c.x + (c.x_rows ? c.x_rows[row] : row) * c.n;
        if (c.adds) norm_and_add(x, c, (float*)c.out + row * c.out_stride);
        else if (c.out_is_bfloat16) norm_and_store(x, c, (uint16_t*)c.out + row * c.out_stride);
        else norm_and_store(x, c, (float*)c.out + row * c.out_stride);
    });
    return 0;
}

// logits = cap * tanh(logits * scale / cap), or logits * scale.
int finish_logits(const LogitsCall* call, Member* member) {
    const LogitsCall& c = *call;
    share(member, c.count > ELEMENTS_WORTH_SHARING, (c.count + LANES - 1) / LANES, ELEMENTS_PER_PIECE / LANES, [&](long first, long end) {
        for (long i = first * LANES; i < std::min<long>(end * LANES, c.count); i += LANES) {
            const floats v = load_upto(c.logits + i, c.count - i) * c.scale;
            store_upto(c.logits + i, c.cap > 0 ? tanh(v / c.cap) * c.cap : v, c.count - i);
        }
    });
    return 0;
}

// In place, on the heads of queries and keys at the front of each row: their norms, then the rotary embedding of the first
// 2 * half elements.
int rotate_heads(const RotateCall* call, Member* member) {
    const RotateCall& c = *call;
    share_rows(member, c.rows, (c.query_heads + c.key_heads) * c.head_dim, [&](long row) {
        if (c.is_bfloat16) rotate_row((uint16_t*)c.qkv + row * c.row_stride, c, c.positions[row]);
        else rotate_row((float*)c.qkv + row * c.row_stride, c, c.positions[row]);
    });
    return 0;
}

// Calls written down, in their order, by one team; stops soon after one fails.
int run_calls(const WrittenCall* calls, int64_t count) {
    std::atomic<int> status{0};
    with_team([&](Member* member) {
        for (long i = 0; i < count && status == 0; i++)
            if (const int failed = calls[i].kernel(calls[i].call, member)) status = failed;
    });
    return status;
}

// `scale` times rows `ids` of a table [.., n] of float32 or bfloat16, into `out` or added to it.
void gather_rows(const void* table, int32_t table_is_bfloat16, const int64_t* ids, float* out, int64_t rows, int64_t n,
                 float scale, int32_t adds) {
    if (table_is_bfloat16) gather_rows((const uint16_t*)table, ids, out, rows, n, scale, adds);
    else gather_rows((const float*)table, ids, out, rows, n, scale, adds);
}

// x[row] ~ (out[row] - 128) * scale[row]: symmetric, one scale a row.
int quantize_rows(const QuantizeCall* call, Member* member) {
    const QuantizeCall& c = *call;
    share_rows(member, c.rows, c.k, [&](long row) {
        uint8_t* out = c.out + row * c.k;
        if (c.x_is_bfloat16) quantize_row((const uint16_t*)c.x + row * c.x_stride, c.k, out, c.scale + row);
        else quantize_row((const float*)c.x + row * c.x_stride, c.k, out, c.scale + row);
    });
    return 0;
}
}
