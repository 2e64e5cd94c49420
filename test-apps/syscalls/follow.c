// What threads see of their memory is what the kernel has there, whatever other threads and processes do to it meanwhile: a change
// that is under way may be seen late by those whom nobody has told of it, and is never undone by an older one.
#include "harness.h"

enum { PAGE = 4096, RW = PROT_READ | PROT_WRITE, ANONYMOUS = MAP_PRIVATE | MAP_ANONYMOUS };

static char *pages(size_t count) { return OK(mmap(NULL, count * PAGE, RW, ANONYMOUS, -1, 0)); }

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
