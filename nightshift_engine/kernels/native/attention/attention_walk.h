// One item of work: some rows of queries walk over the keys they see.
#pragma once
#include <algorithm>
#include <vector>

#include "attention_pairs.h"
#include "attention_products.h"

namespace {

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
        const int num_new = c.step->query_starts[item.sequence + 1] - c.step->query_starts[item.sequence];
        return c.step->seq_lens[item.sequence] - num_new + item.first_token;
    }
    int first_key(int position) const { return c.window > 0 ? std::max(0, position - c.window + 1) : 0; }

    Seen seen_at(float* place, int64_t rows) const { return {place, place + rows, place + 2 * rows}; }

    // All of an item is one of `parts`, computed in `scratch` and written at the end.
    void run(const Item& item, float* workspace, std::vector<float>& scratch, Parts& parts) {
        if (parts.first > 0) return;
        switch (c.memory_type) {
            case F32: return run_typed<F32>(item, workspace, scratch, parts);
            case F16: return run_typed<F16>(item, workspace, scratch, parts);
            case BF16: return run_typed<BF16>(item, workspace, scratch, parts);
            case INT8: return run_typed<INT8>(item, workspace, scratch, parts);
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

    // Merge a decode's splits, the first of which `item` names, into its rows of the output.
    void merge_parts(const Item& item, float* workspace) const {
        const int64_t rows = rows_of(1), step = partial_size(1);
        const int last = first_position(item) / SPLIT;
        float* at = workspace + item.workspace;
        const Seen total = seen_at(at, rows);
        for (int split = item.partial + 1; split <= last; split++) merge(total, seen_at(at += step, rows), rows);
        finish(item, total);
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
        const int64_t first = c.step->query_starts[item.sequence] + item.first_token;
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

    // The same as they are; the scale comes later.
    void copy_queries(const Item& item) const {
        const auto* query = static_cast<const uint16_t*>(c.query);
        const int64_t first = c.step->query_starts[item.sequence] + item.first_token;
        for (int64_t row = 0; row < rows_of(item.num_tokens); row++) {
            const int64_t head = int64_t(item.kv_head) * group + row % group, token = first + row / group;
            const auto* from = query + head * c.query_head_stride + token * c.query_token_stride;
            std::copy_n(from, c.key_dim, paired_queries + row * c.key_dim);
        }
    }

    template <ElementType T>
    void run_typed(const Item& item, float* workspace, std::vector<float>& scratch, Parts& parts) {
        if constexpr (HAS_PAIRS && T == BF16)
            if (lies_in_pairs(c)) return run_with<T, true>(item, workspace, scratch, parts);
        run_with<T, false>(item, workspace, scratch, parts);
    }

    template <ElementType T, bool PAIRED>
    void run_with(const Item& item, float* workspace, std::vector<float>& scratch, Parts& parts) {
        const int64_t rows = rows_of(item.num_tokens);
        const int64_t sizes[] = {rows * c.key_dim, int64_t(c.key_dim) * KEY_TILE,      int64_t(KEY_TILE) * width,
                                 rows * KEY_TILE,  2 * partial_size(item.num_tokens), rows * KEY_TILE / 2};
        float* places[6];
        int64_t size = 0;
        for (int64_t one : sizes) size += (one + 15) / 16 * 16;
        if (int64_t(scratch.size()) < size + 16) scratch.resize(size + 16);
        float* at = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64 / 4;
        for (int i = 0; i < 6; i++) places[i] = at, at += (sizes[i] + 15) / 16 * 16;
        queries = places[0], keys = places[1], values = places[2], scores = places[3];
        paired_queries = reinterpret_cast<uint16_t*>(queries);
        paired_values = reinterpret_cast<uint16_t*>(values);
        paired_weights = reinterpret_cast<uint16_t*>(places[5]);

        if constexpr (PAIRED) {
            copy_queries(item);
        } else {
            switch (c.input_type) {
                case F32: load_queries<F32>(item, queries); break;
                case F16: load_queries<F16>(item, queries); break;
                default: load_queries<BF16>(item, queries);
            }
        }
        const int position = first_position(item);
        const int begin = first_key(position), end = position + item.num_tokens;
        const Seen total = seen_at(places[4], rows), split = seen_at(places[4] + partial_size(item.num_tokens), rows);
        if (item.partial >= 0) {
            walk<T, PAIRED>(item, total, std::max(begin, item.partial * SPLIT), std::min(end, (item.partial + 1) * SPLIT));
            if (!parts.may_write()) return;
            std::copy_n(places[4], partial_size(item.num_tokens), workspace + item.workspace);
            return parts.written();
        }
        for (int from = begin; from < end;) {
            const int to = std::min(end, (from / SPLIT + 1) * SPLIT);
            walk<T, PAIRED>(item, from == begin ? total : split, from, to);
            if (from != begin) merge(total, split, rows);
            from = to;
        }
        if (!parts.may_write()) return;
        finish(item, total);
        parts.written();
    }

    // All tiles with keys in [begin, end), which lies in one split.
    template <ElementType T, bool PAIRED> void walk(const Item& item, const Seen& seen, int begin, int end) {
        const int64_t rows = rows_of(item.num_tokens);
        std::fill_n(seen.largest, rows, NOTHING_SEEN);
        std::fill_n(seen.total, rows, 0.0f);
        std::fill_n(seen.values, rows * width, 0.0f);
        const int position = first_position(item);
        for (int tile = begin / KEY_TILE * KEY_TILE; tile < end; tile += KEY_TILE) {
            const int num_keys = std::min(KEY_TILE, end - tile);
            const int next = tile + KEY_TILE < end ? tile + KEY_TILE : -1;
            if constexpr (PAIRED) {
                score_pairs(item, tile, rows);
                if (next >= 0) fetch(paired_keys_at(item, next), c.key_dim);
            }
            else score<T>(item, tile, num_keys, rows);
            if constexpr (T == INT8) collect_scales(item, tile, num_keys);
            for (int64_t row = 0; row < rows; row++) weigh<T == INT8, PAIRED>(seen, row, position + row / group, tile);
            if constexpr (PAIRED) {
                add_paired_values(item, tile, num_keys, seen, rows);
                if (next >= 0) fetch(value_at<BF16>(item, next), c.value_dim);
            }
            else add_values<T>(item, tile, num_keys, next, seen, rows);
        }
    }

    // A tile is used as it lies if the vectors fit, and widened first if many rows would widen it again.
    template <ElementType T> bool is_used_as_it_lies(int64_t rows) const {
        return c.block_size % KEY_TILE == 0 && (T == F32 || rows <= ROWS_AT_ONCE);
    }

    template <ElementType T> Ahead keys_ahead(const Item& item, int tile) const {
        if (tile < 0 || c.block_size % KEY_TILE != 0) return NOTHING_AHEAD;
        return {(const char*)key_at<T>(item, tile), int(c.key_dim * sizeof(typename Element<T>::type))};
    }

    template <ElementType T> Ahead values_ahead(const Item& item, int tile) const {
        if (tile < 0 || c.block_size % KEY_TILE != 0) return NOTHING_AHEAD;
        return {(const char*)value_at<T>(item, tile), int(KEY_TILE * sizeof(typename Element<T>::type))};
    }

    template <ElementType T> void score(const Item& item, int tile, int num_keys, int64_t rows) {
        if (is_used_as_it_lies<T>(rows)) {
            multiply_all<false, T>(queries, c.key_dim, key_at<T>(item, tile), c.block_size, scores, KEY_TILE, rows,
                                   c.key_dim, KEY_TILE, values_ahead<T>(item, tile));
        } else {
            widen_keys<T>(item, tile, num_keys);
            multiply_all<false, F32>(queries, c.key_dim, keys, KEY_TILE, scores, KEY_TILE, rows, c.key_dim, KEY_TILE,
                                     NOTHING_AHEAD);
        }
    }

    template <ElementType T>
    void add_values(const Item& item, int tile, int num_keys, int next, const Seen& seen, int64_t rows) {
        if (is_used_as_it_lies<T>(rows) && width == c.value_dim) {
            multiply_all<true, T>(scores, KEY_TILE, value_at<T>(item, tile), c.value_dim, seen.values, width, rows,
                                  num_keys, width, keys_ahead<T>(item, next));
        } else {
            widen_values<T>(item, tile, num_keys);
            multiply_all<true, F32>(scores, KEY_TILE, values, width, seen.values, width, rows, num_keys, width,
                                    NOTHING_AHEAD);
        }
    }

    static void fetch(const uint16_t* p, int dim) {
        for (int line = 0; line < KEY_TILE * dim * 2; line += 64) __builtin_prefetch((const char*)p + line, 0, 3);
    }

    void score_pairs(const Item& item, int tile, int64_t rows) {
        products.multiply<false>(paired_queries, c.key_dim, paired_keys_at(item, tile), c.block_size, scores, KEY_TILE, rows,
                                 c.key_dim, KEY_TILE);
    }

    void add_paired_values(const Item& item, int tile, int num_keys, const Seen& seen, int64_t rows) {
        const uint16_t* from = value_at<BF16>(item, tile);
        if (num_keys < KEY_TILE) from = copy_values(from, num_keys);
        products.multiply<true>(paired_weights, KEY_TILE, from, c.value_dim, seen.values, width, rows, KEY_TILE, width);
    }

    // The values of a tile's first tokens, and zeros.
    const uint16_t* copy_values(const uint16_t* from, int num_keys) const {
        const int whole = num_keys / 2 * 2 * c.value_dim;
        std::copy_n(from, whole, paired_values);
        std::fill_n(paired_values + whole, KEY_TILE * c.value_dim - whole, 0);
        if (num_keys % 2 == 1)
            for (int d = 0; d < 2 * c.value_dim; d += 2) paired_values[whole + d] = from[whole + d];
        return paired_values;
    }

    const uint16_t* paired_keys_at(const Item& item, int position) const {
        const int64_t offset = position % c.block_size, block_start = place_of(item, position) - offset;
        return static_cast<const uint16_t*>(c.key_memory) + block_start * c.key_dim + 2 * offset;
    }

    PairProducts products;

    // Turn a row's scores into weights, and what it has seen to the new scale.
    template <bool SCALED, bool PAIRED> void weigh(const Seen& seen, int64_t row, int position, int tile) const {
        constexpr int VECS = KEY_TILE / LANES;
        float* score = scores + row * KEY_TILE;
        Vec s[VECS];
        for (int v = 0; v < VECS; v++) s[v] = load(score + v * LANES);
        if constexpr (PAIRED)
            for (int v = 0; v < VECS; v++) s[v] *= broadcast(c.scale);
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
        Vec sums = {}, weights[VECS];
        for (int v = 0; v < VECS; v++) {
            weights[v] = PAIRED ? rough_exponential(s[v] - top_all) : exponential(s[v] - top_all);
            if (!all_seen) weights[v] = hidden[v] ? Vec{} : weights[v];
            sums += weights[v];
            if constexpr (SCALED) weights[v] *= load(value_scales + v * LANES);
        }
        if constexpr (PAIRED)
            store_bf16s(paired_weights + row * KEY_TILE, weights[0], weights[1]);
        else
            for (int v = 0; v < VECS; v++) store(score + v * LANES, weights[v]);
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
        const int64_t block = c.step->block_tables[item.sequence * c.step->table_stride + position / c.block_size];
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
        const int64_t first = c.step->query_starts[item.sequence] + item.first_token;
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
            auto* to = out + token * c.out_token_stride + head * c.value_dim;
            for (int d = 0; d < c.value_dim; d++) to[d] = narrow<T>(from[d] * inverse);
        }
    }

    // Scratch; an item's queries, values and weights are either fp32 or bf16.
    float *queries = nullptr, *keys = nullptr, *values = nullptr, *scores = nullptr;
    uint16_t *paired_queries = nullptr, *paired_values = nullptr, *paired_weights = nullptr;
    float key_scales[KEY_TILE], value_scales[KEY_TILE];
};

}  // namespace
