// Does one thing many times on request, so that what it costs can be seen from outside: exits of a virtual machine, time.
//
//   exits --tcp PORT     serves one connection
//   exits --wait         does nothing
//
// Requests are lines, each answered with one line:
//   NAME N      does what NAME says N times: "ok NANOSECONDS" for all of them together. The names: see `jobs` below.
//   read N      reads N bytes that follow the request, one at a time, after a moment
//   kick N      sends N signals to a thread that computes: "ok MEDIAN MAX", nanoseconds until its handler runs
//   watch MS    looks at the clock for so long without a pause: "ok BEFORE AFTER", the times (CLOCK_MONOTONIC, ns) around the
//               longest gap that it saw
//   map PATH    maps a file
//   touch AT    reads a byte of it: "ok VALUE", or "signal N"
//   pass AT     has the kernel read a byte of it: "ok", or "errno N"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, RUN_PAGES = 256 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void sleep_ms(long ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static long futex(_Atomic int *word, int op, int value) { return syscall(SYS_futex, word, op, value, NULL, NULL, 0); }

// ---- jobs --------------------------------------------------------------------------------------------------------------------
static void nothing(long n) {}

static void getppid_(long n) {
    while (n--) syscall(SYS_getppid);
}

static void wake(long n) {
    static _Atomic int word;
    while (n--) futex(&word, FUTEX_WAKE_PRIVATE, 1);
}

static void mutex(long n) {
    static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
    while (n--) pthread_mutex_lock(&m), pthread_mutex_unlock(&m);
}

static char *map(long pages) {
    char *p = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("mmap");
    return p;
}

static void mmap_(long n) {
    while (n--) munmap(map(16), 16 * PAGE);
}

// One page a round. Before its first use for counting, do it once: then the frames are there.
static void fault(long n) {
    for (; n > 0; n -= RUN_PAGES) {
        char *p = map(RUN_PAGES);
        for (long i = 0; i < RUN_PAGES; i++) p[i * PAGE] = 1;
        munmap(p, RUN_PAGES * PAGE);
    }
}

static _Atomic int turn;

static void take_turns(int me, long n) {
    for (long i = 0; i < n; i++) {
        while (turn != me) futex(&turn, FUTEX_WAIT_PRIVATE, !me);
        turn = !me;
        futex(&turn, FUTEX_WAKE_PRIVATE, 1);
    }
}

static void *second(void *n) {
    take_turns(1, *(long *)n);
    return NULL;
}

static void pingpong(long n) {
    pthread_t other;
    if (pthread_create(&other, NULL, second, &n)) die("thread");
    take_turns(0, n);
    pthread_join(other, NULL);
}

static void vdso(long n) {
    struct timespec t;
    while (n--) clock_gettime(CLOCK_MONOTONIC, &t);
}

static void clock_(long n) {
    struct timespec t;
    while (n--) syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
}

static const struct {
    const char *name;
    void (*run)(long n);
} jobs[] = {{"nothing", nothing}, {"getppid", getppid_}, {"wake", wake},         {"mutex", mutex}, {"mmap", mmap_},
            {"fault", fault},     {"vdso", vdso},        {"pingpong", pingpong}, {"clock", clock_}};

// ---- stopping a thread that computes --------------------------------------------------------------------------------------------
static volatile uint64_t kicked_ns;
static volatile int computing, enough;

static void on_kick(int signo) { kicked_ns = now_ns(); }

