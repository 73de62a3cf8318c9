// bf16 as the device headers use it: rounding to the nearest even, and the maximum that keeps what is not a number.
#pragma once
#include "warp.h"

struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) {
    const unsigned raw = __float_as_uint(value);
    bits = std::isnan(value) ? 0x7fff : (raw + 0x7fff + (raw >> 16 & 1)) >> 16;
  }
  explicit operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }
};
struct __nv_bfloat162 { __nv_bfloat16 x, y; };

inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
inline __nv_bfloat16 larger(__nv_bfloat16 a, __nv_bfloat16 b) {
  const float x = static_cast<float>(a), y = static_cast<float>(b);
  return __nv_bfloat16(std::isnan(x) || std::isnan(y) ? NAN : max(x, y));
}
inline __nv_bfloat16 magnitude(__nv_bfloat16 a) {
  a.bits &= 0x7fff;
  return a;
}
inline __nv_bfloat162 __habs2(__nv_bfloat162 a) { return {magnitude(a.x), magnitude(a.y)}; }
inline __nv_bfloat162 __hmax2_nan(__nv_bfloat162 a, __nv_bfloat162 b) { return {larger(a.x, b.x), larger(a.y, b.y)}; }
