// x = hidden_in * norm[0], ssq[a] = sum of squares of hidden_in over the warp's share, and where the op names it residual = the
// worker's rows of hidden_in.
//
// Threads: as stage_norm, so that sums are added in its order; of the rows a contiguous share a warp. Reads global hidden_in, norm
// (f32), which nobody writes in the launch; writes shared x, also, scales, sums as vector_layouts.cuh has it, ssq, residual (f32).
#pragma once
#include "amk/ops/stage_norm.cuh"

namespace amk::ops {

template <class S>
struct FirstNorm : S {
  static constexpr int kKParts = 1, kKPart = 0, kScaleBlocks = 1;
  template <class C>
  static __device__ __forceinline__ auto h(const C& c) { return S::hidden_in(c); }
  template <class C>
  static __device__ __forceinline__ int index(const C&) { return 0; }
  template <class C>
  static __device__ __forceinline__ int k_part(const C&) { return kKPart; }
  template <class C>
  static __device__ __forceinline__ bool adds(const C&) { return false; }
};

template <class S, class C>
__device__ __forceinline__ void take_hidden(C& c) {
  using P = typename C::P;
  stage_norm_cells<FirstNorm<S>>(c);
  if constexpr (S::kHasResidual) {
    const int agent = c.warp - S::kFirst, first = P::Hidden::first_row(c), rows = P::Hidden::end_row(c) - first;
    const int begin = share_begin(rows, S::kAgents, agent), end = share_begin(rows, S::kAgents, agent + 1);
    for (int r = begin + c.lane; r < end; r += 32) S::residual(c)[r] = S::hidden_in(c).data[first + r];
  }
}

}  // namespace amk::ops
