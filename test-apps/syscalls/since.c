// Commands of older calls that came with Linux 6.3 to 6.12: of fcntl(2), prctl(2), mmap(2), io_uring_setup(2), name_to_handle_at(2), and
// ioctl(2) requests of files, namespaces and epoll. A kernel that has not got one skips its cases.
#include "harness.h"

#include <elf.h>
#include <linux/io_uring.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/shm.h>

// ---- fcntl ----

enum { DUPFD_QUERY = 1027, CREATED_QUERY = 1028 };

CASE(descriptors_of_one_file) {
    int one = create("a"), other = OK(open("a", O_RDONLY)), copy = OK(dup(one)), path = OK(open("a", O_PATH));
    if (fcntl(one, DUPFD_QUERY, copy) < 0 && errno == EINVAL) skip_case("no F_DUPFD_QUERY");
    EQ(fcntl(one, DUPFD_QUERY, copy), 1);
    EQ(fcntl(copy, DUPFD_QUERY, one), 1);
    EQ(fcntl(one, DUPFD_QUERY, one), 1);
    EQ(fcntl(one, DUPFD_QUERY, other), 0);
    EQ(fcntl(path, DUPFD_QUERY, one), 0);
    EQ(fcntl(path, DUPFD_QUERY, path), 1);
    ERR(fcntl(999, DUPFD_QUERY, one), EBADF);
}

CASE(who_made_a_file) {
    int made = OK(open("a", O_RDWR | O_CREAT, 0644)), found = OK(open("a", O_RDWR | O_CREAT, 0644));
    if (fcntl(made, CREATED_QUERY) < 0 && errno == EINVAL) skip_case("no F_CREATED_QUERY");
    EQ(fcntl(made, CREATED_QUERY), 1);
    EQ(fcntl(OK(dup(made)), CREATED_QUERY), 1);
    EQ(fcntl(found, CREATED_QUERY), 0);
    EQ(fcntl(OK(open("b", O_RDWR | O_CREAT | O_EXCL, 0644)), CREATED_QUERY), 1);
    EQ(fcntl(OK(open("b", O_RDONLY)), CREATED_QUERY), 0);
    EQ(fcntl(OK(open("b", O_PATH)), CREATED_QUERY), 0);
}

// ---- prctl ----

enum { GET_AUXV = 0x41555856, SET_MDWE = 65, GET_MDWE = 66, REFUSE = 1, NOT_INHERITED = 2 };

CASE(the_auxiliary_vector) {
    Elf64_auxv_t own[64];
    memset(own, 0xff, sizeof own);
    long size = prctl(GET_AUXV, own, sizeof own, 0, 0);
    if (size < 0 && errno == EINVAL) skip_case("no PR_GET_AUXV");
    CHECK(size > 0 && size <= (long)sizeof own && size % sizeof *own == 0);
    int count = 0, pages = 0;
    while (own[count].a_type != AT_NULL) {
        if (own[count].a_type == AT_PAGESZ) pages = own[count].a_un.a_val;
        count++;
    }
    EQ(pages, 4096);
    char file[sizeof own];
    size_t read = read_file("/proc/self/auxv", file, sizeof file);
    CHECK(read >= (count + 1) * sizeof *own);
    EQ(memcmp(file, own, (count + 1) * sizeof *own), 0);
    // As much as there is room for, and how much there is.
    char few[16] = {0};
    EQ(prctl(GET_AUXV, few, 8, 0, 0), size);
    EQ(memcmp(few, own, 8), 0);
    EQ(few[8], 0);
    ERR(prctl(GET_AUXV, own, sizeof own, 1, 0), EINVAL);
    ERR(prctl(GET_AUXV, 8, sizeof own, 0, 0), EFAULT);
}

static void needs_mdwe(void) {
    if (prctl(GET_MDWE, 0, 0, 0, 0) < 0) skip_case("no PR_SET_MDWE");
}

