// Between a mixture's router and its result: which experts a token goes to, rows sorted by expert, and their sum.
//
// A token's experts, weights and sum depend on its own numbers only, and every sum has one order.
#include "share.h"
#include "vector.h"

extern "C" {

// Mirrored in execution/experts/kernels.py, field by field.
enum Scoring : int32_t { SOFTMAX = 0, SIGMOID = 1 };
enum GroupScoring : int32_t { LARGEST = 0, TWO_LARGEST = 1 };

struct ChooseCall {
    const void* logits;      // [tokens, experts], float32 or bfloat16, row stride logits_stride elements
    const float* correction; // [experts], added to scores to choose by them, or null
    int64_t* chosen;         // [tokens, choices]: written, or read where keeps_choice
    float* weights;          // [tokens, choices]
    int64_t tokens, experts, choices, logits_stride;
    int64_t groups, groups_kept; // of equal size, one after the other
    int32_t logits_are_bfloat16, scoring, group_scoring;
    int32_t renormalises;    // a token's weights sum to `factor`
    int32_t keeps_choice;
    float factor;
};

struct SortCall {
    const void* x;         // [tokens] rows of row_bytes, x_stride bytes apart
    void* sorted;          // [tokens * choices] likewise: a row per choice, those of one expert together
    const int64_t* chosen; // [tokens, choices]
    int64_t* starts;       // [experts + 1]: expert e has rows starts[e] to starts[e + 1]
    int64_t* places;       // [tokens, choices]: row of `sorted`
    int64_t tokens, choices, experts, row_bytes, x_stride, sorted_stride;
};

struct CombineCall {
    const float* y;        // [tokens * choices, n]
    const int64_t* places; // [tokens, choices]: rows of y
    const float* weights;  // [tokens, choices]
    const float* shared;   // [tokens, n], or null
    const float* gates;    // [tokens], or null
    float* out;            // [tokens, n]
    int64_t tokens, choices, n;
    int32_t adds;          // to `out`, `factor` times what comes out
    float factor;
};
}

namespace {

constexpr long EXPERTS_MAX = 1024;
constexpr long COST_OF_SCORE = 4; // elements copied in the time that one expert's score takes
constexpr float DENOMINATOR_MIN = 1e-20f; // added to a sum of weights, as transformers' routers do

struct Scores {
    alignas(64) float logit[EXPERTS_MAX + LANES], score[EXPERTS_MAX + LANES], key[EXPERTS_MAX + LANES];
};

void softmax(const float* logit, float* score, long n) {
    float top = logit[0], total = 0;
    for (long e = 1; e < n; e++) top = logit[e] > top ? logit[e] : top;
    for (long i = 0; i < n; i += LANES) store(score + i, exp(load(logit + i) - top));
    for (long e = 0; e < n; e++) total += score[e];
    for (long i = 0; i < n; i += LANES) store(score + i, load(score + i) / total);
}

// Scores, which become weights, and keys, by which experts are chosen: logits where their order is that of the scores.
template <class T> void score(const T* logits, const ChooseCall& c, Scores& s) {
    for (long i = 0; i < c.experts; i += LANES) store(s.logit + i, load_upto(logits + i, c.experts - i));
    if (c.scoring == SOFTMAX) softmax(s.logit, s.score, c.experts);
    else
        for (long i = 0; i < c.experts; i += LANES) store(s.score + i, sigmoid(load(s.logit + i)));
    for (long e = 0; e < c.experts; e++) s.key[e] = c.correction ? s.score[e] + c.correction[e] : s.logit[e];
}

// `item` among the best `most` of those before it, best first; of equal keys the earlier. Returns how many there are.
inline long keep_best(int64_t* best, long count, long most, const float* keys, long item) {
    if (count == most && !(keys[item] > keys[best[most - 1]])) return count;
    long at = count < most ? count++ : most - 1;
    for (; at > 0 && keys[item] > keys[best[at - 1]]; at--) best[at] = best[at - 1];
    best[at] = item;
    return count;
}

float group_score(const ChooseCall& c, const Scores& s, long first, long size) {
    int64_t best[2];
    const long wanted = c.group_scoring == TWO_LARGEST && size > 1 ? 2 : 1;
    for (long e = first, count = 0; e < first + size; e++) count = keep_best(best, count, wanted, s.key, e);
    float total = 0;
    for (long i = 0; i < wanted; i++) total += s.score[best[i]] + (c.correction ? c.correction[best[i]] : 0);
    return total;
}

void choose(const ChooseCall& c, const Scores& s, int64_t* chosen) {
    const long size = c.experts / c.groups;
    bool is_kept[EXPERTS_MAX] = {true};
    if (c.groups > 1) {
        float scores[EXPERTS_MAX];
        int64_t best[EXPERTS_MAX];
        long count = 0;
        for (long g = 0; g < c.groups; g++) {
            scores[g] = group_score(c, s, g * size, size);
            is_kept[g] = false;
            count = keep_best(best, count, c.groups_kept, scores, g);
        }
        for (long i = 0; i < count; i++) is_kept[best[i]] = true;
    }
    long count = 0;
    for (long e = 0; e < c.experts; e++)
        if (is_kept[e / size]) count = keep_best(chosen, count, c.choices, s.key, e);
}

void weigh(const ChooseCall& c, const Scores& s, const int64_t* chosen, float* weights) {
    float total = 0;
    for (long i = 0; i < c.choices; i++) total += s.score[chosen[i]];
    const float factor = c.renormalises ? c.factor / (total + DENOMINATOR_MIN) : c.factor;
    for (long i = 0; i < c.choices; i++) weights[i] = s.score[chosen[i]] * factor;
}

void count_rows(const SortCall& c) {
    int64_t next[EXPERTS_MAX] = {};
    const long rows = c.tokens * c.choices;
    for (long i = 0; i < rows; i++) next[c.chosen[i]]++;
    long start = 0;
    for (long e = 0; e < c.experts; e++) {
        c.starts[e] = start;
        start += next[e];
        next[e] = c.starts[e];
    }
    c.starts[c.experts] = start;
    for (long i = 0; i < rows; i++) c.places[i] = next[c.chosen[i]]++;
}

} // namespace

