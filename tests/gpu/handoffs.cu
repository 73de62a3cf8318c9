// Ways to hand a vector from every SM to every SM, or within a cluster, while all SMs stream weights: a kernel each.
//
// Eight warps of a block hand over, `rounds` times in a chain: a block publishes its share of round r + 1 when it has all of round r.
// Eight more keep `slots` copies of 2 KB each in flight. Vectors alternate between two places: a word of round r + 2 exists only after
// every block has read round r. A thread that has looked kPatience times looks no more, so every kernel ends; the host sees that.
#include "amk/sync.cuh"

namespace {

namespace sync = amk::sync;
using amk::u32;
using amk::u64;

constexpr u32 kPatience = 1u << 22;
constexpr u32 kWorkers = 256;  // threads that hand over
constexpr u32 kStreams = 8;    // warps that stream
constexpr u32 kChunk = 2048;
constexpr u32 kMostSlots = 12;
constexpr u32 kAhead = 4;      // loads of a thread in flight

struct Probe {
  const char* data;  // weights: `own` bytes a block
  u64 own;
  u64* words;        // two vectors, zeroed before every launch
  u32* hint;         // a counter, zeroed before every launch
  u64* out;          // four results a block, zeroed: chunks streamed, 16-byte fetches, wrong values, waits given up
  u64 rounds;
  u64 count;         // words of a vector, 4 bytes of payload each; a power of two
  u64 slots;
  u64 adders;        // blocks that add to each counting word
  u64 slack;         // signals that a hint does without; kNoHint: words are looked at all the time
  u64 cluster;
  u64 bursts;        // 1: rings are filled once a round, when it begins; 0: a slot as soon as it is free
};
constexpr u64 kNoHint = ~0ull;

struct Shared {
  u64 full[kStreams][kMostSlots];
  u64 arrived[2];
  u32 done;
  u32 round;   // that has begun
  u32 filled;  // rings, of all rounds
};

extern __shared__ __align__(128) char room[];  // two vectors, then the rings

// ---- Clusters: what the product's primitives do not have -----------------------------------------------------------

__device__ void cluster_barrier() {
  sync::warp_barrier();
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ u32 rank_in_cluster() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ u32 of_rank(u32 address, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

__device__ void store_async(u32 remote, uint4 v, u32 barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
               : "memory");
}

__device__ void load_multicast(u32 shared, const void* global, u32 bytes, u32 barrier, u32 blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared),
      "l"(sync::global_address(global)), "r"(bytes), "r"(barrier), "h"(static_cast<unsigned short>(blocks))
      : "memory");
}

__device__ bool complete_in_cluster(u64* barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n\t.reg .pred done;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2, 1000;\n\t"
      "selp.u32 %0, 1, 0, done;\n\t}"
      : "=r"(done)
      : "r"(sync::shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// Adds `bytes` of 64-bit words of this block's shared memory to as many in global memory, asynchronously.
__device__ void add_bulk(u64* words, u32 shared, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%0], [%1], %2;" ::"l"(sync::global_address(words)),
               "r"(shared), "r"(bytes)
               : "memory");
}

__device__ void wait_until_read() {
  asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ void count(u32* shared) {
  asm volatile("red.relaxed.cta.shared::cta.add.u32 [%0], 1;" ::"r"(sync::shared_address(shared)) : "memory");
}

__device__ void add(u64* word, u64 amount) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(sync::global_address(word)), "l"(amount) : "memory");
}

// ---- What all kernels share ----------------------------------------------------------------------------------------

struct Tally {
  u32 patience = kPatience;
  u32 fetches = 0;
  u32 wrong = 0;
};

template <class Ready>
__device__ void until(Tally& tally, Ready ready) {
  while (!ready() && tally.patience != 0) --tally.patience;
}

// The copies of one warp: a ring of `slots`, each refilled as soon as it has landed.
struct Stream {
  u64* full;
  u32 ring;
  const char* from;
  u64 own, at;
  u32 slots, slot = 0, parity = 0;
  u64 policy, chunks = 0;

