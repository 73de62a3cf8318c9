// Every primitive of the product that orders memory between threads, waits for one, or copies asynchronously.
// No other header contains a fence, an atomic, an mbarrier, an asynchronous copy or a volatile access.
//
// Names of the rules (M1 to M13) are those of the memory-model checks of `amk verify`. What each primitive promises is
// stated in terms of PTX ISA chapter 8; instruction forms need PTX ISA 8.6 (NVRTC 13.0 emits 9.0). A primitive that an
// architecture lacks is a compile error where it is used, not where it is declared.
#pragma once

namespace amk {

using u32 = unsigned int;
using u64 = unsigned long long;
static_assert(sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(void*) == 8, "PTX operand constraints assume these sizes");

namespace sync {

inline constexpr int kArch = __CUDA_ARCH__ / 10;  // 90 for sm_90a

__device__ __forceinline__ u64 global_address(const void* generic) { return __cvta_generic_to_global(generic); }

__device__ __forceinline__ u32 shared_address(const void* generic) {
  return static_cast<u32>(__cvta_generic_to_shared(generic));
}

// ---- Counters: 32-bit words in global memory that only grow -------------------------------------------------------

// True when a counter that reads `value` has passed `target`. Right while they are less than 2^31 apart, so a counter
// may wrap; an unsigned compare would let every wait pass, or none, after the wrap.
__device__ __forceinline__ bool reached(u32 value, u32 target) { return static_cast<int>(value - target) >= 0; }

// M2: everything this thread did or has seen (through bar.sync or bar.warp.sync, M1: what its block or warp did)
// is visible to a thread that acquires the new value. The release is part of the reduction: no fence before it is owed.
__device__ __forceinline__ void signal_release(u32* counter, u32 amount) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(global_address(counter)), "r"(amount) : "memory");
}

// Orders nothing: for a counter that is only a hint of when to look at tagged words.
__device__ __forceinline__ void signal_relaxed(u32* counter, u32 amount) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(global_address(counter)), "r"(amount) : "memory");
}

// M3: what was released before the value read is visible to this thread afterwards, and through bar.sync or
// bar.warp.sync (M4) to its block or warp.
__device__ __forceinline__ u32 poll_acquire(const u32* counter) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(counter)) : "memory");
  return value;
}

// A value, and no order: follow it with `fence_acquire_release_gpu` (M3), or read only tagged words after it.
__device__ __forceinline__ u32 poll_relaxed(const u32* counter) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(counter)) : "memory");
  return value;
}

// The same for a word that the host writes (mapped host memory): system scope.
__device__ __forceinline__ u32 poll_relaxed_system(const u32* word) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(global_address(word)) : "memory");
  return value;
}

__device__ __forceinline__ void fence_acquire_release_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Relaxed fetch-and-add: claims a slot. Never a signal, because nothing is released.
__device__ __forceinline__ u32 claim(u32* word, u32 amount) {
  u32 before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(global_address(word)), "r"(amount)
               : "memory");
  return before;
}

// ---- Tagged words (M13): value and tag in one aligned 8-byte word --------------------------------------------------

// A strong 8-byte access is single-copy atomic (PTX ISA 8.10.3), so a reader that sees the tag sees the value of the
// same store. No other word is ordered by it. The value is in the low half.
__device__ __forceinline__ constexpr u64 tagged(u32 value, u32 tag) { return static_cast<u64>(tag) << 32 | value; }
__device__ __forceinline__ constexpr u32 tag_of(u64 word) { return static_cast<u32>(word >> 32); }
__device__ __forceinline__ constexpr u32 value_of(u64 word) { return static_cast<u32>(word); }

__device__ __forceinline__ void store_tagged(u64* word, u32 value, u32 tag) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(global_address(word)), "l"(tagged(value, tag)) : "memory");
}

__device__ __forceinline__ u64 load_tagged(const u64* word) {
  u64 read;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(read) : "l"(global_address(word)) : "memory");
  return read;
}

// Two tagged words, 16-byte aligned, in one instruction. A vector access is a set of scalar accesses in no particular
// order (PTX ISA 8.2.4) and the model's scalars end at 64 bits: each word carries its own tag and both must be checked.
struct TaggedPair {
  u64 first;
  u64 second;
};

__device__ __forceinline__ void store_tagged_pair(u64* words, u32 first, u32 second, u32 tag) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(global_address(words)), "l"(tagged(first, tag)),
               "l"(tagged(second, tag))
               : "memory");
}

__device__ __forceinline__ TaggedPair load_tagged_pair(const u64* words) {
  TaggedPair read;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(read.first), "=l"(read.second)
               : "l"(global_address(words))
               : "memory");
  return read;
}

// ---- Within a block ------------------------------------------------------------------------------------------------

