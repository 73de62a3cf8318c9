// output = the tokens behind the rows of this step, and the registers of every thread move on to the rows of the next one, all from
// the prompt; behind the context, its last word again.
//
// Reads global prompt (i32), which the launch does not write; worker 0's first warp writes global output (i32), a row a lane.
#pragma once
#include "amk/ops/begin.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void advance(C& c) {
  using P = typename C::P;
  constexpr int kRows = P::kRows;
  const int* prompt = S::prompt(c).data;
  if (c.worker == 0 && c.warp == S::kFirst) {
#pragma unroll
    for (int first = 0; first < kRows; first += 32) {
      const int r = first + c.lane;
      if (r < kRows) S::output(c).data[c.n * kRows + r] = prompt[min(c.pos + r + 1, P::kContext - 1)];
    }
  }
  // Last: the tags of this step belong to the epoch that ends here.
  c.pos += kRows, ++c.epoch;
  c.tokens[0] = prompt[min(c.pos, P::kContext - 1)];
  given_rows<S>(c);
}

}  // namespace amk::ops
