// Intel's matrix tiles (AMX): sums[16][16] += rows[16][64 bytes] * columns[16][64 bytes] in one instruction, where a
// lane of four bytes holds two bfloat16 or four int8 of neighbouring k. Four accumulators, 32 rows by 32 columns, keep
// the unit busy with one load for each product. An output is one chain over ascending k however many rows there are.
#pragma once
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define HAS_TILES
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr long TILE_ROWS = 16, TILE_BYTES = 64; // a row of a tile

// The kernel hands out the tiles' 8 KB of state to processes that ask. It refuses where a thread's signal stack is too
// small to save them.
inline bool ask_for_tiles() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

// This thread's tiles, set up for blocks of some height: 0 to 3 are sums, 4 and 5 rows of x, 6 and 7 columns of weights.
class Tiles {
  public:
    ~Tiles() { _tile_release(); }

    void set_up_for(long height) { // 1 to 32 rows
        if (height == height_) return;
        height_ = height;
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        const uint8_t upper = height < TILE_ROWS ? height : TILE_ROWS, lower = height - upper;
        const uint8_t rows[8] = {upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS};
        for (int tile = 0; tile < 8; tile++) {
            config.rows[tile] = rows[tile];
            config.row_bytes[tile] = rows[tile] ? TILE_BYTES : 0;
        }
        _tile_loadconfig(&config);
    }

  private:
    long height_ = 0;
};

} // namespace
#endif
