// Chunks that the rings have no room for yet are asked for in L2, one of every ring at a time; nothing is read.
//
// Threads: one warp, lane a for the ring of agent a. Between two requests of a lane the warp sleeps.
#pragma once
#include "amk/context.cuh"

namespace amk::ops {

template <class M, class C>
__device__ __forceinline__ int agent_chunks(const C& c, int agents, int agent) {
  const int chunks = M::count(c) * M::kChunks;
  return share_begin(chunks, agents, agent + 1) - share_begin(chunks, agents, agent);
}

template <class S, class C>
__device__ __forceinline__ void prefetch_weights(C& c) {
  using P = typename C::P;
  static_assert(S::kAgents == 1 && S::kStreamAgents <= 32, "a lane for every ring");
  const int agent = min(c.lane, S::kStreamAgents - 1), place = c.worker * S::kStreamAgents + agent;
  const int shares[] = {agent_chunks<typename P::Qkv>(c, S::kStreamAgents, agent),
                        agent_chunks<typename P::O>(c, S::kStreamAgents, agent),
                        agent_chunks<typename P::GateUp>(c, S::kStreamAgents, agent),
                        agent_chunks<typename P::Down>(c, S::kStreamAgents, agent)};
  int next = S::layer(c) * (shares[0] + shares[1] + shares[2] + shares[3]) + S::kSkip;
#pragma unroll
  for (int m = 0; m <= S::Matrix::kPlace; ++m) next += shares[m];
  const int end = S::stream_chunks(place);
  const char* source = S::stream(c, place);
  sync::pause(S::kDelayNs);
#pragma unroll 1
  for (int i = 0; i < S::kCount; ++i, next += S::kStride) {
    if (c.lane < S::kStreamAgents && next < end) {
      sync::bulk_prefetch_l2(source + static_cast<long long>(next) * S::kStreamBytes, S::kStreamBytes);
    }
    sync::pause(S::kPauseNs);
  }
}

}  // namespace amk::ops