  __device__ Stream(const Probe& p, Shared& s, u32 warp)
      : full(s.full[warp]),
        ring(sync::shared_address(room) + static_cast<u32>(p.count * 8 + warp * p.slots * kChunk)),
        from(p.data + blockIdx.x * p.own),
        own(p.own),
        at(warp * kChunk),
        slots(static_cast<u32>(p.slots)),
        policy(sync::policy_evict_first()) {
    for (u32 i = 0; i < slots; ++i) ask(i);
  }
  __device__ void ask(u32 i) {
    const u32 barrier = sync::shared_address(full + i);
    sync::mbarrier_arrive_expect_tx(barrier, kChunk);
    sync::bulk_load(ring + i * kChunk, from + at, kChunk, barrier, policy);
    at += kStreams * kChunk;
    if (at >= own) at -= own;
  }
  __device__ bool landed(u32 nanoseconds) { return sync::mbarrier_try_wait(full + slot, parity, nanoseconds); }
  __device__ void next() {
    ++chunks;
    if (++slot == slots) slot = 0, parity ^= 1;
  }
  __device__ void drain(Tally& tally) {
    for (u32 i = 0; i < slots; ++i) {
      until(tally, [&] { return landed(1000); });
      next();
    }
  }
};

__device__ void note(const Probe& p, const Tally& tally, u64 chunks) {
  u64* out = p.out + blockIdx.x * 4;
  if (chunks != 0) add(out, chunks);
  if (tally.fetches != 0) add(out + 1, tally.fetches);
  if (tally.wrong != 0) add(out + 2, tally.wrong);
  if (tally.patience == 0) add(out + 3, 1);
}

__device__ void begin(Shared& s) {
  if (threadIdx.x == 0) {
    for (auto& ring : s.full) {
      for (auto& barrier : ring) sync::mbarrier_init(&barrier, 1);
    }
    sync::mbarrier_init(s.arrived, 1);
    sync::mbarrier_init(s.arrived + 1, 1);
    sync::fence_mbarrier_init();
    s.done = 0;
    s.round = 1;
    s.filled = 0;
  }
  cluster_barrier();
}

// With bursts a round begins when the rings of the one before have filled, and fills them: a product needs weights and input.
__device__ void begin_round(const Probe& p, Shared& s, u32 round) {
  if (p.bursts == 0) return;
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < kPatience && sync::load_flag(&s.filled) < kStreams * (round - 1); ++i) {
    }
    *static_cast<volatile u32*>(&s.round) = round;
  }
  sync::cta_barrier<3, kWorkers>();
}

// Runs `handover(tally)` beside the streams; no block leaves while another of its cluster may write to it.
template <class Handover>
__device__ void beside_streams(const Probe& p, Shared& s, Handover handover) {
  begin(s);
  Tally tally;
  u64 chunks = 0;
  if (threadIdx.x < kWorkers) {
    handover(tally);
    sync::cta_barrier<1, kWorkers>();
    if (threadIdx.x == 0) sync::set_flag(&s.done, 1);
  } else if (threadIdx.x % 32 == 0 && p.slots != 0) {
    Stream stream(p, s, threadIdx.x / 32 - kWorkers / 32);
    for (u32 round = 1; p.bursts != 0; ++round) {
      stream.drain(tally);
      count(&s.filled);
      until(tally, [&] { return sync::load_flag(&s.round) > round || sync::load_flag(&s.done) != 0; });
      if (sync::load_flag(&s.done) != 0 || tally.patience == 0) break;
      for (u32 i = 0; i < stream.slots; ++i) stream.ask(i);
    }
    while (p.bursts == 0 && sync::load_flag(&s.done) == 0 && tally.patience != 0) {
      until(tally, [&] { return stream.landed(1000); });
      const u32 slot = stream.slot;
      stream.next();
      stream.ask(slot);
    }
    chunks = stream.chunks;
    if (p.bursts == 0) stream.drain(tally);
  }
  note(p, tally, chunks);
  cluster_barrier();
}

struct Share {
  u32 begin, end;
  __device__ Share(u64 all, u32 part, u32 parts)
      : begin(static_cast<u32>(all * part / parts)), end(static_cast<u32>(all * (part + 1) / parts)) {}
};

__device__ u32 value(u32 round, u32 index) { return round * 0x9e3779b9u ^ index; }

__device__ void look(const Probe& p, Tally& tally, u32 round) {
  if (p.slack == kNoHint) return;
  if (threadIdx.x == 0) {
    const u32 target = round * gridDim.x - static_cast<u32>(p.slack);
    until(tally, [&] { return sync::reached(sync::poll_relaxed(p.hint), target); });
  }
  sync::cta_barrier<2, kWorkers>();
}

