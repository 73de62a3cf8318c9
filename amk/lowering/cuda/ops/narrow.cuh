// cut += j << shift for the largest j whose total reaches the goal; the last round of a search raises keep to the cut. For each
// sequence.
//
// Threads: every warp computes the same for itself, a key a lane. Reads shared gathered (i32), global sampling (i32),
// shared pick (i32); writes shared pick.
#pragma once
#include "amk/cells.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

// Of one sequence: its sums, its parameters, the worker's picks.
template <class S, class C>
__device__ __forceinline__ void narrow_of(C& c, const int* sums, const int* sampling, int* picks) {
  constexpr int kSearch = S::kRound / ranking::kRounds, kDigit = S::kRound % ranking::kRounds;
  const int2* gathered = reinterpret_cast<const int2*>(sums) + c.lane;
  u64 total = 0;
  for (int a = 0; a < S::kGatherAgents; ++a) total += ranking::sum_of(gathered[a * 32]);
  int* pick = picks + (c.warp - S::kFirst) * ranking::kPickWords;
  u32 keep = static_cast<u32>(pick[ranking::kKeep]), cut = static_cast<u32>(pick[ranking::kCut]);
  u64 goal = ranking::sum_of(make_int2(pick[ranking::kGoalLow], pick[ranking::kGoalHigh]));
  if constexpr (kDigit == 0) {
    const u64 all = __shfl_sync(0xffffffffu, total, 0);
    if constexpr (kSearch == 0) {
      const u64 k = static_cast<u32>(sampling[ranking::kTopK]);
      goal = k != 0 && k < all ? k : all;
    } else {
      const u64 p = static_cast<u32>(sampling[ranking::kTopP]);
      const u64 part = __umul64hi(all, p << 32);
      goal = p == 0 ? all + 1 : part > 0 ? part : 1;
    }
  }
  const int reached = __popc(__ballot_sync(0xffffffffu, total >= goal));
  cut += static_cast<u32>(reached > 0 ? reached - 1 : 0) << ranking::shift(S::kRound);
  if constexpr (kDigit == ranking::kRounds - 1) keep = keep > cut ? keep : cut, cut = 0;
  sync::warp_barrier();
  if (c.lane == 0) {
    pick[ranking::kKeep] = static_cast<int>(keep), pick[ranking::kCut] = static_cast<int>(cut);
    pick[ranking::kGoalLow] = static_cast<int>(goal & ranking::kLowHalf);
    pick[ranking::kGoalHigh] = static_cast<int>(goal >> ranking::kHalf);
  }
}

template <class S, class C>
__device__ __forceinline__ void narrow(C& c) {
  if constexpr (C::P::kBatch == 1) {
    narrow_of<S>(c, S::gathered(c), S::sampling(c).data, S::pick(c));
  } else {
#pragma unroll 1
    for (int s = 0; s < C::P::kBatch; ++s) {
      narrow_of<S>(c, S::gathered(c) + s * S::kGatheredRow, ranking::parameters<S>(c, s),
                   S::pick(c) + s * S::kPickRow);
    }
  }
}

}  // namespace amk::ops
