// The KV heads that a worker serves: one, or several in turns, which its warps share out.
#pragma once
#include "amk/context.cuh"

namespace amk {

// What an agent does of one KV head. head: -1 where the worker serves none. agent: its number among those that serve the head.
struct ServedHead {
  int turn, head, agent;
};

// Agents that serve a turn, of those of a role.
template <class P>
__device__ __forceinline__ constexpr int of_turn(int agents) {
  return agents / (P::turns() < agents ? P::turns() : agents);
}

// Calls serve for each of the agent's heads, for -1 where there is one turn and no head.
template <class S, class C, class F>
__device__ __forceinline__ void for_each_head(C& c, F&& serve) {
  using P = typename C::P;
  const int agent = c.warp - S::kFirst;
  if constexpr (P::turns() == 1) {
    serve(ServedHead{0, c.shares.attn_head, agent});
  } else {
    constexpr int kEach = of_turn<P>(S::kAgents), kColumns = P::turns() < S::kAgents ? P::turns() : S::kAgents;
    const int first = agent / kEach;
    if (c.shares.attn_head < 0 || first >= kColumns) return;
#pragma unroll 1
    for (int turn = first; turn < P::turns(); turn += kColumns) {
      const int head = c.shares.attn_head + turn * P::turn_heads();
      if (head < P::kCaches) serve(ServedHead{turn, head, agent - first * kEach});
    }
  }
}

}  // namespace amk