__device__ void publish_words(const Probe& p, u32 round) {
  u64* words = p.words + (round & 1) * p.count;
  const Share pairs(p.count / 2, blockIdx.x, gridDim.x);
  for (u32 i = pairs.begin + threadIdx.x; i < pairs.end; i += kWorkers) {
    sync::store_tagged_pair(words + 2 * i, value(round, 2 * i), value(round, 2 * i + 1), round);
  }
  if (threadIdx.x == 0 && p.slack != kNoHint) sync::signal_relaxed(p.hint, 1);
}

// Reads pairs of words until `fresh` holds for both of each, then gives them to `use(index of the pair, pair)`.
template <class Fresh, class Use>
__device__ void read_pairs(const u64* words, Share pairs, Tally& tally, Fresh fresh, Use use) {
  for (u32 first = pairs.begin + threadIdx.x; first < pairs.end; first += kAhead * kWorkers) {
    sync::TaggedPair read[kAhead];
    until(tally, [&] {
      bool all = true;
#pragma unroll
      for (u32 j = 0; j < kAhead; ++j) {
        const u32 i = first + j * kWorkers;
        if (i < pairs.end) read[j] = sync::load_tagged_pair(words + 2 * i), ++tally.fetches;
      }
#pragma unroll
      for (u32 j = 0; j < kAhead; ++j) {
        if (first + j * kWorkers < pairs.end) all = all && fresh(read[j].first) && fresh(read[j].second);
      }
      return all;
    });
#pragma unroll
    for (u32 j = 0; j < kAhead; ++j) {
      if (first + j * kWorkers < pairs.end) use(first + j * kWorkers, read[j]);
    }
  }
}

__device__ void store_pair(const Probe& p, u32 round, u32 i, u32 first, u32 second) {
  reinterpret_cast<uint2*>(room + (round & 1) * p.count * 4)[i] = make_uint2(first, second);
}

// for_copies: bulk copies read it.
__device__ void publish_plain(const Probe& p, u32 round, bool for_copies) {
  uint4* vector = reinterpret_cast<uint4*>(reinterpret_cast<u32*>(p.words) + (round & 1) * p.count);
  const Share quads(p.count / 4, blockIdx.x, gridDim.x);
  for (u32 i = quads.begin + threadIdx.x; i < quads.end; i += kWorkers) {
    vector[i] = make_uint4(value(round, 4 * i), value(round, 4 * i + 1), value(round, 4 * i + 2), value(round, 4 * i + 3));
  }
  if (for_copies) sync::fence_proxy_async_global();
  sync::cta_barrier<2, kWorkers>();
  if (threadIdx.x == 0) sync::signal_release(p.hint, 1);
}

__device__ void acquire(const Probe& p, Tally& tally, u32 round) {
  if (threadIdx.x == 0) until(tally, [&] { return sync::reached(sync::poll_acquire(p.hint), round * gridDim.x); });
  sync::cta_barrier<2, kWorkers>();
}

// All of a vector's payload is in this block: as many bytes as the barrier of this round was told to expect. One round in 64 is looked
// at, so that the look does not count.
__device__ void all_here(const Probe& p, Shared& s, Tally& tally, u32 round) {
  until(tally, [&] { return complete_in_cluster(s.arrived + (round & 1), (round - 1) >> 1 & 1); });
  const uint4* vector = reinterpret_cast<const uint4*>(room + (round & 1) * p.count * 4);
  for (u32 i = threadIdx.x; round % 64 == 1 && i < p.count / 4; i += kWorkers) {
    const uint4 v = vector[i];
    tally.wrong += v.x != value(round, 4 * i) || v.w != value(round, 4 * i + 3);
  }
  sync::cta_barrier<2, kWorkers>();
}

__device__ void expect_all(const Probe& p, Shared& s, u32 round) {
  if (threadIdx.x == 0) sync::mbarrier_arrive_expect_tx(s.arrived + (round & 1), static_cast<u32>(p.count * 4));
}

__device__ void send(const Probe& p, Shared& s, u32 round, u32 quad, uint4 v) {
  const u32 here = sync::shared_address(room) + static_cast<u32>((round & 1) * p.count * 4 + quad * 16);
  const u32 barrier = sync::shared_address(s.arrived + (round & 1));
  for (u32 i = 0; i < p.cluster; ++i) {  // each block begins with itself, so that not all write to one
    const u32 rank = (rank_in_cluster() + i) % static_cast<u32>(p.cluster);
    store_async(of_rank(here, rank), v, of_rank(barrier, rank));
  }
}

}  // namespace

#define AMK_PROBE(name) extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ Probe p)

