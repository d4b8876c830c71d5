/* Threads that share the jobs of many phases within one call of an operator.
 *
 * They are ONNX Runtime's: one ParallelFor brings them together for all phases, of which a layer has about five, each of
 * some microseconds. The thread that comes first leads: it opens one phase after the other, takes part in its jobs, and
 * waits for those that others have taken. A thread that comes late, or never, holds nobody up.
 */
#ifndef EDGE_ROWS_TEAM_H
#define EDGE_ROWS_TEAM_H

#include <stdatomic.h>

#include "operator.h"

typedef struct {
    er_pool pool; /* what the leader runs jobs with */
    size_t n_threads;
    void (*lead)(void *user);
    void *user;
    atomic_bool is_led;
    /* Read by threads that may already be late for a phase; what they read counts only if they then take a job of it. */
    _Atomic(er_job) job;
    _Atomic(void *) job_user;
    atomic_size_t n_jobs;
    /* Apart, since all threads wait for it: the number of the phase, and in the lower half how many jobs nobody has taken. */
    char apart[64];
    atomic_uint_fast64_t phase;
    atomic_size_t n_done;
} er_team;

/* Calls lead(user) in one of up to n_threads threads, which the others help with what it gives to &team->pool. */
OrtStatus *er_lead(er_team *team, const OrtApi *api, OrtKernelContext *context, size_t n_threads, void (*lead)(void *),
                   void *user);

#endif
