// io_uring(7) by its own system calls: rings, requests of each kind, links, limits of time, cancels, hostile rings.
#include "harness.h"

#include <arpa/inet.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

struct ring {
    int fd;
    struct io_uring_params p;
    char *rings;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    _Atomic unsigned *sq_head, *sq_tail, *sq_flags, *sq_dropped, *cq_head, *cq_tail, *cq_flags, *cq_overflow;
    unsigned *array;
    unsigned filled;
};

static int setup(unsigned entries, struct io_uring_params *p) { return syscall(SYS_io_uring_setup, entries, p); }
static int enter(int fd, unsigned submit, unsigned least, unsigned flags) {
    return syscall(SYS_io_uring_enter, fd, submit, least, flags, NULL, 0);
}
static int registers(int fd, unsigned op, void *arg, unsigned count) {
    return syscall(SYS_io_uring_register, fd, op, arg, count);
}

static void map_ring(struct ring *r) {
    size_t bytes = r->p.sq_off.array + r->p.sq_entries * sizeof(unsigned);
    r->rings = OK(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQ_RING));
    r->sqes =
        OK(mmap(NULL, r->p.sq_entries * sizeof *r->sqes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQES));
    r->cqes = (void *)(r->rings + r->p.cq_off.cqes);
    r->sq_head = (void *)(r->rings + r->p.sq_off.head);
    r->sq_tail = (void *)(r->rings + r->p.sq_off.tail);
    r->sq_flags = (void *)(r->rings + r->p.sq_off.flags);
    r->sq_dropped = (void *)(r->rings + r->p.sq_off.dropped);
    r->array = (void *)(r->rings + r->p.sq_off.array);
    r->cq_head = (void *)(r->rings + r->p.cq_off.head);
    r->cq_tail = (void *)(r->rings + r->p.cq_off.tail);
    r->cq_flags = (void *)(r->rings + r->p.cq_off.flags);
    r->cq_overflow = (void *)(r->rings + r->p.cq_off.overflow);
}

static void skip_without(void) {
    struct io_uring_params p = {0};
    int fd = setup(1, &p);
    if (fd == -1 && (errno == ENOSYS || errno == EPERM)) skip_case("no io_uring here");
    if (fd >= 0) close(fd);
}

static struct ring ring_with(unsigned entries, unsigned flags) {
    skip_without();
    struct ring r = {.p.flags = flags};
    r.fd = OK(setup(entries, &r.p));
    map_ring(&r);
    return r;
}

static struct ring ring(unsigned entries) { return ring_with(entries, 0); }

// The next request, which is all zeros but for these.
static struct io_uring_sqe *next(struct ring *r, int op, int fd, const void *addr, unsigned len, uint64_t off,
                                 uint64_t data) {
    unsigned index = (*r->sq_tail + r->filled) & (r->p.sq_entries - 1);
    struct io_uring_sqe *s = &r->sqes[index];
    memset(s, 0, sizeof *s);
    s->opcode = op;
    s->fd = fd;
    s->addr = (uintptr_t)addr;
    s->len = len;
    s->off = off;
    s->user_data = data;
    r->array[index] = index;
    r->filled++;
    return s;
}

// Submits what was filled in, and waits for so many answers.
static int submit(struct ring *r, unsigned least) {
    unsigned count = r->filled;
    r->filled = 0;
    atomic_fetch_add(r->sq_tail, count);
    return enter(r->fd, count, least, least ? IORING_ENTER_GETEVENTS : 0);
}

static unsigned ready(struct ring *r) { return atomic_load(r->cq_tail) - atomic_load(r->cq_head); }

struct answer {
    uint64_t user_data;
    int res;
    unsigned flags;
};

// Takes the next answer, waiting for it.
static struct answer take(struct ring *r) {
    while (!ready(r)) OK(enter(r->fd, 0, 1, IORING_ENTER_GETEVENTS));
    unsigned head = atomic_load(r->cq_head);
    struct io_uring_cqe *cqe = &r->cqes[head & (r->p.cq_entries - 1)];
    struct answer c = {cqe->user_data, cqe->res, cqe->flags};
    atomic_store(r->cq_head, head + 1);
    return c;
}

// Takes as many answers; that with this user_data.
static int result_of(struct ring *r, int count, uint64_t data) {
    int result = 12345;
    for (int i = 0; i < count; i++) {
        struct answer c = take(r);
        if (c.user_data == data) result = c.res;
    }
    return result;
}

// Submits what was filled in, which is one request; how it ended.
static int done(struct ring *r) {
    EQ(submit(r, 1), 1);
    return take(r).res;
}

static bool is_quiet(struct ring *r) {
    sleep_ms(30);
    enter(r->fd, 0, 0, IORING_ENTER_GETEVENTS);
    return ready(r) == 0;
}

static void expect(struct ring *r, uint64_t data, int result) {
    struct answer c = take(r);
    if (c.user_data != data || c.res != result)
        FAIL("answer %lld: %d, expected %lld: %d", (long long)c.user_data, c.res, (long long)data, result);
}

static void stream(int fds[2]) { OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds)); }

static int listener(struct sockaddr_in *a) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    OK(bind(fd, (void *)a, sizeof *a));
    OK(listen(fd, 16));
    socklen_t length = sizeof *a;
    OK(getsockname(fd, (void *)a, &length));
    return fd;
}

static struct __kernel_timespec ms(long n) { return (struct __kernel_timespec){n / 1000, n % 1000 * 1000000}; }

CASE(nop_and_what_setup_tells) {
    struct ring r = ring(5);
    EQ(r.p.sq_entries, 8);
    EQ(r.p.cq_entries, 16);
    CHECK(r.p.features & IORING_FEAT_SINGLE_MMAP);
    CHECK(r.p.features & IORING_FEAT_NODROP);
    CHECK(r.p.features & IORING_FEAT_EXT_ARG);
    EQ(*(unsigned *)(r.rings + r.p.sq_off.ring_mask), 7);
    EQ(*(unsigned *)(r.rings + r.p.cq_off.ring_mask), 15);
    EQ(*(unsigned *)(r.rings + r.p.sq_off.ring_entries), 8);
    EQ(*(unsigned *)(r.rings + r.p.cq_off.ring_entries), 16);
    CHECK(fcntl(r.fd, F_GETFD) & FD_CLOEXEC);
    for (int i = 0; i < 100; i++) {
        next(&r, IORING_OP_NOP, -1, NULL, 0, 0, i);
        EQ(submit(&r, 1), 1);
        expect(&r, i, 0);
    }
    EQ(*r.sq_head, 100);
    char label[64] = "", path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", r.fd);
    OK(readlink(path, label, sizeof label - 1));
    STR_EQ(label, "anon_inode:[io_uring]");
}

CASE(setup_refuses) {
    skip_without();
    struct io_uring_params p = {0};
    ERR(setup(0, &p), EINVAL);
    ERR(setup(32769, &p), EINVAL);
    p.flags = IORING_SETUP_CLAMP;
    int fd = OK(setup(40000, &p));
    EQ(p.sq_entries, 32768);
    EQ(p.cq_entries, 65536);
    close(fd);
    p = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = 100};
    fd = OK(setup(8, &p));
    EQ(p.cq_entries, 128);
    close(fd);
    p = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = 4};
    ERR(setup(8, &p), EINVAL);
    p = (struct io_uring_params){.flags = IORING_SETUP_CQSIZE, .cq_entries = 70000};
    ERR(setup(8, &p), EINVAL);
    p = (struct io_uring_params){.flags = 1u << 31};
    ERR(setup(8, &p), EINVAL);
    p = (struct io_uring_params){.flags = 0, .resv = {1}};
    ERR(setup(8, &p), EINVAL);
    p = (struct io_uring_params){.flags = IORING_SETUP_DEFER_TASKRUN};
    ERR(setup(8, &p), EINVAL);
    ERR(setup(8, NULL), EFAULT);
}

CASE(mappings_are_checked) {
    struct ring r = ring(8);
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, r.fd, 0x20000000) == MAP_FAILED);
    char *other = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, IORING_OFF_CQ_RING));
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 77);
    EQ(submit(&r, 1), 1);
    EQ(*(unsigned *)(other + r.p.cq_off.tail), 1);
    EQ(((struct io_uring_cqe *)(other + r.p.cq_off.cqes))->user_data, 77);
}

CASE(enter_refuses) {
    struct ring r = ring(8);
    ERR(enter(-1, 0, 0, 0), EBADF);
    ERR(enter(r.fd, 0, 0, 1 << 20), EINVAL);
    int fd = OK(open("/dev/null", O_RDONLY));
    ERR(enter(fd, 0, 0, 0), EOPNOTSUPP);
    ERR(registers(fd, IORING_REGISTER_PROBE, NULL, 0), EOPNOTSUPP);
    ERR(registers(r.fd, 9999, NULL, 0), EINVAL);
    EQ(enter(r.fd, 0, 0, 0), 0);
    EQ(enter(r.fd, 5, 0, 0), 0);
}

