// token, pos, epoch, done <- state (i32[4], then tokens, and if live positions, of further sequences, and the ends of those
// behind the first 32), in every thread; the
// tokens of further rows from the prompt; pos from position (i32[1]), within the context, where the op names it. Reads global
// state, which is next written by finish, and prompt (i32).
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

// The tokens of the rows of a step but the first; behind the context, the last word again.
template <class S, class C>
__device__ __forceinline__ void given_rows(C& c) {
  const int* prompt = S::prompt(c).data;
  if constexpr (C::kTokenALane) {
#pragma unroll
    for (int k = 0; k < C::kTokens; ++k) {
      const int r = k * 32 + c.lane;
      if (r > 0) c.tokens[k] = prompt[min(c.pos + r, C::P::kContext - 1)];
    }
  } else {
#pragma unroll
    for (int r = 1; r < C::P::kRows; ++r) c.tokens[r] = prompt[min(c.pos + r, C::P::kContext - 1)];
  }
}

template <class S, class C>
__device__ __forceinline__ void begin(C& c) {
  const int* state = S::state(c).data;
  if constexpr (!C::kTokenALane) {
#pragma unroll
    for (int s = 1; s < C::P::kBatch / C::P::kRows; ++s) c.tokens[s] = state[3 + s];
    c.tokens[0] = state[0];
  } else {
    constexpr int kSequences = C::P::kBatch / C::P::kRows;
    const int s = min(c.lane, kSequences - 1);
    c.tokens[0] = state[s == 0 ? 0 : 3 + s];
    if constexpr (kSequences > 32) c.tokens[1] = state[3 + min(32 + c.lane, kSequences - 1)], c.later = state[3 + kSequences];
  }
  c.pos = state[1], c.epoch = static_cast<u32>(state[2]), c.done = state[3];
  if constexpr (S::kHasPosition) c.pos = min(max(S::position(c).data[0], 0), C::P::kContext - 1);
  if constexpr (C::P::kLive) {
    const auto position = [&](int s) { return state[s == 0 ? 1 : 2 + C::P::kBatch + s]; };
    c.pos = position(max(c.shares.attn_head, 0) / C::P::kKvHeads);
    c.place = position(min(c.lane, C::P::kBatch - 1));
  }
  if constexpr (C::P::kRows > 1) given_rows<S>(c);
}

}  // namespace amk::ops
