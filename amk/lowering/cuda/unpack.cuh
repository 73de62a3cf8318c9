// The chunks of one matrix -> its rows in bf16, for matrix products of another library.
//
// The layout of a chunk is that of amk/weights/chunks.py: tiles of 512 bytes, of which lane 4 * row + q holds 16.
// A number is (code - zero) * scale in float32, which is exact, rounded to the nearest bf16, ties to even. W is the
// matrix's kind of code, of any group. A warp takes one chunk; nothing is shared and nothing waits.
#pragma once
#include "amk/weights.cuh"

namespace amk {
namespace unpack {

using u8 = unsigned char;
using u16 = unsigned short;

// Tiles that a warp loads before it stores the first.
inline constexpr u32 kTogether = 4;

// chunks: of the whole stream, `stride` bytes each. places: of the matrix's chunks, row group by row group. out: bf16
// [rows, k]. apart: scales of the rows in the order of the groups, or null where a chunk has its own. parts: tensors
// whose rows take turns in a group; in `out` one tensor follows the other.
struct Matrix {
  const u8* chunks;
  const int* places;
  u16* out;
  const float* apart;
  u64 stride;
  u32 count, across, columns, rows, k, parts, group, zeros;
};

__device__ __forceinline__ u16 to_bf16(float value) {
  const u32 bits = __float_as_uint(value);
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ float half_at(const u8* address) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*reinterpret_cast<const u16*>(address)));
  return value;
}

// Bits of a code.
template <class W>
__device__ __forceinline__ constexpr u32 bits() {
  if constexpr (W::kPlain) {
    return 16;
  } else {
    return 8 / W::kBlocks;
  }
}

// The chunk's scale and zero of one row, for columns from `column` on.
struct Scale {
  float scale;
  u32 zero;
};

template <class W>
__device__ __forceinline__ Scale scale_of(const Matrix& m, const u8* chunk, u32 packed_row, u32 column) {
  if (m.apart) return {m.apart[packed_row], W::kMiddle};
  const u32 each = m.group ? (m.columns + m.group - 1) / m.group : 1, row = packed_row % 8;
  const u32 at = row * each + (m.group ? column / m.group : 0);
  const u8* scales = chunk + m.columns * bits<W>();  // eight rows: as many bytes as columns * bits
  return {half_at(scales + 2 * at), m.zeros ? scales[16 * each + at] : W::kMiddle};
}

// Eight numbers of a row from `column` of the matrix on.
__device__ __forceinline__ void store(const Matrix& m, u32 row, u32 column, const u16 (&values)[8]) {
  u16* out = m.out + static_cast<u64>(row) * m.k + column;
  if (column + 8 <= m.k && m.k % 8 == 0) {
    uint4 whole;
    u32* words = &whole.x;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) words[i] = values[2 * i] | static_cast<u32>(values[2 * i + 1]) << 16;
    *reinterpret_cast<uint4*>(out) = whole;
    return;
  }
#pragma unroll
  for (u32 i = 0; i < 8; ++i)
    if (column + i < m.k) out[i] = values[i];
}

// One tile; `loaded` is what the lane has of it.
template <class W>
__device__ __forceinline__ void tile(const Matrix& m, const u8* chunk, const uint4& loaded, u32 at, u32 lane, u32 row,
                                     u32 packed, u32 base) {
  const u32 q = lane % 4;
  u16 values[8];
  if constexpr (W::kPlain) {
    const u32 words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) values[i] = static_cast<u16>(words[i / 2] >> 16 * (i % 2));
    store(m, row, base + 32 * at + 8 * q, values);
  } else {
#pragma unroll
    for (u32 block = 0; block < W::kBlocks; ++block) {
      const u32 column = 64 * (W::kBlocks * at + block) + 16 * q;
      const Scale s = scale_of<W>(m, chunk, packed, column);
      u32 pairs[8];
      W::pairs(loaded, block, s.zero, pairs);
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
          const u32 pair = pairs[4 * half + i / 2];
          values[i] = to_bf16(__uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u) * s.scale);
        }
        store(m, row, base + column + 8 * half, values);
      }
    }
  }
}

// `packed` row of the groups -> row of `out`; m.rows where there is none.
__device__ __forceinline__ u32 row_of(const Matrix& m, u32 packed) {
  const u32 each = 8 / m.parts, tensor = packed % 8 / each;
  const u32 within = packed / 8 * each + packed % each, length = m.rows / m.parts;
  return within < length ? tensor * length + within : m.rows;
}

template <class W>
__device__ __forceinline__ void unpack(const Matrix& m) {
  const u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (warp >= m.count) return;
  const u32 packed = warp / m.across * 8 + lane / 4, row = row_of(m, packed);
  if (row >= m.rows) return;
  const u8* chunk = m.chunks + static_cast<u64>(m.places[warp]) * m.stride;
  const u32 tiles = m.columns * bits<W>() / 512;
  const u32 base = warp % m.across * m.columns;
  for (u32 first = 0; first < tiles; first += kTogether) {
    uint4 loaded[kTogether];  // stores follow the loads of all: the compiler keeps their order
#pragma unroll
    for (u32 i = 0; i < kTogether; ++i)
      if (first + i < tiles) loaded[i] = *reinterpret_cast<const uint4*>(chunk + 512 * (first + i) + 16 * lane);
#pragma unroll
    for (u32 i = 0; i < kTogether; ++i)
      if (first + i < tiles) tile<W>(m, chunk, loaded[i], first + i, lane, row, packed, base);
  }
}

}  // namespace unpack
}  // namespace amk
