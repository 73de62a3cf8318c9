// part[g + a, :] = W[group g, this warp's k chunks] @ x, with tensor cores; for bf16 here, for codes in quantised_gemv.
//
// Threads: every warp drains its own share of the worker's chunks. Shared memory: reads x (bf16, in the order of x_place), the
// warp's ring; writes part (f32, 8 per slot). Each chunk is [chunk_k / 32][8 rows][32 k] bf16: lane 4 r + q holds row r,
// k = 32 i + 8 q .. + 8. Its 16 bytes are an operand of mma.m16n8k16 as they are: its words 0 and 2 count as row r, 1 and 3 as
// row r + 8. The other operand has x of the former in its even columns and of the latter in its odd ones, so that row r of
// the product is the sum of (r, column 0) and (r + 8, column 1), both in lane 4 r.
#pragma once
#include "amk/context.cuh"
#include "amk/quantised_gemv.cuh"
#include "amk/tensor_core.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void plain_gemv(C& c) {
  constexpr int kWidth = S::Matrix::kColumns, kChunks = S::Matrix::kChunks, kChains = 2;
  static_assert(S::Matrix::kK % kWidth == 0 && kWidth % 32 == 0, "chunks cover k exactly");
  const int agent = c.warp - S::kFirst;
  const int chunks = S::Matrix::count(c) * kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  const u32 x = sync::opaque(sync::shared_address(S::x(c)) + (c.lane % 4) * 16 + (c.lane / 4 % 2) * 8);
  float* part = S::part(c) + agent * 8 + c.lane / 4;
  int group = lo / kChunks, column = lo % kChunks;
  float acc[kChains][4] = {};
  const auto flush = [&] {
    if (c.lane % 4 == 0) part[group * 8] = (acc[0][0] + acc[0][3]) + (acc[1][0] + acc[1][3]);
#pragma unroll
    for (int i = 0; i < kChains; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.f;
  };
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; ++chunk) {
    const u32 w = c.ring.wait(c.dog, c.warp) + c.lane * 16, xs = x + column * (kWidth * 2);
    uint4 weights[kWidth / 32];
    uint2 inputs[kWidth / 32];
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) {
      weights[i] = sync::load_shared_v4(w + i * 512), inputs[i] = sync::load_shared_v2(xs + i * 64);
    }
#pragma unroll
    for (int i = 0; i < kWidth / 32; ++i) {
      mma_16(acc[i % kChains], weights[i].x, weights[i].y, weights[i].z, weights[i].w, inputs[i].x, inputs[i].y);
    }
    c.ring.template release<S::kDeferred>(c.lane, hi - chunk - 1);
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
