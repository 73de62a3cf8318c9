// pick[agent] = (0, 0, 0, 0, largest of the candidates): no row dropped yet; for each sequence.
//
// Threads: every warp for itself. Reads global best_value (f32 hand-off); writes shared pick (i32).
#pragma once
#include "amk/fetches.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

// Of one sequence: its candidates and the worker's picks.
template <class S, class C, class Cell>
__device__ __forceinline__ void peak_of(C& c, const Cell& best, int* picks) {
  constexpr int kWide = Cell::kWide;
  float value = -3.4e38f;
  if constexpr (S::kCandidates % kWide == 0) {
    for_each_wide<S::kCandidates>(c, best, 0, S::kCandidates, [&](int, float (&v)[kWide]) {
#pragma unroll
      for (int k = 0; k < kWide; ++k) value = fmaxf(value, v[k]);
    });
  } else {
    for_each_one<S::kCandidates>(c, best, [&](int, float v) { value = fmaxf(value, v); });
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  int* pick = picks + (c.warp - S::kFirst) * ranking::kPickWords;
  if (c.lane < ranking::kPickWords) pick[c.lane] = c.lane == ranking::kPeak ? __float_as_int(value) : 0;
}

template <class S, class C>
__device__ __forceinline__ void peak(C& c) {
  if constexpr (C::P::kBatch == 1) {
    peak_of<S>(c, S::best_value(c), S::pick(c));
  } else {
#pragma unroll 1
    for (int s = 0; s < C::P::kBatch; ++s) {
      peak_of<S>(c, S::best_value(c).from(s * S::kBestValueRow), S::pick(c) + s * S::kPickRow);
    }
  }
}

}  // namespace amk::ops
