// What threads see of their memory is what the kernel has there, whatever other threads and processes do to it meanwhile: a change
// that is under way may be seen late by those whom nobody has told of it, and is never undone by an older one.
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>

enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE, ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS };

static pthread_t start(void *(*entry)(void *), void *argument) {
    pthread_t t;
    ZERO(pthread_create(&t, NULL, entry, argument));
    return t;
}

static char *pages(size_t count) { return OK(mmap(NULL, count * PAGE, RW, ANONYMOUS, -1, 0)); }

// ---- pages that are taken away ------------------------------------------------------------------------------------------------------

enum { TOUCHERS = 3, TAKERS = 2, REGION = 24 };

struct region {
    char *at;
    int ends[2];
    void (*take)(struct region *, unsigned);
    atomic_uint round, arrived;
    atomic_bool stop;
};

// What user code sees, and what the kernel copies for a call. Nobody writes now.
static void compare(struct region *r) {
    for (int p = 0; p < REGION; p++) {
        volatile uint64_t *word = (void *)(r->at + p * PAGE);
        uint64_t seen = *word, copied;
        EQ(write(r->ends[1], (void *)word, 8), 8);
        EQ(read(r->ends[0], &copied, 8), 8);
        if (seen != copied) FAIL("page %d: user code sees %#lx, the kernel %#lx", p, seen, copied);
    }
}

static void arrive(struct region *r, unsigned round) {
    r->arrived++;
    while (r->round == round && !r->stop) sched_yield();
}

static void touch(struct region *r, unsigned round, unsigned *seed) {
    for (int i = 0; i < 2 * REGION; i++) {
        *seed = *seed * 1103515245 + 12345;
        volatile uint64_t *word = (void *)(r->at + (*seed >> 16) % REGION * PAGE);
        if (*seed >> 8 & 1) *word = (uint64_t)round << 32 | *seed;
        else (void)*word;
    }
}

static void *touches(void *argument) {
    struct region *r = argument;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    for (unsigned round = r->round; !r->stop; round = r->round) {
        touch(r, round, &seed);
        arrive(r, round);
    }
    return NULL;
}

static void *takes(void *argument) {
    struct region *r = argument;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    for (unsigned round = r->round; !r->stop; round = r->round) {
        for (int i = 0; i < 4; i++) r->take(r, seed = seed * 1103515245 + 12345);
        arrive(r, round);
    }
    return NULL;
}

static void race(void (*take)(struct region *, unsigned), int rounds, int touchers) {
    struct region r = {.at = pages(REGION), .take = take};
    OK(pipe(r.ends));
    pthread_t threads[TOUCHERS + TAKERS];
    for (int i = 0; i < TOUCHERS + TAKERS; i++) threads[i] = start(i < touchers ? touches : takes, &r);
    unsigned seed = 1;
    for (int i = 0; i < rounds; i++) {
        // The first thread of a program is not made as others are.
        touch(&r, r.round, &seed);
        while (r.arrived < TOUCHERS + TAKERS) sched_yield();
        compare(&r);
        r.arrived = 0;
        r.round++;
    }
    r.stop = true;
    for (int i = 0; i < TOUCHERS + TAKERS; i++) ZERO(pthread_join(threads[i], NULL));
    OK(munmap(r.at, REGION * PAGE));
}

static void discard(struct region *r, unsigned seed) {
    unsigned first = (seed >> 16) % REGION, count = 1 + (seed >> 24) % (REGION - first);
    OK(madvise(r->at + first * PAGE, count * PAGE, MADV_DONTNEED));
}

static void replace(struct region *r, unsigned seed) {
    unsigned first = (seed >> 16) % REGION, count = 1 + (seed >> 24) % (REGION - first);
    OK(mmap(r->at + first * PAGE, count * PAGE, RW, ANONYMOUS | MAP_FIXED, -1, 0));
}

// Its child has all pages in common with it, and each is copied when it is written to.
static void fork_or_discard(struct region *r, unsigned seed) {
    if (seed >> 12 & 3) return discard(r, seed);
    pid_t pid = OK(fork());
    if (pid == 0) _exit(0);
    expect_exit(pid, 0);
}

// The kernel writes itself.
static void vfork_or_discard(struct region *r, unsigned seed) {
    if (seed >> 12 & 1) return discard(r, seed);
    pid_t pid = OK(vfork());
    if (pid == 0) _exit(0);
    expect_exit(pid, 0);
}

CASE(discarded_pages_are_gone) { race(discard, 100, TOUCHERS); }
CASE(replaced_pages_are_gone) { race(replace, 100, TOUCHERS); }
CASE(pages_copied_after_a_fork_stay) { race(fork_or_discard, 60, TOUCHERS); }
CASE(pages_discarded_while_others_vfork_are_gone) { race(vfork_or_discard, 80, TOUCHERS); }

