// Paged attention on CPU: one entry for decoding sequences and prompt chunks, in one varlen step.
//
// Values lie in blocks [blocks, kv_heads, block_size, dim] and keys in [blocks, kv_heads, dim, block_size], so
// that a tile of either is read as it lies, in whole vectors. They are fp32, fp16, bf16, or int8 with one
// scale per token and head; sums and softmax are fp32. The query heads of one KV head and a run of tokens make
// the rows of a small matrix that walks over the keys in tiles of KEY_TILE (online softmax, Milakov and
// Gimelshein 2018; in tiles, Dao et al. 2022).
//
// Invariance: what comes out for one query is bitwise the same whatever else is in the step, however the
// prompt was cut into chunks, wherever its blocks lie and on how many threads. Therefore
//   - tiles and splits begin at absolute positions of the sequence, never at a chunk's or a block's edge;
//   - every row is summed in the same order in every shape of `multiply`: one chain of fused multiply-adds
//     per element, so this file is compiled without -fassociative-math;
//   - a tile of which a row sees nothing changes no bit of the row: its weights are exactly 0, its factor 1.
// Never read into a result: what lies behind a sequence's last token, which may be NaN.

#include <new>
#include <vector>

#include "attention_store.h"
#include "attention_walk.h"

namespace {

// Items for the threads to take, and the decodes whose splits are merged afterwards.
struct Plan {
    std::vector<Item> items, to_merge;
    int64_t workspace = 0;
    int64_t work = 0;  // query heads times keys times dimensions

    bool is_worth_threads() const { return items.size() > 1 && work > WORK_WORTH_THREADS; }

    Plan(const AttentionCall& c, const Walk& walk) {
        const int group = c.num_heads / c.num_kv_heads;
        const int tokens_per_item = std::max(1, TARGET_ROWS / group);
        for (int sequence = 0; sequence < c.step->num_sequences; sequence++) {
            const int num_new = c.step->query_starts[sequence + 1] - c.step->query_starts[sequence];
            for (int head = 0; head < c.num_kv_heads; head++)
                for (int first = 0; first < num_new; first += tokens_per_item)
                    add({sequence, head, first, std::min(tokens_per_item, num_new - first), -1, 0}, c, walk);
        }
    }

    void add(Item item, const AttentionCall& c, const Walk& walk) {
        const int position = walk.first_position(item);
        work += walk.rows_of(item.num_tokens) * (position + 1 - walk.first_key(position)) * (c.key_dim + c.value_dim);
        const int first = walk.first_key(position) / SPLIT, last = position / SPLIT;
        if (item.num_tokens > 1 || first == last || c.step->num_threads == 1) return items.push_back(item);
        item.workspace = workspace;
        item.partial = first;
        to_merge.push_back(item);
        for (; item.partial <= last; item.partial++, item.workspace += walk.partial_size(1)) items.push_back(item);
        workspace = item.workspace;
    }
};

// What the threads need for an item.
struct Attending {
    const AttentionCall& c;
    const Plan& plan;
    float* workspace;
    std::atomic<bool>& is_out_of_memory;  // an exception must not leave another thread

    static void run(const void* context, long index, Parts& parts) {
        static thread_local std::vector<float> scratch;
        const Attending& all = *(const Attending*)context;
        try {
            Walk(all.c).run(all.plan.items[index], all.workspace, scratch, parts);
        } catch (const std::bad_alloc&) {
            all.is_out_of_memory = true;
        }
    }
};

}  // namespace

extern "C" {

// Whether elements of this type can be read and written on the machine this was built for.
int supports(int32_t type) {
#if defined(__F16C__)
    return type >= F32 && type <= INT8;
#else
    return type == F32 || type == BF16 || type == INT8;
#endif
}

// Store the step's keys and values, then attend. Returns 0, or 1 if there was no memory for it.
int paged_attention(const AttentionCall* call, Member* member) {
    const AttentionCall& c = *call;
    try {
        switch (c.input_type) {
            case F32: store_from<F32>(c, member); break;
            case F16: store_from<F16>(c, member); break;
            default: store_from<BF16>(c, member);
        }
        Walk shape(c);
        const Plan plan(c, shape);
        std::vector<float> own(member ? 0 : plan.workspace);
        float* workspace = member && plan.workspace ? member->workspace(plan.workspace) : own.data();
        if (!workspace && plan.workspace) return 1;
        const long num_items = plan.items.size(), num_merges = plan.to_merge.size();
        std::atomic<bool> is_out_of_memory{false};
        const Attending attending{c, plan, workspace, is_out_of_memory};
        share_parts(member, plan.is_worth_threads(), num_items, Attending::run, &attending);
        share(member, plan.is_worth_threads(), num_merges, 1, [&](long first, long end) {
            Walk walk(c);
            for (long i = first; i < end; i++) walk.merge_parts(plan.to_merge[i], workspace);
        });
        return is_out_of_memory ? 1 : 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // extern "C"
