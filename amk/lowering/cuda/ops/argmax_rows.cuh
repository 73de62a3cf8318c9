// logits[row] = sum of partials / rms; best_value, best_index[worker, a] = the agent's largest logit, lowest row first;
// for each sequence.
//
// Threads: each agent a contiguous share of the worker's row groups, a row a lane. Reads shared part, ssq (f32); writes
// global logits (f32), best_value (f32 hand-off), best_index (i32 hand-off).
#pragma once
#include "amk/cells.cuh"

namespace amk::ops {

// The larger value, the lower index among equals.
__device__ __forceinline__ void keep_best(float& value, int& index, float other, int at) {
  if (other > value || (other == value && at < index)) value = other, index = at;
}

__device__ __forceinline__ void warp_best(float& value, int& index) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, offset);
    const int at = __shfl_xor_sync(0xffffffffu, index, offset);
    keep_best(value, index, other, at);
  }
}

template <class S, class C>
__device__ __forceinline__ void argmax_rows(C& c) {
  using P = typename C::P;
  using M = typename S::Matrix;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = M::end_row(c) - first, end = share_begin(count, S::kAgents, agent + 1) * 8;
#pragma unroll 1
  for (int s = 0; s < P::kBatch; ++s) {
    const float* ssq = S::ssq(c);
    float* logits = S::logits(c).data;
    int slot = c.worker * S::kAgents + agent;
    if constexpr (P::kBatch > 1) ssq += s * S::kSsqRow, logits += s * S::kLogitsRow, slot += s * S::kBestValueRow;
    const float scale = inverse_rms<P, S::kSsqAgents>(ssq);
    float value = -3.0e38f;
    int index = 0x7fffffff;
    for (int r = share_begin(count, S::kAgents, agent) * 8 + c.lane; r < end && r < rows; r += 32) {
      const int number = P::kBatch == 1 ? r : (r / 8 * P::kBatch + s) * 8 + r % 8;
      const float y =
          sum_partials<M::kChunks, P::kStreamAgents, P::kBatch>(S::part(c), number, count * M::kChunks) * scale;
      logits[first + r] = y;
      keep_best(value, index, y, first + r);
    }
    warp_best(value, index);
    S::best_value(c).store(c, slot, value, c.lane == 0);
    if constexpr (P::kBatch > 1) static_assert(S::kBestIndexRow == S::kBestValueRow, "one candidate, one place");
    S::best_index(c).store(c, slot, index == 0x7fffffff ? 0 : index, c.lane == 0);
  }
}

}  // namespace amk::ops
