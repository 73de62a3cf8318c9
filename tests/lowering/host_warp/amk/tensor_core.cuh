// mma.m16n8k32 of signed bytes by the fragments of PTX ISA 9.7.15: lane 4 r + q holds A (r, 4 q..), (r + 8, 4 q..), (r, 16 + 4 q..),
// (r + 8, 16 + 4 q..), B (4 q.., r), (16 + 4 q.., r) and C (r, 2 q..), (r + 8, 2 q..).
#pragma once
#include "amk/sync.cuh"

namespace amk {

inline void mma_32_s8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  static u32 a[32][4], b[32][2];
  const int lane = warp_lane;
  a[lane][0] = a0, a[lane][1] = a1, a[lane][2] = a2, a[lane][3] = a3, b[lane][0] = b0, b[lane][1] = b1;
  warp_meets.arrive_and_wait();
  const auto element = [](u32 word, int i) { return static_cast<int>(static_cast<signed char>(word >> 8 * i)); };
  for (int i = 0; i < 4; ++i) {
    const int upper = i / 2, column = lane % 4 * 2 + i % 2;
    c[i] = 0;
    for (int k = 0; k < 32; ++k) {
      const u32 left = a[lane / 4 * 4 + k % 16 / 4][k / 16 * 2 + upper], right = b[column * 4 + k % 16 / 4][k / 16];
      c[i] += element(left, k % 4) * element(right, k % 4);
    }
  }
  warp_meets.arrive_and_wait();
}

}  // namespace amk