// Nothing but the streams, for `rounds` microseconds.
AMK_PROBE(stream) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally&) {
    const u64 end = sync::global_nanoseconds() + p.rounds * 1000;
    while (sync::global_nanoseconds() < end) __nanosleep(200);
  });
}

// What every round has besides the hand-off: a block writes the payload to its shared memory and meets.
AMK_PROBE(local) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally&) {
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      for (u32 i = threadIdx.x; i < p.count / 2; i += kWorkers) store_pair(p, round, i, round, i);
      sync::cta_barrier<2, kWorkers>();
    }
  });
}

// Tagged words, which every block reads from L2.
AMK_PROBE(words) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      publish_words(p, round);
      look(p, tally, round);
      read_pairs(p.words + (round & 1) * p.count, Share(p.count / 2, 0, 1), tally,
                 [&](u64 word) { return sync::tag_of(word) == round; },
                 [&](u32 i, const sync::TaggedPair& pair) {
                   const u32 first = sync::value_of(pair.first), second = sync::value_of(pair.second);
                   tally.wrong += first != value(round, 2 * i) || second != value(round, 2 * i + 1);
                   store_pair(p, round, i, first, second);
                 });
      sync::cta_barrier<2, kWorkers>();
    }
  });
}

// Plain values behind a fenced counter, which every block reads from L2.
AMK_PROBE(plain) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      publish_plain(p, round, false);
      acquire(p, tally, round);
      const uint4* vector = reinterpret_cast<const uint4*>(reinterpret_cast<const u32*>(p.words) + (round & 1) * p.count);
      for (u32 first = threadIdx.x; first < p.count / 4; first += kAhead * kWorkers) {
        uint4 v[kAhead];
#pragma unroll
        for (u32 j = 0; j < kAhead; ++j) {
          const u32 i = first + j * kWorkers;
          if (i < p.count / 4) v[j] = sync::load_global_v4(vector + i), ++tally.fetches;
        }
#pragma unroll
        for (u32 j = 0; j < kAhead; ++j) {
          const u32 i = first + j * kWorkers;
          if (i >= p.count / 4) continue;
          tally.wrong += v[j].x != value(round, 4 * i) || v[j].w != value(round, 4 * i + 3);
          reinterpret_cast<uint4*>(room + (round & 1) * p.count * 4)[i] = v[j];
        }
      }
      sync::cta_barrier<2, kWorkers>();
    }
  });
}

// Counting words: the sum in the high half, in the low one how many have added. Sums are of the rounds of one parity.
__device__ void read_sums(const Probe& p, Tally& tally, u32 round) {
  if (p.slack != kNoHint && threadIdx.x == 0) sync::signal_relaxed(p.hint, 1);
  look(p, tally, round);
  const u32 rounds = (round + 1) >> 1, arrived = rounds * static_cast<u32>(p.adders);  // into this vector
  const u32 sum = rounds * (rounds + (1 - (round & 1))) * static_cast<u32>(p.adders);
  read_pairs(p.words + (round & 1) * p.count, Share(p.count / 2, 0, 1), tally,
             [&](u64 word) { return static_cast<u32>(word) == arrived; },
             [&](u32 i, const sync::TaggedPair& pair) {
               const u32 first = static_cast<u32>(pair.first >> 32), second = static_cast<u32>(pair.second >> 32);
               tally.wrong += first != sum || second != sum;
               store_pair(p, round, i, first, second);
             });
  sync::cta_barrier<2, kWorkers>();
}

__device__ u64 one_more(u32 round) { return static_cast<u64>(round) << 32 | 1; }

// A word at a time; `adders` blocks add to each. Where all do, each begins at another word.
AMK_PROBE(counting) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    const u64 turn = p.adders == gridDim.x ? p.count * blockIdx.x / gridDim.x : 0;
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      u64* words = p.words + (round & 1) * p.count;
      const u64 all = p.count * p.adders, last = all * (blockIdx.x + 1) / gridDim.x;
      for (u64 i = all * blockIdx.x / gridDim.x + threadIdx.x; i < last; i += kWorkers) {
        add(words + ((i + turn) & (p.count - 1)), one_more(round));
      }
      sync::cta_barrier<2, kWorkers>();
      read_sums(p, tally, round);
    }
  });
}