CASE(unknown_operations_and_flags) {
    struct ring r = ring(8);
    next(&r, 255, -1, NULL, 0, 0, 1);
    EQ(done(&r), -EINVAL);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1)->flags = 0x80;
    EQ(done(&r), -EINVAL);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1)->personality = 7;
    EQ(done(&r), -EINVAL);
    next(&r, IORING_OP_FSYNC, -1, NULL, 0, 0, 1);
    EQ(done(&r), -EBADF);
    // What is wrong there ends the submission.
    next(&r, 255, -1, NULL, 0, 0, 1);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2);
    EQ(submit(&r, 1), 1);
    expect(&r, 1, -EINVAL);
    EQ(enter(r.fd, 1, 1, IORING_ENTER_GETEVENTS), 1);
    expect(&r, 2, 0);
    struct ring all = ring_with(8, IORING_SETUP_SUBMIT_ALL);
    next(&all, 255, -1, NULL, 0, 0, 1);
    next(&all, IORING_OP_NOP, -1, NULL, 0, 0, 2);
    EQ(submit(&all, 2), 2);
    expect(&all, 1, -EINVAL);
    expect(&all, 2, 0);
}

CASE(files_are_read_and_written) {
    struct ring r = ring(8);
    int fd = create("file");
    char back[16] = "";
    next(&r, IORING_OP_WRITE, fd, "some bytes", 10, 100, 1);
    EQ(done(&r), 10);
    next(&r, IORING_OP_READ, fd, back, 16, 105, 1);
    EQ(done(&r), 5);
    STR_EQ(back, "bytes");
    EQ(lseek(fd, 0, SEEK_CUR), 0);
    next(&r, IORING_OP_WRITE, fd, "abc", 3, -1, 1);
    EQ(done(&r), 3);
    EQ(lseek(fd, 0, SEEK_CUR), 3);
    OK(lseek(fd, 1, SEEK_SET));
    next(&r, IORING_OP_READ, fd, back, 2, -1, 1);
    EQ(done(&r), 2);
    CHECK(memcmp(back, "bc", 2) == 0);
    struct iovec two[2] = {{"AB", 2}, {"CDE", 3}};
    next(&r, IORING_OP_WRITEV, fd, two, 2, 0, 1);
    EQ(done(&r), 5);
    struct iovec halves[2] = {{back, 1}, {back + 8, 4}};
    next(&r, IORING_OP_READV, fd, halves, 2, 0, 1);
    EQ(done(&r), 5);
    CHECK(back[0] == 'A' && memcmp(back + 8, "BCDE", 4) == 0);
    next(&r, IORING_OP_READ, fd, back, 16, 1000, 1);
    EQ(done(&r), 0);
    next(&r, IORING_OP_READ, fd, (void *)16, 16, 0, 1);
    EQ(done(&r), -EFAULT);
    next(&r, IORING_OP_FSYNC, fd, NULL, 0, 0, 1);
    EQ(done(&r), 0);
    next(&r, IORING_OP_FSYNC, fd, NULL, 0, 0, 1)->fsync_flags = IORING_FSYNC_DATASYNC;
    EQ(done(&r), 0);
    next(&r, IORING_OP_SYNC_FILE_RANGE, fd, NULL, 16, 0, 1)->sync_range_flags = 2;
    EQ(done(&r), 0);
    int reads = OK(open("file", O_RDONLY));
    next(&r, IORING_OP_WRITE, reads, "x", 1, 0, 1);
    EQ(done(&r), -EBADF);
    int path = OK(open("file", O_PATH));
    next(&r, IORING_OP_READ, path, back, 1, 0, 1);
    EQ(done(&r), -EBADF);
}

CASE(space_is_allocated_and_advised) {
    struct ring r = ring(8);
    int fd = create("file");
    next(&r, IORING_OP_FALLOCATE, fd, (void *)8192, 0, 0, 1);
    EQ(done(&r), 0);
    EQ(lseek(fd, 0, SEEK_END), 8192);
    next(&r, IORING_OP_FADVISE, fd, NULL, 4096, 0, 1)->fadvise_advice = 4;
    EQ(done(&r), 0);
    char *page = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    page[0] = 5;
    next(&r, IORING_OP_MADVISE, -1, page, 4096, 0, 1)->fadvise_advice = MADV_DONTNEED;
    EQ(done(&r), 0);
    EQ(page[0], 0);
}

CASE(a_read_waits_for_a_pipe) {
    struct ring r = ring(8);
    int fds[2];
    char back[8] = "";
    OK(pipe(fds));
    next(&r, IORING_OP_READ, fds[0], back, 8, 0, 1);
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    EQ(write(fds[1], "hello", 5), 5);
    expect(&r, 1, 5);
    STR_EQ(back, "hello");
    // The same of one that does not block.
    OK(fcntl(fds[0], F_SETFL, O_NONBLOCK));
    next(&r, IORING_OP_READ, fds[0], back, 8, -1, 2);
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    EQ(write(fds[1], "again", 5), 5);
    expect(&r, 2, 5);
    next(&r, IORING_OP_READ, fds[0], back, 8, -1, 3);
    EQ(submit(&r, 0), 1);
    close(fds[1]);
    expect(&r, 3, 0);
}

CASE(a_write_waits_for_room_in_a_pipe) {
    struct ring r = ring(8);
    int fds[2];
    static char much[1 << 16];
    OK(pipe(fds));
    EQ(write(fds[1], much, sizeof much), sizeof much);
    next(&r, IORING_OP_WRITE, fds[1], "tail", 4, 0, 1);
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    EQ(read(fds[0], much, sizeof much), sizeof much);
    expect(&r, 1, 4);
    EQ(read(fds[0], much, 16), 4);
    signal(SIGPIPE, SIG_IGN);
    close(fds[0]);
    next(&r, IORING_OP_WRITE, fds[1], "x", 1, 0, 1);
    EQ(done(&r), -EPIPE);
}

CASE(registered_buffers) {
    struct ring r = ring(8);
    int fd = create("file");
    static char memory[2][4096];
    struct iovec two[2] = {{memory[0], 4096}, {memory[1], 4096}};
    next(&r, IORING_OP_WRITE_FIXED, fd, memory[0], 16, 0, 1)->buf_index = 0;
    EQ(done(&r), -EFAULT);
    ERR(registers(r.fd, IORING_UNREGISTER_BUFFERS, NULL, 0), ENXIO);
    struct iovec bad = {(void *)16, 4096};
    ERR(registers(r.fd, IORING_REGISTER_BUFFERS, &bad, 1), EFAULT);
    OK(registers(r.fd, IORING_REGISTER_BUFFERS, two, 2));
    ERR(registers(r.fd, IORING_REGISTER_BUFFERS, two, 2), EBUSY);
    strcpy(memory[0] + 100, "fixed");
    next(&r, IORING_OP_WRITE_FIXED, fd, memory[0] + 100, 5, 0, 1)->buf_index = 0;
    EQ(done(&r), 5);
    next(&r, IORING_OP_READ_FIXED, fd, memory[1] + 7, 100, 0, 1)->buf_index = 1;
    EQ(done(&r), 5);
    STR_EQ(memory[1] + 7, "fixed");
    next(&r, IORING_OP_READ_FIXED, fd, memory[0], 5, 0, 1)->buf_index = 2;
    EQ(done(&r), -EFAULT);
    next(&r, IORING_OP_READ_FIXED, fd, memory[1] + 4000, 100, 0, 1)->buf_index = 1;
    EQ(done(&r), -EFAULT);
    OK(registers(r.fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
}

CASE(registered_files) {
    struct ring r = ring(8);
    int fds[3] = {create("a"), -1, create("c")};
    struct io_uring_sqe *s;
    s = next(&r, IORING_OP_WRITE, 0, "x", 1, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), -EBADF);
    int self = r.fd;
    ERR(registers(r.fd, IORING_REGISTER_FILES, &self, 1), EBADF);
    OK(registers(r.fd, IORING_REGISTER_FILES, fds, 3));
    ERR(registers(r.fd, IORING_REGISTER_FILES, fds, 3), EBUSY);
    close(fds[0]);
    close(fds[2]);
    s = next(&r, IORING_OP_WRITE, 2, "text", 4, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), 4);
    char back[8] = "";
    read_file("c", back, sizeof back);
    STR_EQ(back, "text");
    s = next(&r, IORING_OP_WRITE, 1, "text", 4, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), -EBADF);
    s = next(&r, IORING_OP_WRITE, 3, "text", 4, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), -EBADF);
    int more[2] = {create("b"), -1};
    struct io_uring_files_update update = {.offset = 1, .fds = (uintptr_t)more};
    EQ(registers(r.fd, IORING_REGISTER_FILES_UPDATE, &update, 2), 2);
    s = next(&r, IORING_OP_WRITE, 1, "more", 4, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), 4);
    s = next(&r, IORING_OP_WRITE, 2, "text", 4, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), -EBADF);
    next(&r, IORING_OP_FILES_UPDATE, 0, more, 1, 2, 1);
    EQ(done(&r), 1);
    s = next(&r, IORING_OP_READ, 2, back, 4, 0, 1), s->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), 4);
    update = (struct io_uring_files_update){.offset = 2, .fds = (uintptr_t)more};
    ERR(registers(r.fd, IORING_REGISTER_FILES_UPDATE, &update, 2), EINVAL);
    OK(registers(r.fd, IORING_UNREGISTER_FILES, NULL, 0));
    ERR(registers(r.fd, IORING_UNREGISTER_FILES, NULL, 0), ENXIO);
}