// Named barrier: `kThreads` threads of whole, converged warps meet at barrier `kId`; orders memory among them.
template <u32 kId, u32 kThreads>
__device__ __forceinline__ void cta_barrier() {
  static_assert(kId < 16 && kThreads % 32 == 0 && kThreads > 0, "16 barriers, counted in whole warps");
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// 16 or 8 bytes of this block's shared memory by address. An address kept in a register spares the conversion of a pointer
// at every use, which reads a slow special register.
__device__ __forceinline__ uint4 load_shared_v4(u32 address) {
  uint4 data;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "r"(address)
               : "memory");
  return data;
}

__device__ __forceinline__ uint2 load_shared_v2(u32 address) {
  uint2 data;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(data.x), "=r"(data.y) : "r"(address) : "memory");
  return data;
}

// The same where `live`; else `data` stays what it was. Idle lanes take no turn of shared memory's: 32 lanes have four of 16 bytes.
__device__ __forceinline__ void load_shared_if(bool live, uint4& data, u32 address) {
  asm volatile(
      "{\n\t.reg .pred live;\n\tsetp.ne.u32 live, %5, 0;\n\t"
      "@live ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "+r"(data.x), "+r"(data.y), "+r"(data.z), "+r"(data.w)
      : "r"(address), "r"(static_cast<u32>(live))
      : "memory");
}

__device__ __forceinline__ void load_shared_if(bool live, uint2& data, u32 address) {
  asm volatile(
      "{\n\t.reg .pred live;\n\tsetp.ne.u32 live, %3, 0;\n\t"
      "@live ld.shared.v2.b32 {%0, %1}, [%2];\n\t}"
      : "+r"(data.x), "+r"(data.y)
      : "r"(address), "r"(static_cast<u32>(live))
      : "memory");
}

// True in one lane of the warp, whose lanes all get here together. The compiler then knows that one lane goes on.
__device__ __forceinline__ bool elected() {
  u32 chosen;
  asm volatile("{\n\t.reg .pred one;\n\telect.sync _|one, 0xffffffff;\n\tselp.u32 %0, 1, 0, one;\n\t}" : "=r"(chosen));
  return chosen != 0;
}

// Narrower ones.
__device__ __forceinline__ u32 load_shared_u32(u32 address) {
  u32 data;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(data) : "r"(address) : "memory");
  return data;
}
__device__ __forceinline__ u32 load_shared_u16(u32 address) {
  unsigned short data;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(data) : "r"(address) : "memory");
  return data;
}
__device__ __forceinline__ u32 load_shared_u8(u32 address) {
  u32 data;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(data) : "r"(address) : "memory");
  return data;
}

// All 32 lanes meet; orders memory among them.
__device__ __forceinline__ void warp_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// Strong accesses to a word in shared memory that another warp may write at the same time: order nothing.
__device__ __forceinline__ u32 load_flag(const u32* flag) {
  u32 value;
  asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(shared_address(flag)) : "memory");
  return value;
}

// Sets bits, returns the bits from before.
__device__ __forceinline__ u32 set_flag(u32* flag, u32 bits) {
  u32 before;
  asm volatile("atom.relaxed.cta.shared::cta.or.b32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(shared_address(flag)), "r"(bits)
               : "memory");
  return before;
}

// ---- mbarriers and bulk copies (sm_90 and later) -------------------------------------------------------------------

template <int kTarget = kArch>
__device__ __forceinline__ void mbarrier_init(u64* barrier, u32 arrivals) {
  static_assert(kTarget >= 90, "mbarrier waits by parity need sm_90");
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// After mbarrier_init, by the same thread: makes the initialised barriers visible to the async proxy. Other threads
// see them after the next block barrier.
template <int kTarget = kArch>
__device__ __forceinline__ void fence_mbarrier_init() {
  static_assert(kTarget >= 90, "the async proxy needs sm_90");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// One arrival and the byte count of the phase in one instruction, so that a phase cannot complete between them.
template <int kTarget = kArch>
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
  static_assert(kTarget >= 90, "transaction counts need sm_90");
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

template <int kTarget = kArch>
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u64* barrier, u32 bytes) {
  mbarrier_arrive_expect_tx<kTarget>(shared_address(barrier), bytes);
}

// True once the phase of this parity has completed; then its bytes are visible to this thread. May suspend the thread
// for about `suspend_ns` before it answers false.
template <int kTarget = kArch>
__device__ __forceinline__ bool mbarrier_try_wait(u32 barrier, u32 parity, u32 suspend_ns) {
  static_assert(kTarget >= 90, "mbarrier waits by parity need sm_90");
  u32 complete;
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2, %3;\n\t"
      "selp.u32 %0, 1, 0, done;\n\t}"
      : "=r"(complete)
      : "r"(barrier), "r"(parity), "r"(suspend_ns)
      : "memory");
  return complete != 0;
}

template <int kTarget = kArch>
__device__ __forceinline__ bool mbarrier_try_wait(u64* barrier, u32 parity, u32 suspend_ns) {
  return mbarrier_try_wait<kTarget>(shared_address(barrier), parity, suspend_ns);
}

