// What the micro-benchmarks share.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

// CLOCK_MONOTONIC in seconds.
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