CASE(files_are_opened_into_the_table) {
    struct ring r = ring(8);
    write_file("file", "direct");
    int none[2] = {-1, -1};
    OK(registers(r.fd, IORING_REGISTER_FILES, none, 2));
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "file", 0, 0, 1)->file_index = 2;
    EQ(done(&r), 0);
    char back[8] = "";
    next(&r, IORING_OP_READ, 1, back, 8, 0, 1)->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), 6);
    STR_EQ(back, "direct");
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "file", 0, 0, 1)->file_index = 9;
    EQ(done(&r), -EINVAL);
    next(&r, IORING_OP_CLOSE, 0, NULL, 0, 0, 1)->file_index = 2;
    EQ(done(&r), 0);
    next(&r, IORING_OP_READ, 1, back, 8, 0, 1)->flags = IOSQE_FIXED_FILE;
    EQ(done(&r), -EBADF);
}

CASE(names) {
    struct ring r = ring(8);
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "file", 0600, 0, 1)->open_flags = O_CREAT | O_RDWR;
    int fd = done(&r);
    CHECK(fd >= 0);
    EQ(write(fd, "text", 4), 4);
    next(&r, IORING_OP_CLOSE, fd, NULL, 0, 0, 1);
    EQ(done(&r), 0);
    ERR(close(fd), EBADF);
    next(&r, IORING_OP_CLOSE, fd, NULL, 0, 0, 1);
    EQ(done(&r), -EBADF);
    next(&r, IORING_OP_CLOSE, r.fd, NULL, 0, 0, 1);
    EQ(done(&r), -EBADF);
    struct open_how {
        uint64_t flags, mode, resolve;
    } how = {O_RDONLY, 0, 0};
    next(&r, IORING_OP_OPENAT2, AT_FDCWD, "file", sizeof how, (uintptr_t)&how, 1);
    fd = done(&r);
    CHECK(fd >= 0);
    close(fd);
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "missing", 0, 0, 1);
    EQ(done(&r), -ENOENT);
    struct statx x;
    next(&r, IORING_OP_STATX, AT_FDCWD, "file", STATX_SIZE, (uintptr_t)&x, 1);
    EQ(done(&r), 0);
    EQ(x.stx_size, 4);
    next(&r, IORING_OP_MKDIRAT, AT_FDCWD, "dir", 0700, 0, 1);
    EQ(done(&r), 0);
    next(&r, IORING_OP_MKDIRAT, AT_FDCWD, "dir", 0700, 0, 1);
    EQ(done(&r), -EEXIST);
    next(&r, IORING_OP_RENAMEAT, AT_FDCWD, "file", AT_FDCWD, (uintptr_t)"dir/moved", 1);
    EQ(done(&r), 0);
    next(&r, IORING_OP_LINKAT, AT_FDCWD, "dir/moved", AT_FDCWD, (uintptr_t)"linked", 1);
    EQ(done(&r), 0);
    next(&r, IORING_OP_SYMLINKAT, AT_FDCWD, "linked", 0, (uintptr_t)"soft", 1);
    EQ(done(&r), 0);
    char back[8] = "";
    read_file("soft", back, sizeof back);
    STR_EQ(back, "text");
    next(&r, IORING_OP_UNLINKAT, AT_FDCWD, "soft", 0, 0, 1);
    EQ(done(&r), 0);
    ERR(access("soft", F_OK), ENOENT);
    OK(unlink("dir/moved"));
    next(&r, IORING_OP_UNLINKAT, AT_FDCWD, "dir", 0, 0, 1)->unlink_flags = AT_REMOVEDIR;
    EQ(done(&r), 0);
}

CASE(messages) {
    struct ring r = ring(8);
    int fds[2];
    char back[16] = "";
    stream(fds);
    next(&r, IORING_OP_RECV, fds[0], back, 16, 0, 1);
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    next(&r, IORING_OP_SEND, fds[1], "hello", 5, 0, 2);
    EQ(submit(&r, 2), 1);
    int a = 0, b = 0;
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        if (c.user_data == 1) a = c.res;
        if (c.user_data == 2) b = c.res;
    }
    EQ(a, 5);
    EQ(b, 5);
    STR_EQ(back, "hello");
    // One that is told not to wait does not, whatever the socket is.
    next(&r, IORING_OP_RECV, fds[0], back, 16, 0, 1)->msg_flags = MSG_DONTWAIT;
    EQ(done(&r), -EAGAIN);
    // And one of a socket that does not block waits all the same.
    OK(fcntl(fds[0], F_SETFL, O_NONBLOCK));
    next(&r, IORING_OP_RECV, fds[0], back, 16, 0, 1);
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    EQ(write(fds[1], "late", 4), 4);
    expect(&r, 1, 4);
    int passed = OK(open("/dev/null", O_RDONLY));
    char control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec one = {"m", 1};
    struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &passed, sizeof passed);
    next(&r, IORING_OP_SENDMSG, fds[1], &m, 1, 0, 1);
    EQ(done(&r), 1);
    struct iovec to = {back, 16};
    char got[CMSG_SPACE(sizeof(int))] = "";
    struct msghdr n = {.msg_iov = &to, .msg_iovlen = 1, .msg_control = got, .msg_controllen = sizeof got};
    next(&r, IORING_OP_RECVMSG, fds[0], &n, 1, 0, 1);
    EQ(done(&r), 1);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&n)), sizeof fd);
    OK(fcntl(fd, F_GETFD));
    // A ring itself is not passed on.
    memcpy(CMSG_DATA(c), &r.fd, sizeof r.fd);
    ERR(sendmsg(fds[1], &m, 0), EINVAL);
    close(fds[0]);
    next(&r, IORING_OP_SEND, fds[1], "x", 1, 0, 1);
    EQ(done(&r), -EPIPE);
    int file = create("file");
    next(&r, IORING_OP_SEND, file, "x", 1, 0, 1);
    EQ(done(&r), -ENOTSOCK);
}

CASE(connections) {
    struct ring r = ring(8);
    struct sockaddr_in a, from = {0};
    socklen_t length = sizeof from;
    int server = listener(&a);
    next(&r, IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM, 1);
    int client = done(&r);
    CHECK(client >= 0);
    next(&r, IORING_OP_ACCEPT, server, &from, 0, (uintptr_t)&length, 1)->accept_flags = SOCK_CLOEXEC;
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    next(&r, IORING_OP_CONNECT, client, &a, 0, sizeof a, 2);
    EQ(submit(&r, 2), 1);
    int peer = -1;
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        if (c.user_data == 2) EQ(c.res, 0);
        if (c.user_data == 1) peer = c.res;
    }
    CHECK(peer >= 0);
    CHECK(fcntl(peer, F_GETFD) & FD_CLOEXEC);
    EQ(from.sin_family, AF_INET);
    EQ(length, sizeof from);
    char back[8] = "";
    next(&r, IORING_OP_RECV, peer, back, 8, 0, 1);
    EQ(submit(&r, 0), 1);
    next(&r, IORING_OP_SEND, client, "ping", 4, 0, 2);
    EQ(submit(&r, 2), 1);
    EQ(result_of(&r, 2, 1), 4);
    next(&r, IORING_OP_RECV, peer, back, 8, 0, 1);
    EQ(submit(&r, 0), 1);
    next(&r, IORING_OP_SHUTDOWN, client, NULL, SHUT_WR, 0, 2);
    EQ(submit(&r, 2), 1);
    EQ(result_of(&r, 2, 1), 0);
    // Nobody listens any more.
    close(server);
    next(&r, IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM | SOCK_NONBLOCK, 1);
    int other = done(&r);
    next(&r, IORING_OP_CONNECT, other, &a, 0, sizeof a, 2);
    EQ(done(&r), -ECONNREFUSED);
}

