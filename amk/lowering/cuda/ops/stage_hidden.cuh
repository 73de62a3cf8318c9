// hidden = h as float, moments[a] = (mean, sum of squared deviations from it) of the warp's share, for each sequence.
//
// Threads: each warp its contiguous share, 16 bytes of h a lane. Reads global h (hand-off); writes shared hidden, moments (f32).
#pragma once
#include "amk/fetches.cuh"

namespace amk::ops {

// The share's elements as this lane wrote them, kWide at a time, and the sum of all that it wrote.
template <int kCount, int kWide, class C>
__device__ __forceinline__ void leave_moments(const C& c, const float* share, float sum, float* moments) {
  const float mean = warp_sum(sum) / static_cast<float>(kCount);
  float squares = 0.f;
#pragma unroll 1
  for (int i = c.lane * kWide; i < kCount; i += 32 * kWide) {
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      const float off = share[i + k] - mean;
      squares = fmaf(off, off, squares);
    }
  }
  squares = warp_sum(squares);
  if (c.lane == 0) moments[0] = mean, moments[1] = squares;
}

template <class S, class C>
__device__ __forceinline__ void stage_hidden(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  using Cell = decltype(S::h(c));
  constexpr int kCount = P::kHidden / S::kAgents, kWide = Cell::kWide;
  static_assert(P::kHidden % (kWide * S::kAgents) == 0, "shares are whole fetches");
  const int agent = c.warp - S::kFirst, lo = kCount * agent;
#pragma unroll 1
  for (int s = 0; s < P::kBatch; ++s) {
    float *hidden = S::hidden(c), *moments = S::moments(c) + 2 * agent;
    int from = 0;
    if constexpr (P::kBatch > 1) hidden += s * S::kHiddenRow, moments += s * S::kMomentsRow, from = s * S::kHRow;
    float sum = 0.f;
    using Batch = Fetched<kCount, kCount, 1, true, Cell>;
    for_each_batch<Batch, 0>(c, S::h(c).from(from), 1, lo, lo + kCount, [&](const Batch& batch) {
#pragma unroll
      for (int piece = 0; piece < Batch::kPieces; ++piece) {
        if (!batch.live(0, piece)) continue;
        float v[kWide];
        Cell::values(batch.raw[0][piece], v);
#pragma unroll
        for (int k = 0; k < kWide; ++k) sum += v[k], hidden[batch.base + piece * Batch::kStride + k] = v[k];
      }
    });
    leave_moments<kCount, kWide>(c, hidden + lo, sum, moments);
  }
}

}  // namespace amk::ops
