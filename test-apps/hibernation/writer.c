// Writes to all of its memory without rest, and finds out if what it has is not of one moment.
//
//   writer MB
//
// Each page of private memory says how often it has been written, and so does each page of memory that it shares with a child. A
// round writes them all, in order; before a page is written it must say what the last round wrote. Two children share pages of another
// part with each other, which none of them writes, and read them. Prints "ready", then each round's number, and "BAD …" if something is not so.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { PAGE = 4096, CHILDREN = 2 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static volatile uint64_t *memory(size_t pages, int flags) {
    void *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

static volatile uint64_t *word(volatile uint64_t *memory, size_t page) {
    // Another place in each page.
    return memory + page * (PAGE / 8) + page % (PAGE / 8);
}

static void read_on(volatile uint64_t *read_only, size_t pages) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        for (size_t page = 0; page < pages; page++)
            if (*word(read_only, page) != page + 1) {
                printf("BAD page %zu of a child: %llu\n", page, (unsigned long long)*word(read_only, page));
                fflush(stdout);
                pause();
            }
        usleep(20000);
    }
}

int main(int argc, char **argv) {
    size_t pages = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) << 8, shared_pages = pages / 8;
    volatile uint64_t *own = memory(pages, MAP_PRIVATE), *shared = memory(shared_pages, MAP_SHARED);
    volatile uint64_t *read_only = memory(shared_pages, MAP_PRIVATE);
    for (size_t page = 0; page < shared_pages; page++)
        *word(read_only, page) = page + 1;
    for (int child = 0; child < CHILDREN; child++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0)
            read_on(read_only, shared_pages);
    }
    for (uint64_t round = 0;; round++) {
        for (size_t page = 0; page < pages + shared_pages; page++) {
            volatile uint64_t *at = page < pages ? word(own, page) : word(shared, page - pages);
            if (*at != round) {
                printf("BAD page %zu in round %llu: %llu\n", page, (unsigned long long)round, (unsigned long long)*at);
                fflush(stdout);
                pause();
            }
            *at = round + 1;
        }
        if (round == 0)
            puts("ready");
        printf("%llu\n", (unsigned long long)round);
        fflush(stdout);
        usleep(1000);
    }
}