CASE(one_request_accepts_many) {
    struct ring r = ring(8);
    struct sockaddr_in a;
    int server = listener(&a);
    next(&r, IORING_OP_ACCEPT, server, NULL, 0, 0, 1)->ioprio = IORING_ACCEPT_MULTISHOT;
    EQ(submit(&r, 0), 1);
    for (int i = 0; i < 5; i++) {
        int client = OK(socket(AF_INET, SOCK_STREAM, 0));
        OK(connect(client, (void *)&a, sizeof a));
        struct answer c = take(&r);
        EQ(c.user_data, 1);
        CHECK(c.res >= 0);
        CHECK(c.flags & IORING_CQE_F_MORE);
        close(c.res);
    }
    next(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 0, 2);
    EQ(submit(&r, 2), 1);
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        EQ(c.res, c.user_data == 1 ? -ECANCELED : 0);
        CHECK(!(c.flags & IORING_CQE_F_MORE));
    }
}

CASE(files_are_polled) {
    struct ring r = ring(8);
    int fds[2];
    OK(pipe(fds));
    next(&r, IORING_OP_POLL_ADD, fds[0], NULL, 0, 0, 1)->poll32_events = POLLIN;
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    EQ(write(fds[1], "x", 1), 1);
    expect(&r, 1, POLLIN);
    next(&r, IORING_OP_POLL_ADD, fds[0], NULL, 0, 0, 1)->poll32_events = POLLIN;
    EQ(done(&r), POLLIN);
    char one;
    EQ(read(fds[0], &one, 1), 1);
    next(&r, IORING_OP_POLL_ADD, fds[0], NULL, 0, 0, 1)->poll32_events = POLLIN;
    EQ(submit(&r, 0), 1);
    next(&r, IORING_OP_POLL_REMOVE, -1, (void *)9, 0, 0, 2);
    EQ(done(&r), -ENOENT);
    next(&r, IORING_OP_POLL_REMOVE, -1, (void *)1, 0, 0, 2);
    EQ(submit(&r, 2), 1);
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        EQ(c.res, c.user_data == 1 ? -ECANCELED : 0);
    }
    next(&r, IORING_OP_POLL_ADD, fds[0], NULL, 0, 0, 1)->poll32_events = POLLIN;
    EQ(submit(&r, 0), 1);
    close(fds[1]);
    expect(&r, 1, POLLHUP);
}

CASE(a_poll_goes_on_and_is_changed) {
    struct ring r = ring(8);
    int fds[2];
    char one;
    OK(pipe(fds));
    next(&r, IORING_OP_POLL_ADD, fds[0], NULL, IORING_POLL_ADD_MULTI, 0, 1)->poll32_events = POLLIN;
    EQ(submit(&r, 0), 1);
    for (int i = 0; i < 4; i++) {
        CHECK(is_quiet(&r));
        EQ(write(fds[1], "x", 1), 1);
        struct answer c = take(&r);
        EQ(c.res, POLLIN);
        CHECK(c.flags & IORING_CQE_F_MORE);
        EQ(read(fds[0], &one, 1), 1);
    }
    struct io_uring_sqe *s =
        next(&r, IORING_OP_POLL_REMOVE, -1, (void *)1, IORING_POLL_UPDATE_USER_DATA | IORING_POLL_ADD_MULTI, 8, 2);
    (void)s;
    EQ(done(&r), 0);
    EQ(write(fds[1], "x", 1), 1);
    struct answer c = take(&r);
    EQ(c.user_data, 8);
    next(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)8, 0, 0, 3);
    EQ(submit(&r, 2), 1);
    EQ(result_of(&r, 2, 8), -ECANCELED);
}

CASE(timeouts) {
    struct ring r = ring(8);
    struct __kernel_timespec t = ms(50);
    int64_t begin = now_ns(CLOCK_MONOTONIC);
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 1);
    EQ(done(&r), -ETIME);
    CHECK(now_ns(CLOCK_MONOTONIC) - begin >= 50000000);
    int64_t at = now_ns(CLOCK_MONOTONIC) + 30000000;
    t = (struct __kernel_timespec){at / 1000000000, at % 1000000000};
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 1)->timeout_flags = IORING_TIMEOUT_ABS;
    EQ(done(&r), -ETIME);
    CHECK(now_ns(CLOCK_MONOTONIC) >= at);
    at = now_ns(CLOCK_REALTIME) + 30000000;
    t = (struct __kernel_timespec){at / 1000000000, at % 1000000000};
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 1)->timeout_flags = IORING_TIMEOUT_ABS | IORING_TIMEOUT_REALTIME;
    EQ(done(&r), -ETIME);
    // After two other answers.
    t = ms(100000);
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 2, 1);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2);
    EQ(submit(&r, 1), 2);
    expect(&r, 2, 0);
    CHECK(is_quiet(&r));
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 3);
    EQ(submit(&r, 2), 1);
    expect(&r, 3, 0);
    expect(&r, 1, 0);
    t = (struct __kernel_timespec){-1, 0};
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 1);
    EQ(done(&r), -EINVAL);
    next(&r, IORING_OP_TIMEOUT, -1, &t, 2, 0, 1);
    EQ(done(&r), -EINVAL);
    next(&r, IORING_OP_TIMEOUT, -1, (void *)16, 1, 0, 1);
    EQ(done(&r), -EFAULT);
}

CASE(timeouts_are_removed_and_changed) {
    struct ring r = ring(8);
    struct __kernel_timespec t = ms(100000), soon = ms(20);
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 1);
    EQ(submit(&r, 0), 1);
    next(&r, IORING_OP_TIMEOUT_REMOVE, -1, (void *)7, 0, 0, 2);
    EQ(done(&r), -ENOENT);
    next(&r, IORING_OP_TIMEOUT_REMOVE, -1, (void *)1, 0, 0, 2);
    EQ(submit(&r, 2), 1);
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        EQ(c.res, c.user_data == 1 ? -ECANCELED : 0);
    }
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 1);
    EQ(submit(&r, 0), 1);
    next(&r, IORING_OP_TIMEOUT_REMOVE, -1, (void *)1, 0, (uintptr_t)&soon, 2)->timeout_flags = IORING_TIMEOUT_UPDATE;
    EQ(done(&r), 0);
    expect(&r, 1, -ETIME);
}

CASE(links) {
    struct ring r = ring(16);
    int fd = create("file");
    char back[8] = "";
    next(&r, IORING_OP_WRITE, fd, "linked", 6, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_FSYNC, fd, NULL, 0, 0, 2)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_READ, fd, back, 6, 0, 3);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 4);
    EQ(submit(&r, 4), 4);
    int place[5] = {0};
    for (int i = 1; i <= 4; i++) {
        struct answer c = take(&r);
        CHECK(c.res >= 0);
        place[c.user_data] = i;
    }
    CHECK(place[1] < place[2] && place[2] < place[3]);
    STR_EQ(back, "linked");
    // A failure, and a read that is short, end those behind.
    next(&r, IORING_OP_READ, fd, back, 8, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 3);
    EQ(submit(&r, 3), 3);
    expect(&r, 1, 6);
    expect(&r, 2, -ECANCELED);
    expect(&r, 3, -ECANCELED);
    next(&r, IORING_OP_READ, -1, back, 8, 0, 1)->flags = IOSQE_IO_HARDLINK;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2);
    EQ(submit(&r, 2), 2);
    expect(&r, 1, -EBADF);
    expect(&r, 2, 0);
    // So does one that is wrong from the beginning.
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, 255, -1, NULL, 0, 0, 2);
    EQ(submit(&r, 2), 2);
    expect(&r, 1, -ECANCELED);
    expect(&r, 2, -EINVAL);
}

CASE(a_link_waits_for_the_one_before) {
    struct ring r = ring(8);
    int fds[2], other[2];
    char back[8] = "";
    OK(pipe(fds));
    OK(pipe(other));
    next(&r, IORING_OP_READ, fds[0], back, 5, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_WRITE, other[1], back, 5, 0, 2);
    EQ(submit(&r, 0), 2);
    CHECK(is_quiet(&r));
    EQ(write(fds[1], "chain", 5), 5);
    expect(&r, 1, 5);
    expect(&r, 2, 5);
    char got[8] = "";
    EQ(read(other[0], got, 8), 5);
    STR_EQ(got, "chain");
}

CASE(links_are_limited_in_time) {
    struct ring r = ring(8);
    int fds[2];
    char back[8];
    OK(pipe(fds));
    struct __kernel_timespec t = ms(30);
    next(&r, IORING_OP_READ, fds[0], back, 5, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_LINK_TIMEOUT, -1, &t, 1, 0, 2);
    EQ(submit(&r, 2), 2);
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        if (c.user_data == 1) EQ(c.res, -ECANCELED);
        if (c.user_data == 2) EQ(c.res, -ETIME);
    }
    t = ms(100000);
    next(&r, IORING_OP_READ, fds[0], back, 5, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_LINK_TIMEOUT, -1, &t, 1, 0, 2);
    EQ(submit(&r, 0), 2);
    EQ(write(fds[1], "quick", 5), 5);
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        if (c.user_data == 1) EQ(c.res, 5);
        if (c.user_data == 2) EQ(c.res, -ECANCELED);
    }
    next(&r, IORING_OP_LINK_TIMEOUT, -1, &t, 1, 0, 2);
    EQ(done(&r), -EINVAL);
}

