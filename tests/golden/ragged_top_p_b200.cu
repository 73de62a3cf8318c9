#include "amk/context.cuh"
#include "amk/cells.cuh"
#include "amk/ring.cuh"
#include "amk/weights.cuh"
#include "amk/ops/add_residual.cuh"
#include "amk/ops/argmax_rows.cuh"
#include "amk/ops/attend.cuh"
#include "amk/ops/begin.cuh"
#include "amk/ops/census.cuh"
#include "amk/ops/combine.cuh"
#include "amk/ops/draw.cuh"
#include "amk/ops/embed.cuh"
#include "amk/ops/finish.cuh"
#include "amk/ops/gather.cuh"
#include "amk/ops/gemv.cuh"
#include "amk/ops/merge.cuh"
#include "amk/ops/narrow.cuh"
#include "amk/ops/peak.cuh"
#include "amk/ops/report.cuh"
#include "amk/ops/rope_append.cuh"
#include "amk/ops/select_draw.cuh"
#include "amk/ops/stage.cuh"
#include "amk/ops/stage_norm.cuh"
#include "amk/ops/store_rows.cuh"
#include "amk/ops/swiglu.cuh"

namespace {

__constant__ int t_attn_gate[3] = {0, 0, 0};
__constant__ int t_attn_head[3] = {0, 0, 0};
__constant__ int t_attn_split[3] = {0, 1, 2};
__constant__ int t_gate_up_count[3] = {30, 29, 29};
__constant__ int t_gate_up_first[3] = {0, 30, 59};
__constant__ int t_hidden_count[3] = {8, 8, 8};
__constant__ int t_hidden_first[3] = {0, 8, 16};
__constant__ int t_lm_head_count[3] = {14, 14, 14};
__constant__ int t_lm_head_first[3] = {0, 14, 28};
__constant__ int t_qkv_count[3] = {13, 14, 13};
__constant__ int t_qkv_first[3] = {0, 13, 27};
__constant__ int t_stream_base[24] = {0, 106, 217, 325, 436, 542, 653, 761, 872, 978, 1089, 1197, 1308, 1414, 1525, 1633, 1744, 1848, 1957, 2065, 2174, 2278, 2387, 2495};
__constant__ int t_stream_total[24] = {106, 111, 108, 111, 106, 111, 108, 111, 106, 111, 108, 111, 106, 111, 108, 111, 104, 109, 108, 109, 104, 109, 108, 109};
struct Globals {
  amk::bf16* b_weights;
  amk::bf16* b_embedding;
  float* b_norm;
  float* b_rope;
  int* b_request;
  int* b_prompt;
  int* b_sampling;
  int* b_state;
  int* b_output;
  amk::bf16* b_k_cache;
  amk::bf16* b_v_cache;
  float* b_logits;
  amk::u64* b_qkv;
  amk::u64* b_split_partial;
  amk::u64* b_split_scale;
  amk::u64* b_h_mid;
  amk::u64* b_h_out;
  amk::u64* b_act;
  amk::u64* b_best_value;
  amk::u64* b_best_index;
  int* b_counted;
  amk::u64* b_draw_value;
  amk::u64* b_draw_index;
  amk::u32* counters;
  amk::sync::WatchdogLog* watchdog_log;
  const amk::u32* abort_word;
  amk::u64 stall_ns;
  amk::u64 tokens;
  amk::u32* trace;
};
static_assert(sizeof(Globals) == 232, "host layout");
struct Plan {
  static constexpr int kHidden = 192;
  static constexpr int kFfn = 352;
  static constexpr int kHeads = 3;
  static constexpr int kKvHeads = 1;
  static constexpr int kHeadDim = 64;
  static constexpr int kLayers = 2;
  static constexpr int kContext = 256;
  static constexpr int kKvBlock = 64;
  static constexpr int kKvSplits = 3;
  static constexpr int kStreamAgents = 8;
  static constexpr float kRmsEps = 1.000000000e-05f;
  static constexpr float kQueryScale = 1.250000000e-01f;
  using Cache = amk::bf16;
  struct Shares {
    int qkv_first, qkv_count, hidden_first, hidden_count, gate_up_first, gate_up_count, lm_head_first, lm_head_count, attn_head, attn_split;
    static __device__ __forceinline__ Shares of(int w) { return {t_qkv_first[w], t_qkv_count[w], t_hidden_first[w], t_hidden_count[w], t_gate_up_first[w], t_gate_up_count[w], t_lm_head_first[w], t_lm_head_count[w], t_attn_head[w], t_attn_split[w]}; }
  };
  struct Qkv {
    static constexpr int kRows = 320, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.qkv_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.qkv_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct O {
    static constexpr int kRows = 192, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.hidden_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.hidden_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct GateUp {
    static constexpr int kRows = 704, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.gate_up_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.gate_up_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct Down {
    static constexpr int kRows = 192, kK = 352, kColumns = 32, kChunks = 11;
    using Weights = amk::Bf16;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.hidden_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.hidden_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  struct LmHead {
    static constexpr int kRows = 331, kK = 192, kColumns = 32, kChunks = 6;
    using Weights = amk::Bf16;
    template <class C> static __device__ __forceinline__ int first(const C& c) { return c.shares.lm_head_first; }
    template <class C> static __device__ __forceinline__ int count(const C& c) { return c.shares.lm_head_count; }
    template <class C> static __device__ __forceinline__ int first_row(const C& c) { return min(first(c) * 8, kRows); }
    template <class C> static __device__ __forceinline__ int end_row(const C& c) { return min((first(c) + count(c)) * 8, kRows); }
  };
  using Hidden = O;
};
using Ring = amk::BulkRing<44, 512, true, true>;
using Ctx = amk::Context<Plan, Globals, Ring>;

struct S0 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ amk::Plain<int> state(const Ctx& c) { return {c.globals.b_state}; }
};
struct S1 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ amk::Plain<amk::bf16> table(const Ctx& c) { return {c.globals.b_embedding}; }
  static __device__ __forceinline__ amk::Plain<float> norm(const Ctx& c) { return {c.globals.b_norm}; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9600); }
  static __device__ __forceinline__ float* residual(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9344); }
};
struct S2 {
  static constexpr int kFirst = 0, kAgents = 8;
  using Matrix = Plan::Qkv;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
};
struct S3 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9600); }
  static constexpr int kSsqAgents = 8;
  static constexpr bool kHasBias = false;
  static __device__ __forceinline__ amk::Tagged<float> out(const Ctx& c) { return {c.globals.b_qkv, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
};
struct S4 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::Tagged<float> qkv(const Ctx& c) { return {c.globals.b_qkv, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::Plain<float> rope(const Ctx& c) { return {c.globals.b_rope}; }
  static constexpr bool kHasQNorm = false;
  static constexpr bool kHasKNorm = false;
  static __device__ __forceinline__ float* q(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 8576); }
  static __device__ __forceinline__ amk::Plain<amk::bf16> k_cache(const Ctx& c) { return {c.globals.b_k_cache}; }
  static __device__ __forceinline__ amk::Plain<amk::bf16> v_cache(const Ctx& c) { return {c.globals.b_v_cache}; }
};
struct S5 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* q(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 8576); }
  static __device__ __forceinline__ amk::Plain<amk::bf16> k_cache(const Ctx& c) { return {c.globals.b_k_cache}; }
  static __device__ __forceinline__ amk::Plain<amk::bf16> v_cache(const Ctx& c) { return {c.globals.b_v_cache}; }
  static __device__ __forceinline__ float* partial(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 2048); }
};
struct S6 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* partial(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 2048); }
  static constexpr int kAttendAgents = 8;
  static __device__ __forceinline__ amk::Tagged<amk::bf16> split_partial(const Ctx& c) { return {c.globals.b_split_partial, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::Tagged<float> split_scale(const Ctx& c) { return {c.globals.b_split_scale, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
};
struct S7 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::Tagged<amk::bf16> split_partial(const Ctx& c) { return {c.globals.b_split_partial, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::Tagged<float> split_scale(const Ctx& c) { return {c.globals.b_split_scale, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
};
struct S8 {
  static constexpr int kFirst = 0, kAgents = 8;
  using Matrix = Plan::O;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
};
struct S9 {
  static constexpr int kFirst = 0, kAgents = 1;
  using Matrix = Plan::O;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* residual(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9344); }
  static __device__ __forceinline__ amk::Tagged<amk::bf16> h(const Ctx& c) { return {c.globals.b_h_mid, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
};
struct S10 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int index(const Ctx& c) { return 2 * c.l + 1; }
  static __device__ __forceinline__ amk::Tagged<amk::bf16> h(const Ctx& c) { return {c.globals.b_h_mid, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::Plain<float> norm(const Ctx& c) { return {c.globals.b_norm}; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9600); }
};
struct S11 {
  static constexpr int kFirst = 0, kAgents = 8;
  using Matrix = Plan::GateUp;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
};
struct S12 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9600); }
  static constexpr int kSsqAgents = 8;
  static __device__ __forceinline__ amk::Tagged<amk::bf16> act(const Ctx& c) { return {c.globals.b_act, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
};
struct S13 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::Tagged<amk::bf16> act(const Ctx& c) { return {c.globals.b_act, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
};
struct S14 {
  static constexpr int kFirst = 0, kAgents = 8;
  using Matrix = Plan::Down;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
};
struct S15 {
  static constexpr int kFirst = 0, kAgents = 1;
  using Matrix = Plan::Down;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 1 * c.l + 0; }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* residual(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9344); }
  static __device__ __forceinline__ amk::Tagged<amk::bf16> h(const Ctx& c) { return {c.globals.b_h_out, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
};
struct S16 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ int index(const Ctx& c) { return 2 * c.l + 2; }
  static __device__ __forceinline__ amk::Tagged<amk::bf16> h(const Ctx& c) { return {c.globals.b_h_out, static_cast<amk::u32>(1 + c.l + 2 * c.epoch)}; }
  static __device__ __forceinline__ amk::Plain<float> norm(const Ctx& c) { return {c.globals.b_norm}; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9600); }
};
struct S17 {
  static constexpr int kFirst = 0, kAgents = 8;
  using Matrix = Plan::LmHead;
  static __device__ __forceinline__ int layer(const Ctx& c) { return 0; }
  static __device__ __forceinline__ amk::bf16* x(const Ctx& c) { return reinterpret_cast<amk::bf16*>(c.shared + 0); }
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
};
struct S18 {
  static constexpr int kFirst = 0, kAgents = 8;
  static __device__ __forceinline__ float* part(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 768); }
  static __device__ __forceinline__ float* ssq(const Ctx& c) { return reinterpret_cast<float*>(c.shared + 9600); }
  static constexpr int kSsqAgents = 8;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Tagged<float> best_value(const Ctx& c) { return {c.globals.b_best_value, static_cast<amk::u32>(1 + c.epoch)}; }
  static __device__ __forceinline__ amk::Tagged<int> best_index(const Ctx& c) { return {c.globals.b_best_index, static_cast<amk::u32>(1 + c.epoch)}; }
};
struct S19 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 7;
  static constexpr int kCandidates = 24;
  static __device__ __forceinline__ amk::Tagged<float> best_value(const Ctx& c) { return {c.globals.b_best_value, static_cast<amk::u32>(1 + c.epoch)}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S20 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 7;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S21 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 7;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S22 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 7;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S23 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 7;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S24 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 8;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S25 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 8;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S26 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 8;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S27 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 8;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S28 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 9;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S29 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 9;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S30 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 9;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S31 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 9;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S32 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 10;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S33 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 10;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S34 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 10;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S35 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 10;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S36 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 11;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S37 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 11;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S38 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 11;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S39 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 11;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S40 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 12;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S41 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 12;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S42 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 12;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S43 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 12;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S44 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 13;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
};
struct S45 {
  static constexpr int kFirst = 0, kAgents = 1;
  static constexpr int kRound = 13;
  static constexpr int kTallyAgents = 8;
  static __device__ __forceinline__ int* tally(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9984); }
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
};
struct S46 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 13;
  static __device__ __forceinline__ amk::Plain<int> counted(const Ctx& c) { return {c.globals.b_counted}; }
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
};
struct S47 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 13;
  static constexpr int kGatherAgents = 8;
  static __device__ __forceinline__ int* gathered(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 12032); }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
};
struct S48 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kRound = 14;
  static __device__ __forceinline__ amk::Plain<float> logits(const Ctx& c) { return {c.globals.b_logits}; }
  static __device__ __forceinline__ amk::Plain<int> sampling(const Ctx& c) { return {c.globals.b_sampling}; }
  static __device__ __forceinline__ int* pick(const Ctx& c) { return reinterpret_cast<int*>(c.shared + 9728); }
  static __device__ __forceinline__ amk::Tagged<float> draw_value(const Ctx& c) { return {c.globals.b_draw_value, static_cast<amk::u32>(1 + c.epoch)}; }
  static __device__ __forceinline__ amk::Tagged<int> draw_index(const Ctx& c) { return {c.globals.b_draw_index, static_cast<amk::u32>(1 + c.epoch)}; }
};
struct S49 {
  static constexpr int kFirst = 0, kAgents = 8;
  static constexpr int kCandidates = 24;
  static __device__ __forceinline__ amk::Tagged<float> best_value(const Ctx& c) { return {c.globals.b_draw_value, static_cast<amk::u32>(1 + c.epoch)}; }
  static __device__ __forceinline__ amk::Tagged<int> best_index(const Ctx& c) { return {c.globals.b_draw_index, static_cast<amk::u32>(1 + c.epoch)}; }
  static __device__ __forceinline__ amk::Plain<int> request(const Ctx& c) { return {c.globals.b_request}; }
  static __device__ __forceinline__ amk::Plain<int> prompt(const Ctx& c) { return {c.globals.b_prompt}; }
  static __device__ __forceinline__ amk::Plain<int> output(const Ctx& c) { return {c.globals.b_output}; }
};
struct S50 {
  static constexpr int kFirst = 0, kAgents = 1;
  static __device__ __forceinline__ amk::Plain<int> state(const Ctx& c) { return {c.globals.b_state}; }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 1)
