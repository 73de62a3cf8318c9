/* Every reachable cut of many small systems: deadlock, earliest cuts, pairs enabled together, races.
 *
 * Columns as in amk.validator.program.system.System, several independent systems in one: system k owns agents
 * [system_agent[k], system_agent[k+1]). A cut is a mixed-radix number; counter values are recomputed from the cut.
 * Definitions only: no clocks, no greedy run. At most 6 agents, 32 events and 4096 cuts per system.
 */
#include <stdint.h>
#include <string.h>

enum { READ, WRITE, ADD_INT, ADD_FLOAT };
enum { MAX_AGENTS = 6, MAX_EVENTS = 32, MAX_CUTS = 4096 };

typedef struct {
    const int64_t *agent_first, *init;
    const int64_t *wait_first, *wait_counter, *wait_threshold;
    const int64_t *signal_first, *signal_counter, *signal_amount;
    const int64_t *access_first, *access_buffer, *access_lo, *access_hi, *access_kind;
} Columns;

static int64_t value_of(const Columns *c, int64_t a0, int agents, const int *cut, int64_t counter) {
    int64_t value = c->init[counter];
    for (int w = 0; w < agents; w++) {
        int64_t first = c->agent_first[a0 + w];
        for (int64_t e = first; e < first + cut[w]; e++)
            for (int64_t k = c->signal_first[e]; k < c->signal_first[e + 1]; k++)
                if (c->signal_counter[k] == counter) value += c->signal_amount[k];
    }
    return value;
}

static int enabled(const Columns *c, int64_t a0, int agents, const int *cut, int64_t e) {
    for (int64_t k = c->wait_first[e]; k < c->wait_first[e + 1]; k++)
        if (value_of(c, a0, agents, cut, c->wait_counter[k]) < c->wait_threshold[k]) return 0;
    return 1;
}

/* 1: conflict, 2: unordered float sum, 3: both */
static int meeting(const Columns *c, int64_t a, int64_t b) {
    int found = 0;
    for (int64_t x = c->access_first[a]; x < c->access_first[a + 1]; x++)
        for (int64_t y = c->access_first[b]; y < c->access_first[b + 1]; y++) {
            if (c->access_buffer[x] != c->access_buffer[y]) continue;
            if (c->access_lo[x] >= c->access_hi[y] || c->access_lo[y] >= c->access_hi[x]) continue;
            int64_t p = c->access_kind[x], q = c->access_kind[y];
            if (p == ADD_FLOAT && q == ADD_FLOAT) found |= 2;
            else if (p != q || p == WRITE) found |= 1;
        }
    return found;
}

/* cut_out [agents], stuck_cuts [systems], earliest [events][MAX_AGENTS] (-1: never enabled), races and sums: rows of
 * two event numbers. Returns the number of races, or -1 if a system is too large or a list is full. */
int64_t explore_all(const Columns *c, const int64_t *system_agent, int64_t systems, int64_t *cut_out,
                    int64_t *stuck_cuts, int32_t *earliest, int64_t *races, int64_t *sums, int64_t *sum_count,
                    int64_t room, int64_t *states) {
    int64_t found = 0;
    *sum_count = 0;
    *states = 0;
    for (int64_t s = 0; s < systems; s++) {
        int64_t a0 = system_agent[s], base = c->agent_first[a0];
        int agents = (int)(system_agent[s + 1] - a0), radix[MAX_AGENTS], cuts = 1;
        int events = (int)(c->agent_first[system_agent[s + 1]] - base);
        if (agents > MAX_AGENTS || events > MAX_EVENTS) return -1;
        for (int w = 0; w < agents; w++) {
            radix[w] = cuts;
            cuts *= (int)(c->agent_first[a0 + w + 1] - c->agent_first[a0 + w]) + 1;
            if (cuts > MAX_CUTS) return -1;
        }
        static uint8_t seen[MAX_CUTS];
        static int stack[MAX_CUTS];
        uint32_t together[MAX_EVENTS];
        memset(seen, 0, (size_t)cuts);
        memset(together, 0, sizeof together);
        for (int64_t i = base * MAX_AGENTS; i < (base + events) * MAX_AGENTS; i++) earliest[i] = -1;
        stuck_cuts[s] = 0;
        int top = 0;
        stack[top++] = 0;
        seen[0] = 1;
        while (top) {
            int code = stack[--top], cut[MAX_AGENTS];
            int64_t ready[MAX_AGENTS];
            int count = 0;
            (*states)++;
            for (int w = 0, rest = code; w < agents; w++) {
                int size = (int)(c->agent_first[a0 + w + 1] - c->agent_first[a0 + w]);
                cut[w] = rest % (size + 1);
                rest /= size + 1;
            }
            for (int w = 0; w < agents; w++) {
                int64_t e = c->agent_first[a0 + w] + cut[w];
                if (e == c->agent_first[a0 + w + 1] || !enabled(c, a0, agents, cut, e)) continue;
                ready[count++] = e;
                for (int v = 0; v < agents; v++) {
                    int32_t *known = &earliest[e * MAX_AGENTS + v];
                    if (*known < 0 || cut[v] < *known) *known = cut[v];
                }
                int next = code + radix[w];
                if (!seen[next]) seen[next] = 1, stack[top++] = next;
            }
            for (int i = 0; i < count; i++)
                for (int j = 0; j < count; j++)
                    if (i != j) together[ready[i] - base] |= 1u << (ready[j] - base);
            if (!count) {
                stuck_cuts[s]++;
                for (int w = 0; w < agents; w++) cut_out[a0 + w] = cut[w];
            }
        }
        for (int a = 0; a < events; a++)
            for (int b = a + 1; b < events; b++) {
                if (!(together[a] >> b & 1)) continue;
                int met = meeting(c, base + a, base + b);
                if (found >= room || *sum_count >= room) return -1;
                if (met & 1) races[2 * found] = base + a, races[2 * found + 1] = base + b, found++;
                if (met & 2) sums[2 * *sum_count] = base + a, sums[2 * *sum_count + 1] = base + b, (*sum_count)++;
            }
    }
    return found;
}