static void *map(int prot) { return mmap(NULL, 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }

CASE(nothing_becomes_executable) {
    needs_mdwe();
    enum { RX = PROT_READ | PROT_EXEC, RW = PROT_READ | PROT_WRITE, RWX = RX | RW };
    void *data = OK(map(RW)), *code = OK(map(RX));
    EQ(prctl(GET_MDWE, 0, 0, 0, 0), 0);
    OK(prctl(SET_MDWE, REFUSE, 0, 0, 0));
    EQ(prctl(GET_MDWE, 0, 0, 0, 0), REFUSE);
    ERR(map(RWX), EACCES);
    ERR(mprotect(data, 4096, RX), EACCES);
    ERR(mprotect(code, 4096, RWX), EACCES);
    OK(mprotect(code, 4096, RX));
    OK(map(RX));
    OK(map(RW));
    OK(mprotect(code, 4096, PROT_READ));
    ERR(mprotect(code, 4096, RX), EACCES);
    int id = OK(shmget(IPC_PRIVATE, 4096, 0700));
    void *at = shmat(id, NULL, SHM_EXEC);
    int error = errno;
    OK(shmctl(id, IPC_RMID, NULL));
    CHECK(at == (void *)-1);
    EQ(error, EACCES);
    // It stays so, and is inherited.
    OK(prctl(SET_MDWE, REFUSE, 0, 0, 0));
    ERR(prctl(SET_MDWE, 0, 0, 0, 0), EPERM);
    ERR(prctl(SET_MDWE, REFUSE | NOT_INHERITED, 0, 0, 0), EPERM);
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(prctl(GET_MDWE, 0, 0, 0, 0), REFUSE);
        ERR(map(RWX), EACCES);
        execl(self_path, "since", "@mdwe", "1", NULL);
        _exit(1);
    }
    expect_exit(pid, 0);
}

CASE(what_is_refused_may_end_with_the_program) {
    needs_mdwe();
    ERR(prctl(SET_MDWE, 4, 0, 0, 0), EINVAL);
    ERR(prctl(SET_MDWE, NOT_INHERITED, 0, 0, 0), EINVAL);
    ERR(prctl(SET_MDWE, REFUSE, 1, 0, 0), EINVAL);
    ERR(prctl(GET_MDWE, 1, 0, 0, 0), EINVAL);
    OK(prctl(SET_MDWE, 0, 0, 0, 0));
    if (prctl(SET_MDWE, REFUSE | NOT_INHERITED, 0, 0, 0) < 0 && errno == EINVAL) skip_case("no PR_MDWE_NO_INHERIT");
    EQ(prctl(GET_MDWE, 0, 0, 0, 0), REFUSE | NOT_INHERITED);
    ERR(map(PROT_WRITE | PROT_EXEC), EACCES);
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(prctl(GET_MDWE, 0, 0, 0, 0), 0);
        OK(map(PROT_WRITE | PROT_EXEC));
        _exit(0);
    }
    expect_exit(pid, 0);
    pid = OK(vfork());
    if (pid == 0) {
        execl(self_path, "since", "@mdwe", "0", NULL);
        _exit(1);
    }
    expect_exit(pid, 0);
}

int helper_main(int argc, char **argv) {
    if (argc < 3 || strcmp(argv[1], "@mdwe")) return -1;
    int now = prctl(GET_MDWE, 0, 0, 0, 0);
    bool maps = map(PROT_READ | PROT_WRITE | PROT_EXEC) != MAP_FAILED;
    return now == atoi(argv[2]) && maps == !now ? 0 : 2;
}

// ---- mmap ----

enum { DROPPABLE = 8 };

CASE(memory_that_may_be_dropped) {
    char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, DROPPABLE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED && errno == EINVAL) skip_case("no MAP_DROPPABLE");
    CHECK(p != MAP_FAILED);
    p[0] = 7;
    CHECK(p[0] == 7 || p[0] == 0);
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(p[0], 0);
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(madvise(p, 4096, MADV_KEEPONFORK), EINVAL);
    ERR(madvise(p, 4096, MADV_DODUMP), EINVAL);
    OK(madvise(p, 4096, MADV_WIPEONFORK));
    int file = create("a");
    OK(ftruncate(file, 4096));
    ERR(mmap(NULL, 4096, PROT_READ, DROPPABLE, file, 0), EINVAL);
    ERR(mmap(NULL, 4096, PROT_READ, DROPPABLE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0), EINVAL);
}

// ---- name_to_handle_at ----

struct handle {
    struct file_handle head;
    char body[128];
};
enum { FID = 0x200, UNIQUE_MOUNT = 1 };

