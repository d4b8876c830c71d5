/* A variant of vectors.h, written once for all vector widths. A file that includes this chooses the instruction set,
 * includes one of the files vectors_*.h, and defines VARIANT, VARIANT_NAME and RUNS_HERE.
 */
#include "vectors.h"

#include "attention_body.h"
#include "convolution_body.h"
#include "delta_body.h"
#include "experts_body.h"

static bool runs_here(void) { return RUNS_HERE; }

const er_vectors VARIANT = {VARIANT_NAME, runs_here, store, attend, convolve, answer, weigh, squash, gate, add};