extern "C" {

int64_t experts_max() { return EXPERTS_MAX; }

// Each token's experts, and the weights of what they give.
int choose_experts(const ChooseCall* call, Member* member) {
    const ChooseCall& c = *call;
    share_rows(member, c.tokens, COST_OF_SCORE * c.experts, [&](long token) {
        Scores s;
        const long at = token * c.logits_stride;
        if (c.logits_are_bfloat16) score((const uint16_t*)c.logits + at, c, s);
        else score((const float*)c.logits + at, c, s);
        int64_t* chosen = c.chosen + token * c.choices;
        if (!c.keeps_choice) choose(c, s, chosen);
        weigh(c, s, chosen, c.weights + token * c.choices);
    });
    return 0;
}

// A row for each choice of each token, in the order of the experts, and within one of the tokens.
int sort_by_expert(const SortCall* call, Member* member) {
    const SortCall& c = *call;
    once(member, [&] { count_rows(c); });
    share_rows(member, c.tokens, c.choices * c.row_bytes / 4, [&](long token) {
        const char* row = (const char*)c.x + token * c.x_stride;
        for (long i = token * c.choices; i < (token + 1) * c.choices; i++)
            memcpy((char*)c.sorted + c.places[i] * c.sorted_stride, row, c.row_bytes);
    });
    return 0;
}

// out[token] = sum over its choices of weight * y[place], in their order, and what a shared expert gave, times the sigmoid
// of its gate if it has one.
int combine_choices(const CombineCall* call, Member* member) {
    const CombineCall& c = *call;
    share_rows(member, c.tokens, c.choices * c.n, [&](long token) {
        const floats gate = c.gates ? sigmoid(splat(c.gates[token])) : splat(1.f);
        float* out = c.out + token * c.n;
        for (long i = 0; i < c.n; i += LANES) {
            const long left = c.n - i;
            floats total = {};
            for (long k = token * c.choices; k < (token + 1) * c.choices; k++)
                total += load_upto(c.y + c.places[k] * c.n + i, left) * c.weights[k];
            if (c.shared) total += load_upto(c.shared + token * c.n + i, left) * gate;
            store_upto(out + i, c.adds ? load_upto(out + i, left) + total * c.factor : total, left);
        }
    });
    return 0;
}
}
