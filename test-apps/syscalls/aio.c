// Asynchronous I/O by the kernel's own calls (io_setup(2), io_submit(2), io_getevents(2)), as libaio makes them.
#include "harness.h"

#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

static aio_context_t set_up(unsigned events) {
    aio_context_t context = 0;
    OK(syscall(SYS_io_setup, events, &context));
    CHECK(context != 0);
    return context;
}

static struct iocb request(int opcode, int fd, void *buffer, size_t bytes, long offset) {
    struct iocb r = {0};
    r.aio_lio_opcode = opcode;
    r.aio_fildes = fd;
    r.aio_buf = (uintptr_t)buffer;
    r.aio_nbytes = bytes;
    r.aio_offset = offset;
    return r;
}

static long submit(aio_context_t context, long count, struct iocb **requests) {
    return syscall(SYS_io_submit, context, count, requests);
}

static long events(aio_context_t context, long least, long most, struct io_event *e, long ms) {
    struct timespec limit = {ms / 1000, ms % 1000 * 1000000};
    return syscall(SYS_io_getevents, context, least, most, e, ms < 0 ? NULL : &limit);
}

// Makes one request; how it ended.
static long done(aio_context_t context, struct iocb r) {
    struct iocb *one = &r;
    struct io_event e;
    r.aio_data = 4711;
    EQ(submit(context, 1, &one), 1);
    EQ(events(context, 1, 1, &e, -1), 1);
    EQ(e.data, 4711);
    EQ(e.obj, (uintptr_t)&r);
    EQ(e.res2, 0);
    return e.res;
}

CASE(files_are_written_and_read) {
    aio_context_t context = set_up(8);
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600));
    char text[16] = "some bytes", back[16] = "";
    EQ(done(context, request(IOCB_CMD_PWRITE, fd, text, 10, 100)), 10);
    EQ(done(context, request(IOCB_CMD_PREAD, fd, back, 16, 105)), 5);
    STR_EQ(back, "bytes");
    EQ(lseek(fd, 0, SEEK_CUR), 0);
    EQ(done(context, request(IOCB_CMD_PREAD, fd, back, 16, 1000)), 0);
    struct iovec two[2] = {{text, 4}, {text + 5, 5}};
    EQ(done(context, request(IOCB_CMD_PWRITEV, fd, two, 2, 0)), 9);
    EQ(pread(fd, back, 16, 0), 16);
    CHECK(memcmp(back, "somebytes", 9) == 0);
    EQ(done(context, request(IOCB_CMD_FSYNC, fd, NULL, 0, 0)), 0);
    EQ(done(context, request(IOCB_CMD_FDSYNC, fd, NULL, 0, 0)), 0);
    OK(syscall(SYS_io_destroy, context));
    ERR(syscall(SYS_io_destroy, context), EINVAL);
}

CASE(many_at_once) {
    enum { MANY = 300 };
    aio_context_t context = set_up(MANY);
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600));
    static struct iocb all[MANY], *list[MANY];
    static char blocks[MANY][512];
    static struct io_event e[MANY];
    static bool seen[MANY];
    for (int i = 0; i < MANY; i++) {
        memset(blocks[i], i, 512);
        all[i] = request(IOCB_CMD_PWRITE, fd, blocks[i], 512, 512 * i);
        all[i].aio_data = i;
        list[i] = &all[i];
    }
    long sent = 0;
    while (sent < MANY) sent += OK(submit(context, MANY - sent, list + sent));
    long got = 0;
    while (got < MANY) got += OK(events(context, 1, MANY - got, e + got, -1));
    for (int i = 0; i < MANY; i++) {
        EQ(e[i].res, 512);
        CHECK(!seen[e[i].data]);
        seen[e[i].data] = true;
    }
    EQ(events(context, 0, 1, e, -1), 0);
    EQ(events(context, 1, 1, e, 20), 0);
    char block[512];
    for (int i = 0; i < MANY; i++) {
        EQ(pread(fd, block, 512, 512 * i), 512);
        CHECK(memcmp(block, blocks[i], 512) == 0);
    }
}

CASE(eventfd_tells_of_ends) {
    aio_context_t context = set_up(8);
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600)), event = OK(eventfd(0, EFD_NONBLOCK));
    struct iocb r[3], *list[3];
    for (int i = 0; i < 3; i++) {
        r[i] = request(IOCB_CMD_PWRITE, fd, "x", 1, i);
        r[i].aio_flags = IOCB_FLAG_RESFD;
        r[i].aio_resfd = event;
        list[i] = &r[i];
    }
    EQ(submit(context, 3, list), 3);
    struct pollfd ready = {event, POLLIN, 0};
    struct io_event e[3];
    EQ(events(context, 3, 3, e, -1), 3);
    EQ(poll(&ready, 1, 1000), 1);
    uint64_t count = 0;
    EQ(read(event, &count, 8), 8);
    EQ(count, 3);
    r[0].aio_resfd = fd;
    ERR(submit(context, 1, list), EINVAL);
    r[0].aio_resfd = 999;
    ERR(submit(context, 1, list), EBADF);
}

