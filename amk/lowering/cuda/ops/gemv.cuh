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
  constexpr int kWidth = S::Matrix::kColumns, kChunks = S::Matrix::kChunks, kTiles = kWidth / 32;
  constexpr int kChains = kTiles % 4 == 0 ? 4 : kTiles % 2 == 0 ? 2 : 1;
  static_assert(S::Matrix::kK % kWidth == 0 && kWidth % 32 == 0, "chunks cover k exactly");
  const int agent = c.warp - S::kFirst;
  const int chunks = S::Matrix::count(c) * kChunks;
  const int lo = share_begin(chunks, S::kAgents, agent), hi = share_begin(chunks, S::kAgents, agent + 1);
  const u32 x = sync::opaque(sync::shared_address(S::x(c)) + (c.lane % 4) * 16 + (c.lane / 4 % 2) * 8);
  float* part = S::part(c) + agent * 8 + c.lane / 4;
  int group = lo / kChunks, column = lo % kChunks;
  float acc[kChains][4] = {};
  const auto flush = [&] {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kChains; ++i) sum += acc[i][0] + acc[i][3];
    if (c.lane % 4 == 0) part[group * 8] = sum;
#pragma unroll
    for (int i = 0; i < kChains; ++i) acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.f;
  };
  c.ring.enter(hi - lo, c.lane);
#pragma unroll 1
  for (int chunk = lo; chunk < hi; chunk += S::kBurst) {
    const int count = min(S::kBurst, hi - chunk);
    uint4 weights[S::kBurst][kTiles];
    uint2 inputs[S::kBurst][kTiles];
    int ahead = column;
#pragma unroll
    for (int j = 0; j < S::kBurst; ++j) {
      // Defined on both paths, or the registers stay allocated through all loops around this one.
#pragma unroll
      for (int i = 0; i < kTiles; ++i) weights[j][i] = {}, inputs[j][i] = {};
      if (j < count) {
        const u32 w = c.ring.wait(c.dog, c.warp, j) + c.lane * 16, xs = x + ahead * (kWidth * 2);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          weights[j][i] = sync::load_shared_v4(w + i * 512), inputs[j][i] = sync::load_shared_v2(xs + i * 64);
        }
      }
      ahead = ahead + 1 == kChunks ? 0 : ahead + 1;
    }
#pragma unroll
    for (int j = 0; j < S::kBurst; ++j) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const uint4& a = weights[j][i];
        mma_16(acc[i % kChains], a.x, a.y, a.z, a.w, inputs[j][i].x, inputs[j][i].y);
      }
      if (j < count && ++column == kChunks) {
        flush();
        column = 0, ++group;
      }
    }
    c.ring.template release<S::kDeferred>(c.lane, count, hi - chunk - count);
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
