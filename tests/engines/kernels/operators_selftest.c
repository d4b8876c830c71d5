/* The operators, as ONNX Runtime would run them: what they compute depends neither on how many threads share the jobs
 * nor on how rows are divided into calls, experts that are paged are the same, and inputs that do not fit are refused.
 *
 * sanitize.sh builds and runs it, on_arm.sh compares its digests with those of another machine. With a number as argument:
 * that many rounds.
 */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include <sys/mman.h>
#include <unistd.h>

#include "attention.h"
#include "convolution.h"
#include "delta.h"
#include "digest.h"
#include "half.h"
#include "matrices.h"
#include "runtime.h"

static const OrtCustomOpDomain *operators, *paging;
static const char *failure;

static void expect(bool right, const char *what) {
    if (!right && failure == NULL)
        failure = what;
}

static float number(float size) { return (float)(int32_t)next() * 0x1p-31f * size; }

static OrtValue filled(OrtValue value, float size) {
    for (size_t i = 0; i < bytes_of(&value) / 4; i++)
        ((float *)value.data)[i] = number(size);
    return value;
}

static bool same(const float *a, const float *b, size_t n) {
    return a != NULL && b != NULL && memcmp(a, b, n * sizeof *a) == 0;
}

/* Says something else in one place of what an operator is told; returns where. */
static size_t damage(void *numbers, size_t n, bool wide) {
    static const int64_t odd[] = {0, 1, -1, 2, 3, 7, 16, 63, 1000, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    const size_t at = below(n);
    const int64_t value = odd[below(sizeof odd / sizeof *odd)];
    if (wide)
        ((int64_t *)numbers)[at] = value;
    else
        ((int32_t *)numbers)[at] = (int32_t)value;
    return at;
}

/* --- products */

static void try_products(int round) {
    const er_kind kind = KINDS[round % N_KINDS];
    const size_t n_in = er_is_plain(kind) ? 333 : er_unit_blocks(kind) > 1 ? 512 : 480, n_out = 500 + below(40);
    const size_t n = round % 8 == 7 ? 256 + below(20) : 4 + below(30), row = below(n);
    er_matrix matrix;
    uint8_t *packed = random_matrix(kind, n_out, n_in, &matrix);
    OrtValue x = filled(value_of(ORT_FLOAT, NULL, 3, (size_t)1, n, n_in), 3);
    OrtValue w = value_of(ORT_UINT8, packed, 1, ER_HEADER_BYTES + matrix.n_groups * matrix.group_bytes);
    OrtValue ids = value_of(ORT_INT64, NULL, 2, (size_t)1, n);
    OrtValue *inputs[] = {&x, &w}, *gathered[] = {&ids, &w}, *constants[] = {NULL, &w};
    const attribute attributes[] = {{"n_in", (int64_t)n_in}, {"n_out", (int64_t)n_out}, {0}};
    running it = begin(operators, "MatMulRows", attributes, NULL, constants);
    float *alone = run(it, inputs, 1), *shared = run(it, inputs, MOST_THREADS);
    expect(same(alone, shared, n * n_out), "MatMulRows: threads");
    add_to_digest(alone, n * n_out);
    OrtValue one = value_of(ORT_FLOAT, (float *)x.data + row * n_in, 2, (size_t)1, n_in), *of_one[] = {&one, &w};
    float *single = run(it, of_one, 1);
    expect(same(single, alone + row * n_out, n_out), "MatMulRows: a row alone");
    one.dims[1]--;
    expect(run(it, of_one, 1) == NULL, "MatMulRows: narrow rows");
    free(single), free(alone), free(shared), end(it);

    it = begin(operators, "GatherRows", attributes, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        ((int64_t *)ids.data)[i] = (int64_t)below(n_out);
    float *rows = run(it, gathered, 1), *expected = malloc(n_in * sizeof *expected);
    er_weights(&matrix, (size_t)((int64_t *)ids.data)[row], expected);
    expect(same(expected, rows + row * n_in, n_in), "GatherRows");
    add_to_digest(rows, n * n_in);
    free(rows), free(expected);
    ((int64_t *)ids.data)[row] = below(2) ? (int64_t)n_out : -1;
    expect(run(it, gathered, 1) == NULL, "GatherRows: an id out of range");
    end(it);
    const attribute others[] = {{"n_in", (int64_t)n_in}, {"n_out", (int64_t)n_out + 1}, {0}};
    expect(begin(operators, "MatMulRows", others, NULL, constants).op == NULL, "MatMulRows: another matrix");
    expect(begin(operators, "MatMulRows", attributes, "none", NULL).op == NULL, "MatMulRows: no such variant");
    free(x.data), free(packed), free(ids.data);
}

/* --- attention */

enum { TEXTS = 3, TEXT_TILES = 8, TILES = TEXTS * TEXT_TILES, CELLS = TILES * ER_LANES, NUMBERS = 1 + TEXTS * 64 };

typedef struct {
    size_t n_head, n_head_kv, hd;
    OrtValue keys, values, cosines, sines, scales, sinks;
    bool scaled, sunk;
    running it;
} attending;

/* Outputs of rows, each text's own after the other, in a copy of the pool. */
static float *attend(const attending *a, OrtValue *rows, int32_t *numbers, size_t n_numbers, size_t n_threads,
                     OrtValue *keys, OrtValue *values) {
    OrtValue tree = value_of(ORT_INT32, numbers, 1, n_numbers);
    OrtValue *inputs[] = {rows, keys, values, (OrtValue *)&a->cosines, (OrtValue *)&a->sines, &tree,
                          a->scaled ? (OrtValue *)&a->scales : NULL, a->sunk ? (OrtValue *)&a->sinks : NULL};
    return run(a->it, inputs, n_threads);
}

static OrtValue copy_of(const OrtValue *value) {
    OrtValue copy = *value;
    copy.data = malloc(bytes_of(value));
    memcpy(copy.data, value->data, bytes_of(value));
    return copy;
}

static void try_attention(int round) {
    const size_t hd = 16 * (1 + below(4)), n_head_kv = 1 + below(2), n_head = n_head_kv * (1 + below(4));
    const bool f16 = round & 1, has_new = round & 2;
    const size_t width = (n_head + (has_new ? 2 * n_head_kv : 0)) * hd, of_row = n_head * hd;
    const attribute attributes[] = {{"n_head", (int64_t)n_head}, {"n_head_kv", (int64_t)n_head_kv},
                                    {"head_dim", (int64_t)hd}, {"interleaved", round >> 2 & 1},
                                    {"window", round & 8 ? (int64_t)(1 + below(50)) : 0}, {0}};
    const int type = f16 ? ORT_HALF : ORT_FLOAT;
    attending a = {.n_head = n_head, .n_head_kv = n_head_kv, .hd = hd, .scaled = round & 16, .sunk = round & 32};
    a.keys = value_of(type, NULL, 4, n_head_kv, (size_t)TILES, hd, (size_t)ER_LANES);
    a.values = value_of(type, NULL, 3, n_head_kv, (size_t)CELLS, hd);
    for (size_t i = 0; i < n_head_kv * CELLS * hd; i++)
        for (int side = 0; side < 2; side++) {
            void *data = side ? a.values.data : a.keys.data;
            if (f16)
                ((uint16_t *)data)[i] = er_to_half(number(2));
            else
                ((float *)data)[i] = number(2);
        }
    const size_t n_turned = hd / 2 - (round & 1 ? 4 : 0);
    a.cosines = filled(value_of(ORT_FLOAT, NULL, 2, (size_t)TEXT_TILES * ER_LANES, n_turned), 1);
    a.sines = filled(value_of(ORT_FLOAT, NULL, 2, (size_t)TEXT_TILES * ER_LANES, n_turned), 1);
    a.scales = filled(value_of(ORT_FLOAT, NULL, 1, (size_t)TEXT_TILES * ER_LANES), 2);
    a.sinks = filled(value_of(ORT_FLOAT, NULL, 1, n_head), 5);
    a.it = begin(operators, "AttendRows", attributes, NULL, NULL);

    int32_t order[TILES], numbers[NUMBERS], starts[TEXTS + 1];
    size_t n_texts = 1 + below(TEXTS), at = 1, n_rows = 0, first[TEXTS + 1] = {0};
    for (size_t i = 0; i < TILES; i++) {
        const size_t other = below(i + 1);
        order[i] = order[other], order[other] = (int32_t)i;
    }
    numbers[0] = (int32_t)n_texts;
    for (size_t t = 0; t < n_texts; t++) {
        const size_t n_pending = 1 + below(24), n_text = below(TEXT_TILES * ER_LANES - n_pending + 1);
        starts[t] = (int32_t)at;
        numbers[at++] = (int32_t)n_text, numbers[at++] = (int32_t)n_pending;
        numbers[at++] = (int32_t)n_pending, numbers[at++] = TEXT_TILES;
        for (size_t i = 0; i < n_pending; i++)
            numbers[at++] = round & 64 ? (int32_t)i - 1 : (int32_t)below(i + 1) - 1;
        for (size_t i = 0; i < TEXT_TILES; i++)
            numbers[at++] = order[t * TEXT_TILES + i];
        n_rows += n_pending, first[t + 1] = n_rows;
    }
    starts[n_texts] = (int32_t)at;
    const size_t padding = below(4);
    OrtValue rows = filled(value_of(ORT_FLOAT, NULL, 3, (size_t)1, n_rows + padding, width), 2);
    OrtValue keys = copy_of(&a.keys), values = copy_of(&a.values), other_keys = copy_of(&a.keys), other_values = copy_of(&a.values);
    float *alone = attend(&a, &rows, numbers, at, 1, &keys, &values);
    float *shared = attend(&a, &rows, numbers, at, MOST_THREADS, &other_keys, &other_values);
    expect(same(alone, shared, (n_rows + padding) * of_row), "AttendRows: threads");
    expect(memcmp(keys.data, other_keys.data, bytes_of(&keys)) == 0, "AttendRows: keys");
    expect(memcmp(values.data, other_values.data, bytes_of(&keys)) == 0, "AttendRows: values");
    add_to_digest(alone, n_rows * of_row);
    add_to_digest(keys.data, bytes_of(&keys) / 4);
    for (size_t i = n_rows * of_row; i < (n_rows + padding) * of_row; i++)
        expect(alone[i] == 0, "AttendRows: padding");
    /* A text by itself, its rows in two calls. */
    const size_t t = below(n_texts);
    int32_t one[NUMBERS] = {1}, *own = one + 1;
    const size_t n_own = (size_t)(starts[t + 1] - starts[t]), n_pending = first[t + 1] - first[t], n_first = below(n_pending + 1);
    OrtValue last_keys = copy_of(&a.keys), last_values = copy_of(&a.values);
    for (size_t part = 0; part < 2; part++) {
        const size_t from = part ? n_first : 0, to = part ? n_pending : n_first, n = to - from;
        memcpy(own, numbers + starts[t], n_own * sizeof *own);
        own[1] = (int32_t)to, own[2] = (int32_t)n;
        memmove(own + 4 + to, own + 4 + n_pending, TEXT_TILES * sizeof *own);
        OrtValue few = value_of(ORT_FLOAT, (float *)rows.data + (first[t] + from) * width, 3, (size_t)1, n, width);
        float *out = attend(&a, &few, one, 1 + 4 + to + TEXT_TILES, MOST_THREADS, &last_keys, &last_values);
        expect(same(out, alone + (first[t] + from) * of_row, n * of_row), "AttendRows: a text alone, in pieces");
        free(out);
    }
    free(alone), free(shared);
    for (int i = 0; i < 8; i++) { /* refused, or within the pool */
        int32_t *wrong = malloc(at * sizeof *wrong);
        memcpy(wrong, numbers, at * sizeof *wrong);
        for (size_t left = 1 + below(2); left > 0; left--)
            damage(wrong, at, false);
        free(attend(&a, &rows, wrong, at - (i == 0 ? below(at) : 0), 1, &keys, &values));
        free(wrong);
    }
    values.dims[1]--;
    expect(attend(&a, &rows, numbers, at, 1, &keys, &values) == NULL, "AttendRows: fewer values than keys");
    free(rows.data), free(keys.data), free(values.data), free(other_keys.data), free(other_values.data);
    free(last_keys.data), free(last_values.data), free(a.keys.data), free(a.values.data), free(a.cosines.data);
    free(a.sines.data), free(a.scales.data), free(a.sinks.data), end(a.it);
}

/* --- experts */

enum { GATE = 2, UP, DOWN, N_EXPERT_INPUTS = 9 };

enum { NAME_BYTES = 24 };

/* A matrix in a new file, mapped as ONNX Runtime maps weights. */
static void *mapped(const void *bytes, size_t n, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "/tmp/experts-XXXXXX");
    const int file = mkstemp(name);
    if (file < 0 || write(file, bytes, n) != (ssize_t)n)
        abort();
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    close(file);
    return at == MAP_FAILED ? NULL : at;
}

static void try_experts(int round) {
    const size_t n_expert = 1 + below(9), n_used = 1 + below(n_expert), n = round % 8 == 7 ? 520 : 1 + below(40);
    const er_kind kind = KINDS[round % N_KINDS], up_kind = KINDS[round / N_KINDS % N_KINDS];
    const bool any_width = er_is_plain(kind) && er_is_plain(up_kind);
    const size_t n_embd = any_width ? 250 : 256, n_ff = any_width ? 90 : 256;
    const size_t padded[] = {(n_ff + 15) / 16 * 16, (n_embd + 15) / 16 * 16};
    const bool biased = round & 1, preferring = round & 2;
    const attribute attributes[] = {{"n_expert", (int64_t)n_expert}, {"n_used", (int64_t)n_used},
                                    {"n_embd", (int64_t)n_embd}, {"n_ff", (int64_t)n_ff}, {"of_all", round >> 2 & 1},
                                    {"normalized", round >> 3 & 1}, {"alpha", round & 16 ? 1702 : 1000},
                                    {"limit", round & 16 ? 7000 : 0}, {0}};
    OrtValue given[N_EXPERT_INPUTS], *inputs[N_EXPERT_INPUTS] = {0};
    given[0] = filled(value_of(ORT_FLOAT, NULL, 3, (size_t)1, n, n_embd), 2);
    given[1] = filled(value_of(ORT_FLOAT, NULL, 2, n, n_expert), 3);
    for (size_t which = GATE; which <= DOWN; which++) {
        const size_t is_down = which == DOWN;
        er_matrix matrix;
        uint8_t *packed = random_matrix(which == UP ? up_kind : kind, n_expert * padded[is_down], is_down ? n_ff : n_embd, &matrix);
        given[which] = value_of(ORT_UINT8, packed, 1, ER_HEADER_BYTES + matrix.n_groups * matrix.group_bytes);
    }
    for (size_t which = DOWN + 1; which < N_EXPERT_INPUTS; which++)
        given[which] = which == 8 ? filled(value_of(ORT_FLOAT, NULL, 1, n_expert), 1)
                                  : filled(value_of(ORT_FLOAT, NULL, 2, n_expert, which == 7 ? n_embd : n_ff), 1);
    for (size_t which = 0; which < N_EXPERT_INPUTS; which++)
        inputs[which] = which <= DOWN || (which == 8 ? preferring : biased) ? &given[which] : NULL;
    running it = begin(operators, "ExpertRows", attributes, NULL, inputs);
    float *alone = run(it, inputs, 1), *shared = run(it, inputs, MOST_THREADS);
    expect(same(alone, shared, n * n_embd), "ExpertRows: threads");
    add_to_digest(alone, n * n_embd);

    /* Some rows by themselves, with experts that are read from a file again and again. */
    OrtValue paged[N_EXPERT_INPUTS], *few[N_EXPERT_INPUTS];
    char names[N_EXPERT_INPUTS][NAME_BYTES];
    for (size_t which = 0; which < N_EXPERT_INPUTS; which++) {
        paged[which] = given[which];
        if (which >= GATE && which <= DOWN)
            paged[which].data = mapped(given[which].data, bytes_of(&given[which]), names[which]);
        few[which] = inputs[which] != NULL ? &paged[which] : NULL;
    }
    /* Pages leave the system's cache only by a name that the file still has. */
    for (size_t which = GATE; round & 32 && which <= DOWN; which++)
        unlink(names[which]);
    running pager = begin(paging, "ExpertRows", attributes, NULL, few);
    for (int i = 0; i < 3; i++) {
        const size_t first = below(n), n_few = 1 + below(n - first);
        paged[0] = value_of(ORT_FLOAT, (float *)given[0].data + first * n_embd, 2, n_few, n_embd);
        paged[1] = value_of(ORT_FLOAT, (float *)given[1].data + first * n_expert, 2, n_few, n_expert);
        float *out = run(pager, few, MOST_THREADS);
        expect(same(out, alone + first * n_embd, n_few * n_embd), "ExpertRows: rows alone, of paged experts");
        free(out);
    }
    end(pager);
    for (size_t which = GATE; which <= DOWN; which++)
        munmap(paged[which].data, bytes_of(&paged[which])), unlink(names[which]);
    given[1].dims[0]--;
    expect(run(it, inputs, 1) == NULL, "ExpertRows: rows without scores");
    given[1].dims[0]++;
    damage((uint8_t *)given[GATE + below(3)].data + 8, 7, false);
    free(run(it, inputs, 1)); /* refused, unless it is as before */
    free(alone), free(shared), end(it);
    for (size_t which = 0; which < N_EXPERT_INPUTS; which++)
        free(given[which].data);
}

/* --- layers with a state */

enum { HEAD = 16, CAPACITY = 12, RUN_HEAD = 3, RUN_TEXT = 5, LAYER = 1, LAYERS = 3, MOST_ROWS = 160, PARTS = 3 };

typedef struct {
    bool is_delta;
    size_t n_taps, n_channels, n_head, n_head_k, size, n_parts, widths[PARTS], out_width, floats;
    OrtValue constants[4];
    running it;
} layer;

/* A text: its rows, what they gave, and its states in a layer between two others. */
typedef struct {
    float *rows[PARTS], *out, *states;
    size_t n, n_text, n_pending, n_read, n_new;
} text;

static text new_text(const layer *l, size_t n) {
    text made = {.n = n};
    for (size_t part = 0; part < l->n_parts; part++) {
        OrtValue rows = filled(value_of(ORT_FLOAT, NULL, 2, n, l->widths[part]), 3);
        made.rows[part] = rows.data;
    }
    made.out = malloc(n * l->out_width * sizeof(float));
    made.states = calloc(LAYERS * l->floats, sizeof(float));
    return made;
}

/* The next rows of some texts: those that are read, or a draft whose rows from `right` on are others. */
static void step(const layer *l, text *texts, size_t n_texts, const size_t *right, size_t n_threads) {
    int64_t *numbers = malloc((RUN_HEAD + RUN_TEXT * n_texts) * sizeof *numbers);
    size_t n_rows = 0, first = 0;
    for (size_t t = 0; t < n_texts; t++)
        n_rows += texts[t].n_new;
    numbers[0] = (int64_t)n_texts, numbers[1] = CAPACITY, numbers[2] = (int64_t)l->floats;
    OrtValue values[8], *inputs[8];
    for (size_t part = 0; part < l->n_parts; part++)
        values[part] = filled(value_of(ORT_FLOAT, NULL, 3, (size_t)1, n_rows + 1, l->widths[part]), 3);
    for (size_t t = 0; t < n_texts; t++) {
        const text *own = &texts[t];
        const int64_t each[] = {(int64_t)(uintptr_t)own->states, (int64_t)own->n_text, (int64_t)own->n_pending,
                                (int64_t)own->n_new, (int64_t)own->n_read};
        memcpy(numbers + RUN_HEAD + RUN_TEXT * t, each, sizeof each);
        const size_t begins = own->n_text + own->n_pending, n = right[t] < own->n_new ? right[t] : own->n_new;
        for (size_t part = 0; part < l->n_parts; part++)
            memcpy((float *)values[part].data + first * l->widths[part], own->rows[part] + begins * l->widths[part],
                   n * l->widths[part] * sizeof(float));
        first += own->n_new;
    }
    const size_t n_constants = l->is_delta ? 4 : 1;
    for (size_t i = 0; i < l->n_parts + n_constants + 1; i++) {
        if (i >= l->n_parts)
            values[i] = i < l->n_parts + n_constants ? l->constants[i - l->n_parts]
                                                     : value_of(ORT_INT64, numbers, 1, RUN_HEAD + RUN_TEXT * n_texts);
        inputs[i] = &values[i];
    }
    float *out = run(l->it, inputs, n_threads);
    expect(out != NULL, "a layer with a state: it does not go on");
    first = 0;
    for (size_t t = 0; t < n_texts && out != NULL; t++) {
        const text *own = &texts[t];
        const size_t n = right[t] < own->n_new ? right[t] : own->n_new;
        memcpy(own->out + (own->n_text + own->n_pending) * l->out_width, out + first * l->out_width,
               n * l->out_width * sizeof(float));
        first += own->n_new;
    }
    for (size_t i = 0; i < l->out_width && out != NULL; i++)
        expect(out[n_rows * l->out_width + i] == 0, "a layer with a state: padding");
    free(out);
    /* What does not fit is refused, and changes nothing. */
    float *before = malloc(l->floats * sizeof(float)), *states = texts->states + LAYER * l->floats;
    memcpy(before, states, l->floats * sizeof(float));
    int64_t *kept = malloc((RUN_HEAD + RUN_TEXT * n_texts) * sizeof *kept);
    memcpy(kept, numbers, (RUN_HEAD + RUN_TEXT * n_texts) * sizeof *kept);
    numbers[1] = 0, numbers[2] = 0;
    expect(run(l->it, inputs, 1) == NULL, "a layer with a state: another size");
    memcpy(numbers, kept, (RUN_HEAD + RUN_TEXT * n_texts) * sizeof *kept);
    numbers[RUN_HEAD + 1] += 2 * MOST_ROWS;
    expect(run(l->it, inputs, 1) == NULL, "a layer with a state: another place");
    expect(memcmp(before, states, l->floats * sizeof(float)) == 0, "a layer with a state: changed by what is refused");
    free(kept), free(before);
    for (size_t part = 0; part < l->n_parts; part++)
        free(values[part].data);
    free(numbers);
}

/* Reads a text, or writes it with drafts, some of whose rows are rejected. */
static void next_step(text *t, size_t *right, size_t *kept, bool plain) {
    const size_t left = t->n - t->n_text;
    *right = SIZE_MAX;
    t->n_pending = t->n_read = 0;
    if (plain || left == 0 || below(3) == 0) {
        t->n_new = plain ? left > 0 : left > 0 ? 1 + below(left) : 0;
        t->n_read = t->n_new, *kept = t->n_new;
        return;
    }
    t->n_new = 1 + below(left < CAPACITY ? left : CAPACITY);
    *right = *kept = below(t->n_new + 1);
}

static void try_states(int round) {
    layer l = {.is_delta = round & 1, .n_taps = 2 + below(3)};
    l.n_head_k = 1 + below(2), l.n_head = l.n_head_k * (1 + below(2)), l.size = 16 * (1 + below(3));
    l.n_channels = l.is_delta ? (2 * l.n_head_k + l.n_head) * l.size : 16 * (1 + below(40));
    l.n_parts = l.is_delta ? 3 : 1;
    l.widths[0] = l.is_delta ? l.n_channels : 3 * l.n_channels, l.widths[1] = l.n_head * l.size, l.widths[2] = 2 * l.n_head;
    l.out_width = l.is_delta ? l.n_head * l.size : l.n_channels;
    l.floats = HEAD + (l.n_taps - 1 + CAPACITY) * l.n_channels +
               (l.is_delta ? CAPACITY * 2 * l.n_head + l.n_head * l.size * l.size : 0);
    l.constants[0] = filled(value_of(ORT_FLOAT, NULL, 2, l.n_taps, l.n_channels), 1);
    l.constants[1] = filled(value_of(ORT_FLOAT, NULL, 1, l.n_head), 2);
    l.constants[2] = filled(value_of(ORT_FLOAT, NULL, 1, l.n_head), 2);
    l.constants[3] = filled(value_of(ORT_FLOAT, NULL, 1, l.size), 2);
    const attribute attributes[] = {{"number", LAYER}, {"n_head_k", (int64_t)l.n_head_k}, {"epsilon", 1}, {0}};
    l.it = begin(operators, l.is_delta ? "DeltaRows" : "ConvolveRows", attributes, NULL, NULL);
    text plain[TEXTS], drafted[TEXTS];
    size_t right[TEXTS], kept[TEXTS];
    for (size_t t = 0; t < TEXTS; t++) {
        plain[t] = new_text(&l, 1 + below(MOST_ROWS));
        drafted[t] = plain[t];
        drafted[t].out = malloc(plain[t].n * l.out_width * sizeof(float));
        drafted[t].states = calloc(LAYERS * l.floats, sizeof(float));
        while (plain[t].n_text < plain[t].n) { /* row by row, alone */
            next_step(&plain[t], right, kept, true);
            step(&l, &plain[t], 1, right, 1);
            plain[t].n_text += *kept;
        }
    }
    for (bool is_over = false; !is_over && failure == NULL;) {
        for (size_t t = 0; t < TEXTS; t++)
            next_step(&drafted[t], &right[t], &kept[t], false);
        step(&l, drafted, TEXTS, right, MOST_THREADS);
        is_over = true;
        for (size_t t = 0; t < TEXTS; t++) {
            drafted[t].n_text += kept[t];
            is_over = is_over && drafted[t].n_text == drafted[t].n;
        }
    }
    for (size_t t = 0; t < TEXTS; t++) {
        drafted[t].n_new = drafted[t].n_pending = drafted[t].n_read = 0;
        step(&l, &drafted[t], 1, right, 1); /* its state takes in all of the text */
        expect(same(plain[t].out, drafted[t].out, plain[t].n * l.out_width), "a layer with a state: rows");
        const float *a = plain[t].states + LAYER * l.floats, *b = drafted[t].states + LAYER * l.floats;
        const size_t n_inputs = (l.n_taps - 1) * l.n_channels, n_state = l.is_delta ? l.n_head * l.size * l.size : 0;
        expect(same(a + HEAD, b + HEAD, n_inputs), "a layer with a state: what it keeps");
        expect(same(a + l.floats - n_state, b + l.floats - n_state, n_state), "a layer with a state: states");
        for (size_t i = 0; i < l.floats; i++) /* the layers beside it */
            expect(drafted[t].states[i] == 0 && drafted[t].states[2 * l.floats + i] == 0, "a layer with a state: others");
        add_to_digest(plain[t].out, plain[t].n * l.out_width);
        add_to_digest(a + l.floats - n_state, n_state);
        for (size_t part = 0; part < l.n_parts; part++)
            free(plain[t].rows[part]);
        free(plain[t].out), free(plain[t].states), free(drafted[t].out), free(drafted[t].states);
    }
    for (size_t i = 0; i < 4; i++)
        free(l.constants[i].data);
    end(l.it);
}

/* --- layers */

enum { PRODUCT, ATTEND, NORM, NORM_IN_ORDER, ADD, MULTIPLY, SCALE, SIGMOID, SILU, GELU, RELU, COPY };
enum { EMBD = 512, HEADS = 4, HEADS_KV = 2, HEAD_DIM = 32, QKV = (HEADS + 2 * HEADS_KV) * HEAD_DIM,
       ATTENDED = HEADS * HEAD_DIM, FF = 96, STEP = 21 };
enum { STEPS_IN, PLACES_IN, THREADS_IN, X_IN, NORM_IN, HEAD_NORM_IN, FACTOR_IN, QKV_IN, OUT_IN, UP_IN, DOWN_IN, KEYS_IN, VALUES_IN,
       COSINES_IN, SINES_IN, TREE_IN, LAYER_INPUTS };
enum { Y_AT, X_AT, NORM_AT, HEAD_NORM_AT, FACTOR_AT, NORMED_AT, QKV_AT, TURNED_AT, ATTENDED_AT, SHARE_AT, GATED_AT,
       OUT_AT, SUM_AT, UP_AT, HIDDEN_AT, HALVES_AT, DOWN_AT, N_PLACES };

/* A step on n numbers. */
static void add_step(int64_t **at, const int64_t *numbers, size_t n) {
    memset(*at, 0, STEP * sizeof **at);
    memcpy(*at, numbers, n * sizeof *numbers);
    *at += STEP;
}
#define STEP_OF(...) \
    add_step(&at, (const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static size_t write_steps(int64_t *steps, int round) {
    const float epsilon = 1e-5f;
    uint32_t bits;
    int64_t *at = steps;
    memcpy(&bits, &epsilon, sizeof bits);
    STEP_OF(NORM, X_AT, 0, NORM_AT, 0, NORMED_AT, 0, EMBD, 1, bits);
    STEP_OF(PRODUCT, NORMED_AT, 0, 0, 0, QKV_AT, 0, EMBD, QKV_IN);
    STEP_OF(NORM, QKV_AT, 0, HEAD_NORM_AT, 0, TURNED_AT, 0, HEAD_DIM, QKV / HEAD_DIM, bits);
    STEP_OF(ATTEND, TURNED_AT, 0, 0, 0, ATTENDED_AT, 0, QKV, KEYS_IN, VALUES_IN, COSINES_IN, SINES_IN, TREE_IN, -1, -1,
            HEADS, HEADS_KV, HEAD_DIM, round & 1, round & 2 ? 20 : 0, round & 4 ? 3 : 0);
    STEP_OF(SIGMOID, QKV_AT, ATTENDED, 0, 0, SHARE_AT, 0, ATTENDED);
    STEP_OF(MULTIPLY, ATTENDED_AT, 0, SHARE_AT, 0, GATED_AT, 0, ATTENDED);
    STEP_OF(PRODUCT, GATED_AT, 0, 0, 0, OUT_AT, 0, ATTENDED, OUT_IN);
    STEP_OF(ADD, X_AT, 0, OUT_AT, 0, SUM_AT, 0, EMBD);
    STEP_OF(NORM_IN_ORDER, SUM_AT, 0, NORM_AT, 0, NORMED_AT, 0, EMBD, 1, bits);
    STEP_OF(PRODUCT, NORMED_AT, 0, 0, 0, UP_AT, 0, EMBD, UP_IN);
    STEP_OF(SILU + round % 3, UP_AT, 0, 0, 0, HIDDEN_AT, 0, FF);
    STEP_OF(MULTIPLY, HIDDEN_AT, 0, UP_AT, FF, HIDDEN_AT, 0, FF);
    STEP_OF(COPY, UP_AT, 0, 0, 0, HALVES_AT, 1, FF / 2 - 1, 2, FF, FF / 2);
    STEP_OF(SCALE, HIDDEN_AT, 0, FACTOR_AT, 0, HIDDEN_AT, 0, FF);
    STEP_OF(PRODUCT, HIDDEN_AT, 0, 0, 0, DOWN_AT, 0, FF, DOWN_IN);
    STEP_OF(ADD, SUM_AT, 0, DOWN_AT, 0, Y_AT, 0, EMBD);
    STEP_OF(ADD, Y_AT, 1, HALVES_AT, 1, Y_AT, 1, FF / 2 - 1);
    return (size_t)(at - steps);
}

static OrtValue matrix_value(er_kind kind, size_t n_out, size_t n_in) {
    er_matrix matrix;
    uint8_t *packed = random_matrix(kind, n_out, n_in, &matrix);
    return value_of(ORT_UINT8, packed, 1, ER_HEADER_BYTES + matrix.n_groups * matrix.group_bytes);
}

static void try_layers(int round) {
    static const int64_t widths[N_PLACES] = {EMBD, EMBD, EMBD, HEAD_DIM, 1, EMBD, QKV, QKV, ATTENDED, ATTENDED,
                                             ATTENDED, EMBD, EMBD, 2 * FF, FF, FF, EMBD};
    static const attribute none[] = {{0}};
    const size_t n = round % 8 == 7 ? 250 + below(20) : 1 + below(40), n_text = below(60);
    int64_t steps[STEP * 32], places[3 * N_PLACES], at = 0, n_threads = 1;
    int32_t numbers[5 + 300 + TILES] = {1, (int32_t)n_text, (int32_t)n, (int32_t)n, TILES};
    OrtValue given[LAYER_INPUTS], *inputs[LAYER_INPUTS], *constants[LAYER_INPUTS];
    given[STEPS_IN] = value_of(ORT_INT64, steps, 1, write_steps(steps, round));
    given[PLACES_IN] = value_of(ORT_INT64, places, 1, (size_t)(3 * N_PLACES));
    for (int64_t i = 0; i < N_PLACES; i++) {
        const int64_t kind = i == Y_AT ? 2 : i == X_AT ? 1 : i <= FACTOR_AT ? 3 : 0;
        places[3 * i] = kind, places[3 * i + 1] = kind == 0 ? at : kind == 2 ? 0 : X_IN + i - X_AT, places[3 * i + 2] = widths[i];
        at += kind == 0 ? widths[i] : 0;
    }
    given[THREADS_IN] = value_of(ORT_INT64, &n_threads, 1, (size_t)1);
    given[X_IN] = filled(value_of(ORT_FLOAT, NULL, 3, (size_t)1, n, (size_t)EMBD), 3);
    given[NORM_IN] = filled(value_of(ORT_FLOAT, NULL, 1, (size_t)EMBD), 2);
    given[HEAD_NORM_IN] = filled(value_of(ORT_FLOAT, NULL, 1, (size_t)HEAD_DIM), 2);
    given[FACTOR_IN] = filled(value_of(ORT_FLOAT, NULL, 1, (size_t)1), 1);
    given[QKV_IN] = matrix_value(KINDS[round % N_KINDS], QKV, EMBD);
    given[OUT_IN] = matrix_value(ER_Q8_0, EMBD, ATTENDED);
    given[UP_IN] = matrix_value(KINDS[round / 4 % N_KINDS], 2 * FF, EMBD);
    given[DOWN_IN] = matrix_value(ER_Q4_1, EMBD, FF);
    given[KEYS_IN] = filled(value_of(ORT_FLOAT, NULL, 4, (size_t)HEADS_KV, (size_t)TILES, (size_t)HEAD_DIM, (size_t)16), 2);
    given[VALUES_IN] = filled(value_of(ORT_FLOAT, NULL, 3, (size_t)HEADS_KV, (size_t)CELLS, (size_t)HEAD_DIM), 2);
    given[COSINES_IN] = filled(value_of(ORT_FLOAT, NULL, 2, (size_t)CELLS, (size_t)HEAD_DIM / 2), 1);
    given[SINES_IN] = filled(value_of(ORT_FLOAT, NULL, 2, (size_t)CELLS, (size_t)HEAD_DIM / 2), 1);
    given[TREE_IN] = value_of(ORT_INT32, numbers, 1, 5 + n + TILES);
    for (size_t i = 0; i < n; i++)
        numbers[5 + i] = (int32_t)i - 1;
    for (size_t i = 0; i < TILES; i++)
        numbers[5 + n + i] = (int32_t)i;
    for (size_t i = 0; i < LAYER_INPUTS; i++) {
        inputs[i] = &given[i];
        constants[i] = i != THREADS_IN && i != X_IN && i < KEYS_IN ? &given[i] : NULL;
    }
    n_known = LAYER_INPUTS;
    running it = begin(operators, "LayerRows", none, NULL, constants);
    running slow = begin(operators, "LayerRows", none, "reference", constants);
    expect(it.op != NULL && slow.op != NULL, "LayerRows: refused");
    if (failure != NULL)
        return;
    float *alone = run(it, inputs, 1);
    n_threads = 2 + round % (MOST_THREADS + 1); /* as many as there are, fewer and more */
    float *shared = run(it, inputs, MOST_THREADS);
    expect(same(alone, shared, n * EMBD), "LayerRows: threads");
    add_to_digest(alone, n * EMBD);
    if (n < 8) {
        float *slowly = run(slow, inputs, 1);
        expect(same(alone, slowly, n * EMBD), "LayerRows: the reference");
        free(slowly);
    }
    free(alone), free(shared), end(it), end(slow);
    n_threads = 2;
    for (int i = 0; i < 16; i++) { /* refused, or inside what it has */
        const int64_t which = i & 1, size = (int64_t)bytes_of(&given[which]);
        int64_t *as_it_was = malloc((size_t)size);
        memcpy(as_it_was, given[which].data, (size_t)size);
        damage(given[which].data, (size_t)size / 8, true);
        running damaged = begin(operators, "LayerRows", none, NULL, constants);
        if (damaged.op != NULL)
            free(run(damaged, inputs, 1)), end(damaged); /* what overlaps has no order among threads */
        memcpy(given[which].data, as_it_was, (size_t)size);
        free(as_it_was);
    }
    n_known = SIZE_MAX;
    for (size_t i = X_IN; i < TREE_IN; i++)
        free(given[i].data);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 128;
    static const struct { const char *name; void (*run)(int); } tests[] = {
        {"products", try_products}, {"attention", try_attention}, {"experts", try_experts}, {"states", try_states}, {"layers", try_layers}};
    if (operators == NULL)
        operators = register_operators(NULL), paging = register_operators("2");
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        restart(1 + i);
        begin_digest();
        n_shared = 0, failure = NULL;
        for (int round = 0; round < rounds; round++) {
            tests[i].run(settings_of(round));
            if (failure != NULL)
                return printf("operators: %s, in round %d\n", failure, round), 1;
        }
        printf("operators: %d rounds of %s, jobs shared %zu times, digest %016llx\n", rounds, tests[i].name, n_shared,
               (unsigned long long)digest);
    }
    return 0;
}
