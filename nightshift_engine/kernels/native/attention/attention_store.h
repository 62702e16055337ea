// Storing the step's keys and values.
#pragma once
#include <algorithm>

#include "attention_vectors.h"
#include "share.h"

namespace {

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

// A key and a value among their neighbours' pairs; `place` is that of the token, `offset` that within its block.
inline void store_paired(const AttentionCall& c, const uint16_t* key, const uint16_t* value, int64_t place, int64_t offset) {
    const int64_t block_start = place - offset;
    uint16_t* key_to = (uint16_t*)c.key_memory + block_start * c.key_dim + 2 * offset;
    for (int d = 0; d < c.key_dim; d += 2) memcpy(key_to + int64_t(d) * c.block_size, key + d, 2 * sizeof(*key));
    uint16_t* value_to = (uint16_t*)c.value_memory + (place - offset % 2) * c.value_dim + offset % 2;
    for (int d = 0; d < c.value_dim; d++) value_to[2 * d] = value[d];
}

constexpr int TOKENS_WORTH_SHARING = 64, TOKENS_PER_PIECE = 16;

template <ElementType FROM, ElementType TO>
void store_all(const AttentionCall& c, Member* member) {
    typedef typename Element<FROM>::type From;
    typedef typename Element<TO>::type To;
    const bool in_pairs = lies_in_pairs(c);
    const auto store_token = [&](long token) {
        const int64_t block = c.step->slots[token] / c.block_size, offset = c.step->slots[token] % c.block_size;
        for (int head = 0; head < c.num_kv_heads; head++) {
            const int64_t place = (block * c.num_kv_heads + head) * c.block_size + offset;
            const From* key = (const From*)c.key + head * c.key_head_stride + token * c.key_token_stride;
            const From* value = (const From*)c.value + head * c.value_head_stride + token * c.value_token_stride;
            if constexpr (FROM == BF16 && TO == BF16)
                if (in_pairs) {
                    store_paired(c, key, value, place, offset);
                    continue;
                }
            float* key_scale = c.key_scales ? c.key_scales + place : nullptr;
            float* value_scale = c.value_scales ? c.value_scales + place : nullptr;
            To* key_to = (To*)c.key_memory + (place - offset) * c.key_dim + offset;
            To* value_to = (To*)c.value_memory + place * c.value_dim;
            store_row<FROM, TO>(key, key_to, c.block_size, key_scale, c.key_dim);
            store_row<FROM, TO>(value, value_to, 1, value_scale, c.value_dim);
        }
    };
    share(member, c.step->num_tokens >= TOKENS_WORTH_SHARING, c.step->num_tokens, TOKENS_PER_PIECE, [&](long first, long end) {
        for (long token = first; token < end; token++) store_token(token);
    });
}

template <ElementType FROM> void store_from(const AttentionCall& c, Member* member) {
    switch (c.memory_type) {
        case F32: return store_all<FROM, F32>(c, member);
        case F16: return store_all<FROM, F16>(c, member);
        case BF16: return store_all<FROM, BF16>(c, member);
        case INT8: return store_all<FROM, INT8>(c, member);
    }
}

}  // namespace
