// fp8: e4m3 numbers, multiplied as f16.
#pragma once
#include "amk/weights.cuh"

namespace amk {

__device__ __forceinline__ void e4m3_pairs(u32 word, u32& first, u32& second) {
  const u32 low = __byte_perm(word, 0u, 0x1404u), high = __byte_perm(word, 0u, 0x3424u);
  first = e4m3_pair(low, low >> 4), second = e4m3_pair(high, high >> 4);
}

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

template <int kGroupColumns = 0, bool = false>
struct Fp8 {
  static constexpr int kGroup = kGroupColumns, kBlocks = 1, kMiddle = 0, kLanes = 1, kRowGroups = 1;
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
