/* Say in a line why a process ends whose mapped file has lost pages: a library reads them, and Python cannot run then. */
#define _POSIX_C_SOURCE 200809L
#include <string.h>

#if defined(_WIN32)
__declspec(dllexport) int edge_explain_1(const char *text) { return text == 0 ? -1 : 1; }
#else
#include <signal.h>
#include <unistd.h>

static char words[512];
static size_t length;

static void on_bus_error(int number, siginfo_t *found, void *context) {
    (void)context;
    if (found->si_code != BUS_ADRERR) {
        /* No lost page: it comes again, and ends the process as it always did. */
        signal(number, SIG_DFL);
        return;
    }
    if (write(STDERR_FILENO, words, length) < 0) { /* nobody listens */ }
    _exit(1);
}

/* Takes the line, with its end; returns 0 if it will be said. */
__attribute__((visibility("default"))) int edge_explain_1(const char *text) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    length = strlen(text) < sizeof words ? strlen(text) : sizeof words;
    memcpy(words, text, length);
    sigemptyset(&action.sa_mask);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, 0);
}
#endif
