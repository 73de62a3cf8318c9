// Waiting, with a watchdog: every loop of the product that spins on another agent's progress is here.
//
// A wait that stalls longer than a limit, or a host that sets the abort word, trips the watchdog: the wait records what
// it was waiting for and is abandoned, and so is every later wait. The kernel then runs to its end on meaningless data,
// passing every barrier on the way, instead of returning in the middle, which would leave the other warps of the block
// in a bar.sync for ever. After a trip all outputs and counters are void; the host reports the records as an error.
// Not covered: bar.sync itself, which depends only on program order within the block.
//
// Cost when nothing is wrong: one increment and one test per failed poll.
#pragma once
#include "amk/ablation.cuh"
#include "amk/sync.cuh"

namespace amk {
namespace sync {

enum class Blocked : u32 { counter = 0, tagged_word = 1, mbarrier = 2 };
enum class Cause : u32 { stall = 1, abort = 2, elsewhere = 3 };

// Layout shared with amk/lowering/watchdog.py, which a test compares with this one.
struct BlockedRecord {
  u32 worker;
  u32 agent;
  u32 kind;  // a Blocked
  u32 object;  // counter, word or barrier number of the schedule
  u32 wanted;
  u32 seen;
  u32 cause;  // a Cause
  u32 reserved;
};
static_assert(sizeof(BlockedRecord) == 32, "decoded on the host");

struct WatchdogLog {
  u32 count;  // records claimed, may exceed capacity; non-zero tells the other blocks
  u32 capacity;
  u32 reserved[2];
  BlockedRecord records[1];
};

// One per block, in shared memory; set by one thread before a block barrier.
struct Watchdog {
  u64 stall_ns;
  WatchdogLog* log;
  const u32* abort_word;  // mapped host memory, or null
  u32 worker;
  u32 tripped;
  u32 recorded;  // one bit per agent (modulo 32): its first abandoned wait is the one worth reporting
  u32 reserved;
};

__device__ __forceinline__ void watchdog_start(Watchdog& dog, WatchdogLog* log, const u32* abort_word, u64 stall_ns,
                                               u32 worker) {
  dog = Watchdog{stall_ns, log, abort_word, worker, 0, 0, 0};
}

// The state of one wait. `gives_up` is called after every failed poll.
template <Blocked kKind>
struct Stall {
  // Failed polls between two looks at flag, clock and host: a millisecond or so, because the host's word is read across
  // the bus and a look in every short wait would itself slow the waits down. A failed mbarrier poll may last 20 us.
  static constexpr u32 kLookEvery = kKind == Blocked::mbarrier ? 64 : 1024;
  // After a trip copies still land, so an mbarrier is given this long: abandoning one whose copy is in flight would let
  // the copy write into shared memory that is reused.
  static constexpr u64 kDrainNs = 1000 * 1000;

  u32 tries = 0;
  u64 since = 0;

  __device__ __forceinline__ bool gives_up(Watchdog& dog, u32 agent, u32 object, u32 wanted, u32 seen) {
    if constexpr (ablation::kNoWaits && kKind != Blocked::mbarrier) return true;
    if (__builtin_expect(++tries % kLookEvery != 0, 1)) return false;
    return looks(dog, agent, object, wanted, seen);
  }

 private:
  __device__ __forceinline__ bool looks(Watchdog& dog, u32 agent, u32 object, u32 wanted, u32 seen) {
    const bool abandons = load_flag(&dog.tripped) != 0 && kKind != Blocked::mbarrier;
    u32 cause = static_cast<u32>(Cause::elsewhere);
    if (!abandons) {
      if (since == 0) since = global_nanoseconds();
      const u64 stalled = global_nanoseconds() - since;
      cause = tripped_by(dog, stalled);
      if (cause == 0) return false;
      if (kKind == Blocked::mbarrier && stalled < kDrainNs) {
        set_flag(&dog.tripped, 1);
        return false;
      }
    }
    const u32 bit = 1u << (agent % 32);
    if ((set_flag(&dog.recorded, bit) & bit) == 0) {
      const u32 slot = claim(&dog.log->count, 1);
      const u32 kind = static_cast<u32>(kKind);
      if (slot < dog.log->capacity) {
        dog.log->records[slot] = BlockedRecord{dog.worker, agent, kind, object, wanted, seen, cause, 0};
      }
    }
    set_flag(&dog.tripped, 1);  // after the record, so that the first record is the wait that tripped
    return true;
  }

  // The reason to trip, 0 for none. System scope also for the log: in a PTX listing a relaxed gpu-scope poll is then
  // always one of the schedule's.
  __device__ __forceinline__ u32 tripped_by(const Watchdog& dog, u64 stalled) {
    if (stalled >= dog.stall_ns) return static_cast<u32>(Cause::stall);
    if (dog.abort_word != nullptr && poll_relaxed_system(dog.abort_word) != 0) return static_cast<u32>(Cause::abort);
    return poll_relaxed_system(&dog.log->count) != 0 ? static_cast<u32>(Cause::elsewhere) : 0;
  }
};

// One poll instruction per loop in the PTX, so that reading the PTX back finds each wait exactly once.

// Waits until the counter has reached `target` and acquires what was released before.
__device__ __forceinline__ void wait_counter(Watchdog& dog, u32 agent, u32 object, const u32* counter, u32 target) {
  if constexpr (ablation::kNoWaits) return;
  Stall<Blocked::counter> stall;
#pragma unroll 1
  while (true) {
    const u32 seen = poll_acquire(counter);
    if (reached(seen, target) || stall.gives_up(dog, agent, object, target, seen)) return;
  }
}

// Waits likewise and acquires nothing: a hint that tagged words are worth looking at.
__device__ __forceinline__ void wait_hint(Watchdog& dog, u32 agent, u32 object, const u32* counter, u32 target) {
  if constexpr (ablation::kNoWaits) return;
  Stall<Blocked::counter> stall;
#pragma unroll 1
  while (true) {
    const u32 seen = poll_relaxed(counter);
    if (reached(seen, target) || stall.gives_up(dog, agent, object, target, seen)) return;
  }
}

// Waits until the phase of `parity` has completed. The suspend time bounds how late the watchdog notices.
template <int kTarget = kArch>
__device__ __forceinline__ void wait_mbarrier(Watchdog& dog, u32 agent, u32 object, u32 barrier, u32 parity) {
  Stall<Blocked::mbarrier> stall;
#pragma unroll 1
  while (true) {
    if (mbarrier_try_wait<kTarget>(barrier, parity, 20000)) return;
    if (stall.gives_up(dog, agent, object, parity, parity ^ 1)) return;
  }
}

template <int kTarget = kArch>
__device__ __forceinline__ void wait_mbarrier(Watchdog& dog, u32 agent, u32 object, u64* barrier, u32 parity) {
  wait_mbarrier<kTarget>(dog, agent, object, shared_address(barrier), parity);
}

}  // namespace sync
}  // namespace amk
