// q[g] = rope(norm(query head)) / sqrt(head_dim) of the worker's kv head; the owner of the position appends key and value.
//
// Threads: unit u (query heads, key, value) is done by agent u mod n; a lane takes pairs (i, i + head_dim / 2). In a step of
// several rows agent 0 has the keys that the worker owns, agent 1 the values, and the others share the query vectors of all
// rows; a warp has several heads in flight; if the rows are a tree, a row is rotated as at the position behind the rows that it
// sees. Reads global qkv (f32 hand-off), rope, norms (f32); writes shared q (each pair of f32 as a pair of bf16 and the pair of
// bf16 that it leaves), global caches (bf16 or fp8, private to the worker's split).
#pragma once
#include "amk/cache.cuh"
#include "amk/cells.cuh"
#include "amk/tree.cuh"
#include "amk/turns.cuh"

namespace amk::ops {

// Where a head goes: to query vector `vector` of q, or to the row of cache `cache`.
struct HeadPlace {
  bool query, key;
  int vector, cache;
};

// Pairs a, b of one head: normed and rotated unless it is a value, and stored.
template <class S, class C, int kPairs>
__device__ __forceinline__ void rotate_store(C& c, const HeadPlace& to, float (&a)[kPairs], float (&b)[kPairs],
                                             const float (&cosine)[kPairs], const float (&sine)[kPairs], float squares) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kHalf = kDim / 2;
  const bool query = to.query, key = to.key;
  if constexpr (S::kHasQNorm) {
    if (query || key) {
      const float scale = rsqrtf(fmaf(warp_sum(squares), 1.f / static_cast<float>(kDim), P::kRmsEps));
      const float* norm = (query ? S::q_norm(c).data : S::k_norm(c).data) + S::layer(c) * kDim;
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        const int i = c.lane + 32 * k;
        if (i < kHalf) a[k] *= scale * norm[i], b[k] *= scale * norm[kHalf + i];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    const int i = c.lane + 32 * k;
    float lo = a[k], hi = b[k];
    if (query || key) {
      lo = fmaf(a[k], cosine[k], -b[k] * sine[k]), hi = fmaf(b[k], cosine[k], a[k] * sine[k]);
    }
    if (query) {
      uint2 low, high;
      split_pair(lo * P::kQueryScale, __shfl_down_sync(0xffffffffu, lo, 1) * P::kQueryScale, low.x, low.y);
      split_pair(hi * P::kQueryScale, __shfl_down_sync(0xffffffffu, hi, 1) * P::kQueryScale, high.x, high.y);
      if (i < kHalf && i % 2 == 0) {
        float* q = S::q(c) + to.vector * S::kQueryWidth + i;
        *reinterpret_cast<uint2*>(q) = low, *reinterpret_cast<uint2*>(q + kHalf) = high;
      }
    } else if (i < kHalf) {
      auto* cache = cache_row<P>(key ? S::k_cache(c).data : S::v_cache(c).data, S::layer(c), to.cache, c.pos);
      using Row = CacheRow<typename P::Cache>;
      cache[i] = Row::of(lo), cache[kHalf + i] = Row::of(hi);
    }
  }
}

// One row of each sequence.
template <class S, class C>
__device__ __forceinline__ void rope_append_one(C& c, const ServedHead& at) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kHalf = kDim / 2, kPairs = (kHalf + 31) / 32, kGroup = P::kHeads / P::kKvHeads;
  const bool owner = c.pos / P::kKvBlock % P::kKvSplits == c.shares.attn_split;
  const auto qkv = S::qkv(c);
  const float* table = row_at<kDim>(S::rope(c).data, c.pos);
  const int units = owner ? kGroup + 2 : kGroup;
  int own_head = at.head, first = 0;  // within the sequence, and where its rows begin
  if constexpr (P::kBatch > 1) own_head = at.head % P::kKvHeads, first = at.head / P::kKvHeads * S::kQkvRow;
  for (int unit = at.agent; unit < units; unit += of_turn<P>(S::kAgents)) {
    const bool query = unit < kGroup, key = unit == kGroup;
    const int source = query ? own_head * kGroup + unit : P::kHeads + (key ? 0 : P::kKvHeads) + own_head;
    float cosine[kPairs], sine[kPairs];
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int i = min(c.lane + 32 * k, kHalf - 1);
      cosine[k] = table[i], sine[k] = table[kHalf + i];
    }
    typename decltype(qkv)::One a_raw[kPairs], b_raw[kPairs];
    until_fresh(c, qkv.tag, [&] {
      bool fresh = true;
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        const int i = first + source * kDim + min(c.lane + 32 * k, kHalf - 1);
        a_raw[k] = qkv.fetch_one(i), b_raw[k] = qkv.fetch_one(i + kHalf);
      }
#pragma unroll
      for (int k = 0; k < kPairs; ++k) fresh &= qkv.fresh_one(a_raw[k]) & qkv.fresh_one(b_raw[k]);
      return fresh;
    });
    float a[kPairs], b[kPairs], squares = 0.f;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      a[k] = qkv.value_one(a_raw[k]), b[k] = qkv.value_one(b_raw[k]);
      if (c.lane + 32 * k < kHalf) squares += fmaf(a[k], a[k], b[k] * b[k]);
    }
    rotate_store<S>(c, {query, key, at.turn * kGroup + unit, at.head}, a, b, cosine, sine, squares);
  }
}

