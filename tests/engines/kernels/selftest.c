/* Every variant that runs here against the reference, bit for bit, without Python.
 *
 * For machines that only an emulator or a sanitizer build can be had for. Random bytes are valid packed weights, and
 * every array lies in memory of exactly its size, so that a sanitizer sees any step outside. Prints one line per
 * variant with a digest of all its outputs, to compare machines by; exit status 1 if one differs from the reference.
 * Then damages headers: a damaged matrix is refused, or still describes the memory it lies in and can be multiplied.
 * With a number as argument: that many rounds.
 */
#include "digest.h"
#include "matrices.h"

static float random_activation(uint32_t flavour) {
    const float plain = (float)(int32_t)next() * 0x1p-31f;
    switch (flavour % 8) {
    case 0: return er_float_of_bits(next());       /* anything, NaN included */
    case 1: return plain * 0x1p-140f;              /* denormal */
    case 2: return plain * 0x1p126f;
    case 3: return next() % 3 ? 0.0f : plain;
    default: return plain;
    }
}

static float *product(const er_variant *variant, const er_matrix *matrix, const float *x, size_t n_rows) {
    uint8_t *activations = malloc(er_activations_bytes(matrix, n_rows));
    float *y = malloc(n_rows * matrix->n_out * sizeof *y);
    const size_t split = matrix->n_groups / 2;
    for (size_t t = 0; t < er_n_tiles(n_rows); t++)
        er_quantize(variant, matrix, x, n_rows, t, activations);
    er_multiply(variant, matrix, activations, n_rows, 0, split, y);
    er_multiply(variant, matrix, activations, n_rows, split, matrix->n_groups, y);
    free(activations);
    return y;
}

static void damage_headers(int rounds) {
    int refused = 0, accepted = 0;
    restart(2);
    for (int i = 0; i < rounds; i++) {
        const int round = settings_of(i);
        er_matrix matrix;
        const uint64_t n_out = 1 + below(40), n_in = 256 * (1 + below(3));
        uint8_t *packed = random_matrix(KINDS[round % N_KINDS], n_out, n_in, &matrix);
        const size_t bytes = ER_HEADER_BYTES + matrix.n_groups * matrix.group_bytes;
        const size_t kept = below(4) ? bytes : below(bytes);
        uint8_t *copy = malloc(kept ? kept : 1);
        memcpy(copy, packed, kept);
        for (size_t left = below(3); left > 0 && kept >= ER_HEADER_BYTES; left--) {
            const size_t position = below(40), value = below(20) * (below(2) ? 1 : 13);
            copy[position] = (uint8_t)value;
        }
        if (er_open(copy, kept, &matrix) != NULL) {
            refused++;
        } else {
            float *x = calloc(matrix.n_in, sizeof *x), *values = malloc(matrix.n_in * sizeof *values);
            free(product(er_find_variant(NULL), &matrix, x, 1));
            er_weights(&matrix, matrix.n_out - 1, values);
            free(values);
            free(x);
            accepted++;
        }
        free(copy);
        free(packed);
    }
    printf("damaged headers  %d refused, %d accepted\n", refused, accepted);
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 400;
    int failures = 0;
    for (int v = 0; v < er_n_variants; v++) {
        const er_variant *variant = er_variants[v];
        int differing = 0;
        if (!variant->runs_here()) {
            printf("%-16s cannot run here\n", variant->name);
            continue;
        }
        restart(1);
        begin_digest();
        for (int i = 0; i < rounds; i++) {
            const int round = settings_of(i);
            er_matrix matrix;
            const er_kind kind = KINDS[round % N_KINDS];
            const uint64_t unit_inputs = er_is_plain(kind) ? 29 : 32 * (uint64_t)er_unit_blocks(kind);
            const uint64_t n_in = unit_inputs * (1 + below(96 / (size_t)er_unit_blocks(kind)));
            const size_t n_rows = 1 + (round % 40 == 39 ? 70 + below(40) : below(18));
            const size_t n_out = 1 + below(50);
            uint8_t *packed = random_matrix(kind, n_out, n_in, &matrix);
            float *x = malloc(n_rows * n_in * sizeof *x);
            for (size_t r = 0; r < n_rows; r++)
                for (uint32_t flavour = next(), column = 0; column < n_in; column++)
                    x[r * n_in + column] = random_activation(flavour);
            float *y = product(variant, &matrix, x, n_rows), *expected = product(&er_reference, &matrix, x, n_rows);
            if (memcmp(y, expected, n_rows * n_out * sizeof *y) != 0)
                differing++;
            add_to_digest(y, n_rows * n_out);
            /* One row alone, which must not feel the absence of the others. */
            const size_t row = below(n_rows);
            float *alone = product(variant, &matrix, x + row * n_in, 1);
            if (memcmp(alone, expected + row * n_out, n_out * sizeof *y) != 0)
                differing++;
            free(alone);
            free(expected);
            free(y);
            free(x);
            free(packed);
        }
        printf("%-16s %d rounds, %d differ, digest %016llx\n", variant->name, rounds, differing,
               (unsigned long long)digest);
        failures += differing != 0;
    }
    damage_headers(5 * rounds);
    return failures != 0;
}
