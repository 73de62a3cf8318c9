// What kinds of codes have in common; codes/ has the type of each: what a lane does with its 16 columns of a block (8 rows x 64
// columns) of a chunk.
//
// The weights are the operand of 16 rows of an `mma`: rows 0..7 hold the first eight of each lane's 16 columns, rows 8..15 the
// last eight of the same weight rows; even columns of the other operand have x for the former, odd ones for the latter. A
// row's sum is therefore C[r][even] + C[r + 8][odd], words 0 and 3 of a lane. `sum` is that of the lane for one block, a
// code of 1 counting kUnit: where x is digits, of the low digit in lanes 4 r and of the high one in lanes 4 r + 1. `weight` is
// the number that the lane's sums are to be multiplied with.
// kGroup columns share a scale; kBlocks of 64 columns are read by one 16-byte load of a lane. kZeros: chunks have the codes of 0;
// else it is kMiddle. `pairs` are the codes as pairs of bf16, exactly, less the code of 0: words 0..3 are the lane's first eight
// columns of a block, words 4..7 the last eight.
// kEarly: a chunk's slot is refilled before it is multiplied, when it is all in registers, and only the lanes that hold a column
// of x that counts read one; four bits lost by that (LADDER.md). kPairs: lanes 16..31 read another block of x, the columns 4..7 of
// the operand, whose sums are in lanes 4 r + 2 and 4 r + 3.
#pragma once
#include <cuda_fp16.h>

#include "amk/pairs.cuh"
#include "amk/tensor_core.cuh"
#include "amk/vector_layouts.cuh"

namespace amk {

// A bf16 number between 128 and 256 has its integer in its low bits.
__device__ __forceinline__ u32 above_128(u32 word, u32 bytes, u32 mask) { return __byte_perm(word, 0x43u, bytes) & (0xff00ff00u | mask); }
inline constexpr u32 kFirstBytes = 0x4140u, kLastBytes = 0x4342u, kMinusOnes = 0xbf80bf80u;

// n, |n| < 2^22, as a float: cheaper than the conversion, and the addition joins that of the sum's parts.
__device__ __forceinline__ float small_integer(int n) { return __uint_as_float(static_cast<u32>(n) + kIntegerBits) - kInteger; }

// x as digits: columns 0..3 of the operand are low, low, high, high, the others repeat them.
struct DigitOperand {
  using Input = uint2;
  static constexpr int kLanes = 2, kRowGroups = 1;
  // Byte offset in a block of what a lane multiplies.
  static __device__ __forceinline__ int place(int lane) { return lane / 8 % 2 * kBlock + lane % 4 * 16 + lane / 4 % 2 * 8; }
  static __device__ __forceinline__ float digit(int lane) { return lane % 2 == 0 ? 1.f : 256.f; }
};

}  // namespace amk