// Of several rows, the elements i, i + 1 and i + kHalf, i + kHalf + 1 of a head that a lane has: it needs no other lane's.
struct HeadPart {
  float2 a, b, cosine, sine;
};

// One head of a step of several rows, normed, rotated and stored; to: the query vector, or the element of a cache, for null.
template <class S, class C, int kTwos, class Cache>
__device__ __forceinline__ void rotate_store_rows(C& c, int kind, HeadPart (&part)[kTwos], float* query, Cache* cache) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kHalf = kDim / 2;
  if constexpr (S::kHasQNorm) {
    if (kind < 2) {
      // The order of additions is that of lanes with pairs i = lane + 32 k.
      float squares = 0.f;
#pragma unroll
      for (int k = 0; k < (kHalf + 31) / 32; ++k) {
        const float2 a = part[k / 2].a, b = part[k / 2].b;
        const int from = c.lane / 2 + k % 2 * 16;
        const float even = __shfl_sync(0xffffffffu, fmaf(a.x, a.x, b.x * b.x), from);
        const float odd = __shfl_sync(0xffffffffu, fmaf(a.y, a.y, b.y * b.y), from);
        if (c.lane + 32 * k < kHalf) squares += c.lane % 2 == 0 ? even : odd;
      }
      const float scale = rsqrtf(fmaf(warp_sum(squares), 1.f / static_cast<float>(kDim), P::kRmsEps));
      const float* norm = (kind == 0 ? S::q_norm(c).data : S::k_norm(c).data) + S::layer(c) * kDim;
#pragma unroll
      for (int k = 0; k < kTwos; ++k) {
        const int i = min(2 * (c.lane + 32 * k), kHalf - 2);
        part[k].a.x *= scale * norm[i], part[k].a.y *= scale * norm[i + 1];
        part[k].b.x *= scale * norm[kHalf + i], part[k].b.y *= scale * norm[kHalf + i + 1];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kTwos; ++k) {
    const int i = 2 * (c.lane + 32 * k);
    if (i >= kHalf) continue;
    const float2 a = part[k].a, b = part[k].b, cosine = part[k].cosine, sine = part[k].sine;
    float2 lo = a, hi = b;
    if (kind < 2) {
      lo = make_float2(fmaf(a.x, cosine.x, -b.x * sine.x), fmaf(a.y, cosine.y, -b.y * sine.y));
      hi = make_float2(fmaf(b.x, cosine.x, a.x * sine.x), fmaf(b.y, cosine.y, a.y * sine.y));
    }
    if (kind == 0) {
      uint2 low, high;
      split_pair(lo.x * P::kQueryScale, lo.y * P::kQueryScale, low.x, low.y);
      split_pair(hi.x * P::kQueryScale, hi.y * P::kQueryScale, high.x, high.y);
      *reinterpret_cast<uint2*>(query + i) = low, *reinterpret_cast<uint2*>(query + kHalf + i) = high;
    } else {
      CacheRow<Cache>::store_pair(cache + i, lo), CacheRow<Cache>::store_pair(cache + kHalf + i, hi);
    }
  }
}

// Several rows of one sequence: kTogether heads at a time, those of kind 0 (queries), 1 (keys) or 2 (values).
template <class S, class C>
__device__ __forceinline__ void rope_append_rows(C& c, int head, int agent) {
  using P = typename C::P;
  constexpr int kDim = P::kHeadDim, kHalf = kDim / 2, kTwos = (kHalf / 2 + 31) / 32, kGroup = P::kHeads / P::kKvHeads;
  constexpr int kQueries = P::kRows * kGroup, kTogether = 8, kTurn = 2, kWriters = S::kAgents > 2 ? 2 : 0;
  const auto qkv = S::qkv(c);
  // The rows lie in two blocks at most: those that the worker owns are side by side.
  const int block = c.pos / P::kKvBlock, cut = min((block + 1) * P::kKvBlock - c.pos, P::kRows);
  const int own_begin = block % P::kKvSplits == c.shares.attn_split ? 0 : cut;
  const int own_end = (block + 1) % P::kKvSplits == c.shares.attn_split ? P::kRows : cut;
#pragma unroll 1
  for (int kind = 0; kind < 3; ++kind) {
    const bool query = kind == 0;
    if (query ? agent < kWriters : (kind - 1) % S::kAgents != agent) continue;
    const int stride = query ? S::kAgents - kWriters : 1, end = query ? kQueries : own_end;
    const int source = query ? head * kGroup : P::kHeads + (kind - 1) * P::kKvHeads + head;
    auto* cache = cache_row<P>(kind == 1 ? S::k_cache(c).data : S::v_cache(c).data, S::layer(c), head, c.pos);
#pragma unroll 1
    for (int first = query ? agent - kWriters : own_begin; first < end; first += kTogether * stride) {
      // All loads are in flight together, those of rotations as well, and without a branch: where no item is left, they are those
      // of the first one again.
      HeadPart part[kTogether][kTwos];
      int from[kTogether];
      const float* table[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int item = first + j * stride < end ? first + j * stride : first, row = query ? item / kGroup : item;
        from[j] = row * S::kQkvRow + (source + (query ? item % kGroup : 0)) * kDim;
        int turn = c.pos + row;
        if constexpr (S::kHasTree) turn = c.pos + __popcll(seen_before<S>(c, row));
        table[j] = row_at<kDim>(S::rope(c).data, turn);
      }
      typename decltype(qkv)::Two a_raw[kTogether][kTwos], b_raw[kTogether][kTwos];
      until_fresh(c, qkv.tag, [&] {
        bool fresh = true;
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
#pragma unroll
          for (int k = 0; k < kTwos; ++k) {
            const int i = min(2 * (c.lane + 32 * k), kHalf - 2);
            a_raw[j][k] = qkv.fetch_two(from[j] + i), b_raw[j][k] = qkv.fetch_two(from[j] + i + kHalf);
            part[j][k].cosine = *reinterpret_cast<const float2*>(table[j] + i);
            part[j][k].sine = *reinterpret_cast<const float2*>(table[j] + kHalf + i);
          }
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
#pragma unroll
          for (int k = 0; k < kTwos; ++k) fresh &= qkv.fresh_two(a_raw[j][k]) & qkv.fresh_two(b_raw[j][k]);
        }
        return fresh;
      });
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
#pragma unroll
        for (int k = 0; k < kTwos; ++k) part[j][k].a = qkv.value_two(a_raw[j][k]), part[j][k].b = qkv.value_two(b_raw[j][k]);
      }
      // A loop, whose heads are always the first in registers: code of its own for each head is more than the cache for
      // instructions has room for.
#pragma unroll 1
      for (int item = first; item < min(end, first + kTogether * stride); item += kTurn * stride) {
#pragma unroll
        for (int j = 0; j < kTurn; ++j) {
          const int own = item + j * stride;
          if (own < end) rotate_store_rows<S>(c, kind, part[j], S::q(c) + own * S::kQueryWidth, cache + own * kDim);
        }
#pragma unroll
        for (int j = 0; j + kTurn < kTogether; ++j) {
#pragma unroll
          for (int k = 0; k < kTwos; ++k) part[j][k] = part[j + kTurn][k];
        }
      }
    }
  }
}

template <class S, class C>
__device__ __forceinline__ void rope_append(C& c) {
  for_each_head<S>(c, [&](const ServedHead& at) {
    if (at.head < 0) return;
    if constexpr (C::P::kRows == 1) {
      rope_append_one<S>(c, at);
    } else {
      rope_append_rows<S>(c, at.head, at.agent);
    }
  });
}

}  // namespace amk::ops
