// Threads that leave user mode at moments nobody can foresee, and others that wait for timers.
//
//   restless --tcp PORT [--mb N] [--timers N]
//
// Requests are lines on one TCP connection at a time; each is answered with one line:
//   stir    every worker computes for a short while of its own and then blocks again: "ok", at once
//   spin MS computes for so long, on the clock: "spun"
//   read N  one preadv of N times so many bytes as the ballast has: "read"
//   check   what the threads with timers have found: "ok EXPIRIES", or "BAD …"
// At start it prints "ready".
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4, TIMERS = 6, PAGE = 4096 };

static int go[WORKERS][2], never[2];
static _Atomic unsigned long expiries;
static _Atomic(const char *) complaint;
// What the kernel writes to when a timer expires: a page for each thread.
static char results[TIMERS][PAGE] __attribute__((aligned(PAGE)));

static void die(const char *what) {
    perror(what);
    exit(1);
}

// One call that moves much: the kernel rests from it between pieces.
static void read_at_once(char *to, size_t size, int times) {
    struct iovec into[64];
    if (times > 64) times = 64;
    for (int i = 0; i < times; i++) into[i] = (struct iovec){to, size};
    int file = memfd_create("long", 0);
    if (file == -1 || ftruncate(file, (off_t)size * times)) die("memfd");
    if (preadv(file, into, times, 0) != (ssize_t)size * times) die("preadv");
    close(file);
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void *worker(void *argument) {
    long me = (long)argument;
    uint64_t state = (uint64_t)me * 7919 + 1;
    char c;
    while (read(go[me][0], &c, 1) == 1) {
        uint64_t end = now_ns() + draw(&state) % 400000;
        while (now_ns() < end) {
        }
    }
    return NULL;
}

static void *timer(void *argument) {
    long me = (long)argument;
    uint64_t state = (uint64_t)me * 104729 + 1;
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    if (fd == -1) die("timerfd");
    for (;;) {
        long ns = 1000000 + (long)(draw(&state) % 40000000);
        memset(results[me], 0x55, PAGE);
        if (me % 2) {
            struct itimerspec t = {.it_value.tv_nsec = ns};
            uint64_t *count = (uint64_t *)results[me];
            if (timerfd_settime(fd, 0, &t, NULL) || read(fd, count, 8) != 8) die("timerfd");
            if (*count != 1) complaint = "BAD what read(2) wrote is lost";
        } else {
            fd_set *set = (fd_set *)results[me];
            struct timeval t = {.tv_usec = ns / 1000};
            FD_ZERO(set);
            FD_SET(never[0], set);
            if (select(never[0] + 1, set, NULL, NULL, &t) != 0) die("select");
            if (FD_ISSET(never[0], set)) complaint = "BAD what select(2) wrote is lost";
        }
        expiries++;
    }
    return NULL;
}

int main(int argc, char **argv) {
    int port = 0, one = 1;
    size_t mb = 1;
    long timers = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--tcp")) port = atoi(argv[i + 1]);
        else if (!strcmp(argv[i], "--mb")) mb = strtoul(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--timers")) timers = atol(argv[i + 1]);
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listener == -1 || bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 4)) die("listen");
    char *ballast = mmap(NULL, mb << 20, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (ballast == MAP_FAILED) die("mmap");
    memset(ballast, 0x5a, mb << 20);
    if (pipe(never)) die("pipe");
    pthread_t t;
    for (long i = 0; i < WORKERS; i++)
        if (pipe(go[i]) || pthread_create(&t, NULL, worker, (void *)i)) die("worker");
    for (long i = 0; i < timers && i < TIMERS; i++)
        if (pthread_create(&t, NULL, timer, (void *)i)) die("timer");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int c = accept(listener, NULL, NULL);
        if (c == -1) die("accept");
        setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        FILE *lines = fdopen(c, "r");
        char line[64], answer[64];
        while (lines && fgets(line, sizeof line, lines)) {
            if (!strcmp(line, "stir\n")) {
                for (int i = 0; i < WORKERS; i++)
                    if (write(go[i][1], "g", 1) != 1) die("write");
                strcpy(answer, "ok\n");
            } else if (!strncmp(line, "spin ", 5)) {
                uint64_t end = now_ns() + strtoul(line + 5, NULL, 10) * 1000000;
                while (now_ns() < end) {
                }
                strcpy(answer, "spun\n");
            } else if (!strncmp(line, "read ", 5)) {
                read_at_once(ballast, mb << 20, atoi(line + 5));
                strcpy(answer, "read\n");
            } else if (complaint) snprintf(answer, sizeof answer, "%s\n", complaint);
            else snprintf(answer, sizeof answer, "ok %lu\n", expiries);
            if (write(c, answer, strlen(answer)) < 0) break;
        }
        if (lines) fclose(lines);
    }
}
