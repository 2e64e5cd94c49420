// Knows every register of its threads, which wait in system calls while it sleeps.
//
//   kept --tcp PORT
//
// Eight threads wait in read(2), one in pause(2), a process waits in vfork(2) for its child, another process is idle. Before
// each wait all vector registers, callee-saved general registers, rounding modes and a variable of the thread have values of
// their own. Requests are lines on a TCP connection:
//   ping    "pong"
//   idle    the idle process answers: "ok"
//   crowd   processes are made until there can be no more, then the idle one answers: "ok N" with their number
//   check   all waits end, the one in pause(2) by a signal whose handler uses the same registers; a new thread and a new
//           process come and go; a program is executed: "ok N" with the number of waits that found what they had, or "BAD what"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, BYTES = 32, VECTORS = 16, GENERAL = 5 };

static __thread uint64_t own;

static void die(const char *what) {
    perror(what);
    exit(1);
}

// The call with its registers around it: `put` and `got` are VECTORS * BYTES bytes, and GENERAL words after that.
#define FOR_ALL(DO, MOVE, R) DO(MOVE, R, 0) DO(MOVE, R, 1) DO(MOVE, R, 2) DO(MOVE, R, 3) DO(MOVE, R, 4) DO(MOVE, R, 5) DO(MOVE, R, 6) DO(MOVE, R, 7) \
    DO(MOVE, R, 8) DO(MOVE, R, 9) DO(MOVE, R, 10) DO(MOVE, R, 11) DO(MOVE, R, 12) DO(MOVE, R, 13) DO(MOVE, R, 14) DO(MOVE, R, 15)
#define LOAD(MOVE, R, N) MOVE " 32*" #N "(%[put]), %%" R #N "\n"
#define STORE(MOVE, R, N) MOVE " %%" R #N ", 32*" #N "(%[got])\n"
#define CALL(MOVE, R)                                                                                                          \
    asm volatile(FOR_ALL(LOAD, MOVE, R)                                                                                        \
                 "mov 512(%[put]), %%rbx\n mov 520(%[put]), %%r12\n mov 528(%[put]), %%r13\n mov 536(%[put]), %%r14\n"         \
                 "mov 544(%[put]), %%r15\n syscall\n"                                                                          \
                 "mov %%rbx, 512(%[got])\n mov %%r12, 520(%[got])\n mov %%r13, 528(%[got])\n mov %%r14, 536(%[got])\n"         \
                 "mov %%r15, 544(%[got])\n" FOR_ALL(STORE, MOVE, R)                                                            \
                 : "+a"(nr)                                                                                                    \
                 : "D"(a), "S"(b), "d"(c), [put] "r"(put), [got] "r"(got)                                                      \
                 : "rbx", "r12", "r13", "r14", "r15", "rcx", "r11", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",  \
                   "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

static int has_avx;

static long call(long nr, long a, long b, long c, const void *put, void *got) {
    if (has_avx) CALL("vmovdqu", "ymm");
    else CALL("movdqu", "xmm");
    return nr;
}

// Waits in a call; NULL if everything is as it was, and `ret` is what it returned.
static const char *wait_in(long nr, long a, long b, long c, uint64_t seed, long *ret) {
    uint64_t put[(VECTORS * BYTES) / 8 + GENERAL], got[(VECTORS * BYTES) / 8 + GENERAL];
    for (size_t i = 0; i < sizeof put / 8; i++) put[i] = (seed + i) * 0x9e3779b97f4a7c15u;
    memcpy(got, put, sizeof put);
    uint32_t mxcsr = 0x1f80 | (uint32_t)(seed % 4) << 13, mxcsr_now;
    uint16_t control = 0x037f & ~(uint16_t)(seed % 2 << 9), control_now;
    own = seed;
    asm volatile("ldmxcsr %0\n fldcw %1" : : "m"(mxcsr), "m"(control));
    for (size_t i = 0; i < sizeof got / 8; i++) got[i] = has_avx || i % 4 < 2 || i >= VECTORS * BYTES / 8 ? ~put[i] : put[i];
    *ret = call(nr, a, b, c, put, got);
    asm volatile("stmxcsr %0\n fnstcw %1" : "=m"(mxcsr_now), "=m"(control_now));
    if (memcmp(put, got, VECTORS * BYTES)) return "vector registers";
    if (memcmp(put, got, sizeof put)) return "general registers";
    if ((mxcsr ^ mxcsr_now) & ~0x3fu || control != control_now) return "rounding";
    if (own != seed) return "the thread's own memory";
    return NULL;
}

static int wake[THREADS][2], done[2];

static void report(const char *wrong) {
    char line[64] = {0};
    if (wrong) strncpy(line, wrong, sizeof line - 1);
    if (write(done[1], line, sizeof line) != sizeof line) die("report");
}

static void *reader(void *argument) {
    long index = (long)argument, ret;
    char byte;
    for (uint64_t round = 0;; round++) {
        const char *wrong = wait_in(SYS_read, wake[index][0], (long)&byte, 1, 1000 * (index + 1) + round, &ret);
        report(wrong ? wrong : ret != 1 ? "what read(2) returned" : NULL);
    }
    return NULL;
}

static volatile sig_atomic_t signals;

static void handler(int signo) {
    long ret;
    (void)signo;
    // It uses the same registers.
    uint64_t before = own;
    if (!wait_in(SYS_getppid, 0, 0, 0, 77 + (uint64_t)signals, &ret)) signals = signals + 1;
    own = before;
}

static void *pauser(void *argument) {
    long ret;
    (void)argument;
    for (uint64_t round = 0;; round++) {
        const char *wrong = wait_in(SYS_pause, 0, 0, 0, 555 + round, &ret);
        report(wrong ? wrong : ret != -4 ? "what pause(2) returned" : (uint64_t)signals != round + 1 ? "the handler" : NULL);
    }
    return NULL;
}

static int forker_go[2], forker_answer[2], idle_go[2], idle_answer[2];

// Waits in vfork(2) until its child, which shares its memory, has read a byte.
static void forker(void) {
    close(idle_answer[1]);
    for (volatile char rounds = 0;; rounds++) {
        pid_t child = vfork();
        if (child == 0) {
            char byte;
            _exit(read(forker_go[0], &byte, 1) == 1 ? 7 : 8);
        }
        int status = 0;
        waitpid(child, &status, 0);
        char answer = WIFEXITED(status) && WEXITSTATUS(status) == 7;
        if (write(forker_answer[1], &answer, 1) != 1) _exit(1);
    }
}

static void idler(void) {
    char byte;
    while (read(idle_go[0], &byte, 1) == 1)
        if (write(idle_answer[1], &byte, 1) != 1) break;
    _exit(0);
}

static void *passer(void *argument) {
    return argument;
}

static const char *check(pthread_t paused, const char *self, int *found) {
    char line[64], byte = 'x';
    // First of all something that makes threads and processes.
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, passer, &byte) || pthread_join(thread, &result) || result != &byte) return "a new thread";
    pid_t child = fork();
    if (child == 0) {
        if (own == 42) execl(self, self, "--exit", "9", (char *)NULL);
        _exit(1);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 9) return "a new process";
    for (int i = 0; i < THREADS; i++)
        if (write(wake[i][1], &byte, 1) != 1) die("write");
    pthread_kill(paused, SIGUSR1);
    for (*found = 0; *found < THREADS + 1; ++*found) {
        if (read(done[0], line, sizeof line) != sizeof line) die("read");
        if (line[0]) {
            static char wrong[sizeof line];
            return memcpy(wrong, line, sizeof line);
        }
    }
    if (write(forker_go[1], &byte, 1) != 1 || read(forker_answer[0], &byte, 1) != 1 || byte != 1) return "vfork";
    ++*found;
    // Each is to wait again before the next sleep.
    usleep(20000);
    return NULL;
}

