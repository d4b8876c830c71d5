/* Which rows a call of a layer with a state goes over. */
#include "recurrent.h"

bool er_read_span(const int32_t place[2], const int64_t run[4], size_t capacity, er_span *span) {
    const int64_t n_committed = run[0] - place[0], n_pending = run[1], n_new = run[2], n_read = run[3];
    if (place[0] < 0 || place[1] < 0 || n_committed < 0 || n_pending < 0 || n_committed + n_pending > place[1] ||
        n_new < 0 || n_read < 0 || n_read > n_new || (n_pending > 0 && n_read > 0))
        return false;
    *span = (er_span){(size_t)n_committed, (size_t)n_pending, (size_t)n_new, (size_t)n_read};
    return er_n_rows(span) - er_n_taken(span) <= capacity && (size_t)place[1] <= capacity;
}

void er_move_on(const er_span *span, int32_t place[2]) {
    place[0] += (int32_t)er_n_taken(span);
    place[1] = (int32_t)(er_n_rows(span) - er_n_taken(span));
}
