// hidden_out = the worker's rows of residual; the registers of every thread move on to the next token.
//
// Threads: a contiguous share of the rows a warp. Reads shared residual (f32); writes global hidden_out (f32), which nobody reads in
// the launch.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void give_hidden(C& c) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst, first = P::Hidden::first_row(c), rows = P::Hidden::end_row(c) - first;
  const int begin = share_begin(rows, S::kAgents, agent), end = share_begin(rows, S::kAgents, agent + 1);
  for (int r = begin + c.lane; r < end; r += 32) S::hidden_out(c).data[first + r] = S::residual(c)[r];
  // Last: the tags of this step belong to the epoch that ends here.
  ++c.pos, ++c.epoch;
}

}  // namespace amk::ops