CASE(drains) {
    struct ring r = ring(8);
    int fds[2];
    char back[8];
    OK(pipe(fds));
    next(&r, IORING_OP_READ, fds[0], back, 5, 0, 1);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2)->flags = IOSQE_IO_DRAIN;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 3);
    EQ(submit(&r, 0), 3);
    CHECK(is_quiet(&r));
    EQ(write(fds[1], "drain", 5), 5);
    expect(&r, 1, 5);
    // Linux 6.1 does not keep the order of what comes after it.
    struct answer two[] = {take(&r), take(&r)};
    EQ(two[0].user_data + two[1].user_data, 2 + 3);
    EQ(two[0].res | two[1].res, 0);
}

CASE(cancels) {
    struct ring r = ring(16);
    int fds[2], other[2];
    char back[8];
    OK(pipe(fds));
    OK(pipe(other));
    next(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 0, 9);
    EQ(done(&r), -ENOENT);
    next(&r, IORING_OP_READ, fds[0], back, 5, 0, 1);
    EQ(submit(&r, 0), 1);
    next(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 0, 9);
    EQ(submit(&r, 2), 1);
    for (int i = 0; i < 2; i++) {
        struct answer c = take(&r);
        EQ(c.res, c.user_data == 1 ? -ECANCELED : 0);
    }
    for (int i = 0; i < 3; i++) next(&r, IORING_OP_READ, fds[0], back, 5, 0, 2);
    next(&r, IORING_OP_READ, other[0], back, 5, 0, 2);
    EQ(submit(&r, 0), 4);
    next(&r, IORING_OP_ASYNC_CANCEL, fds[0], NULL, 0, 0, 9)->cancel_flags =
        IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ALL;
    EQ(submit(&r, 4), 1);
    EQ(result_of(&r, 4, 9), 3);
    CHECK(is_quiet(&r));
    next(&r, IORING_OP_ASYNC_CANCEL, -1, NULL, 0, 0, 9)->cancel_flags = IORING_ASYNC_CANCEL_ANY;
    EQ(submit(&r, 2), 1);
    EQ(result_of(&r, 2, 9), 1);
    // What was written meanwhile is there for others.
    EQ(write(fds[1], "rest", 4), 4);
    EQ(read(fds[0], back, 8), 4);
}

CASE(answers_overflow_and_are_kept) {
    struct ring r = ring(4);
    EQ(r.p.cq_entries, 8);
    for (int i = 0; i < 20; i += 4) {
        for (int j = 0; j < 4; j++) next(&r, IORING_OP_NOP, -1, NULL, 0, 0, i + j);
        EQ(submit(&r, 0), 4);
    }
    EQ(ready(&r), 8);
    CHECK(*r.sq_flags & IORING_SQ_CQ_OVERFLOW);
    struct pollfd p = {r.fd, POLLIN, 0};
    EQ(poll(&p, 1, 0), 1);
    for (int i = 0; i < 20; i++) {
        if (!ready(&r)) OK(enter(r.fd, 0, 1, IORING_ENTER_GETEVENTS));
        expect(&r, i, 0);
    }
    EQ(enter(r.fd, 0, 0, IORING_ENTER_GETEVENTS), 0);
    EQ(ready(&r), 0);
    CHECK(!(*r.sq_flags & IORING_SQ_CQ_OVERFLOW));
    EQ(*r.cq_overflow, 0);
}

CASE(answers_are_skipped) {
    struct ring r = ring(8);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1)->flags = IOSQE_CQE_SKIP_SUCCESS;
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    next(&r, IORING_OP_READ, -1, NULL, 0, 0, 2)->flags = IOSQE_CQE_SKIP_SUCCESS;
    EQ(submit(&r, 1), 1);
    expect(&r, 2, -EBADF);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1)->flags = IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2);
    EQ(submit(&r, 1), 2);
    expect(&r, 2, 0);
    CHECK(is_quiet(&r));
}

CASE(buffers_are_chosen) {
    struct ring r = ring(8);
    static char pool[4][16];
    int fds[2];
    OK(pipe(fds));
    struct io_uring_sqe *s = next(&r, IORING_OP_READ, fds[0], NULL, 16, -1, 1);
    s->flags = IOSQE_BUFFER_SELECT, s->buf_group = 7;
    EQ(write(fds[1], "first", 5), 5);
    EQ(done(&r), -ENOBUFS);
    next(&r, IORING_OP_PROVIDE_BUFFERS, 4, pool, 16, 100, 1)->buf_group = 7;
    CHECK(done(&r) >= 0);
    s = next(&r, IORING_OP_READ, fds[0], NULL, 16, -1, 1);
    s->flags = IOSQE_BUFFER_SELECT, s->buf_group = 7;
    EQ(submit(&r, 1), 1);
    struct answer c = take(&r);
    EQ(c.res, 5);
    CHECK(c.flags & IORING_CQE_F_BUFFER);
    unsigned id = c.flags >> IORING_CQE_BUFFER_SHIFT;
    CHECK(id >= 100 && id < 104);
    CHECK(memcmp(pool[id - 100], "first", 5) == 0);
    // One that waits takes its buffer when there is something.
    int ends[2];
    stream(ends);
    s = next(&r, IORING_OP_RECV, ends[0], NULL, 16, 0, 2);
    s->flags = IOSQE_BUFFER_SELECT, s->buf_group = 7;
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    EQ(write(ends[1], "second", 6), 6);
    c = take(&r);
    EQ(c.res, 6);
    CHECK(c.flags & IORING_CQE_F_BUFFER);
    CHECK(memcmp(pool[(c.flags >> IORING_CQE_BUFFER_SHIFT) - 100], "second", 6) == 0);
    next(&r, IORING_OP_REMOVE_BUFFERS, 10, NULL, 0, 0, 1)->buf_group = 7;
    EQ(done(&r), 2);
    // None were ever there: Linux 6.1 has removed none of them, later ones say so.
    next(&r, IORING_OP_REMOVE_BUFFERS, 10, NULL, 0, 0, 1)->buf_group = 8;
    int removed = done(&r);
    CHECK(removed == -ENOENT || removed == 0);
}

CASE(data_is_spliced) {
    struct ring r = ring(8);
    int fds[2], other[2];
    char back[16] = "";
    OK(pipe(fds));
    OK(pipe(other));
    write_file("file", "0123456789");
    int file = OK(open("file", O_RDONLY));
    struct io_uring_sqe *s = next(&r, IORING_OP_SPLICE, fds[1], NULL, 4, -1, 1);
    s->splice_fd_in = file;
    s->splice_off_in = 3;
    EQ(done(&r), 4);
    s = next(&r, IORING_OP_TEE, other[1], NULL, 4, 0, 1);
    s->splice_fd_in = fds[0];
    EQ(done(&r), 4);
    EQ(read(fds[0], back, 16), 4);
    CHECK(memcmp(back, "3456", 4) == 0);
    EQ(read(other[0], back, 16), 4);
    CHECK(memcmp(back, "3456", 4) == 0);
}

CASE(epoll_sets_are_changed) {
    struct ring r = ring(8);
    int set = OK(epoll_create1(0)), fds[2];
    OK(pipe(fds));
    struct epoll_event e = {EPOLLIN, {.u64 = 5}};
    next(&r, IORING_OP_EPOLL_CTL, set, &e, EPOLL_CTL_ADD, fds[0], 1);
    EQ(done(&r), 0);
    next(&r, IORING_OP_EPOLL_CTL, set, &e, EPOLL_CTL_ADD, fds[0], 1);
    EQ(done(&r), -EEXIST);
    EQ(write(fds[1], "x", 1), 1);
    EQ(epoll_wait(set, &e, 1, 0), 1);
    EQ(e.data.u64, 5);
}

CASE(a_ring_is_polled) {
    struct ring r = ring(8);
    int fds[2];
    char back[8];
    OK(pipe(fds));
    struct pollfd p = {r.fd, POLLIN | POLLOUT, 0};
    EQ(poll(&p, 1, 0), 1);
    EQ(p.revents, POLLOUT);
    int set = OK(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, r.fd, &e));
    EQ(epoll_wait(set, &e, 1, 0), 0);
    next(&r, IORING_OP_READ, fds[0], back, 8, 0, 1);
    EQ(submit(&r, 0), 1);
    pid_t pid = OK(fork());
    if (pid == 0) {
        sleep_ms(30);
        EQ(write(fds[1], "x", 1), 1);
        _exit(0);
    }
    // Linux may interrupt it to have the request answered.
    int woken;
    while ((woken = epoll_wait(set, &e, 1, -1)) == -1 && errno == EINTR) {
    }
    EQ(woken, 1);
    p.events = POLLIN;
    EQ(poll(&p, 1, 0), 1);
    expect(&r, 1, 1);
    EQ(poll(&p, 1, 0), 0);
    expect_exit(pid, 0);
}