CASE(requests_that_cannot_be) {
    aio_context_t context = set_up(8);
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600)), reads = OK(open("file", O_RDONLY));
    struct iocb good = request(IOCB_CMD_PWRITE, fd, "x", 1, 0), bad = good, *list[2] = {&bad, &good};
    struct io_event e;
    bad.aio_fildes = 999;
    ERR(submit(context, 2, list), EBADF);
    bad = request(IOCB_CMD_PWRITE, reads, "x", 1, 0);
    ERR(submit(context, 1, list), EBADF);
    bad = request(77, fd, "x", 1, 0);
    ERR(submit(context, 1, list), EINVAL);
    bad = request(IOCB_CMD_PWRITE, fd, "x", 1, -1);
    ERR(submit(context, 1, list), EINVAL);
    bad = good;
    bad.aio_reserved2 = 1;
    ERR(submit(context, 1, list), EINVAL);
    list[0] = (void *)8;
    ERR(submit(context, 1, list), EFAULT);
    ERR(submit(context, 1, (void *)8), EFAULT);
    ERR(submit(context, -1, list), EINVAL);
    EQ(submit(context, 0, list), 0);
    ERR(submit(context + 4096, 1, list), EINVAL);
    // What stands before a bad one is done.
    list[0] = &good;
    list[1] = &bad;
    bad = request(77, fd, "x", 1, 0);
    EQ(submit(context, 2, list), 1);
    EQ(events(context, 1, 2, &e, -1), 1);
    // Memory that is not there is seen by the transfer.
    EQ(done(context, request(IOCB_CMD_PWRITE, fd, (void *)8, 1, 0)), -EFAULT);
    ERR(events(context, 2, 1, &e, -1), EINVAL);
    ERR(events(context, -1, 1, &e, -1), EINVAL);
    ERR(events(context + 4096, 0, 1, &e, -1), EINVAL);
    ERR(syscall(SYS_io_cancel, context, &good, &e), EINVAL);
}

CASE(contexts_that_cannot_be) {
    aio_context_t context = 0;
    ERR(syscall(SYS_io_setup, 0, &context), EINVAL);
    ERR(syscall(SYS_io_setup, 8, (void *)8), EFAULT);
    context = 1;
    ERR(syscall(SYS_io_setup, 8, &context), EINVAL);
    context = 0;
    ERR(syscall(SYS_io_setup, 1000000000, &context), EINVAL);
    ERR(syscall(SYS_io_destroy, 0), EINVAL);
}

CASE(no_more_than_there_is_room_for) {
    aio_context_t context = set_up(1);
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600));
    struct iocb r = request(IOCB_CMD_PWRITE, fd, "x", 1, 0), *one = &r;
    struct io_event e;
    long sent = 0;
    // Linux gives some more room than was asked for.
    while (submit(context, 1, &one) == 1 && sent < 100000) sent++;
    EQ(errno, EAGAIN);
    CHECK(sent >= 1);
    EQ(events(context, 1, 1, &e, -1), 1);
    for (long i = 1; i < sent; i++) EQ(events(context, 1, 1, &e, 1000), 1);
    EQ(submit(context, 1, &one), 1);
}

static aio_context_t shared;

static void *waits(void *result) {
    struct io_event e;
    *(long *)result = events(shared, 1, 1, &e, -1);
    return NULL;
}

CASE(threads_share_contexts) {
    pthread_t thread;
    long result = -1;
    int fd = OK(open("file", O_CREAT | O_RDWR, 0600));
    struct iocb r = request(IOCB_CMD_PWRITE, fd, "x", 1, 0), *one = &r;
    shared = set_up(8);
    ZERO(pthread_create(&thread, NULL, waits, &result));
    usleep(50000);
    EQ(submit(shared, 1, &one), 1);
    ZERO(pthread_join(thread, NULL));
    EQ(result, 1);
}

CASE(children_and_new_programs_have_none) {
    aio_context_t context = set_up(8);
    struct io_event e;
    int status;
    pid_t child = OK(fork());
    if (child == 0) {
        ERR(events(context, 0, 1, &e, -1), EINVAL);
        _exit(0);
    }
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 0);
    EQ(events(context, 0, 1, &e, -1), 0);
    // Ends give back what counts for all.
    for (int i = 0; i < 300; i++) {
        child = OK(fork());
        if (child == 0) {
            set_up(8000);
            _exit(0);
        }
        EQ(waitpid(child, &status, 0), child);
        EQ(status, 0);
    }
}
