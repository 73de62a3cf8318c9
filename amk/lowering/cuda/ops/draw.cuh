// draw_value, draw_index[worker, agent] = the largest noisy score of the agent's kept rows, lowest row first; for each
// sequence.
//
// Threads: a lane takes the rows whose logits it wrote in argmax_rows. Reads global logits (f32), sampling (i32), shared
// pick (i32); writes global draw_value (f32 hand-off), draw_index (i32 hand-off).
#pragma once
#include "amk/cells.cuh"
#include "amk/ops/argmax_rows.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

// Of one sequence: the worker's picks, its parameters, logits and position. In every lane the row, and its score.
template <class S, class C>
__device__ __forceinline__ int drawn_of(C& c, const int* picks, const int* sampling, const float* rows_of, int pos, float& value) {
  using M = typename C::P::LmHead;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = min(M::end_row(c) - first, share_begin(count, S::kAgents, agent + 1) * 8);
  const int* pick = picks + agent * ranking::kPickWords;
  const u32 keep = static_cast<u32>(pick[ranking::kKeep]);
  const float top = __int_as_float(pick[ranking::kPeak]), inverse = __int_as_float(sampling[ranking::kInverse]);
  const u32 seed_low = static_cast<u32>(sampling[ranking::kSeedLow]);
  const u32 seed_high = static_cast<u32>(sampling[ranking::kSeedHigh]);
  const float* logits = rows_of + first;
  value = -3.0e38f;
  int index = 0x7fffffff;
#pragma unroll 1
  for (int r = share_begin(count, S::kAgents, agent) * 8 + c.lane; r < rows; r += 32) {
    const float logit = logits[r];
    if (ranking::key(logit) < keep) continue;
    float score = logit;
    if (inverse != 0.f) {
      score = __fadd_rn(__fmul_rn(logit - top, inverse), ranking::gumbel(first + r, pos, seed_low, seed_high));
    }
    keep_best(value, index, score, first + r);
  }
  warp_best(value, index);
  return index == 0x7fffffff ? 0 : index;
}

template <class S, class C>
__device__ __forceinline__ void draw(C& c) {
  const int slot = c.worker * S::kAgents + c.warp - S::kFirst;
  float value;
  if constexpr (C::P::kBatch == 1) {
    const int index = drawn_of<S>(c, S::pick(c), S::sampling(c).data, S::logits(c).data, c.pos, value);
    S::draw_value(c).store(c, slot, value, c.lane == 0);
    S::draw_index(c).store(c, slot, index, c.lane == 0);
  } else {
#pragma unroll 1
    for (int s = 0; s < C::P::kBatch; ++s) {
      const int pos = C::P::kLive ? __shfl_sync(0xffffffffu, c.place, s) : c.pos + (C::P::kRows > 1 ? s : 0);
      const int index = drawn_of<S>(c, S::pick(c) + s * S::kPickRow, ranking::parameters<S>(c, s),
                                    S::logits(c).data + s * S::kLogitsRow, pos, value);
      S::draw_value(c).store(c, s * S::kDrawValueRow + slot, value, c.lane == 0);
      S::draw_index(c).store(c, s * S::kDrawIndexRow + slot, index, c.lane == 0);
    }
  }
}

}  // namespace amk::ops
