// Low-rank adapters: out[row] += factor * (x[row] A^T) B for the rows of each adapter, and the activation that waits for it.
//
// Every output is one chain of multiply-adds in a fixed order over a row's own numbers, so a row's result is bitwise the
// same in any batch.
#include "linear_call.h"

extern "C" {

// Mirrored in execution/decoder/adapters/native.py, field by field.
struct LoraCall {
    const void* x;        // [.., k], row stride x_stride elements: of the dtype of the weights
    const void* a;        // [slots, parts * rank, k]
    const void* b;        // [slots, blocks, rank, 16]: a block has 16 columns of one part, whose rows of `a` it reads
    void* out;            // [.., n], row stride out_stride elements, float32 or bfloat16: added to
    float* shrunk;        // [rows, parts * rank]
    const int32_t* rows;  // [rows]: rows of x and out, those of one slot together
    const int32_t* tiles; // [tiles, 3]: a slot, the first of its `rows`, and how many
    const int32_t* ranks; // [slots]; 0: the slot's adapter leaves this layer as it is
    const int64_t* ends;  // [parts, 2]: the block behind each part, and the column
    int64_t num_tiles, parts, rank, k, x_stride, out_stride;
    int32_t is_bfloat16, out_is_bfloat16;
    float factor;
};

struct ActivateCall {
    const float* product; // [rows, n], or [rows, 2 n]: the gate, then what it gates
    void* out;            // [rows, n], row stride out_stride elements, float32 or bfloat16
    int64_t rows, n, out_stride;
    int32_t activation, is_gated, out_is_bfloat16;
};
}