CASE(handles_to_compare) {
    struct handle one = {.head.handle_bytes = 128}, other = one, third = one;
    int id, process = OK(open("/proc/self/status", O_RDONLY)), again = OK(open("/proc/self/status", O_RDONLY));
    int stat = OK(open("/proc/self/stat", O_RDONLY));
    if (name_to_handle_at(process, "", &one.head, &id, FID | AT_EMPTY_PATH) < 0 && errno == EINVAL) skip_case("no AT_HANDLE_FID");
    CHECK(one.head.handle_bytes > 0 && one.head.handle_bytes <= 128);
    OK(name_to_handle_at(again, "", &other.head, &id, FID | AT_EMPTY_PATH));
    OK(name_to_handle_at(stat, "", &third.head, &id, FID | AT_EMPTY_PATH));
    EQ(one.head.handle_type, other.head.handle_type);
    EQ(one.head.handle_bytes, other.head.handle_bytes);
    EQ(memcmp(one.head.f_handle, other.head.f_handle, one.head.handle_bytes), 0);
    CHECK(memcmp(one.head.f_handle, third.head.f_handle, one.head.handle_bytes));
    // Nothing is opened by it.
    struct handle plain = {.head.handle_bytes = 128};
    ERR(name_to_handle_at(process, "", &plain.head, &id, AT_EMPTY_PATH), EOPNOTSUPP);
    ERR(open_by_handle_at(process, &one.head, O_RDONLY), ESTALE);
    one.head.handle_bytes = 0;
    ERR(name_to_handle_at(process, "", &one.head, &id, FID | AT_EMPTY_PATH), EOVERFLOW);
    CHECK(one.head.handle_bytes > 0);
}

CASE(a_handle_with_the_unique_number_of_its_mount) {
    own_mounts();
    OK(mkdir("d", 0755));
    OK(mount("new", "d", "tmpfs", 0, NULL));
    struct handle handle = {.head.handle_bytes = 128};
    uint64_t id = 0;
    if (name_to_handle_at(AT_FDCWD, "d", &handle.head, (int *)&id, UNIQUE_MOUNT) < 0 && errno == EINVAL)
        skip_case("no AT_HANDLE_MNT_ID_UNIQUE");
    struct statx x;
    OK(statx(AT_FDCWD, "d", 0, 0x4000, &x));
    EQ(id, x.stx_mnt_id);
    OK(umount("d"));
}

// ---- ioctl of files ----

struct uuid {
    uint8_t length, bytes[16];
};
#define GET_UUID _IOR(0x15, 0, struct uuid)

CASE(each_tmpfs_has_a_uuid) {
    own_mounts();
    struct uuid seen[2];
    for (int i = 0; i < 2; i++) {
        OK(mkdir("d", 0755));
        OK(mount("new", "d", "tmpfs", 0, NULL));
        int dir = OK(open("d", O_RDONLY)), file = create("d/f");
        if (ioctl(dir, GET_UUID, &seen[i]) < 0 && errno == ENOTTY) skip_case("no FS_IOC_GETFSUUID");
        EQ(seen[i].length, 16);
        struct uuid again;
        OK(ioctl(file, GET_UUID, &again));
        EQ(memcmp(&seen[i], &again, sizeof again), 0);
        EQ(seen[i].bytes[6] >> 4, 4);
        ERR(ioctl(dir, GET_UUID, 8), EFAULT);
        // It has no place in sysfs.
        char path[129];
        ERR(ioctl(dir, _IOR(0x15, 1, char[129]), path), ENOTTY);
        close(dir);
        close(file);
        OK(umount("d"));
        OK(rmdir("d"));
    }
    CHECK(memcmp(&seen[0], &seen[1], sizeof seen[0]));
    ERR(ioctl(OK(open("/proc/self/status", O_RDONLY)), GET_UUID, &seen[0]), ENOTTY);
}

// ---- ioctl of namespaces ----

#define PID_FROM _IOR(0xb7, 6, int)
#define TGID_FROM _IOR(0xb7, 7, int)
#define PID_IN _IOR(0xb7, 8, int)
#define TGID_IN _IOR(0xb7, 9, int)

