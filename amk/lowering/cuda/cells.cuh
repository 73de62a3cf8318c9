// Elements of a hand-off buffer, plain or tagged, behind one interface.
//
// Plain elements are ordered by the counter that was acquired before. A tagged element shares an aligned 8-byte word
// with its tag; reading repeats until the tag is the expected one, so the word orders itself (M13). Many loads are in
// flight before the first tag is looked at, and a batch that is not fresh is read again as a whole. kWide elements make
// one fetch.
#pragma once
#include "amk/context.cuh"

namespace amk {

__device__ __forceinline__ u32 bits_of(float v) { return __float_as_uint(v); }
__device__ __forceinline__ u32 bits_of(int v) { return static_cast<u32>(v); }
__device__ __forceinline__ void from_bits(u32 bits, float& out) { out = __uint_as_float(bits); }
__device__ __forceinline__ void from_bits(u32 bits, int& out) { out = static_cast<int>(bits); }

__device__ __forceinline__ u32 pack_bf16(float lo, float hi) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(lo, hi);
  return reinterpret_cast<const u32&>(pair);
}
__device__ __forceinline__ float2 unpack_bf16(u32 bits) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

// The larger of two pairs of bf16 that are not negative, each half by itself; not a number where one is none.
__device__ __forceinline__ u32 larger_pair(u32 a, u32 b) {
  using Pair = __nv_bfloat162;
  const Pair c = __hmax2_nan(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const u32&>(c);
}

// The largest of `top` and the magnitudes of two pairs of bf16, each half by itself, likewise.
__device__ __forceinline__ u32 largest_pair(u32 top, u32 a, u32 b) {
  using Pair = __nv_bfloat162;
  const Pair x = __habs2(reinterpret_cast<const Pair&>(a)), y = __habs2(reinterpret_cast<const Pair&>(b));
  const Pair c = __hmax2_nan(reinterpret_cast<const Pair&>(top), __hmax2_nan(x, y));
  return reinterpret_cast<const u32&>(c);
}

// The largest magnitudes of kWide floats, cut to the upper halves of their bits: of those with even, and with odd number.
template <int kWide>
__device__ __forceinline__ u32 magnitudes(const float (&v)[kWide]) {
  u32 top = 0;
#pragma unroll
  for (int k = 0; k < kWide; k += 2) {
    const u32 pair = __byte_perm(__float_as_uint(v[k]), __float_as_uint(v[k + 1]), 0x7632u) & 0x7fff7fffu;
    top = k == 0 ? pair : larger_pair(top, pair);
  }
  return top;
}

// The largest of `top` and the magnitudes of kWide floats, likewise.
template <int kWide>
__device__ __forceinline__ u32 largest_of(u32 top, const float (&v)[kWide]) {
  const u32 first = __byte_perm(__float_as_uint(v[0]), __float_as_uint(v[1]), 0x7632u);
  return largest_pair(top, first, kWide == 2 ? 0u : __byte_perm(__float_as_uint(v[kWide - 2]), __float_as_uint(v[kWide - 1]), 0x7632u));
}

// A pair of floats as two bf16 pairs that add up to it: 16 bits of mantissa.
__device__ __forceinline__ void split_pair(float lo, float hi, u32& coarse, u32& rest) {
  coarse = pack_bf16(lo, hi);
  const float2 back = unpack_bf16(coarse);
  rest = pack_bf16(lo - back.x, hi - back.y);
}

template <int kElementBytes>
struct RawOf {
  using type = uint4;
};
template <>
struct RawOf<2> {
  using type = uint2;
};

template <class T>
struct Plain {
  static constexpr bool kTagged = false;
  T* data;
  static constexpr u32 tag = 0;
  // Four elements whatever the type: shares are multiples of 32 elements, and a share is whole fetches.
  using Raw = typename RawOf<sizeof(T)>::type;
  using One = T;
  static constexpr int kWide = 4;

  // A view from element i on: one address, from which a lane's fetches are constant offsets.
  __device__ __forceinline__ Plain from(int i) const { return {data + i}; }
  __device__ __forceinline__ Raw fetch(int i) const {
    if constexpr (sizeof(T) == 2) {
      return *reinterpret_cast<const uint2*>(data + i);
    } else {
      return sync::load_global_v4(data + i);
    }
  }
  // For what every warp of the worker reads: from the SM's cache but for the first.
  __device__ __forceinline__ Raw fetch_near(int i) const { return *reinterpret_cast<const Raw*>(data + i); }
  __device__ __forceinline__ One fetch_one(int i) const { return data[i]; }
  // Elements i and i + 1, i even.
  using Two = float2;
  __device__ __forceinline__ Two fetch_two(int i) const {
    static_assert(sizeof(T) == 4, "pairs of 32-bit elements");
    return *reinterpret_cast<const float2*>(data + i);
  }
  __device__ __forceinline__ static constexpr bool fresh_two(const Two&) { return true; }
  __device__ __forceinline__ static float2 value_two(const Two& raw) { return raw; }
  __device__ __forceinline__ static constexpr bool fresh(const Raw&) { return true; }
  __device__ __forceinline__ static constexpr u32 stale(const Raw&) { return 0; }
  __device__ __forceinline__ static constexpr bool fresh_one(const One&) { return true; }
  __device__ __forceinline__ static T value_one(One raw) { return raw; }
  __device__ __forceinline__ static void values(const Raw& raw, float (&out)[kWide]) {
    if constexpr (sizeof(T) == 2) {
      const float2 lo = unpack_bf16(raw.x), hi = unpack_bf16(raw.y);
      out[0] = lo.x, out[1] = lo.y, out[2] = hi.x, out[3] = hi.y;
    } else {
      out[0] = __uint_as_float(raw.x), out[1] = __uint_as_float(raw.y);
      out[2] = __uint_as_float(raw.z), out[3] = __uint_as_float(raw.w);
    }
  }
  // magnitudes of the same.
  __device__ __forceinline__ static u32 top(const Raw& raw) {
    if constexpr (sizeof(T) == 2) {
      return larger_pair(raw.x & 0x7fff7fffu, raw.y & 0x7fff7fffu);
    } else {
      float v[kWide];
      values(raw, v);
      return magnitudes(v);
    }
  }
  __device__ __forceinline__ static u32 largest(u32 top, const Raw& raw) {
    if constexpr (sizeof(T) == 2) {
      return largest_pair(top, raw.x, raw.y);
    } else {
      float v[kWide];
      values(raw, v);
      return largest_of(top, v);
    }
  }
  // The same, rounded to pairs of bf16.
  __device__ __forceinline__ static void pairs(const Raw& raw, u32 (&out)[kWide / 2]) {
    if constexpr (sizeof(T) == 2) {
      out[0] = raw.x, out[1] = raw.y;
    } else {
      out[0] = pack_bf16(__uint_as_float(raw.x), __uint_as_float(raw.y));
      out[1] = pack_bf16(__uint_as_float(raw.z), __uint_as_float(raw.w));
    }
  }
  // Elements i to i + 3.
  __device__ __forceinline__ void store_wide(int i, const float (&v)[kWide]) const {
#pragma unroll
    for (int k = 0; k < kWide; ++k) data[i + k] = static_cast<T>(v[k]);
  }
  // Elements i and i + 1, i even.
  __device__ __forceinline__ void store_two(int i, float2 v) const {
    if constexpr (sizeof(T) == 2) {
      *reinterpret_cast<u32*>(data + i) = pack_bf16(v.x, v.y);
    } else {
      *reinterpret_cast<float2*>(data + i) = v;
    }
  }
  // Element i <- v where `live`; called by all lanes of the warp, lane n + 1 holding the element after lane n's.
  template <class C, class V>
  __device__ __forceinline__ void store(const C&, int i, V v, bool live) const {
    if (live) data[i] = static_cast<T>(v);
  }
};

template <class T>
struct Tagged {
  static constexpr bool kTagged = true;
  u64* words;
  u32 tag;
  using Raw = sync::TaggedPair;
  using One = u64;
  static constexpr int kPerWord = sizeof(T) == 2 ? 2 : 1, kWide = 2 * kPerWord;

  __device__ __forceinline__ Tagged from(int i) const { return {words + static_cast<u32>(i) / kPerWord, tag}; }
  __device__ __forceinline__ Raw fetch(int i) const { return sync::load_tagged_pair(words + i / kPerWord); }
  __device__ __forceinline__ Raw fetch_near(int i) const { return fetch(i); }
  __device__ __forceinline__ One fetch_one(int i) const {
    static_assert(kPerWord == 1, "single elements of a pair are not addressable");
    return sync::load_tagged(words + i);
  }
  using Two = sync::TaggedPair;
  __device__ __forceinline__ Two fetch_two(int i) const {
    static_assert(kPerWord == 1, "pairs of 32-bit elements");
    return sync::load_tagged_pair(words + i);
  }
  __device__ __forceinline__ bool fresh_two(const Two& raw) const { return fresh(raw); }
  __device__ __forceinline__ static float2 value_two(const Two& raw) {
    return make_float2(__uint_as_float(sync::value_of(raw.first)), __uint_as_float(sync::value_of(raw.second)));
  }
  // Zero where both tags are the expected one.
  __device__ __forceinline__ u32 stale(const Raw& raw) const {
    return (sync::tag_of(raw.first) ^ tag) | (sync::tag_of(raw.second) ^ tag);
  }
  __device__ __forceinline__ bool fresh(const Raw& raw) const { return stale(raw) == 0; }
  __device__ __forceinline__ bool fresh_one(One raw) const { return sync::tag_of(raw) == tag; }
  __device__ __forceinline__ static T value_one(One raw) {
    T out;
    from_bits(sync::value_of(raw), out);
    return out;
  }
  __device__ __forceinline__ static void values(const Raw& raw, float (&out)[kWide]) {
    if constexpr (kPerWord == 2) {
      const float2 lo = unpack_bf16(sync::value_of(raw.first)), hi = unpack_bf16(sync::value_of(raw.second));
      out[0] = lo.x, out[1] = lo.y, out[2] = hi.x, out[3] = hi.y;
    } else {
      out[0] = __uint_as_float(sync::value_of(raw.first)), out[1] = __uint_as_float(sync::value_of(raw.second));
    }
  }
  __device__ __forceinline__ static u32 top(const Raw& raw) {
    if constexpr (kPerWord == 2) {
      return larger_pair(sync::value_of(raw.first) & 0x7fff7fffu, sync::value_of(raw.second) & 0x7fff7fffu);
    } else {
      float v[kWide];
      values(raw, v);
      return magnitudes(v);
    }
  }
  __device__ __forceinline__ static u32 largest(u32 top, const Raw& raw) {
    if constexpr (kPerWord == 2) {
      return largest_pair(top, sync::value_of(raw.first), sync::value_of(raw.second));
    } else {
      float v[kWide];
      values(raw, v);
      return largest_of(top, v);
    }
  }
  __device__ __forceinline__ static void pairs(const Raw& raw, u32 (&out)[kWide / 2]) {
    if constexpr (kPerWord == 2) {
      out[0] = sync::value_of(raw.first), out[1] = sync::value_of(raw.second);
    } else {
      out[0] = pack_bf16(__uint_as_float(sync::value_of(raw.first)), __uint_as_float(sync::value_of(raw.second)));
    }
  }
  __device__ __forceinline__ void store_wide(int i, const float (&v)[kWide]) const {
    static_assert(kPerWord == 2, "pairs of bf16");
    sync::store_tagged_pair(words + i / 2, pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), tag);
  }
  // Elements i and i + 1, i even.
  __device__ __forceinline__ void store_two(int i, float2 v) const {
    if constexpr (kPerWord == 2) {
      sync::store_tagged(words + i / 2, pack_bf16(v.x, v.y), tag);
    } else {
      sync::store_tagged_pair(words + i, __float_as_uint(v.x), __float_as_uint(v.y), tag);
    }
  }
  // Two bf16 elements share a word: the even lane stores its own and its neighbour's. i is even in even lanes.
  template <class C, class V>
  __device__ __forceinline__ void store(const C& c, int i, V v, bool live) const {
    if constexpr (kPerWord == 2) {
      const float next = __shfl_down_sync(0xffffffffu, static_cast<float>(v), 1);
      if (live && c.lane % 2 == 0) sync::store_tagged(words + i / 2, pack_bf16(v, next), tag);
    } else {
      if (live) sync::store_tagged(words + i, bits_of(static_cast<T>(v)), tag);
    }
  }
};

// Repeats `fetch`, which loads a batch and says whether all of it is fresh; for plain cells that is once.
template <class C, class Fetch>
__device__ __forceinline__ void until_fresh(const C& c, u32 tag, Fetch fetch) {
  sync::Stall<sync::Blocked::tagged_word> stall;
#pragma unroll 1
  while (true) {
    if (fetch() || stall.gives_up(c.dog, c.warp, 0, tag, 0)) return;
  }
}

}  // namespace amk
