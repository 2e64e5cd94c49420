// Details of man pages that runtimes and test suites look at, of many families.
#include "harness.h"

#include <sys/uio.h>
#include <sys/sendfile.h>
#include <sys/inotify.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/times.h>
#include <sys/msg.h>
#include <sys/shm.h>
#include <sys/xattr.h>
#include <sys/personality.h>
#include <sys/timerfd.h>
#include <sys/mman.h>
#include <poll.h>
#include <pthread.h>
#include <dirent.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>

CASE(lseek_offsets) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    ERR(lseek(fd, -1, SEEK_SET), EINVAL);
    ERR(lseek(fd, LLONG_MIN, SEEK_CUR), EINVAL);
    ERR(lseek(fd, 0, 9), EINVAL);
    ERR(pwrite(fd, "x", 1, -1), EINVAL);
    ERR(pread(fd, &fd, 1, -1), EINVAL);
    ERR(pwrite(fd, "xx", 2, LLONG_MAX), EINVAL);
}
CASE(lseek_dirs) {
    int fd = OK(open(".", O_DIRECTORY));
    OK(lseek(fd, 0, SEEK_SET));
    ERR(lseek(fd, -1, SEEK_SET), EINVAL);
    int p = OK(open("/proc/self/status", O_RDONLY));
    char b[100];
    OK(read(p, b, 50));
    EQ(lseek(p, 0, SEEK_CUR), 50);
    EQ(lseek(p, 10, SEEK_SET), 10);
    ERR(lseek(p, 0, SEEK_END), EINVAL);
    int d = OK(open("/proc", O_DIRECTORY));
    OK(lseek(d, 0, SEEK_SET));
}
CASE(espipe_before_ebadf) {
    int fds[2];
    OK(pipe(fds));
    char c;
    ERR(pread(fds[1], &c, 1, 0), ESPIPE);
    ERR(pwrite(fds[0], &c, 1, 0), ESPIPE);
    ERR(pread(fds[0], &c, 1, 0), ESPIPE);
    ERR(read(fds[1], &c, 1), EBADF);
    ERR(write(fds[0], &c, 1), EBADF);
    int fd = OK(open("f", O_CREAT | O_WRONLY, 0600));
    ERR(read(fd, &c, 1), EBADF);
    ERR(pread(fd, &c, 1, 0), EBADF);
    ERR(readahead(fd, 0, 1), EBADF);
    ERR(posix_fadvise(fds[0], 0, 0, 0) ? (errno = posix_fadvise(fds[0], 0, 0, 0), -1) : 0, ESPIPE);
    ERR(fallocate(fds[0], 0, 0, 1), EBADF);
    ERR(fallocate(fds[1], 0, 0, 1), ESPIPE);
    ERR(ftruncate(fds[1], 0), EINVAL);
}
CASE(fsize_limit) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    struct rlimit r = {100, 100};
    signal(SIGXFSZ, SIG_IGN);
    OK(setrlimit(RLIMIT_FSIZE, &r));
    char b[200] = "";
    EQ(write(fd, b, 200), 100);
    ERR(write(fd, b, 1), EFBIG);
    ERR(ftruncate(fd, 101), EFBIG);
    ERR(fallocate(fd, 0, 0, 200), EFBIG);
    OK(ftruncate(fd, 50));
    EQ(pwrite(fd, b, 100, 50), 50);
}
CASE(o_direct_dir) {
    int fd = open(".", O_DIRECTORY | O_DIRECT);
    CHECK(fd == -1 && errno == EINVAL);
}
CASE(linkat_empty_path) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(linkat(fd, "", AT_FDCWD, "g", AT_EMPTY_PATH));
    struct stat a, b;
    OK(stat("g", &a));
    OK(fstat(fd, &b));
    EQ(a.st_ino, b.st_ino);
    EQ(a.st_nlink, 2);
    OK(unlink("f"));
    OK(unlink("g"));
    ERR(linkat(fd, "", AT_FDCWD, "h", AT_EMPTY_PATH), ENOENT);
    char p[64];
    snprintf(p, 64, "/proc/self/fd/%d", fd);
    ERR(linkat(AT_FDCWD, p, AT_FDCWD, "h", AT_SYMLINK_FOLLOW), ENOENT);
    ERR(linkat(AT_FDCWD, ".", AT_FDCWD, "h", 0), EPERM);
}
CASE(mkdir_dangling) {
    OK(symlink("target", "l"));
    ERR(mkdir("l/", 0700), EEXIST);
    ERR(mkdir("l", 0700), EEXIST);
    ERR(open("l", O_CREAT | O_EXCL, 0600), EEXIST);
    ERR(mknod("l", S_IFREG, 0), EEXIST);
    ERR(rmdir("l/"), ENOTDIR);
    ERR(rename("l/", "z"), ENOTDIR);
    ERR(unlink("l/"), ENOTDIR);
    ERR(symlink("q", "l/"), EEXIST);
    ERR(link("/etc/passwd", "l/"), EEXIST);
}
CASE(trailing) {
    close(OK(open("f", O_CREAT, 0600)));
    ERR(open("f/", O_RDONLY), ENOTDIR);
    ERR(open("n/", O_CREAT | O_RDWR, 0600), EISDIR);
    ERR(stat("f/", &(struct stat){0}), ENOTDIR);
    ERR(unlink("f/"), ENOTDIR);
    OK(mkdir("d", 0700));
    ERR(unlink("d/"), EISDIR);
    ERR(unlink("d"), EISDIR);
    ERR(rmdir("f"), ENOTDIR);
    ERR(rmdir("."), EINVAL);
    ERR(rmdir(".."), ENOTEMPTY);
    ERR(rmdir("d/."), EINVAL);
    ERR(rename("d", "d/x"), EINVAL);
    ERR(rename(".", "x"), EBUSY);
    ERR(rename("f", "d"), EISDIR);
    ERR(rename("d", "f"), ENOTDIR);
    ERR(link("f", "f"), EEXIST);
    ERR(symlink("", "q"), ENOENT);
    ERR(readlink("f", (char[4]){0}, 4), EINVAL);
    ERR(readlink("f", (char[4]){0}, 0), EINVAL);
    ERR(truncate("d", 0), EISDIR);
    ERR(open("d", O_WRONLY), EISDIR);
    ERR(open("d", O_CREAT, 0600), EISDIR);
    ERR(open("f", O_DIRECTORY), ENOTDIR);
    ERR(open("f", O_DIRECTORY | O_CREAT, 0600), EINVAL);
}
CASE(fd_dir_closing) {
    int dup_[40];
    for (int i = 0; i < 40; i++) dup_[i] = OK(dup(0));
    DIR *d = opendir("/proc/self/fd");
    CHECK(d);
    struct dirent *e;
    int n = 0;
    while ((e = readdir(d))) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.') continue;
        if (fd > 2 && fd != dirfd(d)) {
            close(fd);
            n++;
        }
    }
    CHECK(n >= 40);
    for (int i = 0; i < 40; i++) ERR(fcntl(dup_[i], F_GETFD), EBADF);
}
CASE(fifo_hup) {
    OK(mkfifo("p", 0600));
    int r = OK(open("p", O_RDONLY | O_NONBLOCK));
    struct pollfd f = {r, POLLIN, 0};
    EQ(poll(&f, 1, 0), 0);
    int w = OK(open("p", O_WRONLY));
    EQ(poll(&f, 1, 0), 0);
    close(w);
    EQ(poll(&f, 1, 0), 1);
    EQ(f.revents, POLLHUP);
    int ep = OK(epoll_create1(0));
    struct epoll_event ev = {EPOLLIN | EPOLLET | EPOLLRDHUP, {0}};
    OK(epoll_ctl(ep, EPOLL_CTL_ADD, r, &ev));
    EQ(epoll_wait(ep, &ev, 1, 1000), 1);
    CHECK(ev.events & EPOLLHUP);
}
// Who has opened a FIFO when there was a writer is told that the last one has left, too.
CASE(fifo_hup_for_late_readers) {
    OK(mkfifo("p", 0600));
    int early = OK(open("p", O_RDONLY | O_NONBLOCK)), w = OK(open("p", O_WRONLY));
    int late = OK(open("p", O_RDONLY | O_NONBLOCK)), ep = OK(epoll_create1(0));
    OK(close(early));
    struct epoll_event ev = {EPOLLIN | EPOLLET, {0}};
    OK(epoll_ctl(ep, EPOLL_CTL_ADD, late, &ev));
    EQ(epoll_wait(ep, &ev, 1, 0), 0);
    OK(close(w));
    EQ(epoll_wait(ep, &ev, 1, 1000), 1);
    EQ(ev.events, EPOLLHUP);
    // One that comes now waits for another.
    int last = OK(open("p", O_RDONLY | O_NONBLOCK));
    struct pollfd f = {last, POLLIN, 0};
    EQ(poll(&f, 1, 0), 0);
}
CASE(epoll_many) {
    int ep = OK(epoll_create1(0));
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_cur < 2200) skip_case("nofile");
    for (int i = 0; i < 2000; i++) {
        int fds[2];
        if (i % 2) continue;
        OK(pipe(fds));
        struct epoll_event ev = {EPOLLOUT, {0}};
        OK(epoll_ctl(ep, EPOLL_CTL_ADD, fds[1], &ev));
        int d = OK(dup(fds[1]));
        OK(epoll_ctl(ep, EPOLL_CTL_ADD, d, &ev));
        close(fds[0]);
    }
    static struct epoll_event evs[3000];
    EQ(epoll_wait(ep, evs, 3000, 0), 2000);
}
CASE(waitid_forms) {
    siginfo_t i = {0};
    pid_t c = OK(fork());
    if (!c) _exit(7);
    OK(waitid(P_PID, c, &i, WEXITED | WNOWAIT));
    EQ(i.si_status, 7);
    EQ(i.si_code, CLD_EXITED);
    EQ(i.si_pid, c);
    ERR(waitid(P_PID, c, &i, WSTOPPED | WNOHANG), ECHILD);
    ERR(waitid(P_PID, c, &i, WCONTINUED | WNOHANG), ECHILD);
    ERR(waitid(P_ALL, 0, &i, WSTOPPED), ECHILD);
    ERR(waitid(P_PID, c, &i, 0), EINVAL);
    ERR(waitid(9, c, &i, WEXITED), EINVAL);
    ERR(waitid(P_PID, 0, &i, WEXITED), EINVAL);
    ERR(waitid(P_PID, c + 100000, &i, WEXITED), ECHILD);
    ERR(waitid(P_ALL, 0, &i, WEXITED | 0x40000), EINVAL);
    OK(waitid(P_ALL, 0, NULL, WEXITED));
    ERR(waitid(P_ALL, 0, &i, WEXITED), ECHILD);
    ERR(waitpid(-1, NULL, 0x1000), EINVAL);
    errno = 0;
    CHECK(waitpid(INT_MIN, NULL, 0) == -1 && errno == ESRCH);
}
CASE(rusage_children) {
    struct rusage a, b;
    getrusage(RUSAGE_CHILDREN, &a);
    pid_t c = OK(fork());
    if (!c) {
        for (volatile long i = 0; i < 200000000; i++) {
        }
        _exit(0);
    }
    siginfo_t i;
    OK(waitid(P_PID, c, &i, WEXITED | WNOWAIT));
    getrusage(RUSAGE_CHILDREN, &b);
    EQ(b.ru_utime.tv_sec * 1000000 + b.ru_utime.tv_usec, a.ru_utime.tv_sec * 1000000 + a.ru_utime.tv_usec);
    waitpid(c, NULL, 0);
    getrusage(RUSAGE_CHILDREN, &b);
    CHECK(b.ru_utime.tv_sec * 1000000 + b.ru_utime.tv_usec > 20000);
    ERR(getrusage(5, &a), EINVAL);
}
CASE(clone_flags) {
    ERR(syscall(SYS_clone, CLONE_SIGHAND, 0, 0, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_THREAD | CLONE_SIGHAND, 0, 0, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_FS | CLONE_NEWNS, 0, 0, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_NEWPID | CLONE_VM | CLONE_SIGHAND | CLONE_THREAD, 0, 0, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_PIDFD | CLONE_PARENT_SETTID | SIGCHLD, 0, &errno, 0, 0), EINVAL);
    ERR(syscall(SYS_clone, CLONE_PIDFD | CLONE_DETACHED | SIGCHLD, 0, &errno, 0, 0), EINVAL);
}
CASE(sigtimedwait_ignored) {
    sigset_t s;
    sigemptyset(&s);
    sigaddset(&s, SIGCHLD);
    sigaddset(&s, SIGWINCH);
    sigprocmask(SIG_BLOCK, &s, NULL);
    kill(getpid(), SIGWINCH);
    struct timespec t = {1, 0};
    EQ(sigtimedwait(&s, NULL, &t), SIGWINCH);
    t.tv_nsec = 1000000000;
    ERR(sigtimedwait(&s, NULL, &t), EINVAL);
    t = (struct timespec){-1, 0};
    ERR(sigtimedwait(&s, NULL, &t), EINVAL);
}
CASE(itimers) {
    struct itimerval v = {{0, 0}, {-1, 0}};
    ERR(setitimer(ITIMER_REAL, &v, NULL), EINVAL);
    v = (struct itimerval){{0, 0}, {0, 1000000}};
    ERR(setitimer(ITIMER_REAL, &v, NULL), EINVAL);
    ERR(setitimer(7, &v, NULL), EINVAL);
    ERR(getitimer(7, &v), EINVAL);
    ERR(getitimer(ITIMER_REAL, (void *)8), EFAULT);
    OK(setitimer(ITIMER_REAL, NULL, &v));
}
CASE(personality_) {
    int p = personality(0xffffffff);
    CHECK(p >= 0);
    OK(personality(p | ADDR_NO_RANDOMIZE));
    EQ(personality(0xffffffff), p | ADDR_NO_RANDOMIZE);
    OK(personality(p));
}
// Where a program and all its parts lie, as it says; the last eight answers are kept.
static const char *layout_of_a_program(int persona) {
    static char layouts[8][16384];
    static int number;
    char *layout = layouts[number++ % 8];
    int fds[2];
    OK(pipe(fds));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(personality(persona));
        OK(dup2(fds[1], 1));
        OK(close(fds[0]));
        execlp("cat", "cat", "/proc/self/maps", (char *)NULL);
        _exit(9);
    }
    OK(close(fds[1]));
    size_t length = 0;
    for (ssize_t n; (n = OK(read(fds[0], layout + length, sizeof layouts[0] - 1 - length))) > 0;) length += n;
    layout[length] = 0;
    int status;
    OK(waitpid(child, &status, 0));
    EQ(status, 0);
    CHECK(length > 200 && length < sizeof layouts[0] - 1);
    OK(close(fds[0]));
    return layout;
}