static void *compute(void *unused) {
    computing = 1;
    while (!enough) {
    }
    return NULL;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void kick(long n, char *answer) {
    uint64_t *all = calloc((size_t)n, sizeof *all);
    pthread_t thread;
    signal(SIGUSR1, on_kick);
    enough = computing = 0;
    if (pthread_create(&thread, NULL, compute, NULL)) die("thread");
    while (!computing) sleep_ms(1);
    for (long i = 0; i < n; i++) {
        sleep_ms(3);
        kicked_ns = 0;
        uint64_t begin = now_ns();
        pthread_kill(thread, SIGUSR1);
        while (!kicked_ns) sleep_ms(1);
        all[i] = kicked_ns - begin;
    }
    enough = 1;
    pthread_join(thread, NULL);
    qsort(all, (size_t)n, sizeof *all, by_size);
    sprintf(answer, "ok %lu %lu", (unsigned long)all[n / 2], (unsigned long)all[n - 1]);
    free(all);
}

static void watch(long ms, char *answer) {
    uint64_t begin = now_ns(), last = begin, before = begin, after = begin;
    while (last - begin < (uint64_t)ms * 1000000) {
        uint64_t now = now_ns();
        if (now - last > after - before) before = last, after = now;
        last = now;
    }
    sprintf(answer, "ok %lu %lu", (unsigned long)before, (unsigned long)after);
}

// ---- a file that gets shorter ---------------------------------------------------------------------------------------------------
static volatile const char *file;
static sigjmp_buf back;

static void on_fault(int signo) { siglongjmp(back, signo); }

static void map_file(const char *path, char *answer) {
    int fd = open(path, O_RDONLY);
    if (fd == -1) die(path);
    off_t len = lseek(fd, 0, SEEK_END);
    file = mmap(NULL, (size_t)len, PROT_READ, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED) die("map a file");
    close(fd);
    sprintf(answer, "ok %ld", (long)len);
}

static void touch(long at, char *answer) {
    signal(SIGBUS, on_fault);
    signal(SIGSEGV, on_fault);
    int signo = sigsetjmp(back, 1);
    if (signo)
        sprintf(answer, "signal %d", signo);
    else
        sprintf(answer, "ok %d", file[at]);
}

static void pass(long at, char *answer) {
    int fds[2];
    if (pipe(fds)) die("pipe");
    if (write(fds[1], (const char *)file + at, 1) == 1)
        strcpy(answer, "ok");
    else
        sprintf(answer, "errno %d", errno);
    close(fds[0]), close(fds[1]);
}

// ---- requests -------------------------------------------------------------------------------------------------------------------
static void read_bytes(int fd, long n) {
    char c;
    while (n--)
        if (read(fd, &c, 1) != 1) die("read");
}

static void serve(int fd, const char *name, const char *argument, char *answer) {
    long n = atol(argument);
    if (!strcmp(name, "kick")) return kick(n, answer);
    if (!strcmp(name, "watch")) return watch(n, answer);
    if (!strcmp(name, "map")) return map_file(argument, answer);
    if (!strcmp(name, "touch")) return touch(n, answer);
    if (!strcmp(name, "pass")) return pass(n, answer);
    strcpy(answer, "what?");
    uint64_t begin = now_ns();
    if (!strcmp(name, "read")) {
        sleep_ms(300);
        begin = now_ns();
        read_bytes(fd, n);
        sprintf(answer, "ok %lu", (unsigned long)(now_ns() - begin));
    }
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        if (!strcmp(name, jobs[i].name)) {
            jobs[i].run(n);
            sprintf(answer, "ok %lu", (unsigned long)(now_ns() - begin));
        }
}

// One line, a byte at a time: what follows it may be for somebody else.
static int line(int fd, char *to, size_t size) {
    size_t n = 0;
    while (n + 1 < size && read(fd, to + n, 1) == 1) {
        if (to[n] == '\n') {
            to[n] = 0;
            return 1;
        }
        n++;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "--wait"))
        for (;;) pause();
    if (argc != 3 || strcmp(argv[1], "--tcp")) {
        fprintf(stderr, "usage: exits --tcp PORT | --wait\n");
        return 2;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) die("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd == -1) die("accept");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        char request[512], answer[128];
        while (line(fd, request, sizeof request)) {
            char *space = strchr(request, ' ');
            if (space) *space++ = 0;
            serve(fd, request, space ? space : "0", answer);
            strcat(answer, "\n");
            if (write(fd, answer, strlen(answer)) == -1) break;
        }
        close(fd);
    }
}
