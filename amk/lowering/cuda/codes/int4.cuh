// int4: low nibbles are the first eight columns, high nibbles the last eight. Without stored zeros a nibble is its code
// plus 8: as the upper half of a byte, with its top bit flipped, it is 16 times the code. With them the high nibbles count 16
// times, and rows 8..15 of the operand are whole bytes: what their low nibbles add is C[r][odd], word 1 of a lane, so no mask
// takes them out. Where the other half of the operand has x of another block, of whose weights `other` are, each lane keeps the
// sums of its own.
#pragma once
#include "amk/weights.cuh"

namespace amk {

// The low nibbles of four bytes, less a number of which `offset` is 128 more.
__device__ __forceinline__ void int4_pairs(u32 word, u32 offset, u32& first, u32& second) {
  first = fma_pair(offset, kMinusOnes, above_128(word, kFirstBytes, 0x000f000fu));
  second = fma_pair(offset, kMinusOnes, above_128(word, kLastBytes, 0x000f000fu));
}

template <int kGroupColumns = 0, bool kStoredZeros = false>
struct Int4 : DigitOperand {
  static constexpr int kGroup = kGroupColumns, kBlocks = 2, kMiddle = 8;
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
  static __device__ __forceinline__ void pairs(const uint4& v, int block, u32 zero, u32 (&out)[8]) {
    const u32 first = block == 0 ? v.x : v.z, second = block == 0 ? v.y : v.w, offset = (0x4300u | zero) * 0x10001u;
    int4_pairs(first, offset, out[0], out[1]), int4_pairs(second, offset, out[2], out[3]);
    int4_pairs(first >> 4, offset, out[4], out[5]), int4_pairs(second >> 4, offset, out[6], out[7]);
  }
};

}  // namespace amk
