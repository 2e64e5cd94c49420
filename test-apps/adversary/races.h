// What races.c and the races themselves (freeing.c, forging.c) share.
#pragma once
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, PAGES = 32, SKIPPED = 77 };
#define SECRET 0x5ec7e70000000000ull
#define SECRET_MASK 0xffffff0000000000ull
#define MARK 0xa77ac4a77ac4a77aull

struct race {
    const char *name;
    // Before the threads; false: this cannot be tried here.
    bool (*setup)(void);
    // What frees, moves or maps the region, again and again.
    void (*step)(unsigned round);
    // Threads that read and write the region without a system call.
    unsigned touchers;
    // One more thread; runs until `race_over`.
    void *(*helper)(void *);
    // It does what only an attacker does: the process may be ended for it.
    bool forges;
    // It takes seconds.
    bool once;
};

struct board {
    _Atomic int stop;
    // Words of a victim's secret that an attacker has read; words that changed in a victim's hands; words of a fresh page that were not 0.
    _Atomic uint64_t leaks, changed, dirty, rounds;
    volatile uint64_t seen;
};

extern const struct race races[];
extern char *region;
extern _Atomic int race_over;
extern __thread sigjmp_buf race_back;
extern __thread volatile int race_guarded;
void look_at(volatile uint64_t *page);

// Does something that may fault.
#define GUARDED(...) do { race_guarded = 1; if (sigsetjmp(race_back, 0) == 0) { __VA_ARGS__; } race_guarded = 0; } while (0)

static inline uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
