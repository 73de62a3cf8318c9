#include "amk/context.cuh"
#include "amk/cells.cuh"
#include "amk/ring.cuh"
#include "amk/codes/bf16.cuh"
#include "amk/ops/add_residual.cuh"
#include "amk/ops/argmax_rows.cuh"
#include "amk/ops/attend.cuh"
#include "amk/ops/begin.cuh"
#include "amk/ops/combine.cuh"
#include "amk/ops/embed.cuh"
#include "amk/ops/finish.cuh"
#include "amk/ops/gemv.cuh"
#include "amk/ops/merge.cuh"
#include "amk/ops/rope_append.cuh"
#include "amk/ops/select.cuh"
#include "amk/ops/stage.cuh"
#include "amk/ops/stage_norm.cuh"
#include "amk/ops/store_rows.cuh"
#include "amk/ops/swiglu.cuh"

namespace {

__constant__ int t_attnZdgate[3] = {0, 0, 0};
__constant__ int t_attnZdhead[3] = {0, -1, -1};
__constant__ int t_attnZdserves[3] = {1, 0, 0};
__constant__ int t_attnZdsplit[3] = {0, 0, 0};
__constant__ int t_gate_upZdcount[3] = {30, 29, 29};
__constant__ int t_gate_upZdfirst[3] = {0, 30, 59};
__constant__ int t_hiddenZdcount[3] = {8, 8, 8};
__constant__ int t_hiddenZdfirst[3] = {0, 8, 16};
__constant__ int t_lm_headZdcount[3] = {14, 14, 14};
__constant__ int t_lm_headZdfirst[3] = {0, 14, 28};
__constant__ int t_qkvZdcount[3] = {13, 14, 13};
__constant__ int t_qkvZdfirst[3] = {0, 13, 27};
__constant__ int stream_base[12] = {0, 217, 436, 653, 872, 1089, 1308, 1525, 1744, 1957, 2174, 2387};
__constant__ int stream_total[12] = {217, 219, 217, 219, 217, 219, 217, 219, 213, 217, 213, 217};
struct Globals {
  amk::bf16* b_weights;
  amk::bf16* b_embedding;
  float* b_norm;
  float* b_rope;
  int* b_request;
  int* b_prompt;
  int* b_state;
  int* b_output;
  amk::bf16* b_k_cache;
  amk::bf16* b_v_cache;
  float* b_logits;
  float* b_qkv;
  float* b_split_partial;
  float* b_split_scale;
  float* b_attn;
  float* b_h_mid;
  float* b_h_out;
  amk::bf16* b_act;
  float* b_best_value;
  int* b_best_index;
  amk::u32* counters;
  amk::sync::WatchdogLog* watchdog_log;
  const amk::u32* abort_word;
  amk::u64 stall_ns;
  amk::u64 tokens;
  amk::u32* trace;
};
static_assert(sizeof(Globals) == 208, "host layout");
struct Plan {
  static constexpr int kHidden = 192;
  static constexpr int kFfn = 352;
  static constexpr int kHeads = 3;
  static constexpr int kKvHeads = 1;
  static constexpr int kHeadDim = 64;
  static constexpr int kLayers = 2;
  static constexpr int kContext = 256;
  static constexpr int kKvBlock = 128;
  static constexpr int kKvSplits = 1;
  static constexpr int kStreamAgents = 4;
  static constexpr int kBatch = 1;
  static constexpr int kCaches = 1;
  static constexpr int kRows = 1;
  static __device__ __forceinline__ constexpr int turns() { return 1; }
  static __device__ __forceinline__ constexpr int turn_heads() { return 1; }
  static constexpr bool kLive = false;
  static constexpr bool kAccepts = false;
  static constexpr float kRmsEps = 1.000000000e-05f;
  static constexpr float kQueryScale = 1.250000000e-01f;
  using Cache = amk::bf16;
  struct Shares {
    int qkv_first, qkv_count, hidden_first, hidden_count, gate_up_first, gate_up_count, lm_head_first, lm_head_count, attn_head, attn_split, attn_gate, attn_serves;
    static __device__ __forceinline__ Shares of(int w) { return {t_qkvZdfirst[w], t_qkvZdcount[w], t_hiddenZdfirst[w], t_hiddenZdcount[w], t_gate_upZdfirst[w], t_gate_upZdcount[w], t_lm_headZdfirst[w], t_lm_headZdcount[w], t_attnZdhead[w], t_attnZdsplit[w], t_attnZdgate[w], t_attnZdserves[w]}; }
    __device__ __forceinline__ void hold() { qkv_count = amk::held(qkv_count), hidden_count = amk::held(hidden_count), gate_up_count = amk::held(gate_up_count), lm_head_count = amk::held(lm_head_count), attn_head = amk::held(attn_head), attn_split = amk::held(attn_split), attn_gate = amk::held(attn_gate), attn_serves = amk::held(attn_serves); }
  };
  struct Qkv {
    static constexpr int kRows = 320, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16<1>;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.qkv_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.qkv_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct O {
    static constexpr int kRows = 192, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16<1>;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.hidden_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.hidden_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct GateUp {
    static constexpr int kRows = 704, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16<1>;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.gate_up_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.gate_up_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct Down {
    static constexpr int kRows = 192, kK = 352, kColumns = 32, kChunks = 11;
    using Weights = amk::Bf16<1>;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.hidden_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.hidden_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct LmHead {
    static constexpr int kRows = 331, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16<1>;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.lm_head_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.lm_head_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  using Hidden = O;
};
using Ring = amk::CopyRing<2, 512, false>;
using Ctx = amk::Context<Plan, Globals, Ring>;

struct S0 {
  static constexpr int kFirst = 0, kAgents = 4;
  static __device__ __forceinline__ amk::Plain<int> state(const Ctx& c) { return {c.globals.b_state}; }
  static constexpr bool kHasPrompt = false;
  static constexpr bool kHasPosition = false;
  static_assert((kHasPosition == (false && true)), "a slice of layers, and nothing else, is given its position");
};
struct S1 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr bool kMet = true;
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasAlso = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static __device__ __forceinline__ amk::Plain<amk::bf16> table(const Ctx& c) { return {c.globals.b_embedding}; }
  static __device__ __forceinline__ amk::Plain<float> norm(const Ctx& c) { return {c.globals.b_norm}; }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4352); }
  static __device__ __forceinline__ float* residual(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4096); }
  static_assert(((Plan::kBatch == 1) || (!kHasScales && !kHasAlso)), "a batch is staged in bf16");
  static_assert((kHasScales || true), "a vector in blocks has scales");
  static_assert((!kHasAlso || kHasScales), "a second layout has scales");
  static_assert((!kHasSums || (kHasScales && (false || false))), "sums are those of blocks of digits");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert(((Plan::kHidden % 2) == 0), "elements are read two at a time");
};
struct S2 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kCut = 1;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  using Matrix = Plan::Qkv;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr bool kHasRowScales = false;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr int kDeferred = 0;
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static constexpr int kKSplits = 1;
  static_assert(((Matrix::kChunks % (kKParts * kKSplits)) == 0), "the parts are equal numbers of chunks");
  static_assert(((!Matrix::Weights::kPlain && ((kKParts * kKSplits) == 1)) || ((Matrix::kK % ((Matrix::kColumns * kKParts) * kKSplits)) == 0)), "chunks cover the columns exactly");
  static_assert(((Matrix::kColumns % 32) == 0), "a chunk is whole tiles and whole groups");
  static_assert(((!(Plan::kBatch == 1) || ((kKParts * kKSplits) == 1)) || !!Matrix::Weights::kPlain), "codes take one sequence's columns all at once");
  static_assert(((Plan::kBatch == 1) || ((Matrix::kK % 8) == 0)), "several sequences' columns are whole 16 bytes");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((kHasRowScales == false), "scales of rows stand apart or in the chunks");
};
struct S3 {
  static constexpr int kFirst = 0, kAgents = 4;
  using Matrix = Plan::Qkv;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr bool kHasSsq = true;
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4352); }
  static constexpr int kSsqAgents = 4;
  static constexpr bool kHasBias = false;
  static __device__ __forceinline__ amk::Plain<float> out(const Ctx& c) { return {c.globals.b_qkv}; }
  static constexpr int kKParts = 1;
  static_assert(((!((kSsqAgents % 4) == 0) || (Plan::kBatch == 1)) || ((4 % 4) == 0)), "sums of squares are read four at a time");
  static_assert((kHasSsq == true), "rows are divided by the root mean square if and only if the norm leaves that to them");
  static_assert(((Matrix::kChunks % kKParts) == 0), "the parts are equal numbers of chunks");
  static_assert((kHasBias == false), "biases are named if and only if the model's product has them");
};
struct S4 {
  static constexpr int kFirst = 0, kAgents = 4;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::Plain<float> qkv(const Ctx& c) { return {c.globals.b_qkv}; }
  static __device__ __forceinline__ amk::Plain<float> rope(const Ctx& c) { return {c.globals.b_rope}; }
  static constexpr bool kHasQNorm = false;
  static constexpr bool kHasKNorm = false;
  static __device__ __forceinline__ float* q(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 3328); }
  static __device__ __forceinline__ amk::Plain<amk::bf16> k_cache(const Ctx& c) { return {c.globals.b_k_cache}; }
  static __device__ __forceinline__ amk::Plain<amk::bf16> v_cache(const Ctx& c) { return {c.globals.b_v_cache}; }
  static constexpr bool kHasTree = false;
  static constexpr int kQueryWidth = 64;
  static_assert(((Plan::kHeadDim % 4) == 0), "halves of a head are whole pairs");
  static_assert((kHasQNorm == false), "q_norm is named if and only if the model has it");
  static_assert((kHasKNorm == false), "k_norm is named if and only if the model has it");
  static_assert((kHasTree == false), "rows are told which of them they see if and only if they are a tree");
  static_assert((1 <= Plan::kKvBlock), "the rows of a step lie in two blocks at most");
};
struct S5 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kTogether = 1;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* q(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 3328); }
  static __device__ __forceinline__ amk::Plain<amk::bf16> k_cache(const Ctx& c) { return {c.globals.b_k_cache}; }
  static __device__ __forceinline__ amk::Plain<amk::bf16> v_cache(const Ctx& c) { return {c.globals.b_v_cache}; }
  static __device__ __forceinline__ float* partial(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 0); }
  static constexpr bool kHasTree = false;
  static constexpr int kSharers = 4;
  static constexpr int kTileColumns = 1;
  static constexpr int kQueryWidth = 64;
  static_assert(((Plan::kHeadDim % 8) == 0), "a lane reads 8 dims");
  static_assert((kHasTree == false), "rows are told which of them they see if and only if they are a tree");
  static_assert(((((Plan::kKvSplits * Plan::kKvBlock) * Plan::kHeadDim) * 2) < 2147483648), "two laps of the splits are counted in 32 bits");
};
struct S6 {
  static constexpr int kFirst = 0, kAgents = 4;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* partial(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 0); }
  static constexpr int kAttendAgents = 4;
  static __device__ __forceinline__ amk::Plain<float> split_partial(const Ctx& c) { return {c.globals.b_split_partial}; }
  static __device__ __forceinline__ amk::Plain<float> split_scale(const Ctx& c) { return {c.globals.b_split_scale}; }
  static constexpr int kSharers = 4;
  static_assert((1 <= kAttendAgents), "there is a partial");
  static_assert(((Plan::kHeadDim % 2) == 0), "two elements share a word");
};
struct S7 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr bool kMet = true;
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasAlso = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::Plain<float> split_partial(const Ctx& c) { return {c.globals.b_split_partial}; }
  static __device__ __forceinline__ amk::Plain<float> split_scale(const Ctx& c) { return {c.globals.b_split_scale}; }
  static constexpr int kHeads = 2;
  static __device__ __forceinline__ float* mix(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static_assert(((Plan::kBatch == 1) || (!kHasScales && !kHasAlso)), "a batch is staged in bf16");
  static_assert((kHasScales || true), "a vector in blocks has scales");
  static_assert((!kHasAlso || kHasScales), "a second layout has scales");
  static_assert((!kHasSums || (kHasScales && (false || false))), "sums are those of blocks of digits");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((Plan::kBatch == 1), "in a batch splits are reduced");
  static_assert(((Plan::kHeadDim % 4) == 0), "a head is whole fetches");
  static_assert((kHasScales || (((Plan::kHeads * Plan::kHeadDim) % (4 * kAgents)) == 0)), "every warp's share is whole fetches");
  static_assert((2 <= kHeads), "mix has room for all heads of a share");
};
struct S8 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kCut = 1;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  using Matrix = Plan::O;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr bool kHasRowScales = false;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr int kDeferred = 0;
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static constexpr int kKSplits = 1;
  static_assert(((Matrix::kChunks % (kKParts * kKSplits)) == 0), "the parts are equal numbers of chunks");
  static_assert(((!Matrix::Weights::kPlain && ((kKParts * kKSplits) == 1)) || ((Matrix::kK % ((Matrix::kColumns * kKParts) * kKSplits)) == 0)), "chunks cover the columns exactly");
  static_assert(((Matrix::kColumns % 32) == 0), "a chunk is whole tiles and whole groups");
  static_assert(((!(Plan::kBatch == 1) || ((kKParts * kKSplits) == 1)) || !!Matrix::Weights::kPlain), "codes take one sequence's columns all at once");
  static_assert(((Plan::kBatch == 1) || ((Matrix::kK % 8) == 0)), "several sequences' columns are whole 16 bytes");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((kHasRowScales == false), "scales of rows stand apart or in the chunks");
};
struct S9 {
  static constexpr int kFirst = 0, kAgents = 4;
  using Matrix = Plan::O;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* residual(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4096); }
  static constexpr bool kHasH = true;
  static __device__ __forceinline__ amk::Plain<float> h(const Ctx& c) { return {c.globals.b_h_mid}; }
  static constexpr bool kHasBias = false;
  static constexpr int kKParts = 1;
  static_assert(((Matrix::kChunks % kKParts) == 0), "the parts are equal numbers of chunks");
  static_assert((kHasBias == false), "biases are named if and only if the model's product has them");
  static_assert((kHasH == true), "a sum is published if and only if a norm reads it");
  static_assert((true || ((Plan::kHidden % 2) == 0)), "two elements share a word");
  static_assert(((true || (Plan::kBatch == 1)) || ((192 % 2) == 0)), "every sequence's row is whole words");
};
struct S10 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr bool kMet = true;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  static __device__ __forceinline__ int k_part(const Ctx& c) { return kKPart; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasAlso = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr int kScaleBlocks = 1;
  static __device__ __forceinline__ int index(const Ctx& c) { return 2 * c.l + 1; }
  static __device__ __forceinline__ amk::Plain<float> h(const Ctx& c) { return {c.globals.b_h_mid}; }
  static __device__ __forceinline__ amk::Plain<float> norm(const Ctx& c) { return {c.globals.b_norm}; }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4352); }
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static_assert(((Plan::kBatch == 1) || (!kHasScales && !kHasAlso)), "a batch is staged in bf16");
  static_assert((kHasScales || true), "a vector in blocks has scales");
  static_assert((!kHasAlso || kHasScales), "a second layout has scales");
  static_assert((!kHasSums || (kHasScales && (false || false))), "sums are those of blocks of digits");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((((Plan::kHidden / kKParts) % 4) == 0), "the vector is whole fetches");
  static_assert((kHasScales || (((Plan::kHidden / kKParts) % (4 * kAgents)) == 0)), "every warp's share is whole fetches");
  static_assert(((Plan::kBatch == 1) || ((192 % 4) == 0)), "every sequence's row is whole fetches");
  static_assert(((Plan::kHidden % kKParts) == 0), "the parts of the columns are equal");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((!kHasScales || (kKParts == 1)), "a vector in blocks is staged as a whole");
  static_assert(((kScaleBlocks == 1) || (kHasScales && (((kScaleBlocks * 2) % 4) == 0))), "blocks that share a scale are whole fetches of a warp");
  static_assert(((Plan::kHidden / kKParts) <= ((4 * kAgents) * 256)), "what a warp norms at once is one batch of fetches");
};
struct S11 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kCut = 1;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  using Matrix = Plan::GateUp;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr bool kHasRowScales = false;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr int kDeferred = 0;
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static constexpr int kKSplits = 1;
  static_assert(((Matrix::kChunks % (kKParts * kKSplits)) == 0), "the parts are equal numbers of chunks");
  static_assert(((!Matrix::Weights::kPlain && ((kKParts * kKSplits) == 1)) || ((Matrix::kK % ((Matrix::kColumns * kKParts) * kKSplits)) == 0)), "chunks cover the columns exactly");
  static_assert(((Matrix::kColumns % 32) == 0), "a chunk is whole tiles and whole groups");
  static_assert(((!(Plan::kBatch == 1) || ((kKParts * kKSplits) == 1)) || !!Matrix::Weights::kPlain), "codes take one sequence's columns all at once");
  static_assert(((Plan::kBatch == 1) || ((Matrix::kK % 8) == 0)), "several sequences' columns are whole 16 bytes");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((kHasRowScales == false), "scales of rows stand apart or in the chunks");
};
struct S12 {
  static constexpr int kFirst = 0, kAgents = 4;
  using Matrix = Plan::GateUp;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4352); }
  static constexpr int kSsqAgents = 4;
  static __device__ __forceinline__ amk::Plain<amk::bf16> act(const Ctx& c) { return {c.globals.b_act}; }
  static constexpr int kKParts = 1;
  static_assert(((!((kSsqAgents % 4) == 0) || (Plan::kBatch == 1)) || ((4 % 4) == 0)), "sums of squares are read four at a time");
  static_assert(((Matrix::kChunks % kKParts) == 0), "the parts are equal numbers of chunks");
  static_assert((true || ((Plan::kFfn % 2) == 0)), "two elements share a word");
  static_assert(((true || (Plan::kBatch == 1)) || ((352 % 2) == 0)), "every sequence's row is whole words");
};
struct S13 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr bool kMet = true;
  static constexpr int kCut = 1;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  static __device__ __forceinline__ int k_part(const Ctx& c) { return kKPart; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasAlso = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr int kScaleBlocks = 1;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::Plain<amk::bf16> act(const Ctx& c) { return {c.globals.b_act}; }
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static constexpr int kKSplits = 1;
  static_assert(((Plan::kBatch == 1) || (!kHasScales && !kHasAlso)), "a batch is staged in bf16");
  static_assert((kHasScales || true), "a vector in blocks has scales");
  static_assert((!kHasAlso || kHasScales), "a second layout has scales");
  static_assert((!kHasSums || (kHasScales && (false || false))), "sums are those of blocks of digits");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((((Plan::kFfn / (kKParts * kKSplits)) % 4) == 0), "the vector is whole fetches");
  static_assert((kHasScales || (((Plan::kFfn / (kKParts * kKSplits)) % (4 * kAgents)) == 0)), "every warp's share is whole fetches");
  static_assert(((Plan::kBatch == 1) || ((352 % 4) == 0)), "every sequence's row is whole fetches");
  static_assert(((Plan::kFfn % (kKParts * kKSplits)) == 0), "the parts of the columns are equal");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((!kHasScales || ((kKParts * kKSplits) == 1)), "a vector in blocks is staged as a whole");
  static_assert(((kScaleBlocks == 1) || (kHasScales && (((kScaleBlocks * 2) % 4) == 0))), "blocks that share a scale are whole fetches of a warp");
  static_assert(((Plan::kFfn % 2) == 0), "two elements share a word");
};
struct S14 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kCut = 1;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  using Matrix = Plan::Down;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr bool kHasRowScales = false;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr int kDeferred = 0;
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static constexpr int kKSplits = 1;
  static_assert(((Matrix::kChunks % (kKParts * kKSplits)) == 0), "the parts are equal numbers of chunks");
  static_assert(((!Matrix::Weights::kPlain && ((kKParts * kKSplits) == 1)) || ((Matrix::kK % ((Matrix::kColumns * kKParts) * kKSplits)) == 0)), "chunks cover the columns exactly");
  static_assert(((Matrix::kColumns % 32) == 0), "a chunk is whole tiles and whole groups");
  static_assert(((!(Plan::kBatch == 1) || ((kKParts * kKSplits) == 1)) || !!Matrix::Weights::kPlain), "codes take one sequence's columns all at once");
  static_assert(((Plan::kBatch == 1) || ((Matrix::kK % 8) == 0)), "several sequences' columns are whole 16 bytes");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((kHasRowScales == false), "scales of rows stand apart or in the chunks");
};
struct S15 {
  static constexpr int kFirst = 0, kAgents = 4;
  using Matrix = Plan::Down;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* residual(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4096); }
  static constexpr bool kHasH = true;
  static __device__ __forceinline__ amk::Plain<float> h(const Ctx& c) { return {c.globals.b_h_out}; }
  static constexpr bool kHasBias = false;
  static constexpr int kKParts = 1;
  static_assert(((Matrix::kChunks % kKParts) == 0), "the parts are equal numbers of chunks");
  static_assert((kHasBias == false), "biases are named if and only if the model's product has them");
  static_assert((kHasH == true), "a sum is published if and only if a norm reads it");
  static_assert((true || ((Plan::kHidden % 2) == 0)), "two elements share a word");
  static_assert(((true || (Plan::kBatch == 1)) || ((192 % 2) == 0)), "every sequence's row is whole words");
};
struct S16 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr bool kMet = true;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  static __device__ __forceinline__ int k_part(const Ctx& c) { return kKPart; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasAlso = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr int kScaleBlocks = 1;
  static __device__ __forceinline__ int index(const Ctx& c) { return 2 * c.l + 2; }
  static __device__ __forceinline__ amk::Plain<float> h(const Ctx& c) { return {c.globals.b_h_out}; }
  static __device__ __forceinline__ amk::Plain<float> norm(const Ctx& c) { return {c.globals.b_norm}; }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4352); }
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static_assert(((Plan::kBatch == 1) || (!kHasScales && !kHasAlso)), "a batch is staged in bf16");
  static_assert((kHasScales || true), "a vector in blocks has scales");
  static_assert((!kHasAlso || kHasScales), "a second layout has scales");
  static_assert((!kHasSums || (kHasScales && (false || false))), "sums are those of blocks of digits");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((((Plan::kHidden / kKParts) % 4) == 0), "the vector is whole fetches");
  static_assert((kHasScales || (((Plan::kHidden / kKParts) % (4 * kAgents)) == 0)), "every warp's share is whole fetches");
  static_assert(((Plan::kBatch == 1) || ((192 % 4) == 0)), "every sequence's row is whole fetches");
  static_assert(((Plan::kHidden % kKParts) == 0), "the parts of the columns are equal");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((!kHasScales || (kKParts == 1)), "a vector in blocks is staged as a whole");
  static_assert(((kScaleBlocks == 1) || (kHasScales && (((kScaleBlocks * 2) % 4) == 0))), "blocks that share a scale are whole fetches of a warp");
  static_assert(((Plan::kHidden / kKParts) <= ((4 * kAgents) * 256)), "what a warp norms at once is one batch of fetches");
};
struct S17 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kCut = 1;
  static __device__ __forceinline__ bool adds(const Ctx& c) { return false; }
  using Matrix = Plan::LmHead;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static constexpr bool kHasScales = false;
  static constexpr bool kHasSums = false;
  static constexpr bool kHasRowScales = false;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr int kDeferred = 0;
  static constexpr int kKPart = 0;
  static constexpr int kKParts = 1;
  static constexpr int kKSplits = 1;
  static_assert(((Matrix::kChunks % (kKParts * kKSplits)) == 0), "the parts are equal numbers of chunks");
  static_assert(((!Matrix::Weights::kPlain && ((kKParts * kKSplits) == 1)) || ((Matrix::kK % ((Matrix::kColumns * kKParts) * kKSplits)) == 0)), "chunks cover the columns exactly");
  static_assert(((Matrix::kColumns % 32) == 0), "a chunk is whole tiles and whole groups");
  static_assert(((!(Plan::kBatch == 1) || ((kKParts * kKSplits) == 1)) || !!Matrix::Weights::kPlain), "codes take one sequence's columns all at once");
  static_assert(((Plan::kBatch == 1) || ((Matrix::kK % 8) == 0)), "several sequences' columns are whole 16 bytes");
  static_assert(((Plan::kBatch == 1) || ((352 % 8) == 0)), "every sequence's row of x is whole 16 bytes");
  static_assert((kKPart < kKParts), "the part is one of them");
  static_assert((kHasRowScales == false), "scales of rows stand apart or in the chunks");
};
struct S18 {
  static constexpr int kFirst = 0, kAgents = 4;
  using Matrix = Plan::LmHead;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static constexpr bool kHasSsq = true;
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 4352); }
  static constexpr int kSsqAgents = 4;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static constexpr int kKParts = 1;
  static __device__ __forceinline__ amk::Plain<float> best_value(const Ctx& c) { return {c.globals.b_best_value}; }
  static __device__ __forceinline__ amk::Plain<int> best_index(const Ctx& c) { return {c.globals.b_best_index}; }
  static_assert(((!((kSsqAgents % 4) == 0) || (Plan::kBatch == 1)) || ((4 % 4) == 0)), "sums of squares are read four at a time");
  static_assert((kHasSsq == true), "rows are divided by the root mean square if and only if the norm leaves that to them");
  static_assert(((Matrix::kChunks % kKParts) == 0), "the parts are equal numbers of chunks");
  static_assert(((Plan::kBatch == 1) || (12 == 12)), "a candidate has one place");
};
struct S19 {
  static constexpr int kFirst = 0, kAgents = 4;
  static constexpr int kCandidates = 12;
  static __device__ __forceinline__ amk::Plain<float> best_value(const Ctx& c) { return {c.globals.b_best_value}; }
  static __device__ __forceinline__ amk::Plain<int> best_index(const Ctx& c) { return {c.globals.b_best_index}; }
  static __device__ __forceinline__ amk::Plain<int> request(const Ctx& c) { return {c.globals.b_request}; }
  static __device__ __forceinline__ amk::Plain<int> prompt(const Ctx& c) { return {c.globals.b_prompt}; }
  static __device__ __forceinline__ amk::Plain<int> output(const Ctx& c) { return {c.globals.b_output}; }
  static_assert((1 <= kCandidates), "there is a candidate");
  static_assert(((Plan::kBatch == 1) || ((kCandidates % 4) == 0)), "candidates are whole fetches");
  static_assert(((Plan::kBatch == 1) || (12 == 12)), "a candidate has one place");
  static_assert(((Plan::kBatch == 1) || ((12 % 4) == 0)), "every sequence's row is whole fetches");
};
struct S20 {
  static constexpr int kFirst = 0, kAgents = 1;
  static __device__ __forceinline__ amk::Plain<int> state(const Ctx& c) { return {c.globals.b_state}; }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(128, 1)
amk_decode(const __grid_constant__ Globals globals) {
  extern __shared__ __align__(128) char shared[];
  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) {
    amk::sync::watchdog_start(dog, globals.watchdog_log, globals.abort_word, globals.stall_ns, blockIdx.x);
  }
  amk::sync::cta_barrier<0, 128>();
  Ctx c{globals, shared, dog, Ring{}, Plan::Shares::of(blockIdx.x), static_cast<int>(blockIdx.x),
        static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)};
  if (c.warp >= 0 && c.warp < 4) {
    const int agent = c.warp - 0, place = c.worker * 4 + agent;
    c.ring.start(shared + 4480 + agent * 1024,
                 nullptr,
                 amk::row_at<512>(
                     reinterpret_cast<const char*>(globals.b_weights), stream_base[place]),
                 stream_total[place], static_cast<int>(globals.tokens), c.lane);
  }
  c.enter_step();
  amk::ops::begin<S0>(c);
  #pragma unroll 1
  for (c.n = 0; c.n < static_cast<int>(globals.tokens); ++c.n) {
    c.enter_step();
    amk::ops::embed<S1>(c);
    #pragma unroll 1
    for (c.l = 0; c.l < 2; ++c.l) {
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::gemv<S2>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::store_rows<S3>(c);
      amk::sync::cta_barrier<1, 128>();
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_release(globals.counters + (c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, c.l, globals.counters + (c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::rope_append<S4>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::attend<S5>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::merge<S6>(c);
      amk::sync::cta_barrier<1, 128>();
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_release(globals.counters + (5 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 5 + c.l, globals.counters + (5 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::combine<S7>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::gemv<S8>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::add_residual<S9>(c);
      amk::sync::cta_barrier<1, 128>();
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_release(globals.counters + (7 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 7 + c.l, globals.counters + (7 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::stage_norm<S10>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::gemv<S11>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::swiglu<S12>(c);
      amk::sync::cta_barrier<1, 128>();
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_release(globals.counters + (9 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 9 + c.l, globals.counters + (9 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::stage<S13>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::gemv<S14>(c);
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::add_residual<S15>(c);
      amk::sync::cta_barrier<1, 128>();
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_release(globals.counters + (11 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 11 + c.l, globals.counters + (11 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 128>();
      c.enter_step();
      amk::ops::stage_norm<S16>(c);
    }
    amk::sync::cta_barrier<1, 128>();
    c.enter_step();
    amk::ops::gemv<S17>(c);
    amk::sync::cta_barrier<1, 128>();
    c.enter_step();
    amk::ops::argmax_rows<S18>(c);
    amk::sync::cta_barrier<1, 128>();
    if (c.warp >= 0 && c.warp < 1) {
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (4) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 4, globals.counters + (4) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 128>();
    c.enter_step();
    amk::ops::select<S19>(c);
  }
  if (c.warp >= 0 && c.warp < 1) {
    c.enter_step();
    amk::ops::finish<S20>(c);
  }
}
