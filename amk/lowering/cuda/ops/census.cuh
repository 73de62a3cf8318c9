// tally[agent, j] = rows (or their weights) of the agent with key >= max(keep, cut + (j << shift)), j = lane; for each sequence.
//
// Threads: a lane classifies the rows whose logits it wrote in argmax_rows, and counts for one key. Reads global logits
// (f32), sampling (i32), shared pick (i32); writes shared tally (i32).
#pragma once
#include "amk/cells.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

// Of one sequence: the worker's picks and tallies, its parameters and logits.
template <class S, class C>
__device__ __forceinline__ void census_of(C& c, const int* picks, const int* sampling, const float* rows_of, int* tallies) {
  using M = typename C::P::LmHead;
  constexpr bool kByWeight = S::kRound >= ranking::kRounds;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = min(M::end_row(c) - first, share_begin(count, S::kAgents, agent + 1) * 8);
  const int* pick = picks + agent * ranking::kPickWords;
  const u32 keep = static_cast<u32>(pick[ranking::kKeep]);
  const u32 pivot = static_cast<u32>(pick[ranking::kCut]) + (static_cast<u32>(c.lane) << ranking::shift(S::kRound));
  const float* logits = rows_of + first;
  u64 sum = 0;
#pragma unroll 1
  for (int from = share_begin(count, S::kAgents, agent) * 8; from < rows; from += 32) {
    const int r = from + c.lane;
    const float logit = r < rows ? logits[r] : 0.f;
    const u32 key = ranking::key(logit);
    u64 mine = r < rows && key >= keep ? 1 : 0;
    if constexpr (kByWeight) {
      const float inverse = __int_as_float(sampling[ranking::kInverse]);
      if (mine) mine = ranking::weight(logit, __int_as_float(pick[ranking::kPeak]), inverse);
    }
#pragma unroll 4
    for (int other = 0; other < 32; ++other) {
      const u64 add = kByWeight ? __shfl_sync(0xffffffffu, mine, other)
                                : __shfl_sync(0xffffffffu, static_cast<u32>(mine), other);
      if (__shfl_sync(0xffffffffu, key, other) >= pivot) sum += add;
    }
  }
  ranking::store_sum(tallies + agent * ranking::kTally + 2 * c.lane, sum);
}

template <class S, class C>
__device__ __forceinline__ void census(C& c) {
  if constexpr (C::P::kBatch == 1) {
    census_of<S>(c, S::pick(c), S::sampling(c).data, S::logits(c).data, S::tally(c));
  } else {
#pragma unroll 1
    for (int s = 0; s < C::P::kBatch; ++s) {
      census_of<S>(c, S::pick(c) + s * S::kPickRow, ranking::parameters<S>(c, s),
                   S::logits(c).data + s * S::kLogitsRow, S::tally(c) + s * S::kTallyRow);
    }
  }
}

}  // namespace amk::ops
