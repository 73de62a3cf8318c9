// x = table[token] * norm[0], ssq[a] = sum of squares of the warp's share, residual = the worker's rows of table[token];
// for each sequence of the batch.
//
// Threads: each warp its contiguous share. Reads global table (bf16), norm (f32); writes shared x, scales, sums as vector_layouts.cuh
// has it, ssq, residual (f32).
#pragma once
#include "amk/token_rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void embed_row(C& c, const bf16* row, int row_of_x, float* ssq) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  const float* norm = S::norm(c).data;
  float squares = 0.f;
  const int lo = staged_begin<P::kHidden, S::kHasScales>(S::kAgents, agent);
  const int hi = staged_begin<P::kHidden, S::kHasScales>(S::kAgents, agent + 1);
  if constexpr (S::kHasScales) {
    for (int base = lo; base < hi; base += kBlock) {
      const int i = base + 2 * c.lane;
      float v[1][2] = {};
      if (i < hi) {
        const float2 h = unpack_bf16(*reinterpret_cast<const u32*>(row + i));
        squares += fmaf(h.x, h.x, h.y * h.y);
        v[0][0] = h.x * norm[i], v[0][1] = h.y * norm[i + 1];
      }
      put_share<S, 2, 1, 0>(c, base, hi, v);
    }
  } else {
    for (int i = lo + c.lane; i < hi; i += 32) {
      const float h = __bfloat162float(row[i]);
      squares = fmaf(h, h, squares);
      S::x(c)[row_of_x + x_place(i)] = __float2bfloat16(h * norm[i]);
    }
  }
  squares = warp_sum(squares);
  if (c.lane == 0) ssq[agent] = squares;
}

template <class S, class C>
__device__ __forceinline__ void embed(C& c) {
  using P = typename C::P;
  constexpr int kBatch = P::kBatch;
  const auto row = [&](int s) { return token_row<S>(c, s); };
  if constexpr (kBatch == 1) {
    embed_row<S>(c, row(0), 0, S::ssq(c));
  } else if constexpr (kRowsOf<S, P::kHidden, kBatch, true>) {
    norm_rows<S, P::kHidden, kBatch, 0>(c, row, S::norm(c).data, false);
  } else {
#pragma unroll 1
    for (int s = 0; s < kBatch; ++s) embed_row<S>(c, row(s), s * S::kXRow, S::ssq(c) + s * S::kSsqRow);
  }
  first_residuals<S>(c);
}

}  // namespace amk::ops
