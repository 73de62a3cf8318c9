// The loads and barriers of the device's sync.cuh that staging uses; a word that is not fresh ends the test, or makes `late` store it.
#pragma once
#include <cstdlib>
#include <functional>

#include "warp.h"

namespace amk {
using u32 = unsigned int;
using u64 = unsigned long long;

namespace sync {
inline u32 tag_of(u64 word) { return static_cast<u32>(word >> 32); }
inline u32 value_of(u64 word) { return static_cast<u32>(word); }
struct TaggedPair { u64 first, second; };
inline TaggedPair load_tagged_pair(const u64* words) { return {words[0], words[1]}; }
inline u64 load_tagged(const u64* word) { return *word; }
inline void store_tagged(u64* word, u32 value, u32 tag) { *word = static_cast<u64>(tag) << 32 | value; }
inline void store_tagged_pair(u64* words, u32 first, u32 second, u32 tag) {
  store_tagged(words, first, tag), store_tagged(words + 1, second, tag);
}
inline uint4 load_16(const void* from) {
  uint4 data;
  memcpy(&data, from, 16);
  return data;
}
inline uint4 load_global_v4(const void* from) { return load_16(from); }
inline u32 shared_address(const void* place) { return static_cast<u32>(static_cast<const char*>(place) - shared_memory); }
inline uint4 load_shared_v4(u32 address) { return load_16(shared_memory + address); }
inline u32 load_shared_u32(u32 address) {
  u32 data;
  memcpy(&data, shared_memory + address, 4);
  return data;
}
inline void warp_barrier() { warp_meets.arrive_and_wait(); }
inline int opaque(int value) { return value; }
enum class Blocked { tagged_word };
struct Watchdog {};
inline std::function<void()> late;
template <Blocked>
struct Stall {
  bool gives_up(Watchdog&, u32, u32, u32, u32) {
    if (!late) std::abort();
    late();
    return false;
  }
};
}  // namespace sync
}  // namespace amk
