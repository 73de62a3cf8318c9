// What a measurement leaves out of the kernel, to time the rest (amk/bench/table/ablation.py, which a test compares with this).
//
// The product's own code never defines AMK_ABLATION, so that every constant is false and no instruction differs. Code made
// with it computes nothing: results are wrong, tokens are kept within the vocabulary so that no address is. It is another
// symbol without a schedule's hash, which no loader of the product takes.
#pragma once

namespace amk {
namespace ablation {

#ifdef AMK_ABLATION
inline constexpr unsigned kParts = AMK_ABLATION;
#else
inline constexpr unsigned kParts = 0;
#endif

inline constexpr bool kAny = kParts != 0;
inline constexpr bool kNoWaits = (kParts & 1) != 0;      // counters are not looked at, words count as fresh
inline constexpr bool kNoStaging = (kParts & 2) != 0;    // vectors are neither read nor written for a product
inline constexpr bool kNoSums = (kParts & 4) != 0;       // partial sums are not read
inline constexpr bool kNoProduct = (kParts & 8) != 0;    // chunks are waited for and given back unread
inline constexpr bool kNoFence = (kParts & 16) != 0;     // a slot is refilled without the proxy fence
inline constexpr bool kNoAttention = (kParts & 32) != 0;  // the cache is not read
inline constexpr bool kNoArgmax = (kParts & 64) != 0;    // neither logits nor candidates are looked at
inline constexpr bool kOnePlace = (kParts & 128) != 0;   // every copy of a warp is of its first chunk: from L2
inline constexpr bool kDeepRing = (kParts & 256) != 0;   // twice the slots, which share their bytes
inline constexpr bool kNoWords = (kParts & 512) != 0;   // every second fetch of a vector is not made
inline constexpr bool kNoMeeting = (kParts & 1024) != 0;  // no barrier before a product: the schedule is emitted without
inline constexpr bool kNoConversion = (kParts & 2048) != 0;  // vectors for codes are stored as they were read, without scales
inline constexpr bool kNoInput = (kParts & 4096) != 0;  // the input of `down` is not waited for: emitted without that wait

}  // namespace ablation
}  // namespace amk
