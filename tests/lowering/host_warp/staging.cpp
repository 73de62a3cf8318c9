// Reads "stage LAYOUT SOURCE RUN" and f32 from stdin, stages them as the agents of a worker do, writes what they left.
//
// Output: bytes of x, of the other array, f32 scales and sums. All begin as 0x5a; AGENTS and COUNT are constants of the compilation.
#include <cstdio>
#include <mutex>
#include <string>

#include "amk/staged.cuh"

using namespace amk;

constexpr int kBlocks = (COUNT + kBlock - 1) / kBlock + 4;  // and room behind
constexpr int kAlso = kBlocks * 128, kScales = 2 * kAlso, kSums = kScales + kBlocks * 4, kAll = kSums + kBlocks * 4;
constexpr u32 kTag = 7;
constexpr int kRunOfBlocks = RUN;
alignas(16) static char memory[kAll];
alignas(16) static u64 words[COUNT + 4];
alignas(16) static float values[COUNT + 4];

struct Ctx {
  int warp, lane;
  sync::Watchdog& dog;
};

template <class X, bool kBlocked, int kRun = 1, bool kBehindBarrier = true>
struct Step {
  static constexpr int kScaleBlocks = kRun;
  static constexpr bool kMet = kBehindBarrier;
  static constexpr int kFirst = 0, kAgents = AGENTS;
  static constexpr bool kHasScales = kBlocked, kHasAlso = kBlocked;
  static constexpr bool kHasSums = kBlocked && sizeof(X) == sizeof(digits) && !std::is_same_v<X, __half>;
  static X* x(const Ctx&) { return reinterpret_cast<X*>(memory); }
  static bf16* also(const Ctx&) { return reinterpret_cast<bf16*>(memory + kAlso); }
  static float* scales(const Ctx&) { return reinterpret_cast<float*>(memory + kScales); }
  static float* sums(const Ctx&) { return reinterpret_cast<float*>(memory + kSums); }
};

template <class S, class Cell>
void stage(Cell cell) {
  static sync::Watchdog dog;
  for (int agent = 0; agent < AGENTS; ++agent) {
    run_warp([=](int lane) { stage_share<S, COUNT>(Ctx{agent, lane, dog}, cell); });
  }
}

template <class S>
void stage_from(const std::string& source) {
  if (source == "tagged-bf16") {
    for (int i = 0; i < COUNT; i += 2) sync::store_tagged(words + i / 2, pack_bf16(values[i], values[i + 1]), kTag);
    stage<S>(Tagged<bf16>{words, kTag});
  } else if (source == "tagged-f32") {
    for (int i = 0; i < COUNT; ++i) sync::store_tagged(words + i, __float_as_uint(values[i]), kTag);
    stage<S>(Tagged<float>{words, kTag});
  } else {
    stage<S>(Plain<float>{values});
  }
}

// The words of the second half of each share, or behind its first run, are stored when a warp has looked for them in vain. By then it has used the first
// half, if it may, and nothing of the second.
template <class S>
void stage_late() {
  static sync::Watchdog dog;
  for (int agent = 0; agent < AGENTS; ++agent) {
    const int lo = staged_begin<COUNT, true>(AGENTS, agent), hi = staged_begin<COUNT, true>(AGENTS, agent + 1);
    const int mid = S::kScaleBlocks == 1 ? (lo + hi) / 2 : lo + S::kScaleBlocks * kBlock;
    const auto store = [](int from, int to) {
      for (int i = from; i < to; i += 2) sync::store_tagged(words + i / 2, pack_bf16(values[i], values[i + 1]), kTag);
    };
    const auto untouched = [](int from, int to) {
      return std::all_of(memory + 2 * from, memory + 2 * to, [](char byte) { return byte == 0x5a; });
    };
    std::once_flag once;
    sync::late = [&] {
      std::call_once(once, [&] {
        if (untouched(lo, mid) == S::kMet || !untouched(mid, hi)) std::abort();
        store(mid, hi);
      });
    };
    store(lo, mid);
    run_warp([=](int lane) { stage_share<S, COUNT>(Ctx{agent, lane, dog}, Tagged<bf16>{words, kTag}); });
    if (untouched(mid, hi)) std::abort();
  }
}

int main(int, char** arguments) {
  shared_memory = memory;
  memset(memory, 0x5a, sizeof memory);
  if (fread(values, 4, COUNT, stdin) != COUNT) return 1;
  const std::string layout = arguments[1], source = arguments[2], run = arguments[3];
  if (source == "late") {
    if (run != "1") {
      stage_late<Step<digits, true, kRunOfBlocks>>();
    } else {
      layout == "bare" ? stage_late<Step<digits, true, 1, false>>() : stage_late<Step<digits, true>>();
    }
    return fwrite(memory, 1, kAll, stdout) == kAll ? 0 : 1;
  }
  if (layout == "digits") run == "1" ? stage_from<Step<digits, true>>(source) : stage_from<Step<digits, true, kRunOfBlocks>>(source);
  if (layout == "halves") run == "1" ? stage_from<Step<__half, true>>(source) : stage_from<Step<__half, true, kRunOfBlocks>>(source);
  if constexpr (COUNT % (4 * AGENTS) == 0) {
    if (layout == "bf16") stage_from<Step<bf16, false>>(source);
  }
  return fwrite(memory, 1, kAll, stdout) == kAll ? 0 : 1;
}