// Makes processes until there can be no more; the idle one is there beside them, and so is the one in vfork(2).
static const char *crowd(int *made) {
    static pid_t children[4096];
    char byte = 'c';
    const char *wrong = NULL;
    int status;
    for (*made = 0; *made < (int)(sizeof children / sizeof *children); ++*made) {
        children[*made] = fork();
        if (children[*made] == 0)
            for (;;) pause();
        if (children[*made] < 0) break;
    }
    if (write(idle_go[1], &byte, 1) != 1 || read(idle_answer[0], &byte, 1) != 1 || byte != 'c') wrong = "the idle process in a crowd";
    for (int i = 0; i < *made; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < *made; i++)
        if (waitpid(children[i], &status, 0) != children[i]) wrong = "waitpid";
    return wrong;
}

static void answer(FILE *stream, pthread_t paused, const char *self) {
    char line[128], byte = 'i';
    while (fgets(line, sizeof line, stream)) {
        line[strcspn(line, "\r\n")] = 0;
        int found = 0;
        const char *wrong = NULL;
        if (!strcmp(line, "ping")) {
            fprintf(stream, "pong\n");
        } else if (!strcmp(line, "idle")) {
            if (write(idle_go[1], &byte, 1) != 1 || read(idle_answer[0], &byte, 1) != 1) wrong = "the idle process";
            fprintf(stream, wrong ? "BAD %s\n" : "ok\n", wrong);
        } else if (!strcmp(line, "check")) {
            wrong = check(paused, self, &found);
            if (wrong) fprintf(stream, "BAD %s\n", wrong);
            else fprintf(stream, "ok %d\n", found);
        } else if (!strcmp(line, "crowd")) {
            wrong = crowd(&found);
            if (wrong) fprintf(stream, "BAD %s\n", wrong);
            else fprintf(stream, "ok %d\n", found);
        } else {
            fprintf(stream, "BAD request\n");
        }
        fflush(stream);
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--exit")) return atoi(argv[2]);
    if (argc != 3 || strcmp(argv[1], "--tcp")) return fprintf(stderr, "usage: kept --tcp PORT\n"), 2;
    has_avx = __builtin_cpu_supports("avx");
    own = 42;
    if (pipe(forker_go) || pipe(forker_answer) || pipe(idle_go) || pipe(idle_answer) || pipe(done)) die("pipe");
    if (fork() == 0) forker();
    if (fork() == 0) idler();
    // Who is not there any more is not waited for.
    close(idle_answer[1]);
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGUSR1, &action, NULL);
    pthread_t thread, paused;
    for (long i = 0; i < THREADS; i++)
        if (pipe(wake[i]) || pthread_create(&thread, NULL, reader, (void *)i)) die("thread");
    if (pthread_create(&paused, NULL, pauser, NULL)) die("thread");
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) die("listen");
    if (write(1, "ready\n", 6) < 0) die("write");
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0) die("accept");
        FILE *stream = fdopen(connection, "r+");
        if (!stream) die("fdopen");
        answer(stream, paused, argv[0]);
        fclose(stream);
    }
}
