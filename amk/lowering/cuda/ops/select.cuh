// token <- prompt[pos + 1] while given, else the index of the largest candidate; pos and epoch advance by one.
//
// Threads: every warp computes the same token from the same candidates. Reads global best_value (f32), best_index, request,
// prompt (i32); worker 0, agent 0 writes output[n] (i32).
#pragma once
#include "amk/cells.cuh"
#include "amk/ops/argmax_rows.cuh"

namespace amk::ops {

template <class S, class C>
__device__ __forceinline__ void select(C& c) {
  const int* request = S::request(c).data;
  ++c.pos, ++c.epoch;
  if (c.pos < request[0]) {
    c.token = S::prompt(c).data[c.pos];
  } else if (!c.done) {
    float value = -3.4e38f;
    int slot = 0x7fffffff;
    const auto best = S::best_value(c);
#pragma unroll 8
    for (int i = c.lane; i < S::kCandidates; i += 32) keep_best(value, slot, best.load(c, i), i);
    warp_best(value, slot);
    c.token = S::best_index(c).data[slot];
    for (int e = 1; e < 5; ++e) c.done |= c.token == request[e];
  }
  if (c.worker == 0 && c.warp == S::kFirst && c.lane == 0) S::output(c).data[c.n] = c.token;
}

}  // namespace amk::ops
