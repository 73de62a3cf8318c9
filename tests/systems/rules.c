/* Every interleaving of many small systems with barriers by phase, flags, proxies: what rule_runs.py says, compiled.
 *
 * Columns and rules as in a file `amk.flat/1`, several independent systems in one: system k owns agents
 * [system_agent[k], system_agent[k+1]). A state is where every agent is; what every counter holds and has been given;
 * what every agent knows; in which phase it arrived where; and what every piece of memory holds. Sets of events are
 * words of 64 bits. Memory holds nothing at first. Which accesses have happened follows from where the agents are.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_AGENTS = 16, MAX_COUNTERS = 32, MAX_EVENTS = 64, MAX_PIECES = 96, TABLE = 1 << 16 };
enum { MAX_WORDS = 4 * MAX_COUNTERS + 2 * MAX_AGENTS
                 + (MAX_AGENTS + 3 * MAX_COUNTERS + MAX_AGENTS * MAX_COUNTERS + MAX_PIECES + 1) / 2 };
enum { DEADLOCK = 1, RACE = 2, UNFENCED = 4, ARRIVALS = 8, VALUE = 16 };
enum { AT_LEAST, PARITY, EQUAL, NEXT_PHASE };
enum { ADD, STORE, EXPECT, COMPLETE, ONLY_EXPECT };
enum { READ, WRITE };

typedef struct {
    const int64_t *agent_first, *init;
    const int64_t *wait_first, *wait_counter, *wait_threshold;
    const int64_t *signal_first, *signal_counter, *signal_amount;
    const int64_t *access_first, *access_buffer, *access_lo, *access_hi, *access_kind, *access_value;
    const int64_t *wait_rule, *signal_rule, *phase, *proxy, *acquires, *releases;
} Columns;

/* One system: its numbers count from its own first agent, event and counter. */
typedef struct {
    const Columns *c;
    int64_t agent0, event0, counter0;
    int agents, events, counters, pieces, words, agent_of[MAX_EVENTS];
    int64_t piece_buffer[MAX_PIECES], piece_lo[MAX_PIECES], piece_hi[MAX_PIECES];
    int found;
} Small;

/* Views into the words of a state. */
typedef struct {
    uint64_t *given, *given_fenced, *over, *over_fenced, *past, *fenced;
    int32_t *at, *value, *pending, *missing, *joined, *content;
} State;

static State view(const Small *s, uint64_t *words) {
    int C = s->counters, A = s->agents;
    State v = {words, words + C, words + 2 * C, words + 3 * C, words + 4 * C, words + 4 * C + A};
    v.at = (int32_t *)(words + 4 * C + 2 * A);
    v.value = v.at + A;
    v.pending = v.value + C;
    v.missing = v.pending + C;
    v.joined = v.missing + C;
    v.content = v.joined + A * C;
    return v;
}

/* Cuts what accesses touch into pieces that each access touches whole or not at all. -1: too many. */
static int cut(Small *s) {
    const Columns *c = s->c;
    int64_t row0 = c->access_first[s->event0], row1 = c->access_first[s->event0 + s->events];
    s->pieces = 0;
    for (int64_t x = row0; x < row1; x++) {
        int64_t buffer = c->access_buffer[x], lo = c->access_lo[x];
        while (lo < c->access_hi[x]) {
            int64_t next = c->access_hi[x];
            for (int64_t y = row0; y < row1; y++) {
                if (c->access_buffer[y] != buffer) continue;
                if (c->access_lo[y] > lo && c->access_lo[y] < next) next = c->access_lo[y];
                if (c->access_hi[y] > lo && c->access_hi[y] < next) next = c->access_hi[y];
            }
            int known = 0;
            for (int p = 0; p < s->pieces; p++) known |= s->piece_buffer[p] == buffer && s->piece_lo[p] == lo;
            if (!known) {
                if (s->pieces == MAX_PIECES) return -1;
                s->piece_buffer[s->pieces] = buffer, s->piece_lo[s->pieces] = lo, s->piece_hi[s->pieces++] = next;
            }
            lo = next;
        }
    }
    return 0;
}

static int touches(const Small *s, int64_t row, int piece) {
    const Columns *c = s->c;
    return c->access_buffer[row] == s->piece_buffer[piece] && c->access_lo[row] <= s->piece_lo[piece]
        && s->piece_hi[piece] <= c->access_hi[row];
}

