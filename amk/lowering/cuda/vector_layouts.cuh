// Vectors in shared memory as products read them: how a lane writes its elements.
//
// bf16: in the order of x_place. For weights that are codes, 16-bit numbers in blocks of 64 elements, in order, that share a
// power of two, as may several neighbouring blocks: x = number * scales[block], and sums[block] = sum of x where the weights have an offset. `digits`: the
// number n, |n| < 32640, is 256 high + low, two signed bytes: 64 low ones, then 64 high ones. __half: the number rounded to 11
// bits. A block whose largest element is below 2^-112 is rounded to multiples of 2^-126; one with an element that is not
// finite, or as large as 2^127, has a scale that is not a number.
#pragma once
#include <cuda_fp16.h>

#include "amk/cells.cuh"
#include "amk/tensor_core.cuh"

namespace amk {

struct digits {
  unsigned char high_and_low[2];
};

inline constexpr int kBlock = 64;

// 2^e, with which a block's elements are below 32512, and 2^-e: e from the upper half of the bits of the largest magnitude.
struct BlockScale {
  u32 exponent;
  BlockScale() = default;
  __device__ __forceinline__ explicit BlockScale(u32 top) : exponent(max((top + 0x20000u) >> 23, 15u)) {}
  __device__ __forceinline__ float up() const { return __uint_as_float((268u - exponent) << 23); }
  __device__ __forceinline__ float down() const {
    return __uint_as_float(exponent >= 255u ? 0x7fffffffu : (exponent - 14u) << 23);
  }
};

// 1.5 * 2^23: a float this large has its integer part in its low bits, also a negative one.
inline constexpr float kInteger = 12582912.f;
inline constexpr u32 kIntegerBits = 0x4b400000u;

// n + 128 in the low bits, of the nearest integer n to v * up: byte 1 is the high digit, byte 0 the low one with its top bit
// flipped.
__device__ __forceinline__ u32 digit_bits(float v, float up) { return __float_as_uint(fmaf(v, up, kInteger + 128.f)); }

// x[i .. i + kWide) <- v in units of 1 / up. Neighbouring blocks are written in opposite order, so that the lanes of both meet
// different banks.
template <int kWide>
__device__ __forceinline__ void write_block(digits* x, int i, const float (&v)[kWide], float up) {
  static_assert(kWide == 2 || kWide == 4, "pairs or quadruples");
  const bool odd = i / kBlock % 2 != 0;
  char* low = reinterpret_cast<char*>(x) + (i / kBlock * (2 * kBlock) + i % kBlock);
  char *first_at = low + (odd ? kBlock : 0), *second_at = low + (odd ? 0 : kBlock);
  const u32 lows = 0x5410u, highs = 0x7632u, flip = 0x80808080u;
  const u32 a = __byte_perm(digit_bits(v[0], up), digit_bits(v[1], up), 0x5140u);
  const u32 b = kWide == 2 ? 0 : __byte_perm(digit_bits(v[kWide - 2], up), digit_bits(v[kWide - 1], up), 0x5140u);
  const u32 first = __byte_perm(a, b, odd ? highs : lows) ^ (odd ? 0 : flip);
  const u32 second = __byte_perm(a, b, odd ? lows : highs) ^ (odd ? flip : 0);
  if constexpr (kWide == 2) {
    *reinterpret_cast<unsigned short*>(first_at) = static_cast<unsigned short>(first);
    *reinterpret_cast<unsigned short*>(second_at) = static_cast<unsigned short>(second);
  } else {
    *reinterpret_cast<u32*>(first_at) = first;
    *reinterpret_cast<u32*>(second_at) = second;
  }
}

template <int kWide>
__device__ __forceinline__ void write_block(__half* x, int i, const float (&v)[kWide], float up) {
  __half2 pairs[kWide / 2];
#pragma unroll
  for (int k = 0; k < kWide; k += 2) pairs[k / 2] = __floats2half2_rn(v[k] * up, v[k + 1] * up);
  if constexpr (kWide == 4) {
    *reinterpret_cast<uint2*>(x + i) = reinterpret_cast<const uint2&>(pairs);
  } else {
    *reinterpret_cast<__half2*>(x + i) = pairs[0];
  }
}

template <int kWide>
__device__ __forceinline__ void write_block(bf16* x, int i, const float (&v)[kWide], float) {
#pragma unroll
  for (int k = 0; k < kWide; k += 2) {
    *reinterpret_cast<u32*>(x + x_place(i + k)) = pack_bf16(v[k], v[k + 1]);
  }
}

// sums[lane] <- the sum of the lane-th block from x on, of `blocks` blocks, at most kMost. All lanes call, the warp has written
// digits and scales. Four blocks are the columns of a product with ones: lane 4 r + q gets both sums of block q of any of them.
template <int kMost>
__device__ __forceinline__ void sum_blocks(const digits* x, const float* scales, float* sums, int blocks, int lane) {
  static_assert(kMost <= 32, "a block a lane");
  constexpr u32 kOnes = 0x01010101u;
  const u32 from = sync::shared_address(x) + lane * 16;
  int low = 0, high = 0;
#pragma unroll
  for (int group = 0; group < (kMost + 3) / 4; ++group) {
    uint4 v = {};
    if (group * 4 + lane / 8 < blocks) v = sync::load_shared_v4(from + group * (8 * kBlock));
    int c[4], d[4];
    mma_32_s8(c, kOnes, kOnes, kOnes, kOnes, v.x, v.y);
    mma_32_s8(d, kOnes, kOnes, kOnes, kOnes, v.z, v.w);
    if (lane / 4 == group) low = c[0] + d[0], high = c[1] + d[1];
  }
  if (lane < blocks) sums[lane] = static_cast<float>(256 * high + low) * scales[lane];
}

template <int kMost, class T>
__device__ __forceinline__ void sum_blocks(const T*, const float*, float*, int, int) {}

}  // namespace amk
