// The weight formats: what a lane does with its 16 columns of a block (8 rows x 64 columns) of a chunk.
//
// The weights are the operand of 16 rows of an `mma`: rows 0..7 hold the first eight of each lane's 16 columns, rows 8..15 the
// last eight of the same weight rows; even columns of the other operand have x for the former, odd ones for the latter. A
// row's sum is therefore C[r][even] + C[r + 8][odd], words 0 and 3 of a lane. `sum` is that of the lane for one block, a
// code of 1 counting kUnit: where x is digits, of the low digit in lanes 4 r and of the high one in lanes 4 r + 1. `weight` is
// the number that the lane's sums are to be multiplied with.
// kEarly: a chunk's slot is refilled before it is multiplied, when it is all in registers, and only the lanes that hold a column
// of x that counts read one; four bits lost by that (LADDER.md). kPairs: lanes 16..31 read another block of x, the columns 4..7 of
// the operand, whose sums are in lanes 4 r + 2 and 4 r + 3.
#pragma once
#include <cuda_fp16.h>

#include "amk/tensor_core.cuh"
#include "amk/vector_layouts.cuh"

namespace amk {

// kRowGroups: of a chunk.
struct Bf16 {
  static constexpr bool kPlain = true;
  static constexpr int kRowGroups = 1;
};

struct Bf16Pairs : Bf16 {
  static constexpr int kRowGroups = 2;
};

// d = a * b + c in pairs of bf16. Exact here: the results are powers of two times a.
__device__ __forceinline__ u32 fma_pair(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two e4m3 numbers, their signs and their other bits where bf16 has them: exponents are then 120 too small, which a product
// puts right, subnormals included.
__device__ __forceinline__ u32 e4m3_pair(u32 signs, u32 rest) {
  return fma_pair((signs & 0x80008000u) | (rest & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
}

// Codes as pairs of bf16, exact, for the products of several vectors: words 0..3 are the lane's first eight columns of a block,
// words 4..7 the last eight. A bf16 number between 128 and 256 has its integer in its low bits.
__device__ __forceinline__ u32 above_128(u32 word, u32 bytes, u32 mask) { return __byte_perm(word, 0x43u, bytes) & (0xff00ff00u | mask); }
inline constexpr u32 kFirstBytes = 0x4140u, kLastBytes = 0x4342u, kMinusOnes = 0xbf80bf80u;

// Four signed bytes: 128 and the low seven bits, less 128 or, where the sign bit is set, 256.
__device__ __forceinline__ void int8_pairs(u32 word, u32& first, u32& second) {
  first = fma_pair(above_128(word, kFirstBytes, 0x00800080u), kMinusOnes, above_128(word, kFirstBytes, 0x007f007fu));
  second = fma_pair(above_128(word, kLastBytes, 0x00800080u), kMinusOnes, above_128(word, kLastBytes, 0x007f007fu));
}

// The low nibbles of four bytes, less a number of which `offset` is 128 more.
__device__ __forceinline__ void int4_pairs(u32 word, u32 offset, u32& first, u32& second) {
  first = fma_pair(offset, kMinusOnes, above_128(word, kFirstBytes, 0x000f000fu));
  second = fma_pair(offset, kMinusOnes, above_128(word, kLastBytes, 0x000f000fu));
}

__device__ __forceinline__ void e4m3_pairs(u32 word, u32& first, u32& second) {
  const u32 low = __byte_perm(word, 0u, 0x1404u), high = __byte_perm(word, 0u, 0x3424u);
  first = e4m3_pair(low, low >> 4), second = e4m3_pair(high, high >> 4);
}

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

// kGroup columns share a scale; kBlocks of 64 columns are read by one 16-byte load of a lane.
template <int kGroupColumns>
struct Int8 : DigitOperand {
  static constexpr int kGroup = kGroupColumns, kBlocks = 1;
  static constexpr bool kPlain = false, kZeros = false, kEarly = true, kPairs = false;
  static constexpr float kUnit = 1.f;
  static __device__ __forceinline__ float weight(int lane) { return digit(lane) / kUnit; }
  static __device__ __forceinline__ float sum(const uint4& v, int, const uint2& x) {
    int c[4];
    mma_32_s8(c, v.x, v.y, v.z, v.w, x.x, x.y);
    return small_integer(c[0] + c[3]);
  }
  static __device__ __forceinline__ void input(uint2& x, u32 address, int lane) { sync::load_shared_if(lane < 16, x, address); }
  static __device__ __forceinline__ void pairs(const uint4& v, int, u32, u32 (&out)[8]) {
    int8_pairs(v.x, out[0], out[1]), int8_pairs(v.z, out[2], out[3]);
    int8_pairs(v.y, out[4], out[5]), int8_pairs(v.w, out[6], out[7]);
  }
};

// Four bits, low nibbles being the first eight columns, high nibbles the last eight. Without stored zeros a nibble is its code
// plus 8: as the upper half of a byte, with its top bit flipped, it is 16 times the code. With them the high nibbles count 16
// times, and rows 8..15 of the operand are whole bytes: what their low nibbles add is C[r][odd], word 1 of a lane, so no mask
// takes them out. Where the other half of the operand has x of another block, of whose weights `other` are, each lane keeps the
// sums of its own.
template <int kGroupColumns, bool kStoredZeros>
struct Int4 : DigitOperand {
  static constexpr int kGroup = kGroupColumns, kBlocks = 2;
  static constexpr bool kPlain = false, kZeros = kStoredZeros, kEarly = false, kPairs = true;
  static constexpr float kUnit = 16.f;
  static __device__ __forceinline__ float weight(int lane) { return digit(lane) / kUnit; }
  static __device__ __forceinline__ u32 low(u32 word) { return (word << 4 & 0xf0f0f0f0u) ^ 0x80808080u; }
  static __device__ __forceinline__ u32 high(u32 word) { return (word & 0xf0f0f0f0u) ^ 0x80808080u; }
  static __device__ __forceinline__ void multiply(int (&c)[4], const uint4& v, int block, const uint2& x) {
    const u32 first = block == 0 ? v.x : v.z, second = block == 0 ? v.y : v.w;
    if constexpr (kStoredZeros) {
      mma_32_u8(c, first & 0x0f0f0f0fu, first, second & 0x0f0f0f0fu, second, x.x, x.y);
    } else {
      mma_32_s8(c, low(first), high(first), low(second), high(second), x.x, x.y);
    }
  }
  static __device__ __forceinline__ int added(const int (&c)[4]) { return kStoredZeros ? c[0] * 16 + c[3] - c[1] : c[0] + c[3]; }
  static __device__ __forceinline__ float sum(const uint4& v, int block, const uint2& x) {
    int c[4];
    multiply(c, v, block, x);
    return small_integer(added(c));
  }
  static __device__ __forceinline__ float sum(const uint4& v, const uint4& other, int block, const uint2& x, bool upper) {
    int c[4], d[4];
    multiply(c, v, block, x);
    multiply(d, other, block, x);
    const int first = added(c), second = added(d);
    return small_integer(upper ? second : first);
  }
  static __device__ __forceinline__ void input(uint2& x, u32 address, int) { x = sync::load_shared_v2(address); }
  // zero: the code that stands for 0.
  static __device__ __forceinline__ void pairs(const uint4& v, int block, u32 zero, u32 (&out)[8]) {
    const u32 first = block == 0 ? v.x : v.z, second = block == 0 ? v.y : v.w, offset = (0x4300u | zero) * 0x10001u;
    int4_pairs(first, offset, out[0], out[1]), int4_pairs(second, offset, out[2], out[3]);
    int4_pairs(first >> 4, offset, out[4], out[5]), int4_pairs(second >> 4, offset, out[6], out[7]);
  }
};

// Bytes 0 and 1 of a word (2 and 3 with kHigh) as f16 numbers; without an instruction for it, 256 times too small.
template <bool kHigh>
__device__ __forceinline__ u32 e4m3_halves(u32 word) {
#if __CUDA_ARCH__ >= 890
  u32 d;
  // Halves of a pair, not a shift: the conversion then reads the upper half of a register as it is.
  const ushort2 pair = reinterpret_cast<const ushort2&>(word);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(kHigh ? pair.y : pair.x));
  return d;
#else
  const u32 apart = __byte_perm(word, 0u, kHigh ? 0x3424u : 0x1404u);
  return (apart & 0x80008000u) | (apart >> 1 & 0x3f803f80u);
#endif
}

template <int kGroupColumns>
struct Fp8 {
  static constexpr int kGroup = kGroupColumns, kBlocks = 1, kLanes = 1, kRowGroups = 1;
  static constexpr bool kPlain = false, kZeros = false, kEarly = true, kPairs = false;
  using Input = uint4;
  static __device__ __forceinline__ int place(int lane) { return lane % 4 * 32 + lane / 4 % 2 * 16; }
  static constexpr float kUnit = sync::kArch >= 89 ? 1.f : 1.f / 256;
  static __device__ __forceinline__ float weight(int) { return 1.f / kUnit; }
  static __device__ __forceinline__ void input(uint4& x, u32 address, int lane) { sync::load_shared_if(lane < 8, x, address); }
  static __device__ __forceinline__ float sum(const uint4& v, int, const uint4& x) {
    float c[4] = {};
    mma_16_f16(c, e4m3_halves<false>(v.x), e4m3_halves<false>(v.y), e4m3_halves<true>(v.x), e4m3_halves<true>(v.y), x.x, x.y);
    mma_16_f16(c, e4m3_halves<false>(v.z), e4m3_halves<false>(v.w), e4m3_halves<true>(v.z), e4m3_halves<true>(v.w), x.z, x.w);
    return c[0] + c[3];
  }
  static __device__ __forceinline__ void pairs(const uint4& v, int, u32, u32 (&out)[8]) {
    e4m3_pairs(v.x, out[0], out[1]), e4m3_pairs(v.z, out[2], out[3]);
    e4m3_pairs(v.y, out[4], out[5]), e4m3_pairs(v.w, out[6], out[7]);
  }
};

}  // namespace amk