static int holds(const Small *s, const State *v, int agent, int64_t row) {
    int counter = (int)(s->c->wait_counter[row] - s->counter0);
    int64_t value = v->value[counter], threshold = s->c->wait_threshold[row];
    switch (s->c->wait_rule[row]) {
    case AT_LEAST: return value >= threshold;
    case PARITY: return value % 2 != threshold;
    case EQUAL: return value == threshold;
    default: return value > v->joined[agent * s->counters + counter];
    }
}

static void meet(Small *s, int event, int other, int64_t row, int64_t other_row, uint64_t past, uint64_t fenced) {
    const Columns *c = s->c;
    int64_t kind = c->access_kind[row], what = c->access_kind[other_row];
    if (c->access_buffer[row] != c->access_buffer[other_row]) return;
    if (c->access_lo[row] >= c->access_hi[other_row] || c->access_lo[other_row] >= c->access_hi[row]) return;
    int alike = kind == what && kind != WRITE;
    if (s->agent_of[event] != s->agent_of[other] && !alike && !(past >> other & 1)) s->found |= RACE;
    else if (what != READ && c->proxy[s->event0 + other] == 0 && c->proxy[s->event0 + event] == 1
             && !(fenced >> other & 1)) s->found |= UNFENCED;
}

static void touch(Small *s, State *v, int event, uint64_t past, uint64_t fenced) {
    const Columns *c = s->c;
    int64_t e = s->event0 + event;
    for (int64_t row = c->access_first[e]; row < c->access_first[e + 1]; row++) {
        for (int w = 0; w < s->agents; w++) {
            int first = (int)(c->agent_first[s->agent0 + w] - s->event0);
            for (int other = first; other < first + v->at[w]; other++)
                for (int64_t k = c->access_first[s->event0 + other]; k < c->access_first[s->event0 + other + 1]; k++)
                    meet(s, event, other, row, k, past, fenced);
        }
        for (int64_t k = c->access_first[e]; k < row; k++) meet(s, event, event, row, k, past, fenced);
        for (int p = 0; p < s->pieces; p++) {
            if (!touches(s, row, p)) continue;
            int32_t value = (int32_t)c->access_value[row];
            if (c->access_kind[row] != READ) v->content[p] = value;
            else if (value >= 0 && v->content[p] != value) s->found |= VALUE;
        }
    }
}

static void send(Small *s, State *v, int64_t row, uint64_t past, uint64_t fenced) {
    const Columns *c = s->c;
    int k = (int)(c->signal_counter[row] - s->counter0);
    int64_t amount = c->signal_amount[row], rule = c->signal_rule[row], size = c->phase[c->signal_counter[row]];
    if (!c->releases[row]) past = fenced = 0;
    if (!size && rule == STORE) {
        v->value[k] = (int32_t)(amount - 1), v->given[k] = past, v->given_fenced[k] = fenced;
        return;
    }
    v->given[k] |= past, v->given_fenced[k] |= fenced;
    if (!size) {
        v->value[k] += (int32_t)amount;
        return;
    }
    v->pending[k] -= rule == ADD ? (int32_t)amount : rule == EXPECT;
    v->missing[k] += rule == ADD ? 0 : rule == COMPLETE ? -(int32_t)amount : (int32_t)amount;
    if (v->pending[k] < 0) s->found |= ARRIVALS;
    if (v->pending[k] == 0 && v->missing[k] == 0) {
        v->value[k]++, v->pending[k] = (int32_t)size;
        v->over[k] = v->given[k], v->over_fenced[k] = v->given_fenced[k];
    }
}

/* Whether the agent can go on; then the state is the one behind its next event. */
static int step(Small *s, State *v, int agent) {
    const Columns *c = s->c;
    int64_t e = c->agent_first[s->agent0 + agent] + v->at[agent];
    if (e == c->agent_first[s->agent0 + agent + 1]) return 0;
    for (int64_t row = c->wait_first[e]; row < c->wait_first[e + 1]; row++)
        if (!holds(s, v, agent, row)) return 0;
    int event = (int)(e - s->event0);
    for (int64_t row = c->wait_first[e]; row < c->wait_first[e + 1]; row++) {
        if (!c->acquires[row]) continue;
        int k = (int)(c->wait_counter[row] - s->counter0);
        int of_phase = c->wait_rule[row] == PARITY || c->wait_rule[row] == NEXT_PHASE;
        v->past[agent] |= of_phase ? v->over[k] : v->given[k];
        v->fenced[agent] |= of_phase ? v->over_fenced[k] : v->given_fenced[k];
    }
    touch(s, v, event, v->past[agent], v->fenced[agent]);
    v->past[agent] |= 1ull << event;
    if (c->proxy[e] == 2) v->fenced[agent] |= v->past[agent];
    for (int64_t row = c->signal_first[e]; row < c->signal_first[e + 1]; row++) {
        int k = (int)(c->signal_counter[row] - s->counter0);
        if (c->phase[c->signal_counter[row]]) v->joined[agent * s->counters + k] = v->value[k];
        send(s, v, row, v->past[agent], v->fenced[agent]);
    }
    v->at[agent]++;
    return 1;
}