// A program that vfork has started, by a thread that has just mapped something in the memory that it shares with its parent.
int helper_main(int argc, char **argv) {
    if (strcmp(argv[1], "@race") != 0) return -1;
    race(discard, 40, 0);
    race(replace, 40, 0);
    return 0;
}

CASE(a_program_started_by_vfork_has_pages_of_its_own_taken_away) {
    for (int i = 0; i < 3; i++) {
        char *volatile fresh = pages(1);
        pid_t pid = OK(vfork());
        if (pid == 0) {
            // Nobody looks meanwhile who maps something in the memory that it leaves.
            fresh[0] = 1;
            execl(self_path, self_path, "@race", NULL);
            _exit(100);
        }
        EQ(fresh[0], 1);
        expect_exit(pid, 0);
    }
}

// ---- pages that the kernel copies ---------------------------------------------------------------------------------------------------

CASE(what_is_read_into_a_page_shared_since_a_fork_is_seen) {
    static char *at;
    static atomic_bool stop;
    at = pages(1);
    int fd = OK(memfd_create("follow", 0));
    void *reads(void *argument) {
        while (!stop) (void)*(volatile char *)at;
        return NULL;
    }
    pthread_t readers[3];
    for (int i = 0; i < 3; i++) readers[i] = start(reads, NULL);
    for (uint64_t i = 1; i < 300; i++) {
        EQ(pwrite(fd, &i, 8, 0), 8);
        pid_t pid = OK(fork());
        if (pid == 0) {
            pause();
            _exit(0);
        }
        EQ(pread(fd, at + 64, 8, 0), 8);
        for (int look = 0; look < 20; look++) EQ(*(volatile uint64_t *)(at + 64), i);
        OK(kill(pid, SIGKILL));
        expect_killed(pid, SIGKILL);
        EQ(*(volatile uint64_t *)(at + 64), i);
    }
    stop = true;
    for (int i = 0; i < 3; i++) ZERO(pthread_join(readers[i], NULL));
}

static long free_kib(void) {
    char text[4096], *at;
    read_file("/proc/meminfo", text, sizeof text);
    CHECK((at = strstr(text, "MemAvailable:")) != NULL);
    return atol(at + strlen("MemAvailable:"));
}

CASE(what_a_page_was_before_it_was_read_into_is_given_back) {
    enum { PAGES = 64, ROUNDS = 100, ALL_KIB = PAGES * ROUNDS * (PAGE / 1024) };
    void *sleeps(void *argument) { return (void *)(long)pause(); }
    start(sleeps, NULL);
    char *at = pages(PAGES);
    int fd = OK(memfd_create("follow", 0));
    OK(ftruncate(fd, PAGES * PAGE));
    memset(at, 1, PAGES * PAGE);
    // Others of this machine may take memory meanwhile, but hardly each time.
    for (int attempt = 0; attempt < 10; attempt++) {
        long before = free_kib();
        for (int i = 0; i < ROUNDS; i++) {
            pid_t pid = OK(fork());
            if (pid == 0) _exit(0);
            EQ(pread(fd, at, PAGES * PAGE, 0), PAGES * PAGE);
            expect_exit(pid, 0);
        }
        if (before - free_kib() < ALL_KIB / 2) return;
    }
    FAIL("%d KiB and more are gone each time", ALL_KIB / 2);
}

// ---- what other processes do --------------------------------------------------------------------------------------------------------

CASE(protecting_is_undisturbed_by_holes_that_others_make) {
    enum { PUNCH = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, LENGTH = 16 * PAGE };
    int fd = OK(memfd_create("follow", 0));
    OK(ftruncate(fd, LENGTH));
    volatile char *object = OK(mmap(NULL, LENGTH, RW, MAP_SHARED, fd, 0));
    pid_t worker = OK(fork());
    if (worker == 0) {
        for (int i = 0; i < 200; i++) {
            for (int p = 0; p < 4; p++) object[p * PAGE + 1]++;
            char *fresh = pages(16);
            fresh[0] = 1;
            OK(mprotect(fresh, LENGTH, PROT_READ));
            EQ(fresh[0], 1);
            EQ(fresh[5 * PAGE], 0);
            OK(munmap(fresh, LENGTH));
        }
        _exit(0);
    }
    pid_t puncher = OK(fork());
    if (puncher == 0)
        for (;;) OK(fallocate(fd, PUNCH, 0, LENGTH));
    expect_exit(worker, 0);
    OK(kill(puncher, SIGKILL));
    expect_killed(puncher, SIGKILL);
}
