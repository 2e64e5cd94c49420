// Tells by its output whether it ran on after its memory was lost.
//
//   canary --tcp PORT
//
// Each page of its areas begins with the area's name, by which a test finds it in the store. Requests are lines on a TCP connection:
//   ping       uses the area "canary-used", so that it belongs to the working set: "pong"
//   sing       from now on a thread writes lines "alive" to standard output: "ok"
//   AREA       reads all of that area, and writes "touched" to standard output as soon as it has read one page: "ok"
// The areas: "canary-lone" (pages without neighbours), "canary-run" (pages in a row), "canary-shared" (shared memory), and
// "canary-passed", which a system call reads: what comes of it goes to standard output.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 64 };

struct area {
    const char *name;
    size_t stride;
    int flags;
    volatile char *base;
};

static struct area areas[] = {
    {"canary-used", 1, MAP_PRIVATE, NULL},   {"canary-lone", 2, MAP_PRIVATE, NULL},   {"canary-run", 1, MAP_PRIVATE, NULL},
    {"canary-shared", 1, MAP_SHARED, NULL}, {"canary-passed", 2, MAP_PRIVATE, NULL},
};
enum { AREAS = sizeof areas / sizeof *areas };

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void say(const char *line) {
    if (write(1, line, strlen(line)) < 0) die("write");
}

static void fill(struct area *a) {
    a->base = mmap(NULL, PAGES * a->stride * PAGE, PROT_READ | PROT_WRITE, a->flags | MAP_ANONYMOUS, -1, 0);
    if (a->base == MAP_FAILED) die("mmap");
    // One huge page of the host would come back as a whole.
    madvise((void *)a->base, PAGES * a->stride * PAGE, MADV_NOHUGEPAGE);
    for (int i = 0; i < PAGES; i++) snprintf((char *)a->base + (size_t)i * a->stride * PAGE, PAGE, "%s %d", a->name, i);
}

static void use(const struct area *a) {
    for (int i = 0; i < PAGES; i++) {
        volatile char *page = a->base + (size_t)i * a->stride * PAGE;
        if (!strcmp(a->name, "canary-passed")) {
            if (write(1, (const char *)page, 16) < 0) perror("write");
        } else {
            (void)*page;
            if (i == 0 && strcmp(a->name, "canary-used")) say("touched\n");
        }
    }
}

static void *sing(void *argument) {
    (void)argument;
    for (;;) {
        say("alive\n");
        // Idle enough to be put to sleep; due when it is woken.
        usleep(100000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3 || strcmp(argv[1], "--tcp")) return fprintf(stderr, "usage: canary --tcp PORT\n"), 2;
    for (int i = 0; i < AREAS; i++) fill(&areas[i]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) die("listen");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        FILE *requests = fd < 0 ? NULL : fdopen(fd, "r");
        if (!requests) die("accept");
        char line[64];
        while (fgets(line, sizeof line, requests)) {
            line[strcspn(line, "\n")] = 0;
            const char *answer = "unknown";
            pthread_t thread;
            if (!strcmp(line, "ping")) use(&areas[0]), answer = "pong";
            if (!strcmp(line, "sing")) answer = pthread_create(&thread, NULL, sing, NULL) ? "no thread" : "ok";
            for (int i = 1; i < AREAS; i++)
                if (!strcmp(line, areas[i].name)) use(&areas[i]), answer = "ok";
            dprintf(fd, "%s\n", answer);
        }
        fclose(requests);
    }
}
