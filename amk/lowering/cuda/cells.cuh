// Elements of a hand-off buffer, plain or tagged, behind one interface.
//
// Plain elements are ordered by the counter that was acquired before. A tagged element shares an aligned 8-byte word
// with its tag; reading waits until the tag is the expected one, so the word orders itself (M13).
#pragma once
#include "amk/context.cuh"

namespace amk {

template <class T>
__device__ __forceinline__ float to_float(T v) {
  return static_cast<float>(v);
}
template <>
__device__ __forceinline__ float to_float(bf16 v) {
  return __bfloat162float(v);
}

template <class T>
struct Plain {
  T* data;

  // kWidth consecutive elements from i, as floats; kWidth elements are a multiple of 8 bytes and aligned to it.
  template <int kWidth, class C>
  __device__ __forceinline__ void load(const C&, int i, float (&out)[kWidth]) const {
    constexpr int kBytes = kWidth * static_cast<int>(sizeof(T));
    if constexpr (kBytes == 16) {
      const uint4 raw = sync::load_global_v4(data + i);
      const T* v = reinterpret_cast<const T*>(&raw);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) out[k] = to_float(v[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) out[k] = to_float(data[i + k]);
    }
  }
  template <class C>
  __device__ __forceinline__ float load(const C&, int i) const {
    return to_float(data[i]);
  }
  template <class C>
  __device__ __forceinline__ void store(const C&, int i, float v) const {
    data[i] = static_cast<T>(v);
  }
};

}  // namespace amk