CASE(an_eventfd_is_told) {
    struct ring r = ring(8);
    int event = OK(eventfd(0, EFD_NONBLOCK)), fds[2];
    uint64_t count;
    OK(pipe(fds));
    ERR(registers(r.fd, IORING_UNREGISTER_EVENTFD, NULL, 0), ENXIO);
    OK(registers(r.fd, IORING_REGISTER_EVENTFD, &event, 1));
    ERR(registers(r.fd, IORING_REGISTER_EVENTFD, &event, 1), EBUSY);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    EQ(done(&r), 0);
    EQ(read(event, &count, 8), 8);
    *r.cq_flags = IORING_CQ_EVENTFD_DISABLED;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    EQ(done(&r), 0);
    ERR(read(event, &count, 8), EAGAIN);
    *r.cq_flags = 0;
    OK(registers(r.fd, IORING_UNREGISTER_EVENTFD, NULL, 0));
    OK(registers(r.fd, IORING_REGISTER_EVENTFD_ASYNC, &event, 1));
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    EQ(done(&r), 0);
    ERR(read(event, &count, 8), EAGAIN);
    OK(registers(r.fd, IORING_UNREGISTER_EVENTFD, NULL, 0));
    int pipe_end = fds[0];
    ERR(registers(r.fd, IORING_REGISTER_EVENTFD, &pipe_end, 1), EINVAL);
}

CASE(what_is_served_is_told) {
    struct ring r = ring(8);
    struct io_uring_probe *p = calloc(1, sizeof *p + 256 * sizeof p->ops[0]);
    OK(registers(r.fd, IORING_REGISTER_PROBE, p, 256));
    CHECK(p->last_op >= IORING_OP_LINKAT);
    CHECK(p->ops_len > IORING_OP_LINKAT);
    for (int i = 0; i <= IORING_OP_LINKAT; i++) {
        EQ(p->ops[i].op, i);
        CHECK(p->ops[i].flags & IO_URING_OP_SUPPORTED);
    }
    ERR(registers(r.fd, IORING_REGISTER_PROBE, p, 256), EINVAL);
}

CASE(waiting_ends_at_a_time) {
    struct ring r = ring(8);
    struct __kernel_timespec t = ms(40);
    struct io_uring_getevents_arg arg = {.ts = (uintptr_t)&t};
    int64_t begin = now_ns(CLOCK_MONOTONIC);
    unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    ERR(syscall(SYS_io_uring_enter, r.fd, 0, 1, flags, &arg, sizeof arg), ETIME);
    CHECK(now_ns(CLOCK_MONOTONIC) - begin >= 40000000);
    ERR(syscall(SYS_io_uring_enter, r.fd, 0, 1, flags, &arg, 8), EINVAL);
}

static volatile sig_atomic_t caught;
static void on_signal(int signo) { caught = signo; }

CASE(waiting_is_interrupted) {
    struct ring r = ring(8);
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    OK(sigaction(SIGALRM, &a, NULL));
    block_signal(SIGALRM);
    struct itimerval soon = {.it_value.tv_usec = 30000};
    OK(setitimer(ITIMER_REAL, &soon, NULL));
    sigset_t none;
    sigemptyset(&none);
    ERR(syscall(SYS_io_uring_enter, r.fd, 0, 1, IORING_ENTER_GETEVENTS, &none, 8), EINTR);
    EQ(caught, SIGALRM);
    sigset_t now;
    OK(sigprocmask(SIG_BLOCK, NULL, &now));
    CHECK(sigismember(&now, SIGALRM));
}

CASE(a_ring_begins_disabled) {
    struct ring r = ring_with(8, IORING_SETUP_R_DISABLED);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    ERR(submit(&r, 0), EBADFD);
    OK(registers(r.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0));
    EQ(enter(r.fd, 1, 1, IORING_ENTER_GETEVENTS), 1);
    expect(&r, 1, 0);
    ERR(registers(r.fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0), EBADFD);
}

static void *submit_elsewhere(void *arg) {
    struct ring *r = arg;
    next(r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    ERR(submit(r, 0), EEXIST);
    return NULL;
}

CASE(one_thread_submits) {
    struct ring r = ring_with(8, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    EQ(submit(&r, 1), 1);
    expect(&r, 1, 0);
    pthread_t t;
    ZERO(pthread_create(&t, NULL, submit_elsewhere, &r));
    ZERO(pthread_join(t, NULL));
}

CASE(rings_send_each_other_answers) {
    struct ring r = ring(8), other = ring(8);
    next(&r, IORING_OP_MSG_RING, other.fd, NULL, 42, 99, 1);
    EQ(done(&r), 0);
    expect(&other, 99, 42);
    int file = create("file");
    next(&r, IORING_OP_MSG_RING, file, NULL, 42, 99, 1);
    EQ(done(&r), -EBADFD);
}

CASE(credentials_are_kept) {
    struct ring r = ring(8);
    if (geteuid() != 0) skip_case("not root");
    int root = OK(registers(r.fd, IORING_REGISTER_PERSONALITY, NULL, 0));
    int fd = create("secret");
    OK(fchmod(fd, 0600));
    OK(chmod(".", 0755));
    OK(syscall(SYS_setresuid, 1000, 1000, 1000));
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "secret", 0, 0, 1);
    EQ(done(&r), -EACCES);
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "secret", 0, 0, 1)->personality = root;
    CHECK(done(&r) >= 0);
    OK(registers(r.fd, IORING_UNREGISTER_PERSONALITY, NULL, root));
    ERR(registers(r.fd, IORING_UNREGISTER_PERSONALITY, NULL, root), EINVAL);
}

CASE(hostile_rings) {
    struct ring r = ring(8);
    // An index that leads nowhere is dropped.
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 1);
    r.array[0] = 0x7fffffff;
    r.filled = 0;
    atomic_fetch_add(r.sq_tail, 1);
    EQ(enter(r.fd, 1, 0, 0), 0);
    EQ(*r.sq_dropped, 1);
    // A tail that has run away is a full ring.
    for (int i = 0; i < 8; i++) {
        r.sqes[i] = (struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = i};
        r.array[i] = i;
    }
    atomic_store(r.sq_tail, 0x80000001);
    int taken = OK(enter(r.fd, 1000, 0, 0));
    CHECK(taken <= 8);
    // So is a head of answers.
    atomic_store(r.cq_head, 0xdeadbeef);
    for (int i = 0; i < 100; i++) {
        atomic_fetch_add(r.sq_tail, 8);
        enter(r.fd, 8, 0, IORING_ENTER_GETEVENTS);
    }
    memset(r.rings, 0xff, r.p.cq_off.cqes);
    enter(r.fd, 8, 1, IORING_ENTER_GETEVENTS);
    memset(r.rings, 0, r.p.cq_off.cqes);
    enter(r.fd, 8, 0, IORING_ENTER_GETEVENTS);
    // Noise.
    srand(1);
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 8; i++) {
            unsigned char *bytes = (void *)&r.sqes[i];
            for (size_t j = 0; j < sizeof r.sqes[i]; j++) bytes[j] = rand();
            // Nothing that could end this case: descriptors and memory of its own
            // stay.
            r.sqes[i].opcode = (unsigned char[]){0, 6, 7, 11, 12, 14, 15, 31, 32, 255, 29, 40}[rand() % 12];
            r.sqes[i].fd = -1;
            r.sqes[i].flags &= ~(IOSQE_IO_DRAIN | IOSQE_CQE_SKIP_SUCCESS);
            r.array[i] = i;
        }
        atomic_store(r.sq_tail, atomic_load(r.sq_head) + 8);
        enter(r.fd, 8, 0, IORING_ENTER_GETEVENTS);
        atomic_store(r.cq_head, atomic_load(r.cq_tail));
    }
}

CASE(a_ring_that_is_closed_lets_go) {
    struct ring r = ring(8);
    int fds[2];
    char back[8];
    OK(pipe(fds));
    next(&r, IORING_OP_READ, fds[0], back, 8, 0, 1);
    EQ(submit(&r, 0), 1);
    close(fds[0]);
    // The request still reads.
    signal(SIGPIPE, SIG_IGN);
    struct pollfd p = {fds[1], POLLOUT, 0};
    EQ(poll(&p, 1, 0), 1);
    EQ(p.revents, POLLOUT);
    OK(munmap(r.rings, r.p.sq_off.array + r.p.sq_entries * sizeof(unsigned)));
    OK(munmap(r.sqes, r.p.sq_entries * sizeof *r.sqes));
    OK(close(r.fd));
    WAIT_UNTIL(poll(&p, 1, 0) == 1 && p.revents & POLLERR);
    ERR(write(fds[1], "x", 1), EPIPE);
}

