// The weight formats: what a lane does with its 16 columns of a unit (8 rows x 64 columns) of a chunk.
//
// In mma.m16n8k16 the weights are the 16x16 operand: rows 0..7 hold the first eight of each lane's 16 columns, rows 8..15 the
// last eight of the same weight rows; x is the 16x8 operand, column 0 meeting the first and column 1 the second half. A row's
// sum is therefore C[r][0] + C[r + 8][1]: words 0 and 3 of the lanes 4 r. `operands` makes the eight words of the unit's two
// products out of the codes; the numbers in them may be off by kOffset, which the caller takes out with the sum of x.
#pragma once
#include "amk/context.cuh"

namespace amk {

struct Bf16 {
  static constexpr bool kPlain = true;
};

// d = a * b + c in pairs of bf16. Exact here: the results are small integers, or powers of two times a.
__device__ __forceinline__ u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// (word & mask) | base, as one instruction: left to itself the compiler makes two, each with a constant of its own.
__device__ __forceinline__ u32 masked_onto(u32 word, u32 mask, u32 base) {
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(word), "r"(mask), "r"(base));
  return d;
}

// Bytes 0 and 2 of a word as two's complement -> bf16 numbers: 128 + the low 7 bits, less 128 or 256.
__device__ __forceinline__ u32 signed_bytes(u32 word) {
  const u32 magnitude = masked_onto(word, 0x007f007fu, 0x43004300u), offset = masked_onto(word, 0x00800080u, 0x43004300u);
  return fma_pair(offset, 0xbf80bf80u, magnitude);
}

// kGroup columns share a scale; kUnits of them, 64 columns each, are read by one 16-byte load of a lane.
template <int kGroupColumns>
struct Int8 {
  static constexpr int kGroup = kGroupColumns, kUnits = 1, kOffset = 0;
  static constexpr bool kPlain = false, kZeros = false;
  static __device__ __forceinline__ void operands(const uint4& v, int, u32 (&a)[2][4]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = signed_bytes(words[i]);
      a[i / 2][i % 2 + 2] = signed_bytes(words[i] >> 8);
    }
  }
};

// Two e4m3 numbers, their signs and their other bits where bf16 has them: exponents are then 120 too small, which a product
// puts right, subnormals included.
__device__ __forceinline__ u32 e4m3_pair(u32 signs, u32 rest) {
  return fma_pair((signs & 0x80008000u) | (rest & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
}

template <int kGroupColumns>
struct Fp8 {
  static constexpr int kGroup = kGroupColumns, kUnits = 1, kOffset = 0;
  static constexpr bool kPlain = false, kZeros = false;
  static __device__ __forceinline__ void operands(const uint4& v, int, u32 (&a)[2][4]) {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = e4m3_pair(words[i] << 8, words[i] << 4);
      a[i / 2][i % 2 + 2] = e4m3_pair(words[i], words[i] >> 4);
    }
  }
};

// Nibbles as the low bits of 128 + code.
template <int kGroupColumns, bool kStoredZeros>
struct Int4 {
  static constexpr int kGroup = kGroupColumns, kUnits = 2, kOffset = kStoredZeros ? 128 : 136;
  static constexpr bool kPlain = false, kZeros = kStoredZeros;
  static __device__ __forceinline__ void operands(const uint4& v, int unit, u32 (&a)[2][4]) {
    const u32 words[2] = {unit == 0 ? v.x : v.z, unit == 0 ? v.y : v.w};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[i][0] = masked_onto(words[i], 0x000f000fu, 0x43004300u);
      a[i][2] = masked_onto(words[i] >> 4, 0x000f000fu, 0x43004300u);
      a[i][1] = masked_onto(words[i] >> 8, 0x000f000fu, 0x43004300u);
      a[i][3] = masked_onto(words[i] >> 12, 0x000f000fu, 0x43004300u);
    }
  }
};

}  // namespace amk