CASE(numbers_in_another_pid_namespace) {
    int own = OK(open("/proc/self/ns/pid", O_RDONLY)), mounts = OK(open("/proc/self/ns/mnt", O_RDONLY));
    int number = ioctl(own, PID_FROM, getpid());
    if (number < 0 && errno == ENOTTY) skip_case("no such requests");
    EQ(number, getpid());
    ERR(ioctl(mounts, PID_FROM, getpid()), EINVAL);
    ERR(ioctl(own, PID_FROM, 0), ESRCH);
    ERR(ioctl(own, TGID_IN, 1 << 29), ESRCH);
    int ready[2];
    OK(pipe(ready));
    if (unshare(CLONE_NEWPID)) skip_case("no PID namespace to be had");
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(write(ready[1], "x", 1), 1);
        pause();
    }
    char byte, path[64];
    EQ(read(ready[0], &byte, 1), 1);
    sprintf(path, "/proc/%d/ns/pid", pid);
    int inner = OK(open(path, O_RDONLY));
    EQ(ioctl(inner, PID_FROM, 1), pid);
    EQ(ioctl(inner, TGID_FROM, 1), pid);
    EQ(ioctl(inner, PID_IN, pid), 1);
    EQ(ioctl(inner, TGID_IN, pid), 1);
    // It does not see who made it.
    ERR(ioctl(inner, PID_IN, getpid()), ESRCH);
    ERR(ioctl(inner, PID_FROM, 7), ESRCH);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
}

struct mounts {
    uint32_t size, count;
    uint64_t id;
};
#define MOUNTS_ID _IOR(0xb7, 5, uint64_t)
#define MOUNTS_INFO _IOR(0xb7, 10, struct mounts)
#define MOUNTS_NEXT _IOR(0xb7, 11, struct mounts)
#define MOUNTS_PREV _IOR(0xb7, 12, struct mounts)

CASE(mount_namespaces_one_after_the_other) {
    int first = OK(open("/proc/self/ns/mnt", O_RDONLY)), pids = OK(open("/proc/self/ns/pid", O_RDONLY));
    struct mounts one, other;
    if (ioctl(first, MOUNTS_INFO, &one) < 0 && errno == ENOTTY) skip_case("no NS_MNT_GET_INFO");
    uint64_t id;
    OK(ioctl(first, MOUNTS_ID, &id));
    EQ(one.size, sizeof one);
    EQ(one.id, id);
    CHECK(one.count > 0);
    if (unshare(CLONE_NEWNS)) skip_case("no mount namespace to be had");
    int second = OK(open("/proc/self/ns/mnt", O_RDONLY));
    OK(mkdir("d", 0755));
    OK(ioctl(second, MOUNTS_INFO, &one));
    OK(mount("new", "d", "tmpfs", 0, NULL));
    OK(ioctl(second, MOUNTS_INFO, &other));
    EQ(other.count, one.count + 1);
    CHECK(one.id != id);
    // Others may come and go between the two.
    int at = first, steps = 0;
    uint64_t last = id;
    struct stat here, there;
    OK(fstat(second, &there));
    do {
        int next = OK(ioctl(at, MOUNTS_NEXT, &other));
        CHECK(other.id > last);
        last = other.id;
        OK(fstat(next, &here));
        if (at != first) close(at);
        at = next;
        steps++;
    } while (here.st_ino != there.st_ino);
    EQ(other.id, one.id);
    int before = OK(ioctl(second, MOUNTS_PREV, NULL));
    OK(ioctl(before, MOUNTS_INFO, &other));
    CHECK(other.id < one.id);
    ERR(ioctl(pids, MOUNTS_INFO, &one), EINVAL);
    ERR(ioctl(pids, MOUNTS_NEXT, &one), EINVAL);
    ERR(ioctl(first, MOUNTS_INFO, NULL), EINVAL);
    ERR(ioctl(pids, MOUNTS_ID, &id), EINVAL);
    OK(umount("d"));
}

struct request {
    uint32_t size, spare;
    uint64_t mount, param, namespace;
};