CASE(a_process_that_ends_lets_go) {
    skip_without();
    int fds[2], sync[2];
    OK(pipe(fds));
    OK(pipe(sync));
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct ring r = ring(8);
        static char back[8];
        struct __kernel_timespec t = ms(100000);
        next(&r, IORING_OP_READ, fds[0], back, 8, 0, 1)->flags = IOSQE_IO_LINK;
        next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2);
        next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 3)->flags = IOSQE_IO_DRAIN;
        next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 4);
        next(&r, IORING_OP_POLL_ADD, r.fd, NULL, 0, 0, 5)->poll32_events = POLLPRI;
        EQ(submit(&r, 0), 5);
        EQ(write(sync[1], "x", 1), 1);
        pause();
    }
    char one;
    EQ(read(sync[0], &one, 1), 1);
    close(fds[0]);
    struct pollfd p = {fds[1], POLLOUT, 0};
    EQ(poll(&p, 1, 0), 1);
    EQ(p.revents, POLLOUT);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    WAIT_UNTIL(poll(&p, 1, 0) == 1 && p.revents & POLLERR);
}

int helper_main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "after-exec") != 0) return -1;
    // What the program before asked for is not done to this one.
    int in = atoi(argv[2]), out = atoi(argv[3]);
    char back[8] = "";
    if (write(out, "mine", 4) != 4) return 1;
    sleep_ms(20);
    return read(in, back, 8) == 4 && strcmp(back, "mine") == 0 ? 0 : 2;
}

CASE(a_program_that_is_executed_is_left_alone) {
    skip_without();
    pid_t pid = OK(fork());
    if (pid == 0) {
        int fds[2];
        OK(pipe(fds));
        struct ring r = ring(8);
        OK(fcntl(r.fd, F_SETFD, 0));
        static char back[8];
        for (int i = 0; i < 4; i++) next(&r, IORING_OP_READ, fds[0], back, 8, 0, i);
        EQ(submit(&r, 0), 4);
        char in[16], out[16];
        snprintf(in, sizeof in, "%d", fds[0]);
        snprintf(out, sizeof out, "%d", fds[1]);
        execl(self_path, self_path, "after-exec", in, out, NULL);
        _exit(9);
    }
    expect_exit(pid, 0);
}

CASE(a_child_shares_the_ring) {
    struct ring r = ring(8);
    int fds[2];
    static char back[8];
    OK(pipe(fds));
    pid_t pid = OK(fork());
    if (pid == 0) {
        next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 11);
        EQ(submit(&r, 0), 1);
        next(&r, IORING_OP_READ, fds[0], back, 8, 0, 12);
        EQ(submit(&r, 0), 1);
        _exit(0);
    }
    expect_exit(pid, 0);
    expect(&r, 11, 0);
    // What it had not got nobody gets for it.
    EQ(write(fds[1], "rest", 4), 4);
    expect(&r, 12, -ECANCELED);
    EQ(read(fds[0], back, 8), 4);
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 13);
    EQ(done(&r), 0);
}

enum { THREADS = 64, EACH = 50 };
static struct ring shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int answered;

// Takes the answers that are there, whosever they are.
static void take_answers(void) {
    pthread_mutex_lock(&lock);
    if (!ready(&shared)) OK(enter(shared.fd, 0, 0, IORING_ENTER_GETEVENTS));
    while (ready(&shared)) {
        struct answer c = take(&shared);
        EQ(c.res, 2);
        answered++;
    }
    pthread_mutex_unlock(&lock);
}

static void *use_the_ring(void *arg) {
    int fds[2];
    char back[8];
    (void)arg;
    OK(pipe(fds));
    for (int i = 0; i < EACH; i++) {
        pthread_mutex_lock(&lock);
        next(&shared, IORING_OP_WRITE, fds[1], "ab", 2, 0, 1)->flags = IOSQE_IO_LINK;
        next(&shared, IORING_OP_READ, fds[0], back, 2, 0, 2);
        EQ(submit(&shared, 0), 2);
        pthread_mutex_unlock(&lock);
        take_answers();
    }
    // The end of a thread may end what it has asked for.
    while (answered < THREADS * EACH * 2) {
        take_answers();
        sleep_ms(1);
    }
    return NULL;
}

CASE(many_threads_use_one_ring) {
    shared = ring(256);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++) ZERO(pthread_create(&t[i], NULL, use_the_ring, NULL));
    for (int i = 0; i < THREADS; i++) ZERO(pthread_join(t[i], NULL));
    EQ(answered, THREADS * EACH * 2);
}

static int feed[2];
static void *write_later(void *arg) {
    (void)arg;
    sleep_ms(30);
    EQ(write(feed[1], "payload", 7), 7);
    return NULL;
}

// An answer is seen without a call, and with it what was read: also in a page
// that was shared.
CASE(answers_are_seen_without_a_call) {
    for (int threads = 0; threads < 2; threads++) {
        struct ring r = ring(8);
        OK(pipe(feed));
        char *page = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        strcpy(page, "before");
        int hold[2];
        OK(pipe(hold));
        pid_t pid = OK(fork());
        if (pid == 0) {
            char one;
            close(hold[1]);
            _exit(read(hold[0], &one, 1) == 0 && strcmp(page, "before") == 0 ? 0 : 1);
        }
        next(&r, IORING_OP_READ, feed[0], page, 64, 0, 1);
        EQ(submit(&r, 0), 1);
        pthread_t t;
        pid_t writer = 0;
        if (threads) {
            ZERO(pthread_create(&t, NULL, write_later, NULL));
        } else if ((writer = OK(fork())) == 0) {
            close(hold[1]);
            write_later(NULL);
            _exit(0);
        }
        volatile char sum = 0;
        while (atomic_load(r.cq_tail) == 0) sum += page[0];
        if (memcmp(page, "payload", 7) != 0) FAIL("%.8s, with %d more threads", page, threads);
        expect(&r, 1, 7);
        if (threads) ZERO(pthread_join(t, NULL));
        else expect_exit(writer, 0);
        close(hold[1]);
        expect_exit(pid, 0);
    }
}

CASE(many_requests_wait_at_once) {
    enum { MANY = 1000 };
    struct ring r = ring(1024);
    int fds[2];
    static char back[MANY];
    stream(fds);
    for (int i = 0; i < MANY; i++) next(&r, IORING_OP_RECV, fds[0], &back[i], 1, 0, i);
    EQ(submit(&r, 0), MANY);
    static char text[MANY];
    memset(text, 'x', MANY);
    EQ(write(fds[1], text, MANY), MANY);
    for (int i = 0; i < MANY; i++) EQ(take(&r).res, 1);
    CHECK(memcmp(back, text, MANY) == 0);
}

CASE(requests_are_served_elsewhere) {
    struct ring r = ring(8);
    int fd = create("file");
    char back[8] = "";
    EQ(write(fd, "async", 5), 5);
    next(&r, IORING_OP_READ, fd, back, 5, 0, 1)->flags = IOSQE_ASYNC;
    EQ(done(&r), 5);
    STR_EQ(back, "async");
}

CASE(one_request_receives_many) {
    struct ring r = ring(8);
    static char pool[4][16];
    int ends[2];
    stream(ends);
    next(&r, IORING_OP_PROVIDE_BUFFERS, 4, pool, 16, 0, 1)->buf_group = 3;
    CHECK(done(&r) >= 0);
    struct io_uring_sqe *s = next(&r, IORING_OP_RECV, ends[0], NULL, 0, 0, 2);
    s->flags = IOSQE_BUFFER_SELECT, s->buf_group = 3, s->ioprio = IORING_RECV_MULTISHOT;
    EQ(submit(&r, 0), 1);
    for (int i = 0; i < 4; i++) {
        EQ(write(ends[1], "part", 4), 4);
        struct answer c = take(&r);
        EQ(c.res, 4);
        CHECK(c.flags & IORING_CQE_F_MORE);
        CHECK(memcmp(pool[c.flags >> IORING_CQE_BUFFER_SHIFT], "part", 4) == 0);
    }
    EQ(write(ends[1], "part", 4), 4);
    struct answer c = take(&r);
    EQ(c.res, -ENOBUFS);
    CHECK(!(c.flags & IORING_CQE_F_MORE));
}

