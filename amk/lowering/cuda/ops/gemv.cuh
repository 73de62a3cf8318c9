// part[g + a, :] = W[group g, this warp's k chunks] @ x, with tensor cores; for bf16 here, for codes in quantised_gemv.
//
// Threads: every warp drains its own share of the worker's chunks. Shared memory: reads x (bf16), the warp's ring; writes
// part (f32, 8 per slot). Each chunk is [chunk_k / 32][8 rows][32 k] bf16: lane 4n + q holds row n, k = 32 i + 8 q .. + 8.
// In mma.m16n8k16 the weights are the 16x8 operand and x is row 0 of the 16x16 one; which k goes to which fragment place is
// free as long as both agree. Rows 1 to 7 repeat row 0, rows 8 to 15 are zero.
#pragma once
#include "amk/context.cuh"
#include "amk/quantised_gemv.cuh"

namespace amk::ops {

__device__ __forceinline__ void mma_bf16(float (&acc)[4], u32 a0, u32 a2, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "
      "{%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
}

template <class S, class C>
__device__ __forceinline__ void plain_gemv(C& c) {
  constexpr int kWidth = S::Matrix::kColumns, kChunks = S::Matrix::kChunks, kChains = 4;
  static_assert(S::Matrix::kK % kWidth == 0 && kWidth % 32 == 0, "chunks cover k exactly");
  const int agent = c.warp - S::kFirst;
  const int chunks = S::Matrix::count(c) * kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  const bf16* x = S::x(c) + (c.lane % 4) * 8;
  float* part = S::part(c) + agent * 8;
  int group = lo / kChunks, column = lo % kChunks;
  float acc[kChains][4] = {};
  const auto flush = [&] {
    if (c.lane < 4) {
      const float2 sums = make_float2((acc[0][0] + acc[1][0]) + (acc[2][0] + acc[3][0]),
                                      (acc[0][1] + acc[1][1]) + (acc[2][1] + acc[3][1]));
      *reinterpret_cast<float2*>(part + group * 8 + c.lane * 2) = sums;
    }
#pragma unroll
    for (int i = 0; i < kChains; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.f;
  };
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const uint4* w = reinterpret_cast<const uint4*>(c.ring.wait(c.dog, c.warp)) + c.lane;
    const uint4* xs = reinterpret_cast<const uint4*>(x + column * kWidth);
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) {
      const uint4 wv = w[i * 32], xv = xs[i * 4];
      mma_bf16(acc[2 * i % kChains], xv.x, xv.y, wv.x, wv.y);
      mma_bf16(acc[(2 * i + 1) % kChains], xv.z, xv.w, wv.z, wv.w);
    }
    c.ring.release(c.lane, hi - chunk - 1);
    if (++column == kChunks) {
      flush();
      column = 0, ++group;
    }
  }
  if (column != 0 && lo < hi) flush();
}

template <class S, class C>
__device__ __forceinline__ void gemv(C& c) {
  if constexpr (S::Matrix::Weights::kPlain) {
    plain_gemv<S>(c);
  } else {
    quantised_gemv<S>(c);
  }
}

}  // namespace amk::ops
