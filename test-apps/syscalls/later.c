// Calls of Linux 5.10 to 6.13, and a few old ones: process_madvise(2), process_mrelease(2), mseal(2), setxattrat(2) and its
// like, futex_requeue(2), lsm_list_modules(2), cachestat(2); ustat(2), sysfs(2), reboot(2). A kernel that has not got one skips its cases.
#include "harness.h"

#include <linux/futex.h>
#include <linux/reboot.h>
#include <pthread.h>
#include <sys/xattr.h>

enum { MSEAL = 462, SETXATTRAT = 463, GETXATTRAT, LISTXATTRAT, REMOVEXATTRAT, FUTEX_REQUEUE_2 = 456, LSM_GET = 459, LSM_SET, LSM_LIST };
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static void needs(long result) {
    if (result == -1 && errno == ENOSYS) skip_case("the kernel has no such call");
}

// ---- mseal ----

static long seal(void *p, size_t len) { return syscall(MSEAL, p, len, 0); }

static char *pages(int count, int prot) {
    needs(syscall(MSEAL, (char *)0, 0, 0));
    return OK(mmap(NULL, (size_t)count * 4096, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

CASE(sealed_memory_stays_as_it_is) {
    char *p = pages(3, PROT_READ | PROT_WRITE);
    OK(seal(p + 4096, 4096));
    OK(seal(p + 4096, 4096));
    ERR(munmap(p, 3 * 4096), EPERM);
    ERR(munmap(p + 4096, 4096), EPERM);
    ERR(mprotect(p + 4096, 4096, PROT_READ), EPERM);
    ERR(mremap(p + 4096, 4096, 8192, MREMAP_MAYMOVE), EPERM);
    ERR(mremap(p + 4096, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, p + 8192), EPERM);
    ERR(mremap(p, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, p + 4096), EPERM);
    ERR(mmap(p, 2 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), EPERM);
    ERR(mremap(p + 4096, 4096, 4096, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL), EPERM);
    p[4096] = 1;
    // What is beside it is as ever.
    OK(mprotect(p, 4096, PROT_READ));
    OK(munmap(p + 8192, 4096));
    OK(munmap(p, 4096));
    EQ(p[4096], 1);
}

CASE(sealed_content_is_kept_where_it_cannot_be_written) {
    char *p = pages(2, PROT_READ | PROT_WRITE);
    p[0] = p[4096] = 7;
    OK(mprotect(p, 4096, PROT_READ));
    OK(seal(p, 8192));
    ERR(madvise(p, 4096, MADV_DONTNEED), EPERM);
    ERR(madvise(p, 4096, MADV_FREE), EPERM);
    ERR(madvise(p, 4096, MADV_WIPEONFORK), EPERM);
    ERR(madvise(p, 4096, MADV_DONTFORK), EPERM);
    OK(madvise(p, 4096, MADV_WILLNEED));
    EQ(p[0], 7);
    // Who may write may as well write zeros.
    OK(madvise(p + 4096, 4096, MADV_DONTNEED));
    EQ(p[4096], 0);
}

CASE(mseal_takes_whole_mapped_ranges) {
    char *p = pages(3, PROT_READ);
    ERR(syscall(MSEAL, p, 4096, 1), EINVAL);
    ERR(seal(p + 1, 4096), EINVAL);
    ERR(seal(p, (size_t)-4096), EINVAL);
    OK(seal(p, 0));
    OK(munmap(p + 4096, 4096));
    ERR(seal(p, 3 * 4096), ENOMEM);
    // Nothing of it was sealed.
    OK(munmap(p, 4096));
    OK(seal(p + 8192, 1));
    ERR(munmap(p + 8192, 4096), EPERM);
}

CASE(a_child_and_a_sealed_heap) {
    char *p = pages(1, PROT_READ | PROT_WRITE);
    OK(seal(p, 4096));
    pid_t pid = OK(fork());
    if (pid == 0) {
        ERR(munmap(p, 4096), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
    char *end = sbrk(8192);
    CHECK(end != (void *)-1);
    char *page = (char *)(((uintptr_t)end + 4095) & ~4095ul);
    OK(seal(page, 4096));
    EQ(syscall(SYS_brk, end), sbrk(0));
    page[0] = 1;
}

// ---- xattrs ----

struct args {
    uint64_t value;
    uint32_t size, flags;
};

static long set_at(int dir, const char *path, unsigned at, const char *name, const void *value, uint32_t size, uint32_t flags) {
    struct args args = {(uintptr_t)value, size, flags};
    long done = syscall(SETXATTRAT, dir, path, at, name, &args, sizeof args);
    needs(done);
    return done;
}

static long get_at(int dir, const char *path, unsigned at, const char *name, void *value, uint32_t size) {
    struct args args = {(uintptr_t)value, size, 0};
    return syscall(GETXATTRAT, dir, path, at, name, &args, sizeof args);
}

CASE(xattrs_are_found_from_a_directory) {
    OK(mkdir("d", 0755));
    int dir = OK(open("d", O_RDONLY | O_DIRECTORY)), file = OK(openat(dir, "f", O_RDWR | O_CREAT, 0644));
    if (fsetxattr(file, "user.probe", "", 0, 0) && errno == EOPNOTSUPP) skip_case("no user attributes");
    OK(fremovexattr(file, "user.probe"));
    OK(set_at(dir, "f", 0, "user.one", "1", 1, XATTR_CREATE));
    ERR(set_at(dir, "f", 0, "user.one", "1", 1, XATTR_CREATE), EEXIST);
    ERR(set_at(dir, "f", 0, "user.two", "1", 1, XATTR_REPLACE), ENODATA);
    OK(set_at(file, "", AT_EMPTY_PATH, "user.two", "22", 2, 0));
    OK(set_at(file, NULL, AT_EMPTY_PATH, "user.two", "222", 3, 0));
    char value[16], names[64];
    EQ(get_at(dir, "f", 0, "user.one", value, sizeof value), 1);
    EQ(get_at(file, "", AT_EMPTY_PATH, "user.two", value, sizeof value), 3);
    EQ(memcmp(value, "222", 3), 0);
    EQ(get_at(dir, "f", 0, "user.two", NULL, 0), 3);
    EQ(fgetxattr(file, "user.two", value, sizeof value), 3);
    EQ(syscall(LISTXATTRAT, dir, "f", 0, names, sizeof names), 18);
    OK(syscall(REMOVEXATTRAT, dir, "f", 0, "user.one"));
    ERR(get_at(dir, "f", 0, "user.one", value, sizeof value), ENODATA);
    EQ(syscall(LISTXATTRAT, AT_FDCWD, "d/f", AT_SYMLINK_NOFOLLOW, NULL, 0), 9);
    ERR(get_at(dir, "none", 0, "user.two", value, sizeof value), ENOENT);
    ERR(get_at(dir, "", 0, "user.two", value, sizeof value), ENOENT);
    ERR(get_at(999, "f", 0, "user.two", value, sizeof value), EBADF);
    ERR(get_at(999, "", AT_EMPTY_PATH, "user.two", value, sizeof value), EBADF);
    int path = OK(openat(dir, "f", O_PATH));
    ERR(get_at(path, "", AT_EMPTY_PATH, "user.two", value, sizeof value), EBADF);
    ERR(get_at(file, "f", 0, "user.two", value, sizeof value), ENOTDIR);
}

CASE(xattrs_of_links_and_what_makes_no_sense) {
    write_file("f", "");
    OK(symlink("f", "l"));
    char value[16];
    struct args args = {(uintptr_t)value, sizeof value, 0};
    ERR(set_at(AT_FDCWD, "l", AT_SYMLINK_NOFOLLOW, "user.one", "1", 1, 0), EPERM);
    ERR(syscall(GETXATTRAT, AT_FDCWD, "f", AT_REMOVEDIR, "user.one", &args, sizeof args), EINVAL);
    ERR(syscall(GETXATTRAT, AT_FDCWD, "f", 0, "user.one", &args, sizeof args - 1), EINVAL);
    ERR(syscall(GETXATTRAT, AT_FDCWD, "f", 0, "user.one", &args, 4097), E2BIG);
    ERR(syscall(SETXATTRAT, AT_FDCWD, "f", 0, "user.one", NULL, sizeof args), EFAULT);
    struct {
        struct args known;
        uint64_t more;
    } longer = {args, 1};
    ERR(syscall(GETXATTRAT, AT_FDCWD, "f", 0, "user.one", &longer, sizeof longer), E2BIG);
    longer.more = 0;
    ERR(syscall(GETXATTRAT, AT_FDCWD, "f", 0, "user.one", &longer, sizeof longer), ENODATA);
    args.flags = XATTR_CREATE;
    ERR(syscall(GETXATTRAT, AT_FDCWD, "f", 0, "user.one", &args, sizeof args), EINVAL);
    ERR(set_at(AT_FDCWD, "f", 0, "user.one", "1", 1, 4), EINVAL);
    ERR(syscall(REMOVEXATTRAT, AT_FDCWD, "f", 0, "user.one"), ENODATA);
    ERR(syscall(LISTXATTRAT, AT_FDCWD, "f", 1, value, sizeof value), EINVAL);
}

// ---- futex_requeue ----

struct waiter {
    uint64_t val, uaddr;
    uint32_t flags, reserved;
};
enum { PRIVATE_32 = 2 | 128 };

static uint32_t words[2];
static int woken;

static void *waits(void *unused) {
    (void)unused;
    while (syscall(SYS_futex, &words[0], FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0) == -1 && errno == EINTR) {}
    __atomic_add_fetch(&woken, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static long requeue(uint64_t expected, int wake, int move, unsigned flags) {
    struct waiter both[2] = {{expected, (uintptr_t)&words[0], PRIVATE_32, 0}, {0, (uintptr_t)&words[1], PRIVATE_32, 0}};
    return syscall(FUTEX_REQUEUE_2, both, flags, wake, move);
}

CASE(waiters_go_from_one_word_to_another) {
    needs(requeue(0, 0, 0, 0));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) ZERO(pthread_create(&threads[i], NULL, waits, NULL));
    // None is woken, and all are counted, once all wait.
    long moved = 0;
    WAIT_UNTIL((moved += requeue(0, 0, 1, 0)) == 2);
    WAIT_UNTIL(requeue(0, 1, 0, 0) == 1);
    WAIT_UNTIL(__atomic_load_n(&woken, __ATOMIC_SEQ_CST) == 1);
    WAIT_UNTIL((moved += requeue(0, 0, 5, 0)) == 3);
    EQ(__atomic_load_n(&woken, __ATOMIC_SEQ_CST), 1);
    EQ(syscall(SYS_futex, &words[0], FUTEX_WAKE_PRIVATE, 9, NULL, NULL, 0), 0);
    EQ(syscall(SYS_futex, &words[1], FUTEX_WAKE_PRIVATE, 9, NULL, NULL, 0), 3);
    for (int i = 0; i < 4; i++) ZERO(pthread_join(threads[i], NULL));
}

CASE(requeueing_that_makes_no_sense) {
    needs(requeue(0, 0, 0, 0));
    ERR(requeue(1, 1, 1, 0), EAGAIN);
    ERR(requeue(0, -1, 1, 0), EINVAL);
    ERR(requeue(0, 1, -1, 0), EINVAL);
    ERR(requeue(0, 1, 1, 1), EINVAL);
    ERR(requeue(1ull << 32, 1, 1, 0), EINVAL);
    ERR(syscall(FUTEX_REQUEUE_2, NULL, 0, 1, 1), EINVAL);
    ERR(syscall(FUTEX_REQUEUE_2, (void *)8, 0, 1, 1), EFAULT);
    struct waiter both[2] = {{0, (uintptr_t)&words[0], PRIVATE_32, 1}, {0, (uintptr_t)&words[1], PRIVATE_32, 0}};
    ERR(syscall(FUTEX_REQUEUE_2, both, 0, 1, 1), EINVAL);
    both[0].reserved = 0, both[1].flags = 0;
    ERR(syscall(FUTEX_REQUEUE_2, both, 0, 1, 1), EINVAL);
}

static uint32_t lock, elsewhere;
static int locked = -1;

static void *locks(void *unused) {
    (void)unused;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    locked = (int)syscall(SYS_futex, &lock, FUTEX_LOCK_PI_PRIVATE, 0, &end, NULL, 0);
    return NULL;
}

CASE(who_waits_for_a_pi_lock_is_neither_woken_nor_moved) {
    lock = (uint32_t)gettid();
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, locks, NULL));
    WAIT_UNTIL(__atomic_load_n(&lock, __ATOMIC_SEQ_CST) & FUTEX_WAITERS);
    sleep_ms(50);
    ERR(syscall(SYS_futex, &lock, FUTEX_REQUEUE_PRIVATE, 0, 5, &elsewhere, 0), EINVAL);
    ERR(syscall(SYS_futex, &lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), EINVAL);
    OK(syscall(SYS_futex, &lock, FUTEX_UNLOCK_PI_PRIVATE, 0, NULL, NULL, 0));
    ZERO(pthread_join(thread, NULL));
    EQ(locked, 0);
}

CASE(mappings_that_are_split_are_counted) {
    enum { MOST = 200000 };
    char *p = OK(mmap(NULL, (size_t)MOST * 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    int i = 0;
    while (i < MOST && madvise(p + (size_t)i * 8192, 4096, MADV_DONTFORK) == 0) i++;
    CHECK(i > 900 && i < MOST && (errno == ENOMEM || errno == EAGAIN));
    ERR(mprotect(p + (size_t)i * 8192, 4096, PROT_READ), ENOMEM);
    // Whole ones can still be changed.
    OK(mprotect(p, 4096, PROT_READ));
    OK(munmap(p, (size_t)MOST * 8192));
}

// ---- process_madvise, process_mrelease ----

CASE(advice_about_another_process) {
    char *p = OK(mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memset(p, 5, 4 * 4096);
    int ready[2];
    OK(pipe(ready));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(munmap(p + 8192, 4096));
        OK(write(ready[1], "", 1));
        for (;;) pause();
    }
    char byte;
    EQ(read(ready[0], &byte, 1), 1);
    int fd = OK((int)syscall(SYS_pidfd_open, pid, 0));
    struct iovec two[2] = {{p, 8192}, {p + 12288, 4096}};
    long done = syscall(SYS_process_madvise, fd, two, 2, MADV_COLD, 0);
    needs(done);
    EQ(done, 12288);
    EQ(syscall(SYS_process_madvise, fd, two, 2, MADV_PAGEOUT, 0), 12288);
    EQ(syscall(SYS_process_madvise, fd, two, 1, MADV_WILLNEED, 0), 8192);
    // It does not get over the hole.
    two[1] = (struct iovec){p + 8192, 8192};
    EQ(syscall(SYS_process_madvise, fd, two, 2, MADV_COLD, 0), 8192);
    ERR(syscall(SYS_process_madvise, fd, two + 1, 1, MADV_COLD, 0), ENOMEM);
    two[0].iov_base = p + 1;
    ERR(syscall(SYS_process_madvise, fd, two, 1, MADV_COLD, 0), EINVAL);
    two[0].iov_base = p;
    ERR(syscall(SYS_process_madvise, fd, two, 1, MADV_COLD, 1), EINVAL);
    ERR(syscall(SYS_process_madvise, fd, two, 1, MADV_DONTNEED, 0), EINVAL);
    ERR(syscall(SYS_process_madvise, fd, two, 1025, MADV_COLD, 0), EINVAL);
    ERR(syscall(SYS_process_madvise, ready[0], two, 1, MADV_COLD, 0), EBADF);
    ERR(syscall(SYS_process_madvise, 999, two, 1, MADV_COLD, 0), EBADF);
    EQ(syscall(SYS_process_madvise, fd, two, 0, MADV_COLD, 0), 0);
    if (geteuid() == 0) AS_NOBODY(ERR(syscall(SYS_process_madvise, fd, two, 1, MADV_COLD, 0), EACCES));
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    ERR(syscall(SYS_process_madvise, fd, two, 1, MADV_COLD, 0), ESRCH);
}

CASE(memory_of_who_is_to_end_is_given_back) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        char *p = OK(mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
        p[0] = 1;
        for (;;) pause();
    }
    int fd = OK((int)syscall(SYS_pidfd_open, pid, 0));
    long done = syscall(SYS_process_mrelease, fd, 0);
    needs(done);
    EQ(done, -1);
    EQ(errno, EINVAL);
    ERR(syscall(SYS_process_mrelease, fd, 1), EINVAL);
    ERR(syscall(SYS_process_mrelease, 999, 0), EBADF);
    OK(kill(pid, SIGKILL));
    // It may have ended already.
    done = syscall(SYS_process_mrelease, fd, 0);
    CHECK(done == 0 || errno == ESRCH);
    expect_killed(pid, SIGKILL);
    ERR(syscall(SYS_process_mrelease, fd, 0), ESRCH);
}

// ---- security modules ----

CASE(security_modules_are_listed) {
    uint64_t ids[32];
    uint32_t size = 0;
    long count = syscall(LSM_LIST, ids, &size, 0);
    needs(count);
    EQ(count, -1);
    EQ(errno, E2BIG);
    CHECK(size >= 8 && size <= sizeof ids);
    uint32_t room = size;
    count = OK(syscall(LSM_LIST, ids, &room, 0));
    EQ(count * 8, size);
    EQ(room, size);
    bool has_capabilities = false;
    for (int i = 0; i < count; i++) has_capabilities |= ids[i] == 100;
    CHECK(has_capabilities);
    ERR(syscall(LSM_LIST, ids, &room, 1), EINVAL);
    ERR(syscall(LSM_LIST, ids, NULL, 0), EFAULT);
    room = sizeof ids;
    ERR(syscall(LSM_GET, 0, NULL, &room, 0), EINVAL);
    ERR(syscall(LSM_GET, 100, NULL, NULL, 0), EINVAL);
    ERR(syscall(LSM_GET, 100, NULL, &room, 2), EINVAL);
    ERR(syscall(LSM_SET, 100, ids, sizeof ids, 1), EINVAL);
    ERR(syscall(LSM_SET, 100, ids, 8, 0), EINVAL);
}

// ---- old ones ----

struct old_ustat {
    int tfree;
    unsigned long tinode;
    char names[12];
};

CASE(file_systems_by_device_and_by_number) {
    struct stat st;
    OK(stat("/proc", &st));
    struct old_ustat u;
    memset(&u, 1, sizeof u);
    OK(syscall(SYS_ustat, (unsigned)st.st_dev, &u));
    EQ(u.tfree, 0);
    EQ(u.names[0], 0);
    ERR(syscall(SYS_ustat, (unsigned)st.st_dev, NULL), EFAULT);
    ERR(syscall(SYS_ustat, 0xfffff, &u), EINVAL);
    int count = (int)syscall(SYS_sysfs, 3);
    needs(count);
    CHECK(count > 4);
    char name[64];
    int tmpfs = OK((int)syscall(SYS_sysfs, 1, "tmpfs"));
    CHECK(tmpfs >= 0 && tmpfs < count);
    OK(syscall(SYS_sysfs, 2, tmpfs, name));
    STR_EQ(name, "tmpfs");
    ERR(syscall(SYS_sysfs, 1, "no such type"), EINVAL);
    ERR(syscall(SYS_sysfs, 2, count, name), EINVAL);
    ERR(syscall(SYS_sysfs, 2, 0, NULL), EFAULT);
    ERR(syscall(SYS_sysfs, 4), EINVAL);
}

static long restart(unsigned command) { return syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, command, NULL); }

// The first process of a new PID namespace, which asks for it itself or has a child do so.
static pid_t first(unsigned command, bool itself) {
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == -1 && errno == EPERM) skip_case("no CAP_SYS_ADMIN");
    OK(pid);
    if (pid != 0) return pid;
    if (restart(LINUX_REBOOT_CMD_CAD_ON) != -1 || (errno != EINVAL && errno != EPERM)) _exit(1);
    if (errno == EPERM) _exit(77);
    if (itself) restart(command);
    if (fork() == 0) {
        restart(command);
        for (;;) pause();
    }
    for (;;) pause();
}

CASE(a_pid_namespace_is_restarted) {
    const struct {
        unsigned command;
        int signo;
    } all[] = {{LINUX_REBOOT_CMD_RESTART, SIGHUP}, {LINUX_REBOOT_CMD_HALT, SIGINT}, {LINUX_REBOOT_CMD_POWER_OFF, SIGINT}};
    // Never without a namespace of one's own: natively that is the machine.
    for (unsigned i = 0; i < 6; i++) {
        pid_t pid = first(all[i / 2].command, i % 2);
        int status;
        EQ(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip_case("no CAP_SYS_BOOT");
        CHECK(WIFSIGNALED(status));
        EQ(WTERMSIG(status), all[i / 2].signo);
    }
}

// ---- cachestat ----

struct cache_range {
    uint64_t off, len;
};

struct cache_stat {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

enum { CACHESTAT = 451 };

static long cachestat_of(int fd, uint64_t off, uint64_t len, struct cache_stat *stat, unsigned flags) {
    struct cache_range range = {off, len};
    return syscall(CACHESTAT, fd, &range, stat, flags);
}

// Pages that are there or have been, of a file in memory.
static uint64_t pages_of(int fd, uint64_t off, uint64_t len) {
    struct cache_stat stat;
    memset(&stat, 0xff, sizeof stat);
    OK(cachestat_of(fd, off, len, &stat, 0));
    EQ(stat.writeback, 0);
    return stat.cached + stat.evicted;
}

CASE(cachestat_counts_pages_of_files_in_memory) {
    int fd = OK((int)syscall(SYS_memfd_create, "counted", 0));
    struct cache_stat stat;
    needs(cachestat_of(fd, 0, 0, &stat, 0));
    EQ(pages_of(fd, 0, 0), 0);
    OK(ftruncate(fd, 64 * 4096));
    EQ(pages_of(fd, 0, 0), 0);
    for (int page = 0; page < 8; page++) EQ(pwrite(fd, "x", 1, page * 2 * 4096), 1);
    EQ(pages_of(fd, 0, 0), 8);
    EQ(pages_of(fd, 0, 4096), 1);
    EQ(pages_of(fd, 4096, 4096), 0);
    EQ(pages_of(fd, 4095, 2), 1);
    EQ(pages_of(fd, 4095, 4098), 2);
    EQ(pages_of(fd, 14 * 4096, 0), 1);
    EQ(pages_of(fd, 16 * 4096, 0), 0);
    EQ(pages_of(fd, 1ull << 40, 1 << 20), 0);
    // A sum that is too large ends before it begins.
    EQ(pages_of(fd, 8192, -4096ull), 0);
    char *p = OK(mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 32 * 4096));
    p[4096] = 1;
    EQ(pages_of(fd, 33 * 4096, 4096), 1);
    OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * 4096));
    EQ(pages_of(fd, 0, 16 * 4096), 6);
    OK(ftruncate(fd, 0));
    EQ(pages_of(fd, 0, 0), 0);
}

CASE(cachestat_says_what_is_wrong) {
    int fd = OK((int)syscall(SYS_memfd_create, "wrong", 0)), pipes[2];
    struct cache_stat stat;
    struct cache_range range = {0, 0};
    needs(cachestat_of(fd, 0, 0, &stat, 0));
    ERR(cachestat_of(-1, 0, 0, &stat, 0), EBADF);
    ERR(cachestat_of(fd, 0, 0, &stat, 1), EINVAL);
    ERR(syscall(CACHESTAT, fd, NULL, &stat, 0), EFAULT);
    ERR(syscall(CACHESTAT, fd, &range, NULL, 0), EFAULT);
    int place = OK(open(".", O_PATH));
    ERR(cachestat_of(place, 0, 0, &stat, 0), EBADF);
    OK(pipe(pipes));
    EQ(pages_of(pipes[1], 0, 0), 0);
}