CASE(datagrams_have_addresses) {
    struct ring r = ring(8);
    int receiver = OK(socket(AF_INET, SOCK_DGRAM, 0)), sender = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof a;
    OK(bind(receiver, (void *)&a, sizeof a));
    OK(getsockname(receiver, (void *)&a, &length));
    char back[8] = "";
    next(&r, IORING_OP_RECV, receiver, back, 8, 0, 1);
    EQ(submit(&r, 0), 1);
    struct io_uring_sqe *s = next(&r, IORING_OP_SEND, sender, "dgram", 5, (uintptr_t)&a, 2);
    s->addr_len = sizeof a;
    EQ(submit(&r, 2), 1);
    EQ(result_of(&r, 2, 1), 5);
    STR_EQ(back, "dgram");
}

CASE(a_full_datagram_socket_is_waited_for) {
    struct ring r = ring(8);
    int ends[2];
    char back[8];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    int sent = 0;
    while (send(ends[1], "x", 1, MSG_DONTWAIT) == 1) sent++;
    next(&r, IORING_OP_SEND, ends[1], "y", 1, 0, 1);
    EQ(submit(&r, 0), 1);
    CHECK(is_quiet(&r));
    for (int i = 0; i < sent; i++) EQ(read(ends[0], back, 8), 1);
    expect(&r, 1, 1);
    EQ(read(ends[0], back, 8), 1);
    EQ(back[0], 'y');
}

CASE(what_is_taken_away_is_seen_at_once) {
    struct ring r = ring(8);
    int fd = OK(syscall(SYS_memfd_create, "file", 0));
    OK(ftruncate(fd, 8192));
    char *memory = OK(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    memset(memory, 7, 8192);
    // FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    next(&r, IORING_OP_FALLOCATE, fd, (void *)4096, 3, 0, 1);
    EQ(done(&r), 0);
    EQ(memory[0], 0);
    EQ(memory[4096], 7);
    pthread_t t;
    feed[1] = OK(open("/dev/null", O_WRONLY));
    ZERO(pthread_create(&t, NULL, write_later, NULL));
    next(&r, IORING_OP_MADVISE, -1, memory, 8192, 0, 1)->fadvise_advice = MADV_DONTNEED;
    EQ(done(&r), 0);
    EQ(memory[4096], 7);
    ZERO(pthread_join(t, NULL));
}

CASE(a_ring_watches_itself) {
    struct ring r = ring(8);
    int set = OK(epoll_create1(0));
    struct epoll_event e = {EPOLLIN, {0}};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, r.fd, &e));
    next(&r, IORING_OP_POLL_ADD, r.fd, NULL, IORING_POLL_ADD_MULTI, 0, 1)->poll32_events = POLLIN;
    next(&r, IORING_OP_POLL_ADD, set, NULL, IORING_POLL_ADD_MULTI, 0, 2)->poll32_events = POLLIN;
    EQ(submit(&r, 0), 2);
    for (int i = 0; i < 20; i++) {
        next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 3);
        EQ(submit(&r, 1), 1);
        atomic_store(r.cq_head, atomic_load(r.cq_tail));
    }
    sleep_ms(10);
}

CASE(a_chain_is_cancelled_as_a_whole) {
    struct ring r = ring(8);
    int fds[2];
    char back[8];
    OK(pipe(fds));
    next(&r, IORING_OP_READ, fds[0], back, 5, 0, 1)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 2)->flags = IOSQE_IO_LINK;
    next(&r, IORING_OP_NOP, -1, NULL, 0, 0, 3);
    EQ(submit(&r, 0), 3);
    next(&r, IORING_OP_ASYNC_CANCEL, -1, (void *)1, 0, 0, 4);
    EQ(submit(&r, 4), 1);
    for (int i = 0; i < 4; i++) {
        struct answer c = take(&r);
        EQ(c.res, c.user_data == 4 ? 0 : -ECANCELED);
    }
}

CASE(the_largest_ring_is_full) {
    struct ring r = ring(32768);
    for (int i = 0; i < 32768; i++) next(&r, IORING_OP_NOP, -1, NULL, 0, 0, i);
    EQ(submit(&r, 32768), 32768);
    EQ(ready(&r), 32768);
    for (int i = 0; i < 32768; i++) expect(&r, i, 0);
}

CASE(fifos_are_opened_without_waiting_for_them) {
    struct ring r = ring(8);
    OK(mkfifo("fifo", 0600));
    next(&r, IORING_OP_OPENAT, AT_FDCWD, "fifo", 0, 0, 1)->open_flags = O_RDONLY;
    EQ(submit(&r, 0), 1);
    int writer = OK(open("fifo", O_WRONLY));
    int reader = take(&r).res;
    CHECK(reader >= 0);
    EQ(write(writer, "x", 1), 1);
    char one;
    EQ(read(reader, &one, 1), 1);
}

CASE(stored_addresses_may_change_after_submission) {
    struct ring r = ring(8);
    int fds[2];
    char back[2][8] = {"", ""};
    OK(pipe(fds));
    struct iovec v = {back[0], 8};
    struct __kernel_timespec t = ms(30);
    next(&r, IORING_OP_READV, fds[0], &v, 1, 0, 1);
    next(&r, IORING_OP_TIMEOUT, -1, &t, 1, 0, 2);
    EQ(submit(&r, 0), 2);
    v.iov_base = back[1];
    t = ms(100000);
    EQ(write(fds[1], "stable", 6), 6);
    expect(&r, 1, 6);
    STR_EQ(back[0], "stable");
    expect(&r, 2, -ETIME);
}

CASE(a_poll_of_a_connection_goes_on) {
    struct ring r = ring(8);
    struct sockaddr_in a;
    int server = listener(&a), client = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(client, (void *)&a, sizeof a));
    int peer = OK(accept(server, NULL, NULL));
    next(&r, IORING_OP_POLL_ADD, peer, NULL, IORING_POLL_ADD_MULTI, 0, 1)->poll32_events = POLLIN;
    EQ(submit(&r, 0), 1);
    char back[8];
    for (int i = 0; i < 5; i++) {
        EQ(write(client, "ping", 4), 4);
        struct answer c = take(&r);
        CHECK(c.res & POLLIN && c.flags & IORING_CQE_F_MORE);
        EQ(read(peer, back, 4), 4);
    }
    close(client);
    struct answer c = take(&r);
    CHECK(c.res & POLLIN);
}

// ---- pages that somebody else sees to ----

static int faults_at;

static void *sees_to(void *count) {
    for (int i = 0; i < (int)(intptr_t)count; i++) {
        struct uffd_msg msg;
        EQ(read(faults_at, &msg, sizeof msg), sizeof msg);
        EQ(msg.event, UFFD_EVENT_PAGEFAULT);
        sleep_ms(5);
        static char page[4096];
        memset(page, 's', sizeof page);
        struct uffdio_copy copy = {.dst = msg.arg.pagefault.address & -4096, .src = (uintptr_t)page, .len = 4096};
        if (ioctl(faults_at, UFFDIO_COPY, &copy) == 0) continue;
        // Linux may ask for a page twice: for who submits, and for a thread of its own.
        EQ(errno, EEXIST);
        i--;
    }
    return NULL;
}

CASE(missing_pages_are_waited_for) {
    faults_at = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (faults_at == -1 && errno == ENOSYS) skip_case("the kernel has no userfaultfd");
    OK(faults_at);
    struct uffdio_api api = {.api = UFFD_API};
    OK(ioctl(faults_at, UFFDIO_API, &api));
    char *p = OK(mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct uffdio_register range = {.range = {(uintptr_t)p, 4 * 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    OK(ioctl(faults_at, UFFDIO_REGISTER, &range));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, sees_to, (void *)4));
    struct ring r = ring(8);
    int ends[2], sockets[2], file = OK(open("f", O_RDWR | O_CREAT, 0644));
    OK(pipe(ends));
    EQ(write(ends[1], "piped", 5), 5);
    next(&r, IORING_OP_READ, ends[0], p + 8, 5, -1, 1);
    submit(&r, 1);
    expect(&r, 1, 5);
    EQ(memcmp(p + 7, "spipeds", 7), 0);
    // A file, out of and into memory.
    next(&r, IORING_OP_WRITE, file, p + 4096, 6, 0, 2);
    submit(&r, 1);
    expect(&r, 2, 6);
    next(&r, IORING_OP_READ, file, p + 2 * 4096 + 1, 6, 0, 3);
    submit(&r, 1);
    expect(&r, 3, 6);
    EQ(memcmp(p + 2 * 4096, "ssssssss", 8), 0);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    next(&r, IORING_OP_SEND, sockets[0], p + 3 * 4096, 3, 0, 4);
    submit(&r, 1);
    expect(&r, 4, 3);
    char got[3];
    EQ(read(sockets[1], got, 3), 3);
    EQ(memcmp(got, "sss", 3), 0);
    ZERO(pthread_join(thread, NULL));
}