CASE(without_randomization_programs_lie_where_they_lay) {
    int p = OK(personality(0xffffffff));
    const char *fixed = layout_of_a_program(p | ADDR_NO_RANDOMIZE);
    for (int n = 0; n < 3; n++) {
        const char *again = layout_of_a_program(p | ADDR_NO_RANDOMIZE);
        if (strcmp(again, fixed)) printf("first\n%sthen\n%s", fixed, again);
        CHECK(!strcmp(again, fixed));
    }
    const char *random = layout_of_a_program(p);
    CHECK(strcmp(random, fixed) && strcmp(random, layout_of_a_program(p)));
}
static long of_cache(int index, const char *file, char text[64]) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, file);
    int fd = OK(open(path, O_RDONLY));
    ssize_t n = OK(read(fd, text, 63));
    CHECK(n > 1 && text[n - 1] == '\n');
    text[n - 1] = 0;
    OK(close(fd));
    return atol(text);
}

CASE(caches_of_processors) {
    char text[64], path[64];
    if (access("/sys/devices/system/cpu/cpu0/cache/index0", F_OK) == -1) skip_case("the processor tells nothing");
    for (int index = 0, level = 1;; index++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d", index);
        if (index > 0 && access(path, F_OK) == -1) break;
        CHECK(of_cache(index, "level", text) >= level);
        level = of_cache(index, "level", text);
        of_cache(index, "type", text);
        CHECK(!strcmp(text, "Data") || !strcmp(text, "Instruction") || !strcmp(text, "Unified"));
        long bytes = of_cache(index, "coherency_line_size", text) * of_cache(index, "ways_of_associativity", text);
        bytes *= of_cache(index, "number_of_sets", text) * of_cache(index, "physical_line_partition", text);
        EQ(of_cache(index, "size", text), bytes / 1024);
        EQ(text[strlen(text) - 1], 'K');
        EQ(of_cache(index, "shared_cpu_list", text), 0);
        of_cache(index, "shared_cpu_map", text);
        CHECK(strtoul(text + strlen(text) - 1, NULL, 16) & 1);
        EQ(of_cache(index, "id", text), 0);
    }
    ERR(access("/sys/devices/system/cpu/cpu0/cache/index00", F_OK), ENOENT);
}
CASE(membarrier_) {
    int c = OK(syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0));
    CHECK(c & MEMBARRIER_CMD_GLOBAL);
    CHECK(c & MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    OK(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0));
    OK(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0));
    CHECK(c & MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    ERR(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0), EPERM);
    OK(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
    OK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
    ERR(syscall(SYS_membarrier, 1 << 20, 0, 0), EINVAL);
}
CASE(mmap_flags) {
    ERR(mmap(NULL, 0, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mmap(NULL, 4096, 3, MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mmap(NULL, 4096, 3, MAP_PRIVATE, -1, 0) == MAP_FAILED ? -1 : 0, EBADF);
    int fd = OK(open("f", O_CREAT | O_RDONLY, 0600));
    ERR(mmap(NULL, 4096, 3, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0, EACCES);
    ERR(mmap(NULL, 4096, 1, MAP_SHARED, fd, 1) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mmap(NULL, 4096, 1, MAP_SHARED_VALIDATE | 0x80000000, fd, 0) == MAP_FAILED ? -1 : 0, EOPNOTSUPP);
    void *m = mmap(NULL, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ERR(mmap(m, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED ? -1 : 0, EEXIST);
    ERR(mmap((void *)4097, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ? -1 : 0, EINVAL);
    int d = OK(open(".", O_DIRECTORY));
    ERR(mmap(NULL, 4096, 1, MAP_PRIVATE, d, 0) == MAP_FAILED ? -1 : 0, ENODEV);
    int w = OK(open("f", O_WRONLY));
    ERR(mmap(NULL, 4096, 1, MAP_PRIVATE, w, 0) == MAP_FAILED ? -1 : 0, EACCES);
}
CASE(mremap_forms) {
    char *m = mmap(NULL, 8 * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m[0] = 5;
    m[4096] = 6;
    char *n = mremap(m, 4096, 4096, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0);
    CHECK(n != MAP_FAILED);
    EQ(n[0], 5);
    EQ(m[0], 0);
    // The place is a hint, and has to be one that could be taken.
    int out = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    ERR(mremap(m, 0, 0, out, 0) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mremap(m, 4096, 4096, out, m) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mremap(m, 4096, 4096, out, m + 4096 + 1) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mremap(m, 4096, 4096, out, (void *)-4096L) == MAP_FAILED ? -1 : 0, EINVAL);
    OK(munmap(n, 4096));
    EQ((long)mremap(m, 4096, 4096, out, n), (long)n);
    ERR(mremap(m, 4096, 4096, MREMAP_FIXED, m) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mremap(m + 1, 4096, 4096, 0) == MAP_FAILED ? -1 : 0, EINVAL);
    ERR(mremap(m, 4096, 0, 0) == MAP_FAILED ? -1 : 0, EINVAL);
    OK(mprotect(m + 4096, 4096, 1));
    ERR(mremap(m, 8192, 16384, MREMAP_MAYMOVE) == MAP_FAILED ? -1 : 0, EFAULT);
    char *s = mmap(NULL, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s[0] = 9;
    char *t = mremap(s, 0, 4096, MREMAP_MAYMOVE);
    CHECK(t != MAP_FAILED);
    EQ(t[0], 9);
    t[1] = 8;
    EQ(s[1], 8);
}
CASE(madvise_forms) {
    char *m = mmap(NULL, 4 * 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m[0] = 1;
    ERR(madvise(m, 4096, MADV_REMOVE), EINVAL);
    ERR(madvise(m + 1, 4096, MADV_DONTNEED), EINVAL);
    ERR(madvise(m, 4096, 999), EINVAL);
    OK(madvise(m, 0, MADV_DONTNEED));
    OK(madvise(m, 4096, MADV_WIPEONFORK));
    pid_t c = OK(fork());
    if (!c) _exit(m[0] == 0 ? 0 : 1);
    int st;
    waitpid(c, &st, 0);
    EQ(st, 0);
    EQ(m[0], 1);
    OK(madvise(m, 4096, MADV_KEEPONFORK));
    OK(madvise(m, 4096, MADV_DONTFORK));
    OK(madvise(m, 4096, MADV_DOFORK));
    OK(madvise(m, 4096, MADV_POPULATE_WRITE));
    OK(madvise(m, 4096, MADV_COLD));
    OK(madvise(m, 4096, MADV_PAGEOUT));
    EQ(m[0], 1);
    char *s = mmap(NULL, 8192, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    s[0] = 7;
    munmap(m + 4096, 4096);
    ERR(madvise(m, 3 * 4096, MADV_DONTNEED), ENOMEM);
    OK(madvise(m, 4096, MADV_HWPOISON) == -1 ? 0 : 0);
}
CASE(mlock_family) {
    struct rlimit r = {65536, 65536};
    char *m = mmap(NULL, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OK(mlock(m, 4096));
    OK(munlock(m, 4096));
    ERR(mlock((void *)(1UL << 40), 4096), ENOMEM);
    OK(setrlimit(RLIMIT_MEMLOCK, &r));
    OK(setresuid(1000, 1000, 1000));
    ERR(mlock(m, 1 << 20), ENOMEM);
    OK(mlock(m, 32768));
    char l[256];
    FILE *f = fopen("/proc/self/status", "r");
    long kb = -1;
    while (fgets(l, 256, f)) sscanf(l, "VmLck: %ld", &kb);
    EQ(kb, 32);
    ERR(msync(m, 4096, MS_INVALIDATE | MS_SYNC), EBUSY);
    ERR(msync(m, 4096, MS_SYNC | MS_ASYNC), EINVAL);
    OK(munlockall());
    ERR(mlockall(0), EINVAL);
    ERR(mlockall(8), EINVAL);
    ERR(mlockall(MCL_ONFAULT), EINVAL);
    ERR(syscall(SYS_mlock2, m, 4096, 4), EINVAL);
    ERR(mmap(NULL, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0) == MAP_FAILED ? -1 : 0, EAGAIN);
    unsigned char v[2];
    OK(mincore(m, 8192, v));
    EQ(v[0], 1);
    ERR(mincore(m + 1, 4096, v), EINVAL);
    ERR(mincore((void *)(1UL << 40), 4096, v), ENOMEM);
}
CASE(execs) {
    int fd = OK(open("s", O_CREAT | O_WRONLY, 0755));
    dprintf(fd, "#!/bin/sh\necho $0 > out\n");
    close(fd);
    pid_t c = OK(fork());
    if (!c) {
        int f = OK(open("s", O_RDONLY | O_CLOEXEC));
        errno = 0;
        syscall(SYS_execveat, f, "", (char *[]){"x", NULL}, (char *[]){NULL}, AT_EMPTY_PATH);
        _exit(errno == ENOENT ? 0 : 1);
    }
    int st;
    waitpid(c, &st, 0);
    EQ(st, 0);
    c = OK(fork());
    if (!c) {
        int f = OK(open("s", O_RDONLY));
        syscall(SYS_execveat, f, "", (char *[]){"x", NULL}, (char *[]){NULL}, AT_EMPTY_PATH);
        _exit(1);
    }
    waitpid(c, &st, 0);
    EQ(st, 0);
    char b[64] = "";
    fd = OK(open("out", O_RDONLY));
    OK(read(fd, b, 63));
    CHECK(strncmp(b, "/dev/fd/", 8) == 0);
    // A descriptor that plays no part may be closed by it.
    c = OK(fork());
    if (!c) {
        int d = OK(open(".", O_DIRECTORY | O_CLOEXEC));
        char name[64];
        sprintf(name, "/dev/fd/%d/s", OK(open(".", O_DIRECTORY)));
        syscall(SYS_execveat, d, name, (char *[]){"x", NULL}, (char *[]){NULL}, 0);
        _exit(1);
    }
    waitpid(c, &st, 0);
    EQ(st, 0);
    c = OK(fork());
    if (!c) {
        errno = 0;
        syscall(SYS_execve, "s", NULL, NULL);
        _exit(errno);
    }
    waitpid(c, &st, 0);
    EQ(st, 0);
    fd = OK(open("t", O_CREAT | O_WRONLY, 0755));
    dprintf(fd, "#!\n");
    close(fd);
    c = OK(fork());
    if (!c) {
        execl("./t", "t", NULL);
        _exit(errno == ENOEXEC ? 0 : 1);
    }
    waitpid(c, &st, 0);
    EQ(st, 0);
    fd = OK(open("u", O_CREAT | O_WRONLY, 0755));
    dprintf(fd, "#!./u\n");
    close(fd);
    c = OK(fork());
    if (!c) {
        execl("./u", "u", NULL);
        _exit(errno == ELOOP ? 0 : errno);
    }
    waitpid(c, &st, 0);
    EQ(st, 0);
    c = OK(fork());
    if (!c) {
        ERR(execl("/", "u", NULL), EACCES);
        ERR(execl("/dev/null", "u", NULL), EACCES);
        ERR(execl("none", "n", NULL), ENOENT);
        _exit(0);
    }
    waitpid(c, &st, 0);
    EQ(st, 0);
}
CASE(inotify_misc) {
    int in = OK(inotify_init1(IN_NONBLOCK));
    close(OK(open("f", O_CREAT | O_RDWR, 0600)));
    OK(inotify_add_watch(in, "f", IN_ALL_EVENTS));
    OK(link("f", "g"));
    char b[4096];
    struct inotify_event *e = (void *)b;
    EQ(read(in, b, 4096), 16);
    EQ(e->mask, IN_ATTRIB);
    OK(unlink("g"));
    EQ(read(in, b, 4096), 16);
    EQ(e->mask, IN_ATTRIB);
    if (setxattr("f", "user.x", "y", 1, 0) == 0) {
        EQ(read(in, b, 4096), 16);
        EQ(e->mask, IN_ATTRIB);
    } else {
        // Not every file system has them.
        EQ(errno, EOPNOTSUPP);
    }
    int fd = OK(open("f", O_RDWR));
    OK(read(in, b, 4096));
    OK(fallocate(fd, 0, 0, 100));
    EQ(read(in, b, 4096), 16);
    EQ(e->mask, IN_MODIFY);
    OK(unlink("f"));
    EQ(read(in, b, 4096), 16);
    EQ(e->mask, IN_ATTRIB);
    close(fd);
    EQ(read(in, b, 4096), 48);
    EQ(e->mask, IN_CLOSE_WRITE);
    EQ(e[1].mask, IN_DELETE_SELF);
    EQ(e[2].mask, IN_IGNORED);
    ERR(inotify_add_watch(in, "none", 0), EINVAL);
    ERR(inotify_add_watch(in, "none", IN_CREATE), ENOENT);
    ERR(inotify_add_watch(in, ".", IN_MASK_ADD | IN_MASK_CREATE | IN_CREATE), EINVAL);
    int wd = OK(inotify_add_watch(in, ".", IN_CREATE));
    ERR(inotify_add_watch(in, ".", IN_MASK_CREATE | IN_CREATE), EEXIST);
    ERR(inotify_rm_watch(in, wd + 5), EINVAL);
    ERR(read(in, b, 8), EAGAIN);
}
CASE(kcmp_) {
    int a = OK(dup(0)), b = OK(open("/dev/null", O_RDONLY));
    pid_t p = getpid();
    EQ(syscall(SYS_kcmp, p, p, 0, 0, a), 0);
    CHECK(syscall(SYS_kcmp, p, p, 0, a, b) > 0);
    EQ(syscall(SYS_kcmp, p, p, 1, 0, 0), 0);
    ERR(syscall(SYS_kcmp, p, p, 99, 0, 0), EINVAL);
    ERR(syscall(SYS_kcmp, p, p, 0, 0, 999), EBADF);
}
CASE(pidfd_getfd_) {
    pid_t c = OK(fork());
    if (!c) pause();
    int p = OK(syscall(SYS_pidfd_open, c, 0));
    int f = OK(syscall(SYS_pidfd_getfd, p, 0, 0));
    EQ(fcntl(f, F_GETFD), FD_CLOEXEC);
    ERR(syscall(SYS_pidfd_getfd, p, 999, 0), EBADF);
    ERR(syscall(SYS_pidfd_getfd, p, 0, 1), EINVAL);
    kill(c, 9);
    waitpid(c, 0, 0);
    ERR(syscall(SYS_pidfd_getfd, p, 0, 0), ESRCH);
}
CASE(proc_files_that_tell_little) {
    const char *all[] = {"/proc/interrupts",  "/proc/partitions",        "/proc/diskstats",
                         "/proc/misc",        "/proc/execdomains",       "/proc/sys/kernel/tainted",
                         "/proc/self/cpuset", "/proc/self/timerslack_ns"};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) close(OK(open(all[i], O_RDONLY)));
    int fd = OK(open("/proc/self/timerslack_ns", O_RDWR));
    char text[16] = "";
    OK(prctl(PR_SET_TIMERSLACK, 1234));
    OK(read(fd, text, 15));
    STR_EQ(text, "1234\n");
    EQ(write(fd, "77", 2), 2);
    EQ(prctl(PR_GET_TIMERSLACK), 77);
}
CASE(sched_things) {
    struct {
        unsigned size, policy;
        unsigned long long flags;
        int nice;
        unsigned prio;
        unsigned long long rt, dl, per;
    } a = {0};
    OK(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0));
    EQ(a.size, 48);
    a.nice = 3;
    OK(syscall(SYS_sched_setattr, 0, &a, 0));
    OK(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0));
    EQ(a.nice, 3);
    ERR(syscall(SYS_sched_setattr, 0, &a, 1), EINVAL);
    a.size = 10;
    ERR(syscall(SYS_sched_setattr, 0, &a, 0), E2BIG);
}
CASE(cpu_clock_nanosleep) {
    struct timespec t = {0, 10000000};
    ERR((errno = clock_nanosleep(CLOCK_THREAD_CPUTIME_ID, 0, &t, NULL)) ? -1 : 0, EINVAL);
    ERR((errno = clock_nanosleep(99, 0, &t, NULL)) ? -1 : 0, EINVAL);
    clockid_t c;
    ERR((errno = clock_getcpuclockid(4000000, &c)) ? -1 : 0, ESRCH);
}
CASE(getcpu_) {
    unsigned c, n;
    OK(syscall(SYS_getcpu, &c, &n, NULL));
    EQ(n, 0);
    OK(syscall(SYS_getcpu, NULL, NULL, NULL));
    ERR(syscall(SYS_getcpu, (void *)8, NULL, NULL), EFAULT);
}
CASE(sendfile_limits) {
    int a = OK(open("a", O_CREAT | O_RDWR, 0600)), b = OK(open("b", O_CREAT | O_RDWR, 0600)),
        ap = OK(open("c", O_CREAT | O_WRONLY | O_APPEND, 0600));
    EQ(write(a, "hello", 5), 5);
    off_t o = 0;
    EQ(sendfile(b, a, &o, 100), 5);
    EQ(o, 5);
    o = -1;
    ERR(sendfile(b, a, &o, 1), EINVAL);
    ERR(sendfile(ap, a, NULL, 1), EINVAL);
    ERR(sendfile(a, ap, NULL, 1), EBADF);
    int d = OK(open(".", O_DIRECTORY));
    ERR(sendfile(b, d, NULL, 1), EINVAL);
    ERR(copy_file_range(a, NULL, a, NULL, 1, 1), EINVAL);
    o = 0;
    off_t p = 2;
    ERR(copy_file_range(a, &o, a, &p, 4, 0), EINVAL);
    ERR(copy_file_range(a, NULL, ap, NULL, 1, 0), EBADF);
    ERR(copy_file_range(d, NULL, b, NULL, 1, 0), EISDIR);
}
CASE(splice_forms) {
    int p[2], q[2];
    OK(pipe(p));
    OK(pipe(q));
    int f = OK(open("f", O_CREAT | O_RDWR, 0600));
    EQ(write(f, "hello", 5), 5);
    loff_t o = 0;
    EQ(splice(f, &o, p[1], NULL, 5, 0), 5);
    EQ(tee(p[0], q[1], 5, 0), 5);
    ERR(tee(p[0], p[1], 5, 0), EINVAL);
    ERR(splice(f, NULL, f, NULL, 1, 0), EINVAL);
    ERR(splice(p[0], &o, f, NULL, 1, 0), ESPIPE);
    ERR(splice(p[0], NULL, q[1], NULL, 5, 0x100), EINVAL);
    ERR(tee(f, q[1], 1, 0), EINVAL);
    EQ(splice(p[0], NULL, q[1], NULL, 5, SPLICE_F_NONBLOCK), 5);
    ERR(splice(p[0], NULL, q[1], NULL, 5, SPLICE_F_NONBLOCK), EAGAIN);
    struct iovec v = {"abc", 3};
    EQ(vmsplice(p[1], &v, 1, 0), 3);
    ERR(vmsplice(f, &v, 1, 0), EBADF);
    EQ(vmsplice(p[1], &v, 0, 0), 0);
    int ap = OK(open("c", O_CREAT | O_WRONLY | O_APPEND, 0600));
    ERR(splice(p[0], NULL, ap, NULL, 1, 0), EINVAL);
}
CASE(prctls) {
    EQ(prctl(PR_GET_DUMPABLE), 1);
    OK(prctl(PR_SET_DUMPABLE, 0));
    EQ(prctl(PR_GET_DUMPABLE), 0);
    ERR(prctl(PR_SET_DUMPABLE, 2), EINVAL);
    EQ(prctl(PR_GET_TIMERSLACK), 50000);
    OK(prctl(PR_SET_TIMERSLACK, 7));
    EQ(prctl(PR_GET_TIMERSLACK), 7);
    OK(prctl(PR_SET_TIMERSLACK, 0));
    EQ(prctl(PR_GET_TIMERSLACK), 50000);
    int v;
    OK(prctl(PR_SET_PDEATHSIG, 5));
    OK(prctl(PR_GET_PDEATHSIG, &v));
    EQ(v, 5);
    ERR(prctl(PR_SET_PDEATHSIG, 65), EINVAL);
    OK(prctl(PR_SET_KEEPCAPS, 1));
    EQ(prctl(PR_GET_KEEPCAPS), 1);
    ERR(prctl(PR_SET_KEEPCAPS, 2), EINVAL);
    ERR(prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0), EINVAL);
    EQ(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), 0);
    EQ(prctl(PR_GET_TSC, &v), 0);
    EQ(v, PR_TSC_ENABLE);
    OK(prctl(PR_SET_CHILD_SUBREAPER, 1));
    OK(prctl(PR_GET_CHILD_SUBREAPER, &v));
    EQ(v, 1);
    EQ(prctl(PR_CAPBSET_READ, 0), 1);
    ERR(prctl(PR_CAPBSET_READ, 99), EINVAL);
    ERR(prctl(9999), EINVAL);
    EQ(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0), PR_MCE_KILL_DEFAULT);
    EQ(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0), 0);
    EQ(prctl(PR_GET_SPECULATION_CTRL, 0, 0, 0, 0) >= 0, 1);
    unsigned *t = 0;
    OK(prctl(PR_GET_TID_ADDRESS, &t));
}
CASE(futex_shared_private) {
    unsigned *m = mmap(NULL, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EQ(syscall(SYS_futex, m, FUTEX_WAKE, 1, NULL), 0);
    ERR(syscall(SYS_futex, m, FUTEX_WAIT, 1, NULL), EAGAIN);
    struct timespec t = {0, 1000000};
    ERR(syscall(SYS_futex, m, FUTEX_WAIT, 0, &t), ETIMEDOUT);
    ERR(syscall(SYS_futex, (char *)m + 1, FUTEX_WAIT, 0, &t), EINVAL);
    ERR(syscall(SYS_futex, m, 99, 0, &t), ENOSYS);
    ERR(syscall(SYS_futex, m, FUTEX_WAIT_BITSET, 0, &t, NULL, 0), EINVAL);
    ERR(syscall(SYS_futex, (void *)8, FUTEX_WAIT, 0, &t), EFAULT);
    EQ(syscall(SYS_futex, (void *)8, FUTEX_WAKE_PRIVATE, 1, NULL), 0);
    ERR(syscall(SYS_futex, m, FUTEX_CMP_REQUEUE, 1, 1, m + 1, 5), EAGAIN);
    ERR(syscall(SYS_futex, m, FUTEX_REQUEUE, -1, 1, m + 1, 5), EINVAL);
}
CASE(remap_file_pages_) {
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(fd, 8192));
    char *m = mmap(NULL, 8192, 3, MAP_SHARED, fd, 0);
    m[0] = 'a';
    m[4096] = 'b';
    OK(remap_file_pages(m, 4096, 0, 1, 0));
    EQ(m[0], 'b');
    // Offsets beyond those that files can have.
    ERR(remap_file_pages(m, 4096, 0, 1UL << 51, 0), EOVERFLOW);
    ERR(remap_file_pages(m, 4096, 0, 1UL << 52, 0), EOVERFLOW);
    ERR(remap_file_pages(m, 4096, 0, -2UL, 0), EOVERFLOW);
    ERR(remap_file_pages(m, 4096, 0, -1UL, 0), EINVAL);
    EQ(m[0], 'b');
}
CASE(remove_of_shared_memory) {
    char *m = mmap(NULL, 3 * 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(m, 'a', 3 * 4096);
    pid_t c = OK(fork());
    if (!c) _exit(madvise(m + 4096, 4096, MADV_REMOVE) ? errno : 0);
    int st;
    waitpid(c, &st, 0);
    EQ(st, 0);
    EQ(m[4095], 'a');
    EQ(m[4096], 0);
    EQ(m[8191], 0);
    EQ(m[8192], 'a');
    int id = OK(shmget(IPC_PRIVATE, 8192, 0600));
    char *s = shmat(id, NULL, 0);
    OK(shmctl(id, IPC_RMID, NULL));
    memset(s, 'b', 8192);
    OK(madvise(s, 4096, MADV_REMOVE));
    EQ(s[0], 0);
    EQ(s[4096], 'b');
}
CASE(getdents_bad) {
    int d = OK(open("/", O_DIRECTORY));
    ERR(syscall(SYS_getdents64, d, (void *)8, 1000), EFAULT);
    char b[8];
    ERR(syscall(SYS_getdents64, d, b, 8), EINVAL);
    int f = OK(open("f", O_CREAT, 0600));
    ERR(syscall(SYS_getdents64, f, b, 8), ENOTDIR);
    OK(mkdir("d", 0700));
    int x = OK(open("d", O_DIRECTORY));
    OK(rmdir("d"));
    char bb[512];
    ERR(syscall(SYS_getdents64, x, bb, 512), ENOENT);
}
CASE(inotify_of_a_file_that_is_gone) {
    int in = OK(inotify_init1(IN_NONBLOCK));
    char b[4096];
    struct inotify_event *e = (void *)b;
    int fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(inotify_add_watch(in, "f", IN_CLOSE_WRITE));
    OK(unlink("f"));
    ERR(read(in, b, sizeof b), EAGAIN);
    OK(close(fd));
    // Also who did not ask for the end of the file hears that the watch has ended.
    EQ(read(in, b, sizeof b), 32);
    EQ(e[0].mask, IN_CLOSE_WRITE);
    EQ(e[1].mask, IN_IGNORED);
    // A directory's watch goes on with what has no name there, unless it says otherwise.
    for (int out = 0; out < 2; out++) {
        int wd = OK(inotify_add_watch(in, ".", IN_MODIFY | (out ? IN_EXCL_UNLINK : 0)));
        fd = OK(open("g", O_CREAT | O_RDWR, 0600));
        OK(unlink("g"));
        EQ(write(fd, "x", 1), 1);
        OK(close(fd));
        if (out)
            ERR(read(in, b, sizeof b), EAGAIN);
        else
            EQ(read(in, b, sizeof b), 32);
        OK(inotify_rm_watch(in, wd));
        EQ(read(in, b, sizeof b), 16);
    }
}

CASE(user_and_system_time_are_told_apart) {
    struct rusage r, before;
    static char b[1 << 20];
    OK(getrusage(RUSAGE_SELF, &before));
    for (volatile long i = 0; i < 100000000; i++) {}
    OK(getrusage(RUSAGE_SELF, &r));
    long user = (r.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000000 + r.ru_utime.tv_usec - before.ru_utime.tv_usec;
    CHECK(user > 20000);
    before = r;
    int fd = OK(open("/dev/zero", O_RDONLY));
    // Few long calls, and many short ones.
    for (int i = 0; i < 1000; i++) EQ(read(fd, b, sizeof b), sizeof b);
    for (int i = 0; i < 200000; i++) syscall(SYS_getppid);
    OK(getrusage(RUSAGE_SELF, &r));
    long system = (r.ru_stime.tv_sec - before.ru_stime.tv_sec) * 1000000 + r.ru_stime.tv_usec - before.ru_stime.tv_usec;
    CHECK(system > 10000);
    CHECK(r.ru_utime.tv_sec * 1000000 + r.ru_utime.tv_usec >=
          before.ru_utime.tv_sec * 1000000 + before.ru_utime.tv_usec);
}

CASE(copies_of_messages) {
    struct {
        long type;
        char text[8];
    } m = {5, "first"};
    int q = OK(msgget(IPC_PRIVATE, 0600));
    OK(msgsnd(q, &m, 6, 0));
    m.type = 6;
    strcpy(m.text, "second");
    OK(msgsnd(q, &m, 7, 0));
    for (int round = 0; round < 2; round++) {
        EQ(msgrcv(q, &m, 8, 1, MSG_COPY | IPC_NOWAIT), 7);
        EQ(m.type, 6);
        STR_EQ(m.text, "second");
    }
    ERR(msgrcv(q, &m, 8, 2, MSG_COPY | IPC_NOWAIT), ENOMSG);
    ERR(msgrcv(q, &m, 8, 0, MSG_COPY), EINVAL);
    ERR(msgrcv(q, &m, 8, 0, MSG_COPY | IPC_NOWAIT | MSG_EXCEPT), EINVAL);
    ERR(msgrcv(q, &m, 3, 0, MSG_COPY | IPC_NOWAIT), E2BIG);
    ERR(msgrcv(q, &m, 3, 0, MSG_COPY | IPC_NOWAIT | MSG_NOERROR), EINVAL);
    EQ(msgrcv(q, &m, 8, 0, 0), 6);
    OK(msgctl(q, IPC_RMID, NULL));
}

CASE(queued_signals_are_counted) {
    struct rlimit limit = {50, 50};
    OK(setrlimit(RLIMIT_SIGPENDING, &limit));
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    OK(sigprocmask(SIG_BLOCK, &set, NULL));
    for (int i = 0; i < 3; i++) OK(sigqueue(getpid(), SIGRTMIN, (union sigval){0}));
    char line[256];
    int queued = -1, most = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "SigQ: %d/%d", &queued, &most);
    EQ(most, 50);
    // Of the user on Linux, of the process here.
    CHECK(queued >= 3);
}

CASE(timers_are_not_written_to) {
    int fd = OK(timerfd_create(CLOCK_MONOTONIC, 0));
    EQ(OK(fcntl(fd, F_GETFL)) & O_ACCMODE, O_RDWR);
    ERR(write(fd, "12345678", 8), EINVAL);
}
