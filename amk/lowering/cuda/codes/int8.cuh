// int8: two's complement, multiplied with digits.
#pragma once
#include "amk/weights.cuh"

namespace amk {

// Four signed bytes: 128 and the low seven bits, less 128 or, where the sign bit is set, 256.
__device__ __forceinline__ void int8_pairs(u32 word, u32& first, u32& second) {
  first = fma_pair(above_128(word, kFirstBytes, 0x00800080u), kMinusOnes, above_128(word, kFirstBytes, 0x007f007fu));
  second = fma_pair(above_128(word, kLastBytes, 0x00800080u), kMinusOnes, above_128(word, kLastBytes, 0x007f007fu));
}

template <int kGroupColumns = 0, bool = false>
struct Int8 : DigitOperand {
  static constexpr int kGroup = kGroupColumns, kBlocks = 1, kMiddle = 0;
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

}  // namespace amk
