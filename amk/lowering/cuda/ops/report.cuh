// counted[round, worker, j] = sum of tally[a, j] over the worker's agents, j = lane; for each sequence.
//
// Threads: one warp. Reads shared tally (i32); writes global counted (i32 hand-off).
#pragma once
#include "amk/cells.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

// Of one sequence.
template <class S, class C>
__device__ __forceinline__ void report_of(C& c, const int* tallies, int* counted) {
  const int2* tally = reinterpret_cast<const int2*>(tallies) + c.lane;
  u64 sum = 0;
  for (int a = 0; a < S::kTallyAgents; ++a) sum += ranking::sum_of(tally[a * 32]);
  const int place = S::kRound * static_cast<int>(gridDim.x) + c.worker;
  ranking::store_sum(counted + place * ranking::kTally + 2 * c.lane, sum);
}

template <class S, class C>
__device__ __forceinline__ void report(C& c) {
  if constexpr (C::P::kBatch == 1) {
    report_of<S>(c, S::tally(c), S::counted(c).data);
  } else {
#pragma unroll 1
    for (int s = 0; s < C::P::kBatch; ++s) {
      report_of<S>(c, S::tally(c) + s * S::kTallyRow, S::counted(c).data + s * S::kCountedRow);
    }
  }
}

}  // namespace amk::ops
