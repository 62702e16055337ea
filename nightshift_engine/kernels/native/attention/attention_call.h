// What a layer asks of attention.cpp, and where its memory lies.
#pragma once
#include <cstdint>

extern "C" {

enum ElementType : int32_t { F32 = 0, F16 = 1, BF16 = 2, INT8 = 3 };

// What the layers of one step share. Mirrored by `_Step` in execution/attention/native_backend.py, field by field.
struct AttentionStep {
    const int32_t* query_starts;  // [sequences + 1]
    const int32_t* seq_lens;      // [sequences]
    const int32_t* block_tables;  // [sequences, blocks_max]
    const int64_t* slots;         // [tokens]
    int64_t table_stride;
    int32_t num_sequences, num_tokens, num_threads;
};

// One layer's. Strides count elements. Mirrored by `_Call` in execution/attention/native_backend.py, field by field.
struct AttentionCall {
    const AttentionStep* step;
    const void* query;  // [heads, tokens, key_dim]
    const void* key;    // [kv_heads, tokens, key_dim], the step's new keys
    const void* value;  // [kv_heads, tokens, value_dim]
    void* out;          // [tokens, heads, value_dim], token stride out_token_stride
    void* key_memory;    // [blocks, kv_heads, key_dim, block_size]
    void* value_memory;  // [blocks, kv_heads, block_size, value_dim]
    float* key_scales;  // [blocks, kv_heads, block_size]; null unless the memory is int8
    float* value_scales;
    const float* sinks;           // [heads] or null
    int64_t query_head_stride, query_token_stride;
    int64_t key_head_stride, key_token_stride;
    int64_t value_head_stride, value_token_stride;
    int64_t out_token_stride;
    int32_t num_heads, num_kv_heads, key_dim, value_dim, block_size;
    int32_t window;  // tokens a token sees, itself included; 0 if all
    ElementType input_type, memory_type;
    float scale, softcap;  // softcap 0 if none
};

}  // extern "C"