// M7: between ordinary accesses to shared memory and a later bulk copy into the same bytes (slot refill).
template <int kTarget = kArch>
__device__ __forceinline__ void fence_proxy_async_shared() {
  static_assert(kTarget >= 90, "the async proxy needs sm_90");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// M7: between ordinary writes to global memory and a later bulk copy from the same bytes (appended KV rows). Owed at
// the writer before its release and at the reader after its acquire.
template <int kTarget = kArch>
__device__ __forceinline__ void fence_proxy_async_global() {
  static_assert(kTarget >= 90, "the async proxy needs sm_90");
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Asynchronous copy of `bytes` (a multiple of 16; both addresses 16-byte aligned) into this block's shared memory.
// Completion counts `bytes` on `barrier`. Copies are unordered among themselves.
template <int kTarget = kArch>
__device__ __forceinline__ void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
  static_assert(kTarget >= 90, "bulk copies need sm_90");
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global_address(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// The same with an L2 policy from one of the functions below.
template <int kTarget = kArch>
__device__ __forceinline__ void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy) {
  static_assert(kTarget >= 90, "bulk copies need sm_90");
  asm volatile(
      "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared),
      "l"(global_address(global)), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

template <int kTarget = kArch>
__device__ __forceinline__ void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier, u64 policy) {
  bulk_load<kTarget>(shared_address(shared), global, bytes, shared_address(barrier), policy);
}

// ---- 16-byte asynchronous copies (sm_80 and later) -----------------------------------------------------------------

// Copies 16 bytes, both addresses 16-byte aligned. Complete for this thread after copy_wait, for others after a barrier
// that follows it.
__device__ __forceinline__ void copy_16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(global_address(global))
               : "memory");
}

__device__ __forceinline__ void copy_16(void* shared, const void* global, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global_address(global)), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's most recent groups are incomplete.
template <u32 kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- Kernels that overlap (programmatic dependent launch, sm_90 and later) ------------------------------------------

// The kernel that depends on this one may start; what this one writes is not visible to it before wait_for_earlier_kernels.
template <int kTarget = kArch>
__device__ __forceinline__ void let_later_kernels_start() {
  static_assert(kTarget >= 90, "dependent launch needs sm_90");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Until the kernels that this one depends on have ended and their writes are visible; they waited for theirs likewise.
template <int kTarget = kArch>
__device__ __forceinline__ void wait_for_earlier_kernels() {
  static_assert(kTarget >= 90, "dependent launch needs sm_90");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// ---- Loads and cache policy ----------------------------------------------------------------------------------------

__device__ __forceinline__ u64 policy_evict_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A value of a launch constant through the non-coherent path. M9: only for data that nothing writes during the launch; the
// memory model does not cover this path. As the load may move across any barrier, it may leave early, and what waits for it
// may wait less.
template <class T>
__device__ __forceinline__ T load_constant(const T* global) {
  return __ldg(global);
}

// 16 bytes that another SM wrote and this thread's block acquired: a weak load. It is legal because causality order
// already puts the write before it, so it is no race and the acquire has dropped stale L1 lines; it needs no strength
// of its own. Without that acquire (after poll_relaxed alone, or for tagged words) it is illegal. no_allocate: the
// bytes are read once per SM and would only displace others.
__device__ __forceinline__ uint4 load_global_v4(const void* global) {
  uint4 data;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "l"(global_address(global))
               : "memory");
  return data;
}

// The same where `live`; else `data` stays what it was. Not an if around a load: the compiler would copy registers after it,
// and wait for the data there.
__device__ __forceinline__ void load_global_if(bool live, uint4& data, const void* global) {
  asm volatile(
      "{\n\t.reg .pred live;\n\tsetp.ne.u32 live, %5, 0;\n\t"
      "@live ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];\n\t}"
      : "+r"(data.x), "+r"(data.y), "+r"(data.z), "+r"(data.w)
      : "l"(global_address(global)), "r"(static_cast<u32>(live))
      : "memory");
}

__device__ __forceinline__ void load_global_if(bool live, uint2& data, const void* global) {
  asm volatile(
      "{\n\t.reg .pred live;\n\tsetp.ne.u32 live, %3, 0;\n\t"
      "@live ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];\n\t}"
      : "+r"(data.x), "+r"(data.y)
      : "l"(global_address(global)), "r"(static_cast<u32>(live))
      : "memory");
}

// A hint; reads nothing as far as the memory model is concerned.
__device__ __forceinline__ void prefetch_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global_address(global)));
}

// The same value, about which the compiler knows nothing: keeps it from computing addresses far ahead of their use.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ u32 opaque(u32 value) {
  asm volatile("" : "+r"(value));
  return value;
}
template <class T>
__device__ __forceinline__ const T* opaque(const T* value) {
  asm volatile("" : "+l"(value));
  return value;
}

// Nanoseconds of a clock that all SMs share; its step is about a microsecond.
__device__ __forceinline__ u64 global_nanoseconds() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace sync
}  // namespace amk
