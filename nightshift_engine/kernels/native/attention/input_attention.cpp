// Attention over the tokens of whole inputs: every query sees every key of its own input, and none of another's.
//
// Rows of all inputs lie one after the other, and nothing is padded or gathered. A chunk of work is a run of an input's
// queries under one head; it walks over the keys in tiles (online softmax, Milakov and Gimelshein 2018; in tiles, Dao et
// al. 2022). Sums and softmax are fp32.
//   float32: lanes are queries, so scores [keys, queries] and values [dim, queries] need no sum across lanes.
//   bfloat16: products of pairs, in matrix tiles where there are some; without such instructions it is widened to fp32.
//
// Invariance: tiles and runs begin at an input's own first token, so its result does not depend on the other inputs or
// on the number of threads.
#include <new>
#include <vector>

#include "attention_pairs.h"
#include "share.h"

extern "C" {

// Strides count elements from one row to the next. Mirrored by `_Call` in encoders/native_attention.py, field by field.
struct InputAttentionCall {
    const void *query, *key, *value; // [rows, heads * head_dim] within their rows
    void* out;                       // likewise
    const int64_t *query_starts, *key_starts; // [inputs + 1]: the rows of each input
    int64_t query_stride, key_stride, value_stride, out_stride;
    int64_t num_inputs, num_heads, head_dim;
    int32_t is_bfloat16;
    float scale;
};

}

namespace {

constexpr long RUN_MAX = 256;      // queries of a chunk
constexpr long VECTORS_MAX = 4;    // of queries whose scores are computed together in float32
constexpr long LANES_TILE = 64;    // keys, and their values, that stay in the first cache beside queries and scores
constexpr long PAIRS_TILE = 128;
constexpr long ROWS_TOGETHER = 8;  // keys, or dimensions, up to which tiles are filled with zeros

inline long up_to(long value, long step) { return (value + step - 1) / step * step; }

struct Run {
    long input, head, first, count; // queries, from the input's first one

    const char* rows(const void* base, const InputAttentionCall& c, long row, long stride) const {
        return (const char*)base + (row * stride + head * c.head_dim) * (c.is_bfloat16 ? 2 : 4);
    }
};

// Memory of one thread, in pieces that begin at a cache line.
class Scratch {
  public:
    float* take(long floats) {
        float* piece = at_;
        at_ += up_to(floats, 16);
        return piece;
    }
    void set_up(long floats) { // of all pieces, 15 more for each
        if (long(memory_.size()) < floats + 16) memory_.resize(floats + 16);
        at_ = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64 / 4;
    }

  private:
    std::vector<float> memory_;
    float* at_ = nullptr;
};

inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
    return (Vec)_mm512_max_ps((__m512)a, (__m512)b); // the second, where one is NaN
#else
    return a > b ? a : b;
#endif
}

// Sixteen rows of sixteen words, in place.
class Square {
  public:
    alignas(64) uint32_t words[16][16];

    void transpose() {
        Row rows[16];
        memcpy(rows, words, sizeof(words));
        exchange<8>(rows), exchange<4>(rows), exchange<2>(rows), exchange<1>(rows);
        memcpy(words, rows, sizeof(words));
    }

  private:
    typedef uint32_t Row __attribute__((vector_size(64)));

    // The blocks of S by S words beside the diagonals of blocks twice as large.
    template <int S> static void exchange(Row (&rows)[16]) {
        Row left, right;
        for (int i = 0; i < 16; i++) left[i] = i & S ? 16 + (i ^ S) : i, right[i] = i & S ? 16 + i : i ^ S;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            if (i & S) continue;
            const Row upper = rows[i], lower = rows[i ^ S];
            rows[i] = __builtin_shuffle(upper, lower, left);
            rows[i ^ S] = __builtin_shuffle(upper, lower, right);
        }
    }
};

