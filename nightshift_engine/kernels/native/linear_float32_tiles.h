// Linear layers of float32 in matrix tiles, a number as three bfloat16 (float32_parts.h): 2.7 times the multiply-adds that
// vectors make at best. Rows are split before the product; weights, which are read once from memory, as they are used.
// Weights that are bfloat16 need no splitting and half the products: those with the parts that are zero add nothing.
//
// An output is one chain over ascending k: a row's result is bitwise the same in any batch.
#pragma once
#include <memory>
#include <new>

#include "float32_parts.h"
#include "linear_call.h"
#include "share.h"

#ifdef HAS_TILES
namespace {

// Some rows of a call, and their parts: [step][row][part][32].
struct SplitCall {
    LinearCall some;
    const char* x;
    long step_bytes() const { return some.rows * ROW_STEP_BYTES; }
};

inline void fetch(const char* from, long bytes, long share, long shares) {
    for (const char *at = from + bytes * share / shares, *end = from + bytes * (share + 1) / shares; at < end; at += 64)
        __builtin_prefetch(at, 0, 3);
}

// A panel's weights in parts: made some steps ahead of their use, so that what is stored has left the core's buffers, and kept
// for the next blocks of rows where they are few enough for the second cache.
class SplitPanel {
  public:
    static constexpr long WEIGHT_BYTES = 4, STEPS_AHEAD = 2;

    SplitPanel(const char* w, long k, bool is_kept) : w_((const float*)w), steps_(k / STEP_INPUTS) {
        constexpr long KEPT_BYTES_MAX = 1 << 18;
        if (is_kept && steps_ * PANEL_STEP_BYTES <= KEPT_BYTES_MAX) kept_ = memory_of_thread(steps_ * PANEL_STEP_BYTES);
    }

    const char* parts(long step) const { return kept_ ? kept_ + step * PANEL_STEP_BYTES : last_[step % (STEPS_AHEAD + 1)]; }

    // A share of what `parts` of this step must hold, if there is such a step.
    void prepare(long step, long share, long shares) {
        if (step >= steps_) return;
        char* parts = const_cast<char*>(this->parts(step));
        if (is_split_) fetch(parts, PANEL_STEP_BYTES, share, shares);
        else split_pairs(w_ + step * STEP_INPUTS * PANEL, parts, PAIRS * share / shares, PAIRS * (share + 1) / shares);
    }

    void end_block() { is_split_ = kept_; }

  private:
    static constexpr long PAIRS = STEP_INPUTS / 2;

    const float* w_;
    const long steps_;
    bool is_split_ = false;
    char* kept_ = nullptr;
    alignas(64) char last_[STEPS_AHEAD + 1][PANEL_STEP_BYTES];
};

// A panel's weights that are bfloat16: the first of three parts.
class StoredPanel {
  public:
    static constexpr long WEIGHT_BYTES = 2, STEPS_AHEAD = 1;

    StoredPanel(const char* w, long k, bool) : w_(w), steps_(k / STEP_INPUTS) {}
    const char* parts(long step) const { return w_ + step * PANEL_PART_BYTES; }
    void prepare(long step, long share, long shares) {
        if (step < steps_) fetch(parts(step), PANEL_PART_BYTES, share, shares);
    }
    void end_block() {}

  private:
    const char* w_;
    const long steps_;
};

// One step of a block against a panel, in the tiles that `Tiles::set_up_block` names.
struct StepProducts {
    const char *x, *w;
    bool is_high;

