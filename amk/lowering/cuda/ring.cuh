// The private weight ring of one warp: S slots that it refills itself.
//
// Reads: the warp's contiguous run of packed chunks. Issue of chunk j + S follows the drain of chunk j by the same
// warp (the stream's rule), so filling never waits for anything but the warp's own progress.
#pragma once
#include "amk/row_at.cuh"
#include "amk/watchdog.cuh"

namespace amk {

// Bulk copies that complete on one mbarrier per slot (sm_90 and later).
// kCarries: a product may begin while refills are owed.
template <int kGiven, int kBytes, bool kRunAhead, bool kFenced, bool kCarries>
struct BulkRing {
  static constexpr bool kFence = kFenced && !ablation::kNoFence;
  // A deep ring has twice the slots in the bytes of all given ones but the last, which has the barriers.
  static constexpr int kSlots = ablation::kDeepRing ? 2 * kGiven : kGiven, kPlaces = kGiven - 1;
  u32 slots;  // addresses in shared memory
  u32 full;
  const char* source;
  int per_token;     // chunks of this warp in one token
  int next;          // index within a token of the next chunk to issue
  int left;          // chunks still to issue in this launch
  int slot = 0;      // next slot to drain
  u32 parity = 0;
  int held = 0;  // slots drained last whose refill is owed

  __device__ __forceinline__ void start(char* slots_, u64* full_, const char* source_, int per_token_, int tokens,
                                        int lane) {
    if constexpr (ablation::kDeepRing) {
      static_assert(kPlaces > 0 && kBytes >= kSlots * 8, "a slot holds the barriers");
      full_ = reinterpret_cast<u64*>(slots_ + kPlaces * kBytes);
    }
    slots = sync::opaque(sync::shared_address(slots_)), full = sync::opaque(sync::shared_address(full_));
    source = source_, per_token = per_token_, next = 0;
    left = per_token_ * tokens;
    if (lane == 0) {
      for (int s = 0; s < kSlots; ++s) sync::mbarrier_init(full_ + s, 1);
      sync::fence_mbarrier_init();
    }
    sync::warp_barrier();
    if constexpr (kRunAhead) {
      for (int s = 0; s < kSlots; ++s) issue(s, false);
    }
  }

  // The next chunk into slot s, by one lane; `read`: the warp has read the slot, and owes the fence.
  __device__ __forceinline__ void issue(int s, bool read) {
    if (left <= 0) return;
    if (sync::elected()) {
      if (kFence && read) sync::fence_proxy_async_shared();
      sync::mbarrier_arrive_expect_tx(full + s * 8, kBytes);
      sync::bulk_load(place(s), row_at<kBytes>(source, next), kBytes, full + s * 8, sync::policy_evict_first());
    }
    --left;
    next = ablation::kOnePlace || next + 1 == per_token ? 0 : next + 1;
  }

  __device__ __forceinline__ u32 place(int s) const {
    if constexpr (ablation::kDeepRing) s -= s >= 2 * kPlaces ? 2 * kPlaces : s >= kPlaces ? kPlaces : 0;
    return slots + s * kBytes;
  }

  // Before the first drain of a step of `chunks` chunks: without run-ahead, nothing is in flight yet, and the warp has read the
  // slots in an earlier step.
  __device__ __forceinline__ void enter(int chunks, int) {
    if constexpr (!kRunAhead) {
      if constexpr (kFence) {
        if (sync::elected()) sync::fence_proxy_async_shared();
      }
      int s = slot;
      for (int i = 0; i < kSlots && i < chunks; ++i) {
        issue(s, false);
        s = s + 1 == kSlots ? 0 : s + 1;
      }
    }
  }

  __device__ __forceinline__ u32 wait(sync::Watchdog& dog, int warp) {
    sync::wait_mbarrier(dog, warp, slot, full + slot * 8, parity);
    return place(slot);
  }

  // The slot whose refill is owed longest; the one that is being given back, if none is.
  __device__ __forceinline__ int oldest() const {
    const int s = slot - held;
    return s < 0 ? s + kSlots : s;
  }

  // After the last read of the slot; `remaining` chunks of the step come after this one. The refills of the step's last
  // kDeferred slots wait for refill(): what an agent hands to others does not queue behind copies that nobody needs yet.
  // What was owed before counts: a refill goes out for each slot, the oldest first, until no more than that are deferred.
  template <int kDeferred>
  __device__ __forceinline__ void release(int, int remaining) {
    sync::warp_barrier();
    if (remaining < kDeferred - (kCarries ? held : 0)) {
      ++held;
    } else if (kRunAhead || remaining >= kSlots) {
      issue(kCarries ? oldest() : slot, true);
    }
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }

  // The next `most` of the refills that are owed, oldest first.
  __device__ __forceinline__ void refill(int most) {
    if constexpr (kFence) {
      if (sync::elected()) sync::fence_proxy_async_shared();
    }
    int s = oldest();
    const int left_over = max(held - most, 0);
#pragma unroll 1
    for (; held > left_over; --held) {
      issue(s, false);
      s = s + 1 == kSlots ? 0 : s + 1;
    }
  }
};

// 16-byte copies by all lanes, completed in order by group counts (sm_80 to sm_89).
template <int kSlots, int kBytes, bool kRunAhead>
struct CopyRing {
  char* slots;
  const char* source;
  int per_token;
  int next;
  int left;
  int slot = 0;

  __device__ __forceinline__ void start(char* slots_, u64*, const char* source_, int per_token_, int tokens, int lane) {
    slots = slots_, source = source_, per_token = per_token_, next = 0;
    left = per_token_ * tokens;
    if constexpr (kRunAhead) {
#pragma unroll 1
      for (int s = 0; s < kSlots; ++s) issue(s, lane);
    }
  }

  // An empty group when nothing is left, so that the number of younger groups stays kSlots - 1.
  __device__ __forceinline__ void issue(int s, int lane) {
    if (left > 0) {
      const char* from = row_at<kBytes>(source, next);
#pragma unroll
      for (int i = 0; i < kBytes / 512; ++i) {
        const int at = (i * 32 + lane) * 16;
        sync::copy_16(slots + s * kBytes + at, from + at, sync::policy_evict_first());
      }
      if constexpr (kBytes % 512 != 0) {
        const int at = kBytes / 512 * 512 + lane * 16;
        if (at < kBytes) sync::copy_16(slots + s * kBytes + at, from + at, sync::policy_evict_first());
      }
      --left;
      next = next + 1 == per_token ? 0 : next + 1;
    }
    sync::copy_commit();
  }

  __device__ __forceinline__ void enter(int chunks, int lane) {
    if constexpr (!kRunAhead) {
      int s = slot;
      for (int i = 0; i < kSlots; ++i) {
        if (i < chunks) {
          issue(s, lane);
        } else {
          sync::copy_commit();
        }
        s = s + 1 == kSlots ? 0 : s + 1;
      }
    }
  }

  __device__ __forceinline__ u32 wait(sync::Watchdog&, int) {
    sync::copy_wait<kSlots - 1>();
    sync::warp_barrier();
    return sync::shared_address(slots) + slot * kBytes;
  }

  template <int kDeferred>
  __device__ __forceinline__ void release(int lane, int remaining) {
    static_assert(kDeferred == 0, "group counts need one commit a chunk");
    sync::warp_barrier();
    if (kRunAhead || remaining >= kSlots) {
      issue(slot, lane);
    } else {
      sync::copy_commit();
    }
    if (++slot == kSlots) slot = 0;
  }
};

}  // namespace amk