namespace {

constexpr long ROWS = 4, RANKS = 4; // computed together: 16 sums in registers
constexpr long RANKS_PER_CHUNK = 8, BLOCKS_PER_CHUNK = 16;

struct LoraTile {
    long slot, first, count;
};

LoraTile tile_of(const LoraCall& c, long tile) { return {c.tiles[3 * tile], c.tiles[3 * tile + 1], c.tiles[3 * tile + 2]}; }

// ROWS rows against RANKS rows of A, which follow each other.
template <class T> void shrink_some(const T* const* x, const T* a, long k, float (*sums)[RANKS]) {
    floats total[ROWS][RANKS] = {};
    const auto add = [&](long i, auto load) {
        floats w[RANKS];
        for (long r = 0; r < RANKS; r++) {
            w[r] = load(a + r * k + i);
            __builtin_prefetch(a + (r + RANKS) * k + i, 0, 2); // of the next rows: they are read once in a step
        }
        for (long m = 0; m < ROWS; m++) {
            const floats v = load(x[m] + i);
            for (long r = 0; r < RANKS; r++) total[m][r] = v * w[r] + total[m][r];
        }
    };
    const long whole = k / LANES * LANES;
    for (long i = 0; i < whole; i += LANES) add(i, [](const T* p) { return load(p); });
    if (whole < k) add(whole, [&](const T* p) { return load_some(p, k - whole); });
    for (long m = 0; m < ROWS; m++)
        for (long r = 0; r < RANKS; r++) sums[m][r] = sum(total[m][r]);
}

template <class T> void shrink(const LoraCall& c, const LoraTile& t, long from, long to) {
    const long width = c.parts * c.rank;
    const T* a = (const T*)c.a + t.slot * width * c.k;
    for (long block = 0; block < t.count; block += ROWS) {
        const long height = std::min(ROWS, t.count - block);
        const T* x[ROWS];
        for (long m = 0; m < ROWS; m++) x[m] = (const T*)c.x + c.rows[t.first + block + std::min(m, height - 1)] * c.x_stride;
        for (long r = from; r < to; r += RANKS) {
            float sums[ROWS][RANKS];
            shrink_some(x, a + r * c.k, c.k, sums);
            for (long m = 0; m < height; m++) memcpy(c.shrunk + (t.first + block + m) * width + r, sums[m], sizeof sums[m]);
        }
    }
}

// BLOCKS blocks of columns, `count` from column `j` on, of up to ROWS rows from the tile's `first` on.
template <int BLOCKS, class T>
void expand_some(const LoraCall& c, const LoraTile& t, const T* b, long first, long part, long j, long count) {
    const long width = c.parts * c.rank, ranks = c.ranks[t.slot], height = std::min(ROWS, t.count - first);
    const float* shrunk[ROWS];
    for (long m = 0; m < ROWS; m++) shrunk[m] = c.shrunk + (t.first + first + std::min(m, height - 1)) * width + part * c.rank;
    floats total[BLOCKS][ROWS] = {};
    for (long r = 0; r < ranks; r++)
        for (long i = 0; i < BLOCKS; i++) {
            const floats w = load(b + (i * c.rank + r) * LANES);
            __builtin_prefetch(b + ((i + BLOCKS) * c.rank + r) * LANES, 0, 2);
            for (long m = 0; m < ROWS; m++) total[i][m] = w * shrunk[m][r] + total[i][m];
        }
    for (long m = 0; m < height; m++)
        for (long i = 0; i < BLOCKS; i++) {
            const long at = c.rows[t.first + first + m] * c.out_stride + j + i * LANES, left = count - i * LANES;
            const auto add = [&](auto* out) { store_upto(out, load_upto(out, left) + total[i][m] * c.factor, left); };
            if (c.out_is_bfloat16) add((uint16_t*)c.out + at);
            else add((float*)c.out + at);
        }
}

template <class T> void expand(const LoraCall& c, const LoraTile& t, long from, long to) {
    const long blocks = c.ends[2 * (c.parts - 1)];
    for (long block = from, part = 0, taken; block < to; block += taken) {
        while (block >= c.ends[2 * part]) part++;
        const long behind = c.ends[2 * part + 1], before = part ? c.ends[2 * part - 1] : 0;
        const long j = before + (block - (part ? c.ends[2 * part - 2] : 0)) * LANES;
        const T* b = (const T*)c.b + (t.slot * blocks + block) * c.rank * LANES;
        taken = std::min(c.ends[2 * part], int64_t(to)) - block > 1 ? 2 : 1;
        const long count = std::min(taken * LANES, behind - j);
        for (long first = 0; first < t.count; first += ROWS)
            if (taken == 2) expand_some<2>(c, t, b, first, part, j, count);
            else expand_some<1>(c, t, b, first, part, j, count);
    }
}

// compute(tile, from, to) for all tiles whose slot has an adapter here, and pieces of `count`.
template <class Compute> void share_tiles(Member* member, const LoraCall& c, long count, long piece, const Compute& compute) {
    const long pieces = (count + piece - 1) / piece;
    const bool is_worth = c.num_tiles * ROWS * c.rank * c.parts * c.k > WORTH_SHARING;
    share(member, is_worth, c.num_tiles * pieces, 1, [&](long first, long end) {
        for (long chunk = first; chunk < end; chunk++) {
            const LoraTile tile = tile_of(c, chunk / pieces);
            const long from = chunk % pieces * piece;
            if (c.ranks[tile.slot]) compute(tile, from, std::min(count, from + piece));
        }
    });
}

template <class T> void add_lora(const LoraCall& c, Member* member) {
    share_tiles(member, c, c.parts * c.rank, RANKS_PER_CHUNK, [&](const LoraTile& t, long from, long to) { shrink<T>(c, t, from, to); });
    share_tiles(member, c, c.ends[2 * (c.parts - 1)], BLOCKS_PER_CHUNK, [&](const LoraTile& t, long from, long to) { expand<T>(c, t, from, to); });
}

template <class T> void activate_row(const ActivateCall& c, long row, T* out) {
    const float* x = c.product + row * c.n * (c.is_gated ? 2 : 1);
    for (long i = 0; i < c.n; i += LANES) {
        floats y = activate(c.activation, load_upto(x + i, c.n - i));
        if (c.is_gated) y = y * load_upto(x + c.n + i, c.n - i);
        store_upto(out + i, y, c.n - i);
    }
}

} // namespace

extern "C" {

int add_adapters(const LoraCall* call, Member* member) {
    if (call->is_bfloat16) add_lora<uint16_t>(*call, member);
    else add_lora<float>(*call, member);
    return 0;
}

// What a layer's own epilogue makes of its sums, bit for bit.
int activate_rows(const ActivateCall* call, Member* member) {
    const ActivateCall& c = *call;
    share_rows(member, c.rows, 4 * c.n, [&](long row) {
        const long at = row * c.out_stride;
        if (c.out_is_bfloat16) activate_row(c, row, (uint16_t*)c.out + at);
        else activate_row(c, row, (float*)c.out + at);
    });
    return 0;
}
}
