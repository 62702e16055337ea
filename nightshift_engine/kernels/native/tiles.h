// Intel's matrix tiles (AMX): sums[16][16] += rows[16][64 bytes] * columns[16][64 bytes] in one instruction, where a
// lane of four bytes holds two bfloat16 or four int8 of neighbouring k. Four accumulators, 32 rows by 32 columns, keep
// the unit busy with one load for each product. An output is one chain over ascending k however many rows there are.
#pragma once
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define HAS_TILES
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int TILE_ROWS = 16, TILE_BYTES = 64; // at most, and of one row

// The kernel hands out the tiles' 8 KB of state to processes that ask. It refuses where a thread's signal stack is too
// small to save them.
inline bool ask_for_tiles() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

struct TileRows {
    uint8_t of[8]; // 0: the tile is not used
    bool operator==(const TileRows& other) const { return memcmp(of, other.of, sizeof(of)) == 0; }
};

// This thread's tiles, each of full width.
class Tiles {
  public:
    ~Tiles() {
        if (!(set_up_ == TileRows{})) _tile_release();
    }

    void set_up(const TileRows& rows) {
        if (rows == set_up_) return;
        set_up_ = rows;
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int tile = 0; tile < 8; tile++) {
            config.rows[tile] = rows.of[tile];
            config.row_bytes[tile] = rows.of[tile] ? TILE_BYTES : 0;
        }
        _tile_loadconfig(&config);
    }

    // For a block of so many rows: tiles 0 to 3 are its sums, 4 and 5 rows of x, 6 and 7 columns of weights.
    void set_up_block(long height) {
        const uint8_t upper = height < TILE_ROWS ? height : TILE_ROWS, lower = height - upper;
        set_up({upper, upper, lower, lower, upper, lower, TILE_ROWS, TILE_ROWS});
    }

  private:
    TileRows set_up_ = {};
};

constexpr long BLOCK_ROWS = 2 * TILE_ROWS;

inline void zero_sums(long height) {
    _tile_zero(0);
    _tile_zero(1);
    if (height <= TILE_ROWS) return;
    _tile_zero(2);
    _tile_zero(3);
}

template <class Sums> void store_sums(long height, Sums (&sums)[BLOCK_ROWS][2]) {
    constexpr long STRIDE = sizeof(sums[0]);
    _tile_stored(0, &sums[0][0], STRIDE);
    _tile_stored(1, &sums[0][1], STRIDE);
    if (height <= TILE_ROWS) return;
    _tile_stored(2, &sums[TILE_ROWS][0], STRIDE);
    _tile_stored(3, &sums[TILE_ROWS][1], STRIDE);
}

inline void multiply_upper_bfloat16() { _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); }
inline void multiply_lower_bfloat16() { _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); }

} // namespace
#endif
