// Makes processes or threads until that is refused, and sees that nobody suffers:
//
//   crowd processes|threads [MOST]
//
// The refusal is EAGAIN. Whoever was made has begun to run, and runs on, for longer than a host has patience; when they have ended others
// can be made at once. Prints "refused after N", or "made N" if MOST came to be, and ends with 0; else what went wrong, and 1.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 20000 };
static pid_t children[MOST];
static pthread_t threads[MOST];
static atomic_int *running, over;

static void die(const char *what, int error) {
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

static void *thread_runs(void *unused) {
    atomic_fetch_add(running, 1);
    while (!over) usleep(50000);
    return NULL;
}

static int make_process(int index) {
    pid_t child = fork();
    if (child < 0) return errno;
    if (child == 0) {
        atomic_fetch_add(running, 1);
        for (;;) pause();
    }
    children[index] = child;
    return 0;
}

static int make_thread(int index) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    return pthread_create(&threads[index], &attributes, thread_runs, NULL);
}

static void end_process(int index) {
    int status;
    if (waitpid(children[index], &status, WNOHANG) != 0) {
        fprintf(stderr, "child %d ended by itself: %#x\n", index, status);
        exit(1);
    }
    kill(children[index], SIGKILL);
    if (waitpid(children[index], &status, 0) != children[index]) die("waitpid", errno);
}

static void end_thread(int index) {
    over = 1;
    int error = pthread_join(threads[index], NULL);
    if (error) die("pthread_join", error);
}

int main(int argc, char **argv) {
    int most = argc > 2 ? atoi(argv[2]) : MOST, made = 0, error = 0;
    int is_thread = argc > 1 && strcmp(argv[1], "threads") == 0;
    int (*make)(int) = is_thread ? make_thread : make_process;
    running = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    while (made < most && !(error = make(made))) made++;
    if (error && error != EAGAIN) die("not EAGAIN", error);
    if (error) printf("refused after %d\n", made);
    else printf("made %d\n", made);
    fflush(stdout);
    for (int ms = 0; *running < made; ms++) {
        if (ms > 60000) {
            fprintf(stderr, "%d of %d run\n", *running, made);
            return 1;
        }
        usleep(1000);
    }
    sleep(6);
    for (int i = 0; i < made; i++) (is_thread ? end_thread : end_process)(i);
    over = 0;
    if ((error = make(0))) die("again", error);
    while (*running <= made) usleep(1000);
    (is_thread ? end_thread : end_process)(0);
    return 0;
}
