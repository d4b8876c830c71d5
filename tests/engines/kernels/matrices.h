/* Packed matrices of random bytes, in memory of exactly their size. */
#ifndef MATRICES_H
#define MATRICES_H

#include <stdio.h>
#include <stdlib.h>

#include "random.h"
#include "rows.h"

#define KIND(name, ...) ER_##name,
static const er_kind KINDS[] = {ER_KINDS(KIND)};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

/* Half the matrices hold any bytes, NaN and infinite scales included; the others sane scales. */
static uint8_t *random_matrix(er_kind kind, uint64_t n_out, uint64_t n_in, er_matrix *matrix) {
    const uint64_t unit_inputs = (uint64_t)(er_block_inputs(kind) * er_unit_blocks(kind));
    const size_t units = (size_t)((n_out + 15) / 16 * (n_in / unit_inputs));
    const uint64_t bytes = ER_HEADER_BYTES + units * (size_t)er_unit_bytes(kind);
    const uint32_t version = ER_VERSION, number = kind;
    uint8_t *packed = calloc(1, bytes);
    memcpy(packed, "EDGEROWS", 8);
    memcpy(packed + 8, &version, 4);
    memcpy(packed + 12, &number, 4);
    memcpy(packed + 16, &n_out, 8);
    memcpy(packed + 24, &n_in, 8);
    memcpy(packed + 32, &bytes, 8);
    for (uint64_t i = ER_HEADER_BYTES; i < bytes; i++)
        packed[i] = (uint8_t)next();
    if (next() & 1)
        for (size_t u = 0; u < units; u++)
            for (int i = 1; i < (er_is_plain(kind) ? er_unit_bytes(kind) : er_head_bytes(kind)); i += 2)
                packed[ER_HEADER_BYTES + u * (size_t)er_unit_bytes(kind) + (size_t)i] &= 0xab;
    const char *wrong = er_open(packed, bytes, matrix);
    if (wrong != NULL) {
        fprintf(stderr, "refused: %s\n", wrong);
        exit(2);
    }
    return packed;
}

#endif
