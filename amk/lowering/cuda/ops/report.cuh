// counted[round, worker, j] = sum of tally[a, j] over the worker's agents, j = lane.
//
// Threads: one warp. Reads shared tally (i32); writes global counted (i32 hand-off).
#pragma once
#include "amk/cells.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void report(C& c) {
  const int2* tally = reinterpret_cast<const int2*>(S::tally(c)) + c.lane;
  u64 sum = 0;
  for (int a = 0; a < S::kTallyAgents; ++a) sum += ranking::sum_of(tally[a * 32]);
  const int place = S::kRound * static_cast<int>(gridDim.x) + c.worker;
  ranking::store_sum(S::counted(c).data + place * ranking::kTally + 2 * c.lane, sum);
}

}  // namespace amk::ops
