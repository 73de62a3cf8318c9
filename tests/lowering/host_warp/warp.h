// A warp on the host: 32 threads, a lane each, and what the device headers take from CUDA. Not a model of memory or timing.
#pragma once
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

using std::max;
using std::min;

#define __device__
#define __forceinline__ inline

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Extent { int x; };
inline Extent blockDim;
inline long long clock64() { return 0; }

inline thread_local int warp_lane;
inline std::barrier<> warp_meets(32);
inline char* shared_memory;

inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
}

inline unsigned __shfl_xor_sync(unsigned, unsigned value, int offset) {
  static unsigned of_lane[32];
  of_lane[warp_lane] = value;
  warp_meets.arrive_and_wait();
  const unsigned other = of_lane[warp_lane ^ offset];
  warp_meets.arrive_and_wait();
  return other;
}
inline float __shfl_xor_sync(unsigned mask, float value, int offset) {
  return __uint_as_float(__shfl_xor_sync(mask, __float_as_uint(value), offset));
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  static unsigned of_lane[32];
  of_lane[warp_lane] = value;
  warp_meets.arrive_and_wait();
  const unsigned largest = *std::max_element(of_lane, of_lane + 32);
  warp_meets.arrive_and_wait();
  return largest;
}
inline int __any_sync(unsigned, int holds) {
  static int of_lane[32];
  of_lane[warp_lane] = holds;
  warp_meets.arrive_and_wait();
  const int any = *std::max_element(of_lane, of_lane + 32);
  warp_meets.arrive_and_wait();
  return any;
}
inline float __shfl_down_sync(unsigned mask, float value, int offset);  // not called here

// work(lane) by 32 threads.
template <class Work>
void run_warp(Work work) {
  std::vector<std::thread> lanes;
  for (int lane = 0; lane < 32; ++lane) {
    lanes.emplace_back([=] {
      warp_lane = lane;
      work(lane);
    });
  }
  for (std::thread& lane : lanes) lane.join();
}
