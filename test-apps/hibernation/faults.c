// Serves page faults of its own threads (userfaultfd(2)), and may be put to sleep in the midst of that.
//
// A round places a page with its number and one of zeros, has one thread read a page that is missing and another write to one that is
// write-protected, and lets them wait for SIGUSR1. Then it looks at what must be there, and serves them. Prints "ready" and "waits"
// when they wait, the number of each round when it is over, and "BAD …" if something is not so.
#include <errno.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PLACED = 0, ZEROS, AWAITED, WATCHED, PAGES };

static volatile uint64_t *area;
static volatile uint64_t seen;
static uint64_t number;
static int fd;
static sigset_t kick;

static void bad(const char *what, long value) {
    printf("BAD %s in round %llu: %ld\n", what, (unsigned long long)number, value);
    fflush(stdout);
    pause();
}

static volatile uint64_t *at(int page) { return area + page * (PAGE / 8); }

static long place(int page, uint64_t value) {
    static uint64_t from[PAGE / 8] __attribute__((aligned(PAGE)));
    from[1] = value;
    struct uffdio_copy copy = {.dst = (uintptr_t)at(page), .src = (uintptr_t)from, .len = PAGE};
    return ioctl(fd, UFFDIO_COPY, &copy) == 0 ? 0 : errno;
}

static void protect(bool on) {
    struct uffdio_writeprotect p = {.range = {(uintptr_t)at(WATCHED), PAGE}, .mode = on};
    if (ioctl(fd, UFFDIO_WRITEPROTECT, &p) != 0) bad("write protection", errno);
}

static void *reads(void *arg) {
    seen = at(AWAITED)[1];
    return NULL;
}

static void *writes(void *arg) {
    at(WATCHED)[1] = number;
    return NULL;
}

static void round_of_faults(void) {
    pthread_t reader, writer;
    long error;
    if ((error = place(PLACED, number)) != 0) bad("placing", error);
    struct uffdio_zeropage zero = {.range = {(uintptr_t)at(ZEROS), PAGE}};
    if (ioctl(fd, UFFDIO_ZEROPAGE, &zero) != 0) bad("zeros", errno);
    at(WATCHED)[1] = ~number;
    protect(true);
    seen = 0;
    if (pthread_create(&reader, NULL, reads, NULL) || pthread_create(&writer, NULL, writes, NULL)) bad("threads", errno);
    bool seen_watched = false, seen_missing = false;
    while (!seen_watched || !seen_missing) {
        struct uffd_msg msg;
        if (read(fd, &msg, sizeof msg) != sizeof msg) bad("reading", errno);
        bool is_watched = msg.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP;
        *(is_watched ? &seen_watched : &seen_missing) = true;
    }
    puts(number == 1 ? "ready\nwaits" : "waits");
    fflush(stdout);
    int signo;
    sigwait(&kick, &signo);
    // A page that had to be made again would be told again.
    if (at(PLACED)[1] != number) bad("a page that was placed", (long)at(PLACED)[1]);
    if (at(ZEROS)[1] != 0) bad("a page of zeros", (long)at(ZEROS)[1]);
    if ((error = place(ZEROS, 1)) != EEXIST) bad("placing zeros again", error);
    if (at(WATCHED)[1] != ~number) bad("a page that is watched", (long)at(WATCHED)[1]);
    protect(false);
    pthread_join(writer, NULL);
    if (at(WATCHED)[1] != number) bad("a page that was watched", (long)at(WATCHED)[1]);
    if (seen != 0) bad("what was read early", (long)seen);
    if ((error = place(AWAITED, number)) != 0) bad("placing what is awaited", error);
    pthread_join(reader, NULL);
    if (seen != number) bad("what was read", (long)seen);
    if (madvise((void *)area, WATCHED * PAGE, MADV_DONTNEED) != 0) bad("madvise", errno);
}

int main(void) {
    sigemptyset(&kick);
    sigaddset(&kick, SIGUSR1);
    sigprocmask(SIG_BLOCK, &kick, NULL);
    fd = (int)syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
    area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    struct uffdio_register missing = {.range = {(uintptr_t)area, WATCHED * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_register watched = {.range = {(uintptr_t)at(WATCHED), PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (fd < 0 || area == MAP_FAILED || ioctl(fd, UFFDIO_API, &api) != 0 || ioctl(fd, UFFDIO_REGISTER, &missing) != 0 ||
        ioctl(fd, UFFDIO_REGISTER, &watched) != 0) {
        perror("userfaultfd");
        return 1;
    }
    for (number = 1;; number++) {
        round_of_faults();
        printf("%llu\n", (unsigned long long)number);
        fflush(stdout);
    }
}
