#include "team.h"

#include "target.h"

#if defined(_WIN32)
#include <windows.h>
#define YIELD() SwitchToThread()
#else
#include <sched.h>
#define YIELD() sched_yield()
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define PAUSE() YieldProcessor()
#elif ER_X86
#define PAUSE() __builtin_ia32_pause()
#elif ER_ARM
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() ((void)0)
#endif

enum { HALF = 32, LOOKS = 2000 /* before a thread lets others have its core */ };

static const uint64_t OVER = UINT64_MAX - UINT32_MAX; /* no job is left, and no phase follows */

/* Takes and runs jobs of the phase that was seen, if any are left: half of a thread's share of them. They read memory that
 * lies side by side, which is faster than if threads took them in turns; and in the end each takes one.
 */
static bool take_jobs(er_team *team, uint64_t seen) {
    const uint32_t left = (uint32_t)seen;
    if (left == 0)
        return false;
    const uint32_t share = left / (uint32_t)(2 * team->n_threads), n_taken = share > 1 ? share : 1;
    const er_job job = atomic_load_explicit(&team->job, memory_order_relaxed);
    void *user = atomic_load_explicit(&team->job_user, memory_order_relaxed);
    const size_t n = atomic_load_explicit(&team->n_jobs, memory_order_relaxed);
    uint_fast64_t expected = seen;
    if (atomic_compare_exchange_strong(&team->phase, &expected, seen - n_taken)) {
        for (size_t i = 0; i < n_taken; i++)
            job(user, n - left + i);
        atomic_fetch_add_explicit(&team->n_done, n_taken, memory_order_release);
    }
    return true;
}

static void wait_a_little(unsigned *looks) {
    if (++*looks < LOOKS) {
        PAUSE();
    } else {
        YIELD();
        *looks = 0;
    }
}

static void help(er_team *team) {
    unsigned looks = 0;
    for (;;) {
        const uint64_t seen = atomic_load_explicit(&team->phase, memory_order_acquire);
        if (seen == OVER)
            return;
        if (take_jobs(team, seen))
            looks = 0;
        else
            wait_a_little(&looks);
    }
}

static OrtStatus *run_phase(er_pool *pool, er_job job, size_t n, void *user) {
    er_team *team = (er_team *)pool;
    if (team->n_threads < 2 || n < 2 || n > UINT32_MAX) {
        for (size_t i = 0; i < n; i++)
            job(user, i);
        return NULL;
    }
    uint64_t seen = atomic_load_explicit(&team->phase, memory_order_relaxed);
    unsigned looks = 0;
    atomic_store_explicit(&team->job, job, memory_order_relaxed);
    atomic_store_explicit(&team->job_user, user, memory_order_relaxed);
    atomic_store_explicit(&team->n_jobs, n, memory_order_relaxed);
    atomic_store_explicit(&team->n_done, 0, memory_order_relaxed);
    atomic_store_explicit(&team->phase, ((seen >> HALF) + 1) << HALF | n, memory_order_release);
    do
        seen = atomic_load_explicit(&team->phase, memory_order_relaxed);
    while (take_jobs(team, seen));
    while (atomic_load_explicit(&team->n_done, memory_order_acquire) < n)
        wait_a_little(&looks);
    return NULL;
}

static void enter(void *user, size_t i) {
    er_team *team = user;
    (void)i;
    if (atomic_exchange(&team->is_led, true)) {
        help(team);
    } else {
        team->lead(team->user);
        atomic_store_explicit(&team->phase, OVER, memory_order_release);
    }
}

OrtStatus *er_lead(er_team *team, const OrtApi *api, OrtKernelContext *context, size_t n_threads, void (*lead)(void *),
                   void *user) {
    team->pool.run = run_phase;
    team->n_threads = n_threads;
    team->lead = lead;
    team->user = user;
    atomic_init(&team->is_led, false);
    atomic_init(&team->phase, 0);
    if (n_threads > 1)
        return api->KernelContext_ParallelFor(context, enter, n_threads, 0, team);
    lead(user);
    return NULL;
}