static uint64_t hash(const uint64_t *words, int count) {
    uint64_t h = 1469598103934665603ull;
    for (int i = 0; i < count; i++) h = (h ^ words[i]) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
    return h;
}

static uint64_t *states;
static int table[TABLE], used, stack[TABLE], top;
static uint32_t stamp[TABLE], now;

/* A state that was not there waits to be left. */
static void put(const Small *s, const uint64_t *words) {
    uint64_t place = hash(words, s->words) & (TABLE - 1);
    while (stamp[place] == now) {
        if (!memcmp(states + (size_t)table[place] * s->words, words, sizeof(uint64_t) * (size_t)s->words)) return;
        place = (place + 1) & (TABLE - 1);
    }
    stamp[place] = now, table[place] = used, stack[top++] = used;
    memcpy(states + (size_t)used++ * s->words, words, sizeof(uint64_t) * (size_t)s->words);
}

/* What some interleaving shows, or, unless all_of_it, something of it; -1: more than `limit` states. */
static int explore(Small *s, int64_t limit, int all_of_it) {
    const Columns *c = s->c;
    uint64_t words[MAX_WORDS] = {0};
    State v = view(s, words);
    for (int k = 0; k < s->counters; k++) {
        int64_t size = c->phase[s->counter0 + k];
        v.value[k] = size ? 0 : (int32_t)c->init[s->counter0 + k], v.pending[k] = (int32_t)size;
    }
    for (int i = 0; i < s->agents * s->counters; i++) v.joined[i] = -1;
    for (int p = 0; p < s->pieces; p++) v.content[p] = -2;
    used = top = 0, now++, s->found = 0;
    put(s, words);
    while (top && (all_of_it || !s->found)) {
        int left = stack[--top], moved = 0, ended = 1;
        for (int agent = 0; agent < s->agents; agent++) {
            memcpy(words, states + (size_t)left * s->words, sizeof(uint64_t) * (size_t)s->words);
            ended &= v.at[agent] == c->agent_first[s->agent0 + agent + 1] - c->agent_first[s->agent0 + agent];
            if (!step(s, &v, agent)) continue;
            moved = 1;
            put(s, words);
        }
        if (used > limit) return -1;
        if (!moved && !ended) s->found |= DEADLOCK;
    }
    return s->found;
}

/* found [systems]: what each shows. Returns the number of states, or -1 if a system does not fit. */
int64_t explore_all(const Columns *c, const int64_t *system_agent, const int64_t *system_counter,
                    int64_t systems, int64_t limit, int64_t all_of_it, int64_t *found) {
    int64_t total = 0;
    if (limit > TABLE / 2) return -1;
    if (!states) states = malloc(sizeof(uint64_t) * MAX_WORDS * (size_t)(TABLE / 2 + MAX_AGENTS));
    if (!states) return -1;
    for (int64_t k = 0; k < systems; k++) {
        Small s = {c, system_agent[k], c->agent_first[system_agent[k]], system_counter[k]};
        int64_t last = c->agent_first[system_agent[k + 1]];
        if (system_agent[k + 1] - s.agent0 > MAX_AGENTS || last - s.event0 > MAX_EVENTS) return -1;
        if (system_counter[k + 1] - s.counter0 > MAX_COUNTERS) return -1;
        s.agents = (int)(system_agent[k + 1] - s.agent0), s.events = (int)(last - s.event0);
        s.counters = (int)(system_counter[k + 1] - s.counter0);
        if (cut(&s) < 0) return -1;
        s.words = 4 * s.counters + 2 * s.agents
                + (s.agents + 3 * s.counters + s.agents * s.counters + s.pieces + 1) / 2;
        for (int w = 0; w < s.agents; w++)
            for (int64_t e = c->agent_first[s.agent0 + w]; e < c->agent_first[s.agent0 + w + 1]; e++)
                s.agent_of[e - s.event0] = w;
        found[k] = explore(&s, limit, (int)all_of_it);
        total += used;
    }
    return total;
}
