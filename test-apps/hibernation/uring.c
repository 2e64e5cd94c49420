// Echoes what it gets on TCP connections, all of it by requests of one ring (io_uring(7)): while nobody asks, they wait.
//
//   uring --tcp PORT
#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ENTRIES = 64, CONNECTIONS = 64, BYTES = 4096 };
enum what { ACCEPTS = 1, RECEIVES, SENDS };

static int ring;
static struct io_uring_params p;
static char *rings;
static struct io_uring_sqe *sqes;
static char buffers[CONNECTIONS][BYTES];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static _Atomic unsigned *word(unsigned offset) { return (void *)(rings + offset); }

static void ask(enum what what, int op, int fd, void *buffer, unsigned len, unsigned flags) {
    unsigned tail = *word(p.sq_off.tail), index = tail & (p.sq_entries - 1);
    sqes[index] = (struct io_uring_sqe){.opcode = op,
                                        .fd = fd,
                                        .addr = (uintptr_t)buffer,
                                        .len = len,
                                        .ioprio = flags,
                                        .user_data = (uint64_t)what << 32 | fd};
    ((unsigned *)(rings + p.sq_off.array))[index] = index;
    atomic_store(word(p.sq_off.tail), tail + 1);
    if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) != 1) die("io_uring_enter");
}

static void receive(int fd) { ask(RECEIVES, IORING_OP_RECV, fd, buffers[fd], BYTES, 0); }

static void answered(enum what what, int fd, int result) {
    if (what == ACCEPTS && result >= 0 && result < CONNECTIONS) receive(result);
    if (what == ACCEPTS && result < 0) die("accept");
    if (what == RECEIVES && result > 0) ask(SENDS, IORING_OP_SEND, fd, buffers[fd], result, 0);
    if (what == RECEIVES && result <= 0) close(fd);
    if (what == SENDS) receive(fd);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    ring = syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (ring < 0) die("io_uring_setup");
    rings = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    sqes = mmap(NULL, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (rings == MAP_FAILED || sqes == MAP_FAILED) die("mmap");
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 16)) die("listen");
    ask(ACCEPTS, IORING_OP_ACCEPT, listener, NULL, 0, IORING_ACCEPT_MULTISHOT);
    for (;;) {
        while (*word(p.cq_off.head) == *word(p.cq_off.tail)) {
            if (syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0) die("io_uring_enter");
        }
        unsigned head = *word(p.cq_off.head);
        struct io_uring_cqe *c = &((struct io_uring_cqe *)(rings + p.cq_off.cqes))[head & (p.cq_entries - 1)];
        uint64_t data = c->user_data;
        int result = c->res;
        atomic_store(word(p.cq_off.head), head + 1);
        answered(data >> 32, (int)data, result);
    }
}
