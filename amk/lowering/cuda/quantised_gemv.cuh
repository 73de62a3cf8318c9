// The matrix-vector product of gemv for weights that are codes with scales.
//
// Threads, shared memory and the slots of part as in gemv. A chunk holds the codes in 512-byte tiles, then fp16 scales
// [8 rows][groups], then zero points [8][groups] (u8). Each group's sum is made by the tensor cores from zero, then scaled and
// added in fp32 by the lanes 4 r, which own the rows.
#pragma once
#include <cuda_fp16.h>

#include "amk/weights.cuh"

namespace amk {

// d = a * b + c; of d only words 0 and 3 of lanes 4 r mean something.
__device__ __forceinline__ void mma_weights(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// This lane's row's share of one chunk's product with x. xs: x from the chunk's first column on, plus the lane's own
// offset; `left`: columns of the matrix from that place on. Lanes from 8 on give columns of x whose products nobody reads.
template <class M>
__device__ __forceinline__ float chunk_product(const char* slot, const bf16* xs, int left, int lane) {
  using W = typename M::Weights;
  constexpr int kUnits = M::kColumns / 64, kEach = W::kGroup / 64, kGroups = kUnits / kEach;
  const uint4* codes = reinterpret_cast<const uint4*>(slot) + lane;
  const char* behind = slot + kUnits / W::kUnits * 512;
  const __half* scales = reinterpret_cast<const __half*>(behind) + lane / 4 * kGroups;
  const unsigned char* zeros = reinterpret_cast<const unsigned char*>(behind) + 16 * kGroups + lane / 4 * kGroups;
  constexpr u32 kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  float total = 0.f, sum[2][4], ones[4];
  uint4 v;
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    if (unit % W::kUnits == 0) v = codes[unit / W::kUnits * 32];
    uint4 xv = make_uint4(0, 0, 0, 0);
    if (lane < 8 && (M::kK % M::kColumns == 0 || unit * 64 < left)) xv = *reinterpret_cast<const uint4*>(xs + unit * 64);
    if (unit % kEach == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[0][i] = sum[1][i] = ones[i] = 0.f;
    }
    u32 a[2][4];
    W::operands(v, unit % W::kUnits, a);
    mma_weights(sum[0], a[0], xv.x, xv.z);
    mma_weights(sum[1], a[1], xv.y, xv.w);
    if constexpr (W::kOffset != 0) {
      mma_weights(ones, kOnes, xv.x, xv.y);
      mma_weights(ones, kOnes, xv.z, xv.w);
    }
    if (unit % kEach == kEach - 1) {
      const int group = unit / kEach;
      float y = (sum[0][0] + sum[0][3]) + (sum[1][0] + sum[1][3]);
      if constexpr (W::kOffset != 0) {
        float offset = W::kOffset;
        if constexpr (W::kZeros) offset += static_cast<float>(zeros[group]);
        y -= offset * (ones[0] + ones[3]);
      }
      total += __half2float(scales[group]) * y;
    }
  }
  return total;
}

template <class S, class C>
__device__ __forceinline__ void quantised_gemv(C& c) {
  static_assert(C::P::kBatch == 1 && S::kKParts == 1, "one sequence, all columns at once");
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, chunks = M::count(c) * M::kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  const int place = c.lane % 4 * 16 + c.lane / 4 * 8;
  const bf16* x = S::x(c) + place;
  float* part = S::part(c) + agent * 8 + c.lane / 4;
  int group = lo / M::kChunks, column = lo % M::kChunks;
  float total = 0.f;
  const auto flush = [&] {
    if (c.lane % 4 == 0) part[group * 8] = total;
    total = 0.f;
  };
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const char* slot = sync::shared_pointer(c.ring.wait(c.dog, c.warp));
    const int first = column * M::kColumns;
    total += chunk_product<M>(slot, x + first, M::kK - first - place, c.lane);
    c.ring.template release<S::kDeferred>(c.lane, hi - chunk - 1);
    if (++column == M::kChunks) {
      flush();
      column = 0, ++group;
    }
  }
  if (column != 0 && lo < hi) flush();
}

}  // namespace amk
