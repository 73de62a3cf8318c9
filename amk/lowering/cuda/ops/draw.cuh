// draw_value, draw_index[worker, agent] = the largest noisy score of the agent's kept rows, lowest row first.
//
// Threads: a lane takes the rows whose logits it wrote in argmax_rows. Reads global logits (f32), sampling (i32), shared
// pick (i32); writes global draw_value (f32 hand-off), draw_index (i32 hand-off).
#pragma once
#include "amk/cells.cuh"
#include "amk/ops/argmax_rows.cuh"
#include "amk/ranking.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void draw(C& c) {
  using M = typename C::P::LmHead;
  const int agent = c.warp - S::kFirst, first = M::first_row(c), count = M::count(c);
  const int rows = min(M::end_row(c) - first, share_begin(count, S::kAgents, agent + 1) * 8);
  const int* pick = S::pick(c) + agent * ranking::kPickWords;
  const int* sampling = S::sampling(c).data;
  const u32 keep = static_cast<u32>(pick[ranking::kKeep]);
  const float top = __int_as_float(pick[ranking::kPeak]), inverse = __int_as_float(sampling[ranking::kInverse]);
  const u32 seed_low = static_cast<u32>(sampling[ranking::kSeedLow]);
  const u32 seed_high = static_cast<u32>(sampling[ranking::kSeedHigh]);
  const float* logits = S::logits(c).data + first;
  float value = -3.0e38f;
  int index = 0x7fffffff;
#pragma unroll 1
  for (int r = share_begin(count, S::kAgents, agent) * 8 + c.lane; r < rows; r += 32) {
    const float logit = logits[r];
    if (ranking::key(logit) < keep) continue;
    float score = logit;
    if (inverse != 0.f) {
      score = __fadd_rn(__fmul_rn(logit - top, inverse), ranking::gumbel(first + r, c.pos, seed_low, seed_high));
    }
    keep_best(value, index, score, first + r);
  }
  warp_best(value, index);
  const int slot = c.worker * S::kAgents + agent;
  S::draw_value(c).store(c, slot, value, c.lane == 0);
  S::draw_index(c).store(c, slot, index == 0x7fffffff ? 0 : index, c.lane == 0);
}

}  // namespace amk::ops