amk_decode(const __grid_constant__ Globals globals) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ amk::sync::Watchdog dog;
  if (threadIdx.x == 0) {
    amk::sync::watchdog_start(dog, globals.watchdog_log, globals.abort_word, globals.stall_ns, blockIdx.x);
  }
  amk::sync::cta_barrier<0, 256>();
  Ctx c{globals, shared, dog, Ring{}, Plan::Shares::of(blockIdx.x), static_cast<int>(blockIdx.x),
        static_cast<int>(threadIdx.x / 32), static_cast<int>(threadIdx.x % 32)};
  if (c.warp >= 0 && c.warp < 8) {
    const int agent = c.warp - 0, place = c.worker * 8 + agent;
    c.ring.start(shared + 14080 + agent * 22528,
                 reinterpret_cast<amk::u64*>(shared + 194304) + agent * 44,
                 reinterpret_cast<const char*>(globals.b_weights) +
                     static_cast<long long>(t_stream_base[place]) * 512,
                 t_stream_total[place], static_cast<int>(globals.tokens), c.lane);
  }
  c.enter_step();
  amk::ops::begin<S0>(c);
  #pragma unroll 1
  for (c.n = 0; c.n < static_cast<int>(globals.tokens); ++c.n) {
    c.enter_step();
    amk::ops::embed<S1>(c);
    #pragma unroll 1
    for (c.l = 0; c.l < 2; ++c.l) {
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::gemv<S2>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::store_rows<S3>(c);
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, c.l, globals.counters + (c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::rope_append<S4>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::attend<S5>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::merge<S6>(c);
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (3 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, 3 + c.l, globals.counters + (3 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::combine<S7>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::gemv<S8>(c);
      amk::sync::cta_barrier<1, 256>();
      if (c.warp >= 0 && c.warp < 1) {
        c.enter_step();
        amk::ops::add_residual<S9>(c);
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (5 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, 5 + c.l, globals.counters + (5 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::stage_norm<S10>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::gemv<S11>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::swiglu<S12>(c);
      if (c.warp >= 0 && c.warp < 1) {
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (7 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, 7 + c.l, globals.counters + (7 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::stage<S13>(c);
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::gemv<S14>(c);
      amk::sync::cta_barrier<1, 256>();
      if (c.warp >= 0 && c.warp < 1) {
        c.enter_step();
        amk::ops::add_residual<S15>(c);
        amk::sync::warp_barrier();
        if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (9 + c.l) * 32, 1);
      }
      if (c.warp >= 0 && c.warp < 1) {
        if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, 9 + c.l, globals.counters + (9 + c.l) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
      }
      amk::sync::cta_barrier<1, 256>();
      c.enter_step();
      amk::ops::stage_norm<S16>(c);
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gemv<S17>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::argmax_rows<S18>(c);
    if (c.warp >= 0 && c.warp < 1) {
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (2) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, 2, globals.counters + (2) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::peak<S19>(c);
    c.enter_step();
    amk::ops::census<S20>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S21>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (19) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 19, globals.counters + (19) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S22>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S23>(c);
    c.enter_step();
    amk::ops::census<S24>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S25>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (20) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 20, globals.counters + (20) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S26>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S27>(c);
    c.enter_step();
    amk::ops::census<S28>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S29>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (21) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 21, globals.counters + (21) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S30>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S31>(c);
    c.enter_step();
    amk::ops::census<S32>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S33>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (22) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 22, globals.counters + (22) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S34>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S35>(c);
    c.enter_step();
    amk::ops::census<S36>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S37>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (23) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 23, globals.counters + (23) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S38>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S39>(c);
    c.enter_step();
    amk::ops::census<S40>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S41>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (24) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 24, globals.counters + (24) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S42>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S43>(c);
    c.enter_step();
    amk::ops::census<S44>(c);
    amk::sync::cta_barrier<1, 256>();
    if (c.warp >= 0 && c.warp < 1) {
      c.enter_step();
      amk::ops::report<S45>(c);
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_release(globals.counters + (25) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_counter(dog, c.warp, 25, globals.counters + (25) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::gather<S46>(c);
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::narrow<S47>(c);
    c.enter_step();
    amk::ops::draw<S48>(c);
    if (c.warp >= 0 && c.warp < 1) {
      amk::sync::warp_barrier();
      if (c.lane == 0) amk::sync::signal_relaxed(globals.counters + (11) * 32, 1);
    }
    if (c.warp >= 0 && c.warp < 1) {
      if (c.lane == 0) amk::sync::wait_hint(dog, c.warp, 11, globals.counters + (11) * 32, 3 + 3 * c.epoch); amk::sync::warp_barrier();
    }
    amk::sync::cta_barrier<1, 256>();
    c.enter_step();
    amk::ops::select_draw<S49>(c);
  }
  if (c.warp >= 0 && c.warp < 1) {
    c.enter_step();
    amk::ops::finish<S50>(c);
  }
}
