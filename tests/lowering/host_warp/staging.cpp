// Reads "stage LAYOUT SOURCE COUNT" of f32 from stdin, stages them as the agents of a worker do, writes what they left.
//
// Output: bytes of x, of the other array, f32 scales and sums. All begin as 0x5a; AGENTS and COUNT are constants of the compilation.
#include <cstdio>
#include <string>

#include "amk/staged.cuh"

using namespace amk;

constexpr int kBlocks = (COUNT + kBlock - 1) / kBlock + 4;  // and room behind
constexpr int kAlso = kBlocks * 128, kScales = 2 * kAlso, kSums = kScales + kBlocks * 4, kAll = kSums + kBlocks * 4;
constexpr u32 kTag = 7;
alignas(16) static char memory[kAll];
alignas(16) static u64 words[COUNT + 4];
alignas(16) static float values[COUNT + 4];

struct Ctx {
  int warp, lane;
  sync::Watchdog& dog;
};

template <class X, bool kBlocked>
struct Step {
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

int main(int, char** arguments) {
  shared_memory = memory;
  memset(memory, 0x5a, sizeof memory);
  if (fread(values, 4, COUNT, stdin) != COUNT) return 1;
  const std::string layout = arguments[1], source = arguments[2];
  if (layout == "digits") stage_from<Step<digits, true>>(source);
  if (layout == "halves") stage_from<Step<__half, true>>(source);
  if constexpr (COUNT % (4 * AGENTS) == 0) {
    if (layout == "bf16") stage_from<Step<bf16, false>>(source);
  }
  return fwrite(memory, 1, kAll, stdout) == kAll ? 0 : 1;
}
