// Rows of the KV cache, in bf16 or in fp8 (e4m3, scale 1): read eight elements at a time as bf16 pairs, which hold either
// exactly, written one by one.
#pragma once
#include <cuda_fp8.h>

#include "amk/cells.cuh"
#include "amk/pairs.cuh"

namespace amk {

template <class T>
struct CacheRow;

template <>
struct CacheRow<bf16> {
  using Raw = uint4;
  static __device__ __forceinline__ void load_if(bool live, Raw& raw, const bf16* row) { sync::load_global_if(live, raw, row); }
  static __device__ __forceinline__ const uint4& pairs(const Raw& raw) { return raw; }
  static __device__ __forceinline__ bf16 of(float v) { return __float2bfloat16(v); }
  static __device__ __forceinline__ void store_pair(bf16* to, float2 v) { *reinterpret_cast<u32*>(to) = pack_bf16(v.x, v.y); }
};

template <>
struct CacheRow<fp8> {
  using Raw = uint2;
  static __device__ __forceinline__ void load_if(bool live, Raw& raw, const fp8* row) { sync::load_global_if(live, raw, row); }
  // Two bytes of a word into the upper halves of two: sign and exponent then stand as in e4m3_pair's arguments.
  static __device__ __forceinline__ u32 pair(u32 word, u32 bytes) {
    const u32 apart = __byte_perm(word, 0u, bytes);
    return e4m3_pair(apart, apart >> 4);
  }
  static __device__ __forceinline__ uint4 pairs(const Raw& raw) {
    return make_uint4(pair(raw.x, 0x1404u), pair(raw.x, 0x3424u), pair(raw.y, 0x1404u), pair(raw.y, 0x3424u));
  }
  static __device__ __forceinline__ fp8 of(float v) { return {__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3)}; }
  static __device__ __forceinline__ void store_pair(fp8* to, float2 v) { to[0] = of(v.x), to[1] = of(v.y); }
};

// The row of a position of a head: P::kCaches heads have one each in every layer.
template <class P, class Cache>
__device__ __forceinline__ Cache* cache_row(Cache* cache, int layer, int head, int position) {
  const long long first = static_cast<long long>(layer * P::kCaches + head) * P::kContext;
  return row_at<P::kHeadDim>(cache, first + position);
}

}  // namespace amk
