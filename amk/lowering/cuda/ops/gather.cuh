// gathered[agent, j] = sum of counted[round, w, j] over the agent's share of the workers, j = lane; for each sequence.
//
// Threads: each warp its share, a key a lane. Reads global counted (i32 hand-off); writes shared gathered (i32).
#pragma once
#include "amk/cells.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

// Of one sequence.
template <class S, class C>
__device__ __forceinline__ void gather_of(C& c, const int* reported, int* gathered) {
  const int workers = static_cast<int>(gridDim.x);
  const int agent = c.warp - S::kFirst;
  const int* counted = reported + S::kRound * workers * ranking::kTally;
  const int2* mine = reinterpret_cast<const int2*>(counted) + c.lane;
  const int end = share_begin(workers, S::kAgents, agent + 1);
  u64 sum = 0;
#pragma unroll 4
  for (int w = share_begin(workers, S::kAgents, agent); w < end; ++w) sum += ranking::sum_of(mine[w * 32]);
  ranking::store_sum(gathered + agent * ranking::kTally + 2 * c.lane, sum);
}

template <class S, class C>
__device__ __forceinline__ void gather(C& c) {
  if constexpr (C::P::kBatch == 1) {
    gather_of<S>(c, S::counted(c).data, S::gathered(c));
  } else {
#pragma unroll 1
    for (int s = 0; s < C::P::kBatch; ++s) {
      gather_of<S>(c, S::counted(c).data + s * S::kCountedRow, S::gathered(c) + s * S::kGatheredRow);
    }
  }
}

}  // namespace amk::ops