// By two bulk reductions of a block, which adds to all words.
AMK_PROBE(counting_bulk) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    const u32 turn = static_cast<u32>(p.count * blockIdx.x / gridDim.x) & ~1u, rest = static_cast<u32>(p.count) - turn;
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      u64* words = p.words + (round & 1) * p.count;
      for (u32 i = threadIdx.x; i < p.count; i += kWorkers) reinterpret_cast<u64*>(room)[i] = one_more(round);
      sync::fence_proxy_async_shared();
      sync::cta_barrier<2, kWorkers>();
      if (threadIdx.x == 0) {
        const u32 here = sync::shared_address(room);
        add_bulk(words + turn, here + turn * 8, rest * 8);
        if (turn != 0) add_bulk(words, here, turn * 8);
        wait_until_read();
      }
      sync::cta_barrier<2, kWorkers>();
      read_sums(p, tally, round);
    }
  });
}

// Tagged words, of which each block of a cluster reads a part and stores it to all blocks of the cluster.
AMK_PROBE(gather) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    const Share quads(p.count / 4, rank_in_cluster(), static_cast<u32>(p.cluster));
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      expect_all(p, s, round);
      publish_words(p, round);
      look(p, tally, round);
      const u64* words = p.words + (round & 1) * p.count;
      for (u32 i = quads.begin + threadIdx.x; i < quads.end; i += kWorkers) {
        sync::TaggedPair a, b;
        until(tally, [&] {
          a = sync::load_tagged_pair(words + 4 * i), b = sync::load_tagged_pair(words + 4 * i + 2), tally.fetches += 2;
          return sync::tag_of(a.first) == round && sync::tag_of(a.second) == round && sync::tag_of(b.first) == round &&
                 sync::tag_of(b.second) == round;
        });
        send(p, s, round, i,
             make_uint4(sync::value_of(a.first), sync::value_of(a.second), sync::value_of(b.first), sync::value_of(b.second)));
      }
      all_here(p, s, tally, round);
    }
  });
}

// Plain values behind a fenced counter; each block of a cluster copies a part to all of them. A cluster of one copies all for itself.
AMK_PROBE(multicast) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    const u32 blocks = static_cast<u32>(p.cluster), bytes = static_cast<u32>(p.count * 4) / blocks;
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      expect_all(p, s, round);
      publish_plain(p, round, true);
      if (threadIdx.x == 0) {
        until(tally, [&] { return sync::reached(sync::poll_acquire(p.hint), round * gridDim.x); });
        sync::fence_proxy_async_global();
        const u32 at = static_cast<u32>((round & 1) * p.count * 4) + rank_in_cluster() * bytes;
        load_multicast(sync::shared_address(room) + at, reinterpret_cast<const char*>(p.words) + at, bytes,
                       sync::shared_address(s.arrived + (round & 1)), (1u << blocks) - 1);
        tally.fetches += bytes / 16;
      }
      all_here(p, s, tally, round);
    }
  });
}

// Every block of a cluster stores its share of the vector to all of them; nothing goes through global memory.
AMK_PROBE(inside) {
  __shared__ Shared s;
  beside_streams(p, s, [&](Tally& tally) {
    const Share quads(p.count / 4, rank_in_cluster(), static_cast<u32>(p.cluster));
    for (u32 round = 1; round <= p.rounds; ++round) {
      begin_round(p, s, round);
      expect_all(p, s, round);
      for (u32 i = quads.begin + threadIdx.x; i < quads.end; i += kWorkers) {
        send(p, s, round, i,
             make_uint4(value(round, 4 * i), value(round, 4 * i + 1), value(round, 4 * i + 2), value(round, 4 * i + 3)));
      }
      all_here(p, s, tally, round);
    }
  });
}

// The hardware's barrier of a cluster. All threads of its blocks meet there, so streams are refilled between two meetings.
AMK_PROBE(barrier) {
  __shared__ Shared s;
  begin(s);
  Tally tally;
  const bool streams = threadIdx.x >= kWorkers && threadIdx.x % 32 == 0 && p.slots != 0;
  Probe mine = p;
  if (!streams) mine.slots = 0;
  Stream stream(mine, s, threadIdx.x < kWorkers ? 0 : threadIdx.x / 32 - kWorkers / 32);
  for (u32 round = 1; round <= p.rounds; ++round) {
    for (u32 i = 0; streams && i < p.slots && stream.landed(0); ++i) {
      const u32 slot = stream.slot;
      stream.next();
      stream.ask(slot);
    }
    cluster_barrier();
  }
  const u64 chunks = stream.chunks;
  if (streams) stream.drain(tally);
  note(p, tally, chunks);
  cluster_barrier();
}