template <ElementType T> void copy_rows(const char* from, long stride, long rows, long dim, float* to, long width) {
    for (long row = 0; row < rows; row++) {
        const auto* p = (const typename Element<T>::type*)from + row * stride;
        for (long d = 0; d < dim; d += LANES) store(to + row * width + d, widen<T>(p + d, dim - d));
    }
}

// c[R, VECS * LANES] (+)= sum over k of a[r, k] * b[k, VECS * LANES]; a lies by rows, or by columns.
template <int R, int VECS, bool ADD> void product(const float* a, long a_row, long a_k, const float* b, float* c, long depth) {
    constexpr long WIDTH = VECS * LANES;
    Vec sums[R][VECS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECS; v++) sums[r][v] = ADD ? load(c + r * WIDTH + v * LANES) : Vec{};
#pragma GCC unroll 1
    for (long k = 0; k < depth; k++) {
        Vec row[VECS];
        for (int v = 0; v < VECS; v++) row[v] = load(b + k * WIDTH + v * LANES);
        for (int r = 0; r < R; r++) {
            const Vec factor = broadcast(a[r * a_row + k * a_k]);
            for (int v = 0; v < VECS; v++) sums[r][v] = fma(factor, row[v], sums[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECS; v++) store(c + r * WIDTH + v * LANES, sums[r][v]);
}

template <int VECS, bool ADD> void products(const float* a, long a_row, long a_k, const float* b, float* c, long rows, long depth) {
    constexpr int R = LANES == 16 && VECS <= 2 ? 8 : 4; // as many as the registers hold
    for (long r = 0; r < rows; r += R) product<R, VECS, ADD>(a + r * a_row, a_row, a_k, b, c + r * VECS * LANES, depth);
}

// ---- float32: queries in lanes

// Up to VECTORS_MAX vectors of queries, and what they have seen.
template <int VECS> struct Columns {
    static constexpr long WIDTH = VECS * LANES;
    float *queries, *seen; // [dim, WIDTH]
    float *largest, *total; // [WIDTH]

    // Scores of `keys` keys, which become weights in place; then their values.
    void walk(const float* key, const float* value, long keys, long dim, long width, float* scores) {
        products<VECS, false>(key, width, 1, queries, scores, up_to(keys, ROWS_TOGETHER), dim);
        Vec top[VECS], factor[VECS], sum[VECS];
        for (int v = 0; v < VECS; v++) top[v] = load(largest + v * LANES);
        for (long k = 0; k < keys; k++)
            for (int v = 0; v < VECS; v++) top[v] = larger(load(scores + k * WIDTH + v * LANES), top[v]);
        for (int v = 0; v < VECS; v++) {
            factor[v] = exponential(load(largest + v * LANES) - top[v]);
            sum[v] = load(total + v * LANES) * factor[v];
            store(largest + v * LANES, top[v]);
        }
        for (long k = 0; k < keys; k++)
            for (int v = 0; v < VECS; v++) {
                float* at = scores + k * WIDTH + v * LANES;
                const Vec weight = exponential(load(at) - top[v]);
                store(at, weight);
                sum[v] += weight;
            }
        for (int v = 0; v < VECS; v++) store(total + v * LANES, sum[v]);
        for (long d = 0; d < width; d++)
            for (int v = 0; v < VECS; v++) {
                float* at = seen + d * WIDTH + v * LANES;
                store(at, load(at) * factor[v]);
            }
        products<VECS, true>(value, 1, width, scores, seen, width, keys);
    }
};

template <ElementType T> class InLanes {
  public:
    InLanes(const InputAttentionCall& c, const Run& run, Scratch& scratch)
        : c(c), run(run), dim(c.head_dim), width(up_to(dim, 16)), vectors((run.count + LANES - 1) / LANES) {
        const long columns = vectors * LANES;
        scratch.set_up(2 * LANES_TILE * width + LANES_TILE * VECTORS_MAX * LANES + 2 * columns * width + 2 * columns + 7 * 16);
        keys = scratch.take(LANES_TILE * width), values = scratch.take(LANES_TILE * width);
        scores = scratch.take(LANES_TILE * VECTORS_MAX * LANES);
        queries = scratch.take(columns * width), seen = scratch.take(columns * width);
        largest = scratch.take(columns), total = scratch.take(columns);
    }

    void attend() {
        load_queries();
        std::fill_n(seen, vectors * LANES * width, 0.0f);
        std::fill_n(largest, vectors * LANES, NOTHING_SEEN);
        std::fill_n(total, vectors * LANES, 0.0f);
        std::fill_n(keys, LANES_TILE * width, 0.0f); // what lies beyond a last tile's keys must be no NaN
        std::fill_n(values, LANES_TILE * width, 0.0f);
        const long begin = c.key_starts[run.input], end = c.key_starts[run.input + 1];
        for (long first = begin; first < end; first += LANES_TILE) {
            const long count = std::min(LANES_TILE, end - first);
            copy_rows<T>(run.rows(c.key, c, first, c.key_stride), c.key_stride, count, dim, keys, width);
            copy_rows<T>(run.rows(c.value, c, first, c.value_stride), c.value_stride, count, dim, values, width);
            each_block([&](auto columns, long) { columns.walk(keys, values, count, dim, width, scores); });
        }
        each_block([&](auto columns, long first) { finish(columns, first); });
    }

  private:
    const InputAttentionCall& c;
    const Run& run;
    const long dim, width, vectors;
    float *keys, *values, *scores, *queries, *seen, *largest, *total;

    // body(columns, number of their first vector)
    template <class Body> void each_block(const Body& body) {
        for (long first = 0; first < vectors;) {
            const long left = vectors - first, blocks = (left + VECTORS_MAX - 1) / VECTORS_MAX, height = left / blocks;
            const auto with = [&](auto columns) {
                const long at = first * LANES;
                columns.queries = queries + at * width, columns.seen = seen + at * width;
                columns.largest = largest + at, columns.total = total + at;
                body(columns, first);
            };
            switch (height) {
                case 1: with(Columns<1>{}); break;
                case 2: with(Columns<2>{}); break;
                case 3: with(Columns<3>{}); break;
                default: with(Columns<4>{});
            }
            first += height;
        }
    }

    const char* query_at(long query) const {
        return run.rows(c.query, c, c.query_starts[run.input] + run.first + std::min(query, run.count - 1), c.query_stride);
    }

    void load_queries() {
        each_block([&](auto columns, long first) {
            constexpr long WIDTH = decltype(columns)::WIDTH;
            constexpr long SIDE = std::min<long>(16, LANES);
            Square square;
            for (long column = 0; column < WIDTH; column += SIDE)
                for (long d = 0; d < dim; d += SIDE) {
                    for (long i = 0; i < SIDE; i++) {
                        const auto* from = (const typename Element<T>::type*)query_at(first * LANES + column + i);
                        store((float*)square.words[i], widen<T>(from + d, dim - d) * broadcast(c.scale));
                    }
                    square.transpose();
                    for (long i = 0; i < SIDE; i++) memcpy(columns.queries + (d + i) * WIDTH + column, square.words[i], SIDE * 4);
                }
        });
    }

    template <class Columns> void finish(const Columns& columns, long first) {
        constexpr long WIDTH = Columns::WIDTH;
        constexpr long SIDE = std::min<long>(16, LANES);
        Square square;
        for (long column = 0; column < WIDTH; column += SIDE) {
            const Vec inverse = broadcast(1.0f) / load(columns.total + column);
            const long query = first * LANES + column, count = std::min(SIDE, run.count - query);
            auto* to = (typename Element<T>::type*)run.rows(c.out, c, c.query_starts[run.input] + run.first + query, c.out_stride);
            for (long d = 0; d < dim; d += SIDE) {
                for (long i = 0; i < SIDE; i++)
                    store((float*)square.words[i], load(columns.seen + (d + i) * WIDTH + column) * inverse);
                square.transpose();
                for (long i = 0; i < count; i++)
                    for (long j = 0; j < std::min(SIDE, dim - d); j++)
                        to[i * c.out_stride + d + j] = narrow<T>(((const float*)square.words[i])[j]);
            }
        }
    }
};

// ---- bfloat16: products of pairs

class InPairs {
  public:
    InPairs(const InputAttentionCall& c, const Run& run, Scratch& scratch) : c(c), run(run), dim(c.head_dim) {
        const long rows = run.count;
        scratch.set_up(PAIRS_TILE * dim + rows * PAIRS_TILE + rows * PAIRS_TILE / 2 + rows * dim + 2 * rows + 7 * 16);
        keys = scratch.take(PAIRS_TILE * dim / 2), values = (uint16_t*)scratch.take(PAIRS_TILE * dim / 2);
        scores = scratch.take(rows * PAIRS_TILE), weights = (uint16_t*)scratch.take(rows * PAIRS_TILE / 2);
        seen = scratch.take(rows * dim), largest = scratch.take(rows), total = scratch.take(rows);
    }

    void attend() {
        std::fill_n(seen, run.count * dim, 0.0f);
        std::fill_n(largest, run.count, NOTHING_SEEN);
        std::fill_n(total, run.count, 0.0f);
        const auto* query = (const uint16_t*)run.rows(c.query, c, c.query_starts[run.input] + run.first, c.query_stride);
        const long begin = c.key_starts[run.input], end = c.key_starts[run.input + 1];
        for (long first = begin; first < end; first += PAIRS_TILE) {
            const long count = std::min(PAIRS_TILE, end - first), wide = up_to(count, LANES), deep = up_to(count, PAIR_DEPTH);
            lay_keys(first, count, wide);
            lay_values(first, count, deep);
            pairs.multiply<false>(query, c.query_stride, (const uint16_t*)keys, PAIRS_TILE, scores, PAIRS_TILE, run.count, dim, wide);
            for (long row = 0; row < run.count; row++) weigh(row, count, deep, first > begin);
            pairs.multiply<true>(weights, PAIRS_TILE, values, dim, seen, dim, run.count, deep, dim);
        }
        for (long row = 0; row < run.count; row++) finish(row);
    }

  private:
    const InputAttentionCall& c;
    const Run& run;
    const long dim;
    PairProducts pairs;
    float *keys, *scores, *seen, *largest, *total; // keys: pairs [dim / 2, PAIRS_TILE]
    uint16_t *values, *weights;                    // [PAIRS_TILE / 2, dim, 2], [rows, PAIRS_TILE]

    void lay_keys(long first, long count, long wide) {
        for (long key = 0; key < wide; key += 16) {
            Square square;
            for (long pair = 0; pair < dim / 2; pair += 16) {
                for (long i = 0; i < 16; i++) {
                    if (key + i < count) memcpy(square.words[i], run.rows(c.key, c, first + key + i, c.key_stride) + pair * 4, 64);
                    else memset(square.words[i], 0, 64);
                }
                square.transpose();
                for (long i = 0; i < 16; i++) memcpy(keys + (pair + i) * PAIRS_TILE + key, square.words[i], 64);
            }
        }
    }

    void lay_values(long first, long count, long deep) {
        for (long key = 0; key < deep; key += 2) {
            uint16_t* to = values + key * dim;
            if (key >= count) {
                std::fill_n(to, 2 * dim, 0);
                continue;
            }
            const auto* even = (const uint16_t*)run.rows(c.value, c, first + key, c.value_stride);
            const uint16_t* odd = key + 1 < count ? even + c.value_stride : nullptr;
            if (odd)
                for (long d = 0; d < dim; d++) to[2 * d] = even[d], to[2 * d + 1] = odd[d];
            else
                for (long d = 0; d < dim; d++) to[2 * d] = even[d], to[2 * d + 1] = 0;
        }
    }

    // Turn a row's scores into weights, and what it has seen to the new scale.
    void weigh(long row, long count, long deep, bool has_seen) {
        float* score = scores + row * PAIRS_TILE;
        for (long k = count; k < deep; k++) score[k] = 2 * NOTHING_SEEN; // weighs nothing
        const Vec scale = broadcast(c.scale);
        Vec tops = broadcast(NOTHING_SEEN);
        for (long k = 0; k < deep; k += LANES) {
            const Vec s = load(score + k) * scale;
            store(score + k, s);
            tops = s > tops ? s : tops;
        }
        const float before = largest[row], top = std::max(before, ::largest(tops));
        const Vec top_all = broadcast(top);
        Vec sums = {};
        for (long k = 0; k < deep; k += 2 * LANES) {
            const Vec low = exponential(load(score + k) - top_all), high = exponential(load(score + k + LANES) - top_all);
            sums += low + high;
            store_bf16s(weights + row * PAIRS_TILE + k, low, high);
        }
        largest[row] = top;
        if (!has_seen) {
            total[row] = sum(sums);
            return;
        }
        const float factor = exponential(before - top);
        total[row] = total[row] * factor + sum(sums);
        for (long d = 0; d < dim; d += LANES) store(seen + row * dim + d, load(seen + row * dim + d) * broadcast(factor));
    }

    void finish(long row) {
        auto* to = (uint16_t*)run.rows(c.out, c, c.query_starts[run.input] + run.first + row, c.out_stride);
        const Vec inverse = broadcast(1.0f / total[row]);
        for (long d = 0; d < dim; d += 2 * LANES)
            store_bf16s(to + d, load(seen + row * dim + d) * inverse, load(seen + row * dim + d + LANES) * inverse);
    }
};

void attend(const InputAttentionCall& c, const Run& run, Scratch& scratch) {
    if (!c.is_bfloat16) InLanes<F32>(c, run, scratch).attend();
    else if (HAS_PAIRS && c.head_dim % PAIR_DEPTH == 0) InPairs(c, run, scratch).attend();
    else InLanes<BF16>(c, run, scratch).attend();
}

std::vector<Run> runs_of(const InputAttentionCall& c) {
    std::vector<Run> runs;
    for (long input = 0; input < c.num_inputs; input++) {
        const long queries = c.query_starts[input + 1] - c.query_starts[input], parts = (queries + RUN_MAX - 1) / RUN_MAX;
        for (long head = 0; head < c.num_heads; head++)
            for (long part = 0, first = 0; part < parts; part++) {
                const long count = std::min(queries - first, up_to((queries + parts - 1) / parts, 16));
                runs.push_back({input, head, first, count});
                first += count;
            }
    }
    return runs;
}

long work_of(const InputAttentionCall& c) {
    long work = 0;
    for (long input = 0; input < c.num_inputs; input++)
        work += (c.query_starts[input + 1] - c.query_starts[input]) * (c.key_starts[input + 1] - c.key_starts[input]);
    return work * c.num_heads * c.head_dim * 2;
}

} // namespace

extern "C" {

// Returns 0, or 1 if there was no memory for it.
int input_attention(const InputAttentionCall* call, Member* member) {
    const InputAttentionCall& c = *call;
    try {
        const std::vector<Run> runs = runs_of(c);
        std::atomic<bool> is_out_of_memory{false}; // an exception must not leave another thread
        share(member, work_of(c) > WORK_WORTH_THREADS, runs.size(), 1, [&](long first, long end) {
            static thread_local Scratch scratch;
            try {
                for (long i = first; i < end; i++) attend(c, runs[i], scratch);
            } catch (const std::bad_alloc&) {
                is_out_of_memory = true;
            }
        });
        return is_out_of_memory ? 1 : 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
}
