// Rows in bf16 as a file stores them -> the pieces of chunks that a stream reads: unpack.cuh the other way round.
//
// A piece is eight rows of some columns, in tiles of 512 bytes, of which lane 4 * row + q holds 16; rows that the matrix
// does not have are zero. A warp makes one piece; nothing is shared and nothing waits.
#pragma once

namespace amk {
namespace pack {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Tiles that a warp loads before it stores the first.
inline constexpr u32 kTogether = 4;

// Of a run of row groups. rows: [length, k], k a multiple of `columns`, the rows of one tensor behind those of the other.
// places: `count`, of the pieces in `chunks`, row group by row group, -1 for one that no worker has. chunks: pieces of
// 16 * columns bytes. infinite: of each piece, becomes 1 where a value is infinite or no number.
struct Rows {
  const u16* rows;
  const int* places;
  u8* chunks;
  u32* infinite;
  u32 count, across, columns, length, k, parts;
};

// `packed` row of the groups -> row of `rows`; m.length where there is none.
__device__ __forceinline__ u32 row_of(const Rows& m, u32 packed) {
  const u32 each = 8 / m.parts, tensor = packed % 8 / each;
  const u32 within = packed / 8 * each + packed % each, length = m.length / m.parts;
  return within < length ? tensor * length + within : m.length;
}

// Eight values of a row from `column` on.
__device__ __forceinline__ uint4 load(const Rows& m, u32 row, u32 column) {
  if (row >= m.length) return uint4{0, 0, 0, 0};
  return *reinterpret_cast<const uint4*>(m.rows + static_cast<u64>(row) * m.k + column);
}

// Whether one of two values has all bits of its exponent.
__device__ __forceinline__ bool infinite(u32 word) {
  return (word & 0x7f80u) == 0x7f80u || (word & 0x7f800000u) == 0x7f800000u;
}

__device__ __forceinline__ void pack(const Rows& m) {
  const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (warp >= m.count || m.places[warp] < 0) return;
  const u32 row = row_of(m, warp / m.across * 8 + lane / 4);
  u8* piece = m.chunks + static_cast<u64>(m.places[warp]) * m.columns * 16;
  const u32 tiles = m.columns / 32, base = warp % m.across * m.columns;
  bool bad = false;
  for (u32 first = 0; first < tiles; first += kTogether) {
    uint4 loaded[kTogether];  // stores follow the loads of all: the compiler keeps their order
#pragma unroll
    for (u32 i = 0; i < kTogether; ++i)
      if (first + i < tiles) loaded[i] = load(m, row, base + 32 * (first + i) + 8 * (lane % 4));
#pragma unroll
    for (u32 i = 0; i < kTogether; ++i) {
      if (first + i >= tiles) break;
      const uint4 v = loaded[i];
      bad = bad || infinite(v.x) || infinite(v.y) || infinite(v.z) || infinite(v.w);
      *reinterpret_cast<uint4*>(piece + 512 * (first + i) + 16 * lane) = v;
    }
  }
  if (bad) m.infinite[warp] = 1;
}

}  // namespace pack
}  // namespace amk
