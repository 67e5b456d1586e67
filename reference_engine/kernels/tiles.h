// Tile registers (AMX): eight matrices of at most 16 rows of 64 bytes, and their product in bfloat16.

#pragma once

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HAS_TILES 1

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

// Whether this process may use them: Linux grants tiles on request.
inline bool tiles_are_granted() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
    static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    return granted;
}

// Gives each tile of this thread its number of rows, of 64 bytes.
inline void configure_tiles(const uint8_t (&rows)[8]) {
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } layout;
    for (int i = 0; i < 8; ++i) {
        layout.row_bytes[i] = 64;
        layout.rows[i] = rows[i];
    }
    _tile_loadconfig(&layout);
}

}  // namespace

#else
#define HAS_TILES 0
#endif
