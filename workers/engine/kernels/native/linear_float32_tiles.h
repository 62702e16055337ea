// Linear layers of float32 in matrix tiles, a number as three bfloat16 (float32_parts.h): 2.7 times the multiply-adds that
// vectors make at best. Rows are split before the product; weights, which are read once from memory, as they are used.
// Weights that are bfloat16 need no splitting and half the products: those with the parts that are zero add nothing.
//
// An output is one chain over ascending k: a row's result is bitwise the same in any batch.
#pragma once
#include <stdlib.h>

#include <memory>
#include <new>

#include "float32_parts.h"
#include "linear_call.h"
#include "share.h"

#ifdef HAS_TILES
namespace {

// Rows of a call go in bands, whose parts stay in the second cache beside a panel's: [band][step][row of the band][part][32].
class Bands {
  public:
    Bands(const LinearCall& call) : rows_(call.rows), steps_(call.k / STEP_INPUTS) {
        constexpr long CACHE_BYTES = 1 << 20;
        band_ = std::max(1l, (CACHE_BYTES / row_bytes() - PANEL) / BLOCK_ROWS) * BLOCK_ROWS;
    }

    struct Band {
        long first, rows, start_bytes; // of its parts
        long step_bytes() const { return rows * ROW_STEP_BYTES; }
    };
    Band operator[](long band) const {
        const long first = band * band_;
        return {first, std::min(band_, rows_ - first), first * row_bytes()};
    }
    Band of_row(long row) const { return (*this)[row / band_]; }
    long count() const { return (rows_ + band_ - 1) / band_; }
    long row_bytes() const { return steps_ * ROW_STEP_BYTES; }

  private:
    const long rows_, steps_;
    long band_;
};

struct SplitCall {
    LinearCall all;
    Bands bands;
    const char* x; // in parts
};

inline void fetch(const char* from, long bytes, long share, long shares) {
    for (const char *at = from + bytes * share / shares, *end = from + bytes * (share + 1) / shares; at < end; at += 64)
        __builtin_prefetch(at, 0, 3);
}

// A panel's weights in parts: made some steps ahead of their use, so that what is stored has left the core's buffers, and kept for further blocks of rows where there is memory.
class SplitPanel {
  public:
    static constexpr long WEIGHT_BYTES = 4, STEPS_AHEAD = 2;

    SplitPanel(const char* w, long k, bool is_kept) : w_((const float*)w), steps_(k / STEP_INPUTS) {
        if (is_kept) kept_ = memory_of_thread(steps_ * PANEL_STEP_BYTES);
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

    static char* memory_of_thread(long bytes) {
        static thread_local struct Memory {
            char* at = nullptr;
            long bytes = 0;
            ~Memory() { free(at); }
        } memory;
        if (memory.bytes < bytes) {
            free(memory.at);
            memory.at = (char*)aligned_alloc(64, bytes);
            memory.bytes = memory.at ? bytes : 0;
        }
        return memory.at;
    }

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

// A chunk: one band against one panel, in parts of 32 rows.
template <class Panel> void band_in_tiles(const void* context, long chunk, Parts& parts) {
    const auto& [all, bands, x] = *(const SplitCall*)context;
    const long panels = panels_of(all), panel = chunk % panels, panel_bytes = PANEL * all.k * Panel::WEIGHT_BYTES;
    const Bands::Band band = bands[chunk / panels];
    const long blocks = (band.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const char *w = (const char*)all.w + panel * panel_bytes, *next = w + panel_bytes;
    const long fetch = panel + 1 < panels ? panel_bytes / blocks : 0;
    Panel weights(w, all.k, blocks - parts.first > 1);
    Tiles tiles;
    for (long block = parts.first; block < blocks; block++) {
        const long row = block * BLOCK_ROWS, height = std::min(BLOCK_ROWS, band.rows - row);
        tiles.set_up_block(height);
        const char* x_block = x + band.start_bytes + row * ROW_STEP_BYTES;
        if (!float32_tile(all, band.first + row, height, panel, x_block, band.step_bytes(), weights, next + block * fetch, fetch, parts)) return;
    }
}

inline void split_row(const LinearCall& call, const Bands& bands, long row, char* out) {
    const Bands::Band band = bands.of_row(row);
    const float* x = (const float*)call.x + row * call.x_stride;
    char* to = out + band.start_bytes + (row - band.first) * ROW_STEP_BYTES;
    for (long k = 0; k < call.k; k += STEP_INPUTS, to += band.step_bytes()) split_inputs(x + k, to);
}

constexpr long PARTS_BYTES_MAX = 8 << 20; // of rows at once, or one block of them

inline long rows_at_once(const LinearCall& call) {
    const long row_bytes = Bands(call).row_bytes();
    return std::max(1l, PARTS_BYTES_MAX / row_bytes / BLOCK_ROWS) * BLOCK_ROWS;
}

inline LinearCall some_rows(const LinearCall& call, long first, long count) {
    LinearCall some = call;
    some.x = (const float*)call.x + first * call.x_stride;
    some.out = (char*)call.out + first * call.out_stride * (call.out_is_bfloat16 ? 2 : 4);
    some.rows = count;
    return some;
}

// 0, or 1 if there is no memory for the parts of x.
template <class Panel> int share_float32_tiles(const LinearCall& call, Member* member) {
    const bool is_worth_sharing = call.rows * call.n * call.k > WORTH_SHARING;
    const long at_once = std::min<long>(call.rows, rows_at_once(call));
    const long memory_floats = (at_once * Bands(call).row_bytes() + 64) / 4; // with room to begin at a cache line
    std::atomic<int> status{0};
    const auto compute = [&](Member* member) {
        const std::unique_ptr<float[]> own(member ? nullptr : new (std::nothrow) float[memory_floats]);
        float* memory = member ? member->workspace(memory_floats) : own.get();
        if (!memory) {
            status = 1;
            return;
        }
        char* x = (char*)memory + (64 - (uintptr_t)memory % 64) % 64;
        for (long first = 0; first < call.rows; first += at_once) {
            const LinearCall some = some_rows(call, first, std::min(at_once, call.rows - first));
            const SplitCall split{some, Bands(some), x};
            share_rows(member, some.rows, some.k, [&](long row) { split_row(split.all, split.bands, row, x); });
            share_parts(member, is_worth_sharing, split.bands.count() * panels_of(some), band_in_tiles<Panel>, &split);
        }
    };
    if (!call.rows) return 0;
    if (member || !is_worth_sharing) compute(member);
    else with_team(compute);
    return status;
}

} // namespace
#endif
