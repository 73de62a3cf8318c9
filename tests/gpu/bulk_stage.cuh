// In place of amk/ops/stage.cuh, in code that is only raced (tests/gpu/race_bulk.py): rows of the activations by bulk copies.
//
// The rows are in the order of x_place already. A warp copies whole rows of a part. Where two parts fit in x, part p lies in half
// p % 2 of it and is asked for while part p - 1 is multiplied; all warps have met since part p - 2 was. Otherwise a part is asked
// for when it is needed. One mbarrier for each half, on which every thread waits: a phase is complete when all warps have arrived
// and all bytes have.
#pragma once
#include "amk/rows.cuh"

namespace amk::ops {

// Bytes of x before the half that part kPart of kParts lies in.
template <class S>
__device__ constexpr int bulk_half(int count) {
  return 2 * count <= S::kXRow && S::kKPart % 2 == 1 ? count : 0;
}

__device__ __forceinline__ u64* bulk_barriers() {
  __shared__ __align__(8) u64 barriers[2];
  return barriers;
}

// Before any part; a barrier of the block follows before the first wait.
template <int kAgents, class C>
__device__ __forceinline__ void bulk_begin(const C& c) {
  if (c.warp == 0 && c.lane == 0) {
    for (int half = 0; half < 2; ++half) sync::mbarrier_init(bulk_barriers() + half, kAgents);
    sync::fence_mbarrier_init();
  }
}

template <class S, class C>
__device__ __forceinline__ void stage(C& c) {
  if constexpr (ablation::kNoStaging) return;
  using P = typename C::P;
  constexpr int kCount = P::kFfn / S::kKParts, kBatch = P::kBatch, kBytes = kCount * 2;
  constexpr bool kAhead = 2 * kCount <= S::kXRow && S::kKParts > 1;
  static_assert(kBatch > 1 && !S::kHasScales && kPlainRows<decltype(S::act(c))>, "plain rows of a batch");
  static_assert(kCount % 8 == 0 && S::kActRow % 8 == 0, "copies are whole 16 bytes");
  const int agent = c.warp - S::kFirst;
  const u32 x = sync::shared_address(S::x(c)), full = sync::shared_address(bulk_barriers());
  const auto issue = [&](int part) {
    const u32 half = kAhead ? part % 2 : 0;
    if (!sync::elected()) return;
    // What other SMs stored, and what this one read of x, before copies read and write the same bytes.
    sync::fence_proxy_async_global();
    sync::fence_proxy_async_shared();
    const int rows = agent < kBatch ? (kBatch - 1 - agent) / S::kAgents + 1 : 0;
    sync::mbarrier_arrive_expect_tx(full + half * 8, rows * kBytes);
    for (int s = agent; s < kBatch; s += S::kAgents) {
      sync::bulk_load(x + (s * S::kXRow + half * kCount) * 2, S::act(c).data + s * S::kActRow + part * kCount, kBytes, full + half * 8,
                      sync::policy_evict_last());
    }
  };
  if constexpr (S::kKPart == 0 || !kAhead) issue(S::kKPart);
  if constexpr (kAhead && S::kKPart + 1 < S::kKParts) issue(S::kKPart + 1);
  // How often the barrier was used before, in this launch.
  constexpr int kHalf = kAhead ? S::kKPart % 2 : 0, kUses = kAhead ? (S::kKParts + 1 - kHalf) / 2 : S::kKParts;
  const int before = (c.n * P::kLayers + c.l) * kUses + (kAhead ? S::kKPart / 2 : S::kKPart);
  sync::wait_mbarrier(c.dog, c.warp, kHalf, full + kHalf * 8, before & 1);
}

}  // namespace amk::ops