CASE(mounts_of_another_namespace) {
    int first = OK(open("/proc/self/ns/mnt", O_RDONLY));
    uint64_t id, ids[512], before = 0;
    if (ioctl(first, MOUNTS_ID, &id) < 0 && errno == ENOTTY) skip_case("no NS_GET_MNTNS_ID");
    struct request all = {sizeof all, 0, UINT64_MAX, 0, id};
    long count = OK(syscall(458, &all, ids, 512, 0));
    if (unshare(CLONE_NEWNS)) skip_case("no mount namespace to be had");
    OK(mkdir("d", 0755));
    OK(mount("new", "d", "tmpfs", 0, NULL));
    struct statx x;
    OK(statx(AT_FDCWD, "d", 0, 0x4000, &x));
    long theirs = OK(syscall(458, &all, ids, 512, 0));
    // Those of the other namespace as ever, and in rising order, without that one.
    CHECK(theirs >= count && count > 0);
    for (long i = 0; i < theirs; i++) {
        CHECK(ids[i] > before && ids[i] != x.stx_mnt_id);
        before = ids[i];
    }
    char about[4096];
    struct request one = {sizeof one, 0, ids[theirs - 1], 2, id};
    OK(syscall(457, &one, about, sizeof about, 0));
    one.namespace = 0;
    ERR(syscall(457, &one, about, sizeof about, 0), ENOENT);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setuid(1000));
        CHECK(syscall(458, &all, ids, 512, 0) == -1 && (errno == ENOENT || errno == EPERM));
        _exit(0);
    }
    expect_exit(pid, 0);
    all.namespace = 5;
    CHECK(syscall(458, &all, ids, 512, 0) == -1 && (errno == ENOENT || errno == EINVAL));
    OK(umount("d"));
}

// ---- io_uring ----

// Programs take it for granted by the kernel's version: libuv from Linux 6.6 on.
CASE(a_ring_without_an_array_of_indices) {
    struct io_uring_params p = {.flags = 1 << 16};
    int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
    if (ring < 0 && (errno == EINVAL || errno == ENOSYS || errno == EPERM)) skip_case("no IORING_SETUP_NO_SQARRAY");
    CHECK(ring >= 0);
    EQ(p.sq_off.array, 0);
    size_t size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *rings = OK(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING));
    struct io_uring_sqe *requests = OK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES));
    _Atomic unsigned *tail = (void *)(rings + p.sq_off.tail), *answered = (void *)(rings + p.cq_off.tail);
    struct io_uring_cqe *answers = (void *)(rings + p.cq_off.cqes);
    // Once around, in the order that they lie in.
    for (unsigned i = 0; i < 6; i++) {
        requests[i % 4] = (struct io_uring_sqe){.opcode = IORING_OP_NOP, .user_data = 100 + i};
        *tail = i + 1;
        EQ(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
        EQ(*answered, i + 1);
        EQ(answers[i].user_data, 100 + i);
        *(_Atomic unsigned *)(rings + p.cq_off.head) = i + 1;
    }
    EQ(*(unsigned *)(rings + p.sq_off.dropped), 0);
}

// ---- ioctl of epoll ----

struct params {
    uint32_t usecs;
    uint16_t budget;
    uint8_t prefers, pad;
};
#define SET_PARAMS _IOW(0x8a, 1, struct params)
#define GET_PARAMS _IOR(0x8a, 2, struct params)

CASE(how_an_epoll_polls_busily) {
    int poll = OK(epoll_create1(0)), other = OK(epoll_create1(0));
    struct params p = {1, 1, 1, 1};
    if (ioctl(poll, GET_PARAMS, &p) < 0 && (errno == ENOTTY || errno == EOPNOTSUPP || errno == EINVAL)) skip_case("no EPIOCGPARAMS");
    EQ(p.usecs, 0);
    EQ(p.budget, 0);
    EQ(p.prefers, 0);
    p = (struct params){200, 64, 1, 0};
    OK(ioctl(poll, SET_PARAMS, &p));
    memset(&p, 0, sizeof p);
    OK(ioctl(poll, GET_PARAMS, &p));
    EQ(p.usecs, 200);
    EQ(p.budget, 64);
    EQ(p.prefers, 1);
    OK(ioctl(other, GET_PARAMS, &p));
    EQ(p.usecs, 0);
    ERR(ioctl(poll, SET_PARAMS, &((struct params){200, 8, 2, 0})), EINVAL);
    ERR(ioctl(poll, SET_PARAMS, &((struct params){200, 8, 1, 1})), EINVAL);
    ERR(ioctl(poll, SET_PARAMS, &((struct params){1u << 31, 8, 1, 0})), EINVAL);
    ERR(ioctl(poll, SET_PARAMS, 8), EFAULT);
    OK(ioctl(poll, SET_PARAMS, &((struct params){200, 65, 1, 0})));
    AS_NOBODY(ERR(ioctl(poll, SET_PARAMS, &((struct params){200, 65, 1, 0})), EPERM));
}