    template <int PART> void load_x() const {
        _tile_loadd(4, x + PART * TILE_BYTES, ROW_STEP_BYTES);
        if (is_high) _tile_loadd(5, x + TILE_ROWS * ROW_STEP_BYTES + PART * TILE_BYTES, ROW_STEP_BYTES);
    }
    template <int PART> void load_w() const {
        _tile_loadd(6, w + PART * PANEL_PART_BYTES, 2 * TILE_BYTES);
        _tile_loadd(7, w + PART * PANEL_PART_BYTES + TILE_BYTES, 2 * TILE_BYTES);
    }
    void multiply() const {
        multiply_upper_bfloat16();
        if (is_high) multiply_lower_bfloat16();
    }
    // In an order that loads little. next(share, shares): between the products, for the processor's other units.
    template <class Next> void make(const SplitPanel&, const Next& next) const {
        asm volatile("" ::: "memory"); // what was split is in memory: the compiler does not see a tile read it
        constexpr long SHARES = 6;
        load_x<1>(), load_w<1>(), multiply(), next(0, SHARES);
        load_w<0>(), multiply(), next(1, SHARES);
        load_x<2>(), multiply(), next(2, SHARES);
        load_x<0>(), multiply(), next(3, SHARES);
        load_w<1>(), multiply(), next(4, SHARES);
        load_w<2>(), multiply(), next(5, SHARES);
    }
    // The same sums where all but the first of w's parts are zero.
    template <class Next> void make(const StoredPanel&, const Next& next) const {
        constexpr long SHARES = 3;
        load_x<1>(), load_w<0>(), multiply(), next(0, SHARES);
        load_x<2>(), multiply(), next(1, SHARES);
        load_x<0>(), multiply(), next(2, SHARES);
    }
};

// Up to 32 rows, whose parts begin at x, against one panel. `ahead`: as in linear.cpp.
// False: another thread writes what this one has computed.
template <class Panel>
bool float32_tile(const LinearCall& call, long row, long height, long panel, const char* x, long x_step, Panel& weights,
                  const char* ahead, long ahead_bytes, Parts& parts) {
    const long steps = call.k / STEP_INPUTS, ahead_step = (ahead_bytes / steps + 63) / 64 * 64;
    zero_sums(height);
    for (long step = 0; step < Panel::STEPS_AHEAD; step++) weights.prepare(step, 0, 1);
    for (long step = 0; step < steps; step++, x += x_step, ahead += ahead_step) {
        StepProducts{x, weights.parts(step), height > TILE_ROWS}.make(weights, [&](long share, long shares) {
            fetch(x + x_step, height * ROW_STEP_BYTES, share, shares);
            weights.prepare(step + Panel::STEPS_AHEAD, share, shares);
            for (long line = ahead_step * share / shares / 64 * 64; line < ahead_step * (share + 1) / shares; line += 64)
                __builtin_prefetch(ahead + line, 0, 2);
        });
    }
    weights.end_block();
    floats sums[BLOCK_ROWS][2];
    store_sums(height, sums);
    if (!parts.may_write()) return false;
    finish_rows(call, row, height, panel, sums);
    parts.written();
    return true;
}

template <class Panel> void split_panel_in_tiles(const void* context, long panel, Parts& parts) {
    const SplitCall& call = *(const SplitCall*)context;
    const LinearCall& some = call.some;
    const long panel_bytes = PANEL * some.k * Panel::WEIGHT_BYTES, blocks = (some.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const char *w = (const char*)some.w + panel * panel_bytes, *next = w + panel_bytes;
    const long fetch = panel + 1 < panels_of(some) ? panel_bytes / blocks : 0;
    Panel weights(w, some.k, blocks - parts.first > 1);
    Tiles tiles;
    for (long block = parts.first; block < blocks; block++) {
        const long row = block * BLOCK_ROWS, height = std::min<long>(BLOCK_ROWS, some.rows - row);
        tiles.set_up_block(height);
        const char* x = call.x + row * ROW_STEP_BYTES;
        if (!float32_tile(some, row, height, panel, x, call.step_bytes(), weights, next + block * fetch, fetch, parts)) return;
    }
}

inline void split_row(const LinearCall& call, long row, char* out) {
    const float* x = (const float*)call.x + row * call.x_stride;
    for (long k = 0; k < call.k; k += STEP_INPUTS, out += call.rows * ROW_STEP_BYTES) split_inputs(x + k, out + row * ROW_STEP_BYTES);
}

// 0, or 1 if there is no memory for the parts of a band of rows.
template <class Panel> int share_float32_tiles(const LinearCall& call, Member* member) {
    const long row_bytes = call.k / STEP_INPUTS * ROW_STEP_BYTES;
    std::atomic<int> status{0};
    share_bands(member, call, row_bytes, [&](Member* member, long first, long count) {
        const long floats_needed = (count * row_bytes + 64) / 4; // with room to begin at a cache line
        const std::unique_ptr<float[]> own(member ? nullptr : new (std::nothrow) float[floats_needed]);
        float* memory = member ? member->workspace(floats_needed) : own.get();
        if (!memory) {
            status = 1;
            return;
        }
        char* x = (char*)memory + (64 - (uintptr_t)memory % 64) % 64;
        const SplitCall split{some_rows(call, first, count, sizeof(float)), x};
        share_rows(member, count, call.k, [&](long row) { split_row(split.some, row, x); });
        share_parts(member, is_worth_sharing(call), panels_of(call), split_panel_in_tiles<Panel>, &split);
    });
    return status;
}

} // namespace
#endif
