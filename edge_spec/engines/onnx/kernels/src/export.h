#ifndef EDGE_ROWS_EXPORT_H
#define EDGE_ROWS_EXPORT_H

/* Everything else stays inside the library. */
#if defined(_WIN32)
#define ER_EXPORT __declspec(dllexport)
#else
#define ER_EXPORT __attribute__((visibility("default")))
#endif

#endif
