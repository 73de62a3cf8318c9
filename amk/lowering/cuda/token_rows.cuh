// The rows of the embedding that belong to the tokens of a batch.
#pragma once
#include "amk/rows.cuh"

namespace amk {

// The embedding of sequence s's token.
template <class S, class C>
__device__ __forceinline__ const bf16* token_row(C& c, int s) {
  using P = typename C::P;
  // Registers are not indexed by a variable.
  int token = c.tokens[0];
#pragma unroll
  for (int k = 1; k < P::kBatch; ++k) token = k == s ? c.tokens[k] : token;
  return S::table(c).data + static_cast<long long>(token) * P::kHidden;
}

// residual = the worker's rows of every token's embedding, a contiguous share of them a warp.
template <class S, class C>
__device__ __forceinline__ void first_residuals(C& c) {
  using P = typename C::P;
  constexpr int kBatch = P::kBatch;
  const int agent = c.warp - S::kFirst, first = P::Hidden::first_row(c), rows = P::Hidden::end_row(c) - first;
  const int begin = share_begin(rows, S::kAgents, agent), count = share_begin(rows, S::kAgents, agent + 1) - begin;
#pragma unroll 1
  for (int n = c.lane; n < count * kBatch; n += 32) {
    const int s = n % kBatch, r = begin + n / kBatch;
    float* residual = S::residual(c) + r;
    if constexpr (kBatch > 1) residual += s * S::kResidualRow;
    *residual = __bfloat162float(token_row<S>(c, s)[first + r]);
  }
}

}  // namespace amk
