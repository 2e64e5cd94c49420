// fanotify(7): groups, marks, events by descriptor and by handle, permission. Everything happens on a tmpfs of the case's own.
#include "harness.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statfs.h>

#ifndef FAN_REPORT_TARGET_FID
#define FAN_REPORT_TARGET_FID 0x1000
#endif
#ifndef FAN_MARK_IGNORE
#define FAN_MARK_IGNORE 0x400
#endif
#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x200
#endif
#ifndef FAN_RENAME
#define FAN_RENAME 0x10000000
#endif
#define NAMES (FAN_REPORT_DIR_FID | FAN_REPORT_NAME)
#define TYPE_FID 1
#define TYPE_DFID_NAME 2
#define TYPE_DFID 3
#define TYPE_PIDFD 4
#define TYPE_OLD 10
#define TYPE_NEW 12

static void needs_mounts(void) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("here", 0755));
    if (mount("here", "here", "tmpfs", 0, NULL) == -1 && errno == EPERM) skip_case("may not mount");
    OK(chdir("here"));
    OK(chmod(".", 0777));
}

static int group(unsigned flags) {
    needs_mounts();
    return OK(fanotify_init(flags | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY));
}

static void mark(int fan, uint64_t mask, const char *path) { OK(fanotify_mark(fan, FAN_MARK_ADD, mask, AT_FDCWD, path)); }

// The next event, in one piece with its records.
static char event_bytes[4096] __attribute__((aligned(8)));
static struct fanotify_event_metadata *next(int fan) {
    struct pollfd ready = {.fd = fan, .events = POLLIN};
    EQ(poll(&ready, 1, 10000), 1);
    // One at a time: a buffer for two might get both.
    struct fanotify_event_metadata *event = (void *)event_bytes;
    for (size_t size = 24;; size += 4) {
        ssize_t got = read(fan, event_bytes, size);
        if (got == -1 && errno == EINVAL && size < sizeof event_bytes) continue;
        if (got == -1) FAIL("read: %s", strerrorname_np(errno));
        EQ(got, event->event_len);
        EQ(event->vers, FANOTIFY_METADATA_VERSION);
        EQ(event->metadata_len, FAN_EVENT_METADATA_LEN);
        return event;
    }
}

static void expect_none(int fan) {
    char bytes[4096];
    ERR(read(fan, bytes, sizeof bytes), EAGAIN);
}

// An event of this process comes next: its descriptor.
static int expect(int fan, uint64_t mask) {
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->mask, mask);
    EQ(event->pid, getpid());
    return event->fd;
}

static void expect_closed(int fan, uint64_t mask) {
    int fd = expect(fan, mask);
    CHECK(fd >= 0);
    OK(close(fd));
}

static void touch(const char *path) { OK(close(OK(open(path, O_RDONLY)))); }

// The descriptor leads to this.
static void expect_file(int fd, const char *path) {
    struct stat a, b;
    OK(fstat(fd, &a));
    OK(lstat(path, &b));
    EQ(a.st_ino, b.st_ino);
    EQ(a.st_dev, b.st_dev);
}

// Record number `index` of the event in `event_bytes` is of this type, about the file at `path`, with this name.
static void expect_record(int index, int type, const char *path, const char *name) {
    struct fanotify_event_metadata *event = (void *)event_bytes;
    char *at = event_bytes + event->metadata_len, *end = event_bytes + event->event_len;
    struct fanotify_event_info_fid *info = NULL;
    for (int i = 0; i <= index; i++) {
        info = (void *)at;
        if (at >= end) FAIL("there are %d records", i);
        at += info->hdr.len;
        CHECK(info->hdr.len % 4 == 0 && at <= end);
    }
    EQ(info->hdr.info_type, type);
    struct statfs st;
    OK(statfs(".", &st));
    CHECK(memcmp(&info->fsid, &st.f_fsid, sizeof st.f_fsid) == 0);
    struct file_handle *handle = (void *)info->handle;
    if (path) {
        char wanted_bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
        struct file_handle *wanted = (void *)wanted_bytes;
        wanted->handle_bytes = MAX_HANDLE_SZ;
        int mount;
        OK(name_to_handle_at(AT_FDCWD, path, wanted, &mount, 0));
        EQ(handle->handle_bytes, wanted->handle_bytes);
        EQ(handle->handle_type, wanted->handle_type);
        CHECK(memcmp(handle->f_handle, wanted->f_handle, wanted->handle_bytes) == 0);
    }
    if (name) STR_EQ((char *)handle->f_handle + handle->handle_bytes, name);
}

static void expect_records(int count) {
    struct fanotify_event_metadata *event = (void *)event_bytes;
    int found = 0;
    for (char *at = event_bytes + event->metadata_len; at < event_bytes + event->event_len; found++)
        at += ((struct fanotify_event_info_header *)at)->len;
    EQ(found, count);
}

// An event without a descriptor.
static void expect_named(int fan, uint64_t mask, const char *directory, const char *name) {
    EQ(expect(fan, mask), FAN_NOFD);
    expect_record(0, TYPE_DFID_NAME, directory, name);
}

static void answer(int fan, int fd, unsigned response) {
    struct fanotify_response r = {.fd = fd, .response = response};
    EQ(write(fan, &r, sizeof r), sizeof r);
    OK(close(fd));
}

// A process that opens a file and reads a byte: its errno.
static pid_t opener(const char *path, int flags) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        char byte;
        // Groups are not kept open by it.
        OK(syscall(SYS_close_range, 3, ~0U, 0));
        int fd = open(path, flags, 0600);
        _exit(fd == -1 || read(fd, &byte, 1) == -1 ? errno : 0);
    }
    return pid;
}

CASE(open_read_close) {
    int fan = group(0);
    write_file("f", "contents");
    mark(fan, FAN_OPEN | FAN_ACCESS | FAN_CLOSE, "f");
    expect_none(fan);
    char text[16] = "";
    int fd = OK(open("f", O_RDONLY));
    int seen = expect(fan, FAN_OPEN);
    expect_file(seen, "f");
    EQ(read(seen, text, sizeof text), 8);
    STR_EQ(text, "contents");
    OK(close(seen));
    expect_none(fan);
    EQ(read(fd, text, 1), 1);
    expect_closed(fan, FAN_ACCESS);
    OK(close(fd));
    expect_closed(fan, FAN_CLOSE_NOWRITE);
    expect_none(fan);
}

CASE(equal_events_are_one) {
    int fan = group(0);
    write_file("f", "");
    write_file("g", "");
    mark(fan, FAN_OPEN | FAN_MODIFY | FAN_CLOSE_WRITE, "f");
    mark(fan, FAN_OPEN, "g");
    int fd = OK(open("f", O_WRONLY));
    touch("g");
    EQ(write(fd, "x", 1), 1);
    EQ(write(fd, "x", 1), 1);
    OK(close(fd));
    pid_t pid = opener("f", O_RDONLY);
    expect_exit(pid, 0);
    expect_closed(fan, FAN_OPEN | FAN_MODIFY | FAN_CLOSE_WRITE);
    expect_closed(fan, FAN_OPEN);
    // By another process it is another event.
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->mask, FAN_OPEN);
    EQ(event->pid, pid);
    expect_none(fan);
}

CASE(children_of_a_directory) {
    int fan = group(0);
    OK(mkdir("d", 0755));
    OK(mkdir("d/sub", 0755));
    write_file("d/f", "");
    mark(fan, FAN_OPEN, "d");
    touch("d/f");
    touch("d");
    expect_none(fan);
    mark(fan, FAN_OPEN | FAN_EVENT_ON_CHILD, "d");
    touch("d/f");
    touch("d/sub");
    int fd = expect(fan, FAN_OPEN);
    expect_file(fd, "d/f");
    OK(close(fd));
    expect_none(fan);
    mark(fan, FAN_ONDIR, "d");
    touch("d/sub");
    touch("d");
    // Flags of events are not told with descriptors.
    fd = expect(fan, FAN_OPEN);
    expect_file(fd, "d/sub");
    OK(close(fd));
    fd = expect(fan, FAN_OPEN);
    expect_file(fd, "d");
    OK(close(fd));
    expect_none(fan);
}

CASE(listing_a_directory) {
    int fan = group(0);
    OK(mkdir("d", 0755));
    mark(fan, FAN_ACCESS | FAN_ONDIR, "d");
    int fd = OK(open("d", O_RDONLY | O_DIRECTORY));
    expect_none(fan);
    char bytes[1024];
    CHECK(syscall(SYS_getdents64, fd, bytes, sizeof bytes) > 0);
    expect_closed(fan, FAN_ACCESS);
}

CASE(mounts_and_file_systems) {
    int fan = group(0), all = OK(fanotify_init(FAN_NONBLOCK, O_RDONLY));
    OK(mkdir("d", 0755));
    OK(mkdir("other", 0755));
    write_file("d/f", "");
    OK(mount("d", "other", NULL, MS_BIND, NULL));
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "d"));
    OK(fanotify_mark(all, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN, AT_FDCWD, "d"));
    touch("d/f");
    expect_closed(fan, FAN_OPEN);
    expect_closed(all, FAN_OPEN);
    // Through another mount.
    touch("other/f");
    expect_none(fan);
    expect_closed(all, FAN_OPEN);
    touch("/proc/self/stat");
    touch("d");
    expect_none(fan);
    expect_none(all);
    OK(fanotify_mark(fan, FAN_MARK_FLUSH | FAN_MARK_MOUNT, 0, AT_FDCWD, "."));
    touch("d/f");
    expect_none(fan);
    // A mark is no use of the mount, and goes with it.
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "other"));
    OK(umount("other"));
    ERR(fanotify_mark(fan, FAN_MARK_REMOVE | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "other"), ENOENT);
}

CASE(ignored_until_modified) {
    int fan = group(0);
    OK(mkdir("d", 0755));
    write_file("d/f", "");
    mark(fan, FAN_OPEN | FAN_EVENT_ON_CHILD, "d");
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_OPEN, AT_FDCWD, "d/f"));
    touch("d/f");
    expect_none(fan);
    int fd = OK(open("d/f", O_WRONLY));
    expect_none(fan);
    EQ(write(fd, "x", 1), 1);
    // Whoever could write would end it at once: it does not begin.
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_OPEN, AT_FDCWD, "d/f"));
    touch("d/f");
    expect_closed(fan, FAN_OPEN);
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_OPEN, AT_FDCWD, "d/f"));
    EQ(write(fd, "x", 1), 1);
    touch("d/f");
    expect_none(fan);
    OK(fanotify_mark(fan, FAN_MARK_REMOVE | FAN_MARK_IGNORED_MASK, FAN_OPEN, AT_FDCWD, "d/f"));
    touch("d/f");
    expect_closed(fan, FAN_OPEN);
}

CASE(ignoring_with_flags) {
    int fan = group(0);
    OK(mkdir("d", 0755));
    write_file("d/f", "");
    unsigned add = FAN_MARK_ADD | FAN_MARK_IGNORE, lasting = add | FAN_MARK_IGNORED_SURV_MODIFY;
    ERR(fanotify_mark(fan, add, FAN_OPEN, AT_FDCWD, "d"), EISDIR);
    ERR(fanotify_mark(fan, add | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "d"), EINVAL);
    ERR(fanotify_mark(fan, add | FAN_MARK_IGNORED_MASK, FAN_OPEN, AT_FDCWD, "d/f"), EINVAL);
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN | FAN_ONDIR, AT_FDCWD, "d"));
    // Children are, the directory itself is not.
    OK(fanotify_mark(fan, lasting, FAN_OPEN | FAN_EVENT_ON_CHILD, AT_FDCWD, "d"));
    touch("d/f");
    expect_none(fan);
    touch("d");
    expect_closed(fan, FAN_OPEN);
    OK(fanotify_mark(fan, lasting, FAN_ONDIR, AT_FDCWD, "d"));
    touch("d");
    expect_none(fan);
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_OPEN, AT_FDCWD, "d"), EEXIST);
}

CASE(remove_and_flush) {
    int fan = group(0);
    write_file("f", "");
    ERR(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "f"), ENOENT);
    mark(fan, FAN_OPEN | FAN_CLOSE, "f");
    OK(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_CLOSE, AT_FDCWD, "f"));
    touch("f");
    expect_closed(fan, FAN_OPEN);
    expect_none(fan);
    OK(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "f"));
    ERR(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "f"), ENOENT);
    mark(fan, FAN_OPEN, "f");
    OK(fanotify_mark(fan, FAN_MARK_FLUSH | FAN_MARK_MOUNT, 0, AT_FDCWD, "f"));
    touch("f");
    expect_closed(fan, FAN_OPEN);
    OK(fanotify_mark(fan, FAN_MARK_FLUSH, 0, AT_FDCWD, "f"));
    touch("f");
    expect_none(fan);
}

CASE(errors_of_init) {
    needs_mounts();
    ERR(fanotify_init(0x80000000, O_RDONLY), EINVAL);
    ERR(fanotify_init(0, 3), EINVAL);
    ERR(fanotify_init(0, O_CREAT), EINVAL);
    ERR(fanotify_init(FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT, 0), EINVAL);
    ERR(fanotify_init(FAN_REPORT_TID | FAN_REPORT_PIDFD, 0), EINVAL);
    ERR(fanotify_init(FAN_REPORT_FID | FAN_CLASS_CONTENT, 0), EINVAL);
    ERR(fanotify_init(FAN_REPORT_NAME, 0), EINVAL);
    ERR(fanotify_init(FAN_REPORT_TARGET_FID | NAMES, 0), EINVAL);
    int fd = OK(fanotify_init(0, 0));
    EQ(fcntl(fd, F_GETFD), 0);
    EQ(fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR);
    fd = OK(fanotify_init(FAN_CLOEXEC | FAN_NONBLOCK | FAN_UNLIMITED_QUEUE | FAN_UNLIMITED_MARKS, O_RDWR | O_CLOEXEC));
    EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EQ(fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR | O_NONBLOCK);
}

CASE(errors_of_mark) {
    int fan = group(0), fid = OK(fanotify_init(FAN_REPORT_FID, 0));
    write_file("f", "");
    OK(symlink("f", "link"));
    ERR(fanotify_mark(-1, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "f"), EBADF);
    ERR(fanotify_mark(OK(open("f", O_RDONLY)), FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, 0, FAN_OPEN, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_MOUNT | FAN_MARK_FILESYSTEM, FAN_OPEN, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD | 0x80000, FAN_OPEN, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, 0, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, 1ULL << 40, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_Q_OVERFLOW, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_FLUSH | FAN_MARK_ONLYDIR, 0, AT_FDCWD, "."), EINVAL);
    // Questions are not for groups of this class, names not for those with descriptors.
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, "f"), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_CREATE, AT_FDCWD, "."), EINVAL);
    ERR(fanotify_mark(fid, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_CREATE, AT_FDCWD, "."), EINVAL);
    ERR(fanotify_mark(fid, FAN_MARK_ADD, FAN_RENAME, AT_FDCWD, "."), EINVAL);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "none"), ENOENT);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, (char *)8), EFAULT);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, 99, "f"), EBADF);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, 99, NULL), EBADF);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, NULL), EBADF);
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_OPEN, AT_FDCWD, "f"), ENOTDIR);
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_EVICTABLE | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "f"), EINVAL);
    // By descriptor, and of the link itself.
    int fd = OK(open("f", O_RDONLY));
    OK(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, fd, NULL));
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_OPEN, fd, NULL), ENOTDIR);
    ERR(fanotify_mark(fan, FAN_MARK_REMOVE | FAN_MARK_DONT_FOLLOW, FAN_OPEN, AT_FDCWD, "link"), ENOENT);
    OK(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "link"));
}

CASE(reading) {
    int fan = group(0);
    char bytes[256];
    write_file("f", "");
    write_file("g", "");
    mark(fan, FAN_OPEN, "f");
    mark(fan, FAN_OPEN, "g");
    int set = OK(epoll_create1(0)), waiting;
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    OK(epoll_ctl(set, EPOLL_CTL_ADD, fan, &event));
    struct pollfd ready = {.fd = fan, .events = POLLIN | POLLOUT};
    EQ(poll(&ready, 1, 0), 0);
    EQ(epoll_wait(set, &event, 1, 0), 0);
    touch("f");
    touch("g");
    EQ(epoll_wait(set, &event, 1, 0), 1);
    EQ(poll(&ready, 1, 0), 1);
    EQ(ready.revents, POLLIN);
    OK(ioctl(fan, FIONREAD, &waiting));
    EQ(waiting, 48);
    ERR(read(fan, bytes, 23), EINVAL);
    EQ(read(fan, bytes, 47), 24);
    touch("f");
    EQ(read(fan, bytes, sizeof bytes), 48);
    OK(ioctl(fan, FIONREAD, &waiting));
    EQ(waiting, 0);
    touch("f");
    char *volatile nowhere = (char *)8;
    ERR(read(fan, nowhere, 256), EFAULT);
    // That one is lost.
    expect_none(fan);
    EQ(lseek(fan, 7, SEEK_SET), 0);
}

static void on_alarm(int signo) { (void)signo; }

CASE(blocking_read) {
    needs_mounts();
    int fan = OK(fanotify_init(FAN_CLOEXEC, O_RDONLY));
    write_file("f", "x");
    mark(fan, FAN_OPEN, "f");
    char bytes[24];
    struct sigaction action = {.sa_handler = on_alarm};
    OK(sigaction(SIGALRM, &action, NULL));
    struct itimerval often = {.it_interval.tv_usec = 50000, .it_value.tv_usec = 50000};
    OK(setitimer(ITIMER_REAL, &often, NULL));
    ERR(read(fan, bytes, sizeof bytes), EINTR);
    OK(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    pid_t pid = opener("f", O_RDONLY);
    EQ(read(fan, bytes, sizeof bytes), 24);
    EQ(((struct fanotify_event_metadata *)bytes)->pid, pid);
    expect_exit(pid, 0);
}

CASE(descriptors_of_events) {
    needs_mounts();
    int fan = OK(fanotify_init(FAN_NONBLOCK, O_RDWR | O_CLOEXEC | O_APPEND));
    write_file("f", "x");
    mark(fan, FAN_OPEN | FAN_MODIFY | FAN_CLOSE | FAN_ACCESS, "f");
    int fd = OK(open("f", O_RDONLY));
    int seen = expect(fan, FAN_OPEN);
    EQ(fcntl(seen, F_GETFD), FD_CLOEXEC);
    EQ(fcntl(seen, F_GETFL) & (O_ACCMODE | O_APPEND), O_RDWR | O_APPEND);
    char text[8] = "";
    EQ(write(seen, "yz", 2), 2);
    EQ(pread(seen, text, 8, 0), 3);
    STR_EQ(text, "xyz");
    OK(close(seen));
    expect_none(fan);
    // Without descriptors to be had the event is lost.
    struct rlimit few = {.rlim_cur = 0, .rlim_max = 1024}, before;
    OK(getrlimit(RLIMIT_NOFILE, &before));
    few.rlim_max = before.rlim_max;
    EQ(read(fd, text, 1), 1);
    OK(setrlimit(RLIMIT_NOFILE, &few));
    char bytes[24];
    ERR(read(fan, bytes, sizeof bytes), EMFILE);
    OK(setrlimit(RLIMIT_NOFILE, &before));
    expect_none(fan);
    // A program that is executed is not opened for writing.
    OK(close(fd));
    expect_closed(fan, FAN_CLOSE_NOWRITE);
}

static void *toucher(void *arg) {
    *(pid_t *)arg = gettid();
    touch("f");
    return NULL;
}

CASE(who_did_it) {
    int fan = group(FAN_REPORT_TID), processes = OK(fanotify_init(FAN_NONBLOCK | FAN_REPORT_PIDFD, O_RDONLY));
    write_file("f", "");
    mark(fan, FAN_OPEN, "f");
    mark(processes, FAN_OPEN, "f");
    pid_t tid;
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, toucher, &tid));
    ZERO(pthread_join(thread, NULL));
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->pid, tid);
    CHECK(tid != getpid());
    event = next(processes);
    EQ(event->pid, getpid());
    EQ(event->event_len, 32);
    struct fanotify_event_info_pidfd *info = (void *)(event_bytes + 24);
    EQ(info->hdr.info_type, TYPE_PIDFD);
    EQ(info->hdr.len, 8);
    CHECK(info->pidfd >= 0);
    OK(syscall(SYS_pidfd_send_signal, info->pidfd, 0, NULL, 0));
    EQ(fcntl(info->pidfd, F_GETFD), FD_CLOEXEC);
    expect_exit(opener("f", O_RDONLY), 0);
    event = next(processes);
    CHECK(event->pid != 0);
    EQ(info->pidfd, FAN_NOPIDFD);
}

static void link_many(int count) {
    char name[32];
    write_file("f", "");
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "l%d", i);
        OK(link("f", name));
    }
}

// Reads all: how many, and whether the last says that more were lost.
static int read_all(int fan, bool *lost) {
    static char bytes[1 << 16] __attribute__((aligned(8)));
    int count = 0;
    ssize_t got;
    *lost = false;
    while ((got = read(fan, bytes, sizeof bytes)) > 0) {
        struct fanotify_event_metadata *event = (void *)bytes;
        for (; FAN_EVENT_OK(event, got); event = FAN_EVENT_NEXT(event, got)) {
            CHECK(!*lost);
            if (event->mask == FAN_Q_OVERFLOW) {
                *lost = true;
                EQ(event->fd, FAN_NOFD);
                EQ(event->pid, 0);
                EQ(event->event_len, 24);
            } else {
                count++;
            }
        }
    }
    EQ(errno, EAGAIN);
    return count;
}

CASE(too_many_events) {
    int fan = group(NAMES), free = OK(fanotify_init(NAMES | FAN_NONBLOCK | FAN_UNLIMITED_QUEUE, 0));
    char text[32];
    read_file("/proc/sys/fs/fanotify/max_queued_events", text, sizeof text);
    int most = atoi(text);
    if (most > 20000) skip_case("many events may wait");
    mark(fan, FAN_CREATE, ".");
    mark(free, FAN_CREATE, ".");
    link_many(most + 10);
    bool lost;
    EQ(read_all(fan, &lost), most);
    CHECK(lost);
    EQ(read_all(free, &lost), most + 11);
    CHECK(!lost);
    OK(unlink("l0"));
    OK(link("f", "l0"));
    expect_named(fan, FAN_CREATE, ".", "l0");
}

CASE(many_marks) {
    enum { MANY = 2000 };
    int fan = group(FAN_UNLIMITED_MARKS);
    char name[32];
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "f%d", i);
        OK(close(OK(open(name, O_CREAT | O_RDWR, 0600))));
        mark(fan, FAN_OPEN, name);
    }
    for (int i = 0; i < MANY; i += 100) {
        snprintf(name, sizeof name, "f%d", i);
        touch(name);
        int fd = expect(fan, FAN_OPEN);
        expect_file(fd, name);
        OK(close(fd));
    }
    for (int i = 0; i < MANY; i += 2) {
        snprintf(name, sizeof name, "f%d", i);
        OK(unlink(name));
    }
    OK(fanotify_mark(fan, FAN_MARK_FLUSH, 0, AT_FDCWD, "."));
    touch("f1");
    expect_none(fan);
    ERR(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "f1"), ENOENT);
}

CASE(limits) {
    needs_mounts();
    char text[32];
    read_file("/proc/sys/fs/fanotify/max_user_marks", text, sizeof text);
    CHECK(atoi(text) >= 8192);
    read_file("/proc/sys/fs/fanotify/max_user_groups", text, sizeof text);
    int most = atoi(text), made = 0;
    if (most > 900) skip_case("many groups may be made");
    // Those of a user that has none otherwise.
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setgid(61234));
        OK(setuid(61234));
        int last = -1, fd;
        while ((fd = fanotify_init(FAN_REPORT_FID, 0)) >= 0) last = fd, made++;
        EQ(errno, EMFILE);
        EQ(made, most);
        OK(close(last));
        OK(fanotify_init(FAN_REPORT_FID, 0));
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(names_in_directories) {
    int fan = group(NAMES);
    OK(mkdir("d", 0755));
    mark(fan, FAN_CREATE | FAN_DELETE | FAN_MOVE | FAN_ONDIR, "d");
    OK(close(OK(open("d/f", O_CREAT | O_RDWR, 0600))));
    expect_named(fan, FAN_CREATE, "d", "f");
    expect_records(1);
    OK(mkdir("d/sub", 0755));
    expect_named(fan, FAN_CREATE | FAN_ONDIR, "d", "sub");
    OK(rename("d/f", "d/a-name-that-is-longer"));
    expect_named(fan, FAN_MOVED_FROM, "d", "f");
    expect_named(fan, FAN_MOVED_TO, "d", "a-name-that-is-longer");
    OK(symlink("nowhere", "d/link"));
    expect_named(fan, FAN_CREATE, "d", "link");
    OK(unlink("d/link"));
    expect_named(fan, FAN_DELETE, "d", "link");
    OK(rename("d/a-name-that-is-longer", "away"));
    expect_named(fan, FAN_MOVED_FROM, "d", "a-name-that-is-longer");
    OK(rmdir("d/sub"));
    expect_named(fan, FAN_DELETE | FAN_ONDIR, "d", "sub");
    // Equal ones are one; not what happens to a directory and to another file.
    for (int i = 0; i < 3; i++) {
        OK(close(OK(open("d/f", O_CREAT | O_RDWR, 0600))));
        OK(unlink("d/f"));
    }
    OK(mkdir("d/f", 0755));
    expect_named(fan, FAN_CREATE | FAN_DELETE, "d", "f");
    expect_named(fan, FAN_CREATE | FAN_ONDIR, "d", "f");
    expect_none(fan);
}

CASE(file_and_directory) {
    int fan = group(NAMES | FAN_REPORT_FID);
    OK(mkdir("d", 0755));
    write_file("d/f", "x");
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN | FAN_CREATE | FAN_ATTRIB | FAN_ONDIR, AT_FDCWD, "."));
    touch("d/f");
    expect_named(fan, FAN_OPEN, "d", "f");
    expect_record(1, TYPE_FID, "d/f", NULL);
    expect_records(2);
    touch("d");
    expect_named(fan, FAN_OPEN | FAN_ONDIR, "d", ".");
    expect_records(1);
    OK(chmod("d/f", 0600));
    expect_named(fan, FAN_ATTRIB, "d", "f");
    expect_record(1, TYPE_FID, "d/f", NULL);
    // What a name came to is told only who asks for that.
    OK(link("d/f", "d/g"));
    EQ(expect(fan, FAN_ATTRIB), FAN_NOFD);
    expect_record(0, TYPE_FID, "d/f", NULL);
    expect_named(fan, FAN_CREATE, "d", "g");
    expect_records(1);
    expect_none(fan);
}

CASE(directories_without_names) {
    int fan = group(FAN_REPORT_DIR_FID);
    OK(mkdir("d", 0755));
    write_file("d/f", "x");
    mark(fan, FAN_OPEN | FAN_CREATE | FAN_ONDIR | FAN_EVENT_ON_CHILD, "d");
    touch("d/f");
    EQ(expect(fan, FAN_OPEN), FAN_NOFD);
    expect_record(0, TYPE_FID, "d", NULL);
    expect_records(1);
    touch("d");
    EQ(expect(fan, FAN_OPEN | FAN_ONDIR), FAN_NOFD);
    expect_record(0, TYPE_DFID, "d", NULL);
    OK(mkdir("d/sub", 0755));
    EQ(expect(fan, FAN_CREATE | FAN_ONDIR), FAN_NOFD);
    expect_record(0, TYPE_DFID, "d", NULL);
    expect_none(fan);
}

CASE(files_by_handle) {
    int fan = group(FAN_REPORT_FID);
    write_file("f", "x");
    OK(mkdir("d", 0755));
    mark(fan, FAN_OPEN | FAN_MODIFY | FAN_ATTRIB | FAN_DELETE_SELF | FAN_MOVE_SELF, "f");
    mark(fan, FAN_CREATE | FAN_DELETE_SELF | FAN_ONDIR, "d");
    touch("f");
    EQ(expect(fan, FAN_OPEN), FAN_NOFD);
    expect_record(0, TYPE_FID, "f", NULL);
    expect_records(1);
    OK(truncate("f", 0));
    EQ(expect(fan, FAN_MODIFY), FAN_NOFD);
    OK(rename("f", "g"));
    EQ(expect(fan, FAN_MOVE_SELF), FAN_NOFD);
    expect_record(0, TYPE_FID, "g", NULL);
    OK(close(OK(open("d/x", O_CREAT | O_RDWR, 0600))));
    EQ(expect(fan, FAN_CREATE), FAN_NOFD);
    expect_record(0, TYPE_FID, "d", NULL);
    int fd = OK(open("g", O_RDONLY));
    EQ(expect(fan, FAN_OPEN), FAN_NOFD);
    OK(unlink("g"));
    EQ(expect(fan, FAN_ATTRIB), FAN_NOFD);
    expect_none(fan);
    OK(close(fd));
    EQ(expect(fan, FAN_DELETE_SELF), FAN_NOFD);
    expect_record(0, TYPE_FID, NULL, NULL);
    // Its mark is gone too.
    OK(close(OK(open("g", O_CREAT | O_RDWR, 0600))));
    ERR(fanotify_mark(fan, FAN_MARK_REMOVE, FAN_OPEN, AT_FDCWD, "g"), ENOENT);
    OK(unlink("d/x"));
    OK(rmdir("d"));
    EQ(expect(fan, FAN_DELETE_SELF | FAN_ONDIR), FAN_NOFD);
    expect_none(fan);
}

CASE(renames) {
    int fan = group(NAMES), all = OK(fanotify_init(NAMES | FAN_NONBLOCK, 0));
    OK(mkdir("a", 0755));
    OK(mkdir("b", 0755));
    write_file("a/f", "");
    mark(fan, FAN_RENAME, "a");
    OK(fanotify_mark(all, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_RENAME | FAN_ONDIR, AT_FDCWD, "."));
    OK(rename("a/f", "b/g"));
    EQ(expect(fan, FAN_RENAME), FAN_NOFD);
    expect_record(0, TYPE_OLD, "a", "f");
    expect_records(1);
    EQ(expect(all, FAN_RENAME), FAN_NOFD);
    expect_record(0, TYPE_OLD, "a", "f");
    expect_record(1, TYPE_NEW, "b", "g");
    expect_records(2);
    OK(rename("b/g", "a/h"));
    EQ(expect(fan, FAN_RENAME), FAN_NOFD);
    expect_record(0, TYPE_NEW, "a", "h");
    expect_records(1);
    OK(rename("b", "c"));
    next(all);
    EQ(expect(all, FAN_RENAME | FAN_ONDIR), FAN_NOFD);
    expect_record(1, TYPE_NEW, ".", "c");
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_RENAME, AT_FDCWD, "a/h"), ENOTDIR);
}

CASE(targets_of_names) {
    int fan = group(NAMES | FAN_REPORT_FID | FAN_REPORT_TARGET_FID);
    OK(mkdir("d", 0755));
    mark(fan, FAN_CREATE | FAN_MOVE | FAN_RENAME | FAN_ONDIR, "d");
    OK(close(OK(open("d/f", O_CREAT | O_RDWR, 0600))));
    expect_named(fan, FAN_CREATE, "d", "f");
    expect_record(1, TYPE_FID, "d/f", NULL);
    expect_records(2);
    OK(rename("d/f", "d/g"));
    EQ(expect(fan, FAN_RENAME), FAN_NOFD);
    expect_record(0, TYPE_OLD, "d", "f");
    expect_record(1, TYPE_NEW, "d", "g");
    expect_record(2, TYPE_FID, "d/g", NULL);
    expect_named(fan, FAN_MOVED_FROM, "d", "f");
    expect_record(1, TYPE_FID, "d/g", NULL);
    expect_named(fan, FAN_MOVED_TO, "d", "g");
    expect_record(1, TYPE_FID, "d/g", NULL);
    OK(mkdir("d/sub", 0755));
    expect_named(fan, FAN_CREATE | FAN_ONDIR, "d", "sub");
    expect_record(1, TYPE_FID, "d/sub", NULL);
    expect_none(fan);
    ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_CREATE, AT_FDCWD, "d/g"), ENOTDIR);
}

CASE(ordinary_users) {
    needs_mounts();
    write_file("f", "x");
    OK(chmod("f", 0644));
    write_file("secret", "x");
    OK(chmod("secret", 0600));
    AS_NOBODY({
        ERR(fanotify_init(0, 0), EPERM);
        ERR(fanotify_init(FAN_REPORT_FID | FAN_REPORT_TID, 0), EPERM);
        ERR(fanotify_init(FAN_REPORT_FID | FAN_UNLIMITED_QUEUE, 0), EPERM);
        ERR(fanotify_init(FAN_CLASS_CONTENT, 0), EPERM);
        int fan = OK(fanotify_init(FAN_REPORT_FID | FAN_NONBLOCK, 0));
        mark(fan, FAN_OPEN, "f");
        ERR(fanotify_mark(fan, FAN_MARK_ADD, FAN_OPEN, AT_FDCWD, "secret"), EACCES);
        ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, "f"), EPERM);
        ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN, AT_FDCWD, "f"), EPERM);
        touch("f");
        EQ(expect(fan, FAN_OPEN), FAN_NOFD);
        // Who else it was is not theirs to know.
        expect_exit(opener("f", O_RDONLY), 0);
        struct fanotify_event_metadata *event = next(fan);
        EQ(event->pid, 0);
        EQ(event->fd, FAN_NOFD);
    });
}

CASE(executing) {
    int fan = group(0);
    write_file("script", "#!/proc/self/exe\n");
    char bytes[1 << 14];
    OK(close(OK(open("copy", O_CREAT | O_RDWR, 0700))));
    int from = OK(open(self_path, O_RDONLY)), to = OK(open("copy", O_WRONLY));
    ssize_t got;
    while ((got = OK(read(from, bytes, sizeof bytes))) > 0) EQ(write(to, bytes, got), got);
    OK(close(to));
    mark(fan, FAN_OPEN | FAN_OPEN_EXEC | FAN_ACCESS, "copy");
    touch("copy");
    expect_closed(fan, FAN_OPEN);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(dup2(OK(open("/dev/null", O_WRONLY)), 1));
        execl("copy", "copy", "--list", NULL);
        _exit(99);
    }
    expect_exit(pid, 0);
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->mask, FAN_OPEN | FAN_OPEN_EXEC | FAN_ACCESS);
    EQ(event->pid, pid);
    OK(close(event->fd));

    int asks = OK(fanotify_init(FAN_CLASS_CONTENT | FAN_NONBLOCK, O_RDONLY));
    mark(asks, FAN_OPEN_EXEC_PERM, "copy");
    touch("copy");
    expect_none(asks);
    pid = OK(fork());
    if (pid == 0) {
        execl("copy", "copy", "--list", NULL);
        _exit(errno);
    }
    event = next(asks);
    EQ(event->mask, FAN_OPEN_EXEC_PERM);
    EQ(event->pid, pid);
    answer(asks, event->fd, FAN_DENY);
    expect_exit(pid, EPERM);
}

CASE(permission_to_open) {
    int fan = group(FAN_CLASS_CONTENT);
    write_file("f", "contents");
    mark(fan, FAN_OPEN_PERM, "f");
    pid_t pid = opener("f", O_RDONLY);
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->mask, FAN_OPEN_PERM);
    EQ(event->pid, pid);
    expect_file(event->fd, "f");
    sleep_ms(20);
    EQ(waitpid(pid, NULL, WNOHANG), 0);
    answer(fan, event->fd, FAN_ALLOW);
    expect_exit(pid, 0);
    // Equal questions are not one; O_NONBLOCK changes nothing.
    pid_t other = opener("f", O_RDONLY | O_NONBLOCK);
    pid = opener("f", O_RDONLY);
    event = next(fan);
    int first = event->pid;
    answer(fan, event->fd, first == pid ? FAN_DENY : FAN_ALLOW);
    event = next(fan);
    EQ(event->pid, first == pid ? other : pid);
    answer(fan, event->fd, first == pid ? FAN_ALLOW : FAN_DENY);
    expect_exit(other, 0);
    expect_exit(pid, EPERM);
    // What is refused is not cut off.
    pid = opener("f", O_RDWR | O_TRUNC);
    answer(fan, next(fan)->fd, FAN_DENY);
    expect_exit(pid, EPERM);
    struct stat st;
    OK(stat("f", &st));
    EQ(st.st_size, 8);
    // What can only be named is not asked about.
    OK(close(OK(open("f", O_PATH))));
    expect_none(fan);
}

CASE(permission_for_new_files) {
    int fan = group(FAN_CLASS_CONTENT);
    OK(mkdir("d", 0755));
    mark(fan, FAN_OPEN_PERM | FAN_EVENT_ON_CHILD, "d");
    pid_t pid = opener("d/f", O_CREAT | O_EXCL | O_RDWR);
    answer(fan, next(fan)->fd, FAN_ALLOW);
    expect_exit(pid, 0);
    pid = opener("d/g", O_CREAT | O_EXCL | O_RDWR);
    answer(fan, next(fan)->fd, FAN_DENY);
    expect_exit(pid, EPERM);
    OK(unlink("d/g"));
    expect_none(fan);
}

CASE(permission_to_read) {
    int fan = group(FAN_CLASS_PRE_CONTENT);
    write_file("f", "contents");
    mark(fan, FAN_ACCESS_PERM, "f");
    pid_t pid = opener("f", O_RDONLY);
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->mask, FAN_ACCESS_PERM);
    EQ(event->pid, pid);
    // Who decides may look.
    char byte;
    EQ(read(event->fd, &byte, 1), 1);
    answer(fan, event->fd, FAN_ALLOW);
    expect_exit(pid, 0);
    pid = opener("f", O_RDONLY);
    answer(fan, next(fan)->fd, FAN_DENY);
    expect_exit(pid, EPERM);
    expect_none(fan);
}

CASE(several_are_asked) {
    int fan = group(FAN_CLASS_CONTENT), before = OK(fanotify_init(FAN_CLASS_PRE_CONTENT | FAN_NONBLOCK, O_RDONLY));
    int told = OK(fanotify_init(FAN_NONBLOCK, O_RDONLY));
    write_file("f", "x");
    mark(fan, FAN_OPEN_PERM, "f");
    mark(before, FAN_OPEN_PERM, "f");
    mark(told, FAN_OPEN, "f");
    pid_t pid = opener("f", O_RDONLY);
    int fd = next(before)->fd;
    expect_none(fan);
    answer(before, fd, FAN_ALLOW);
    fd = next(fan)->fd;
    expect_none(told);
    answer(fan, fd, FAN_ALLOW);
    expect_exit(pid, 0);
    EQ(next(told)->pid, pid);
    pid = opener("f", O_RDONLY);
    answer(before, next(before)->fd, FAN_DENY);
    expect_exit(pid, EPERM);
    expect_none(fan);
    expect_none(told);
}

CASE(answers) {
    int fan = group(FAN_CLASS_CONTENT);
    write_file("f", "x");
    mark(fan, FAN_OPEN_PERM, "f");
    struct fanotify_response r = {.fd = 7, .response = FAN_ALLOW};
    ERR(write(fan, &r, sizeof r), ENOENT);
    ERR(write(fan, &r, sizeof r - 1), EINVAL);
    r.fd = -1;
    ERR(write(fan, &r, sizeof r), EINVAL);
    pid_t pid = opener("f", O_RDONLY);
    r.fd = next(fan)->fd;
    r.response = 0;
    ERR(write(fan, &r, sizeof r), EINVAL);
    r.response = FAN_ALLOW | FAN_DENY;
    ERR(write(fan, &r, sizeof r), EINVAL);
    char *volatile nowhere = (char *)8;
    ERR(write(fan, nowhere, sizeof r), EFAULT);
    r.response = FAN_ALLOW;
    EQ(write(fan, &r, sizeof r), sizeof r);
    ERR(write(fan, &r, sizeof r), ENOENT);
    expect_exit(pid, 0);
}

CASE(closing_lets_those_pass_who_wait) {
    enum { MANY = 8 };
    int fan = group(FAN_CLASS_CONTENT);
    write_file("f", "x");
    mark(fan, FAN_OPEN_PERM, "f");
    pid_t pids[MANY];
    for (int i = 0; i < MANY; i++) pids[i] = opener("f", O_RDONLY);
    // Half of them have been read, and are not answered.
    for (int i = 0; i < MANY / 2; i++) next(fan);
    int waiting = 0;
    WAIT_UNTIL(ioctl(fan, FIONREAD, &waiting) == 0 && waiting == MANY / 2 * 24);
    OK(close(fan));
    for (int i = 0; i < MANY; i++) expect_exit(pids[i], 0);
    touch("f");
}

static volatile int signals;
static void on_signal(int signo) {
    (void)signo;
    signals++;
}

CASE(signals_while_asked) {
    int fan = group(FAN_CLASS_CONTENT);
    write_file("f", "x");
    mark(fan, FAN_OPEN_PERM, "f");
    pid_t pid = opener("f", O_RDONLY);
    next(fan);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    // A handler waits until it is open.
    pid = OK(fork());
    if (pid == 0) {
        struct sigaction action = {.sa_handler = on_signal};
        OK(sigaction(SIGUSR1, &action, NULL));
        int fd = open("f", O_RDONLY);
        _exit(fd >= 0 && signals == 1 ? 0 : 1);
    }
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->pid, pid);
    OK(kill(pid, SIGUSR1));
    sleep_ms(20);
    EQ(waitpid(pid, NULL, WNOHANG), 0);
    answer(fan, event->fd, FAN_ALLOW);
    expect_exit(pid, 0);
    // One that is not read, and is not waited for any more, does not come.
    pid = opener("f", O_RDONLY);
    struct pollfd ready = {.fd = fan, .events = POLLIN};
    EQ(poll(&ready, 1, 10000), 1);
    OK(kill(pid, SIGKILL));
    expect_killed(pid, SIGKILL);
    expect_none(fan);
}

CASE(forking) {
    int fan = group(0);
    write_file("f", "x");
    mark(fan, FAN_OPEN, "f");
    int gate[2];
    OK(pipe(gate));
    pid_t parent = getpid(), pid = OK(fork());
    if (pid == 0) {
        char byte;
        OK(close(gate[1]));
        EQ(read(gate[0], &byte, 1), 0);
        // The group lives by this descriptor.
        struct fanotify_event_metadata *event = next(fan);
        EQ(event->pid, parent);
        touch("f");
        EQ(next(fan)->pid, getpid());
        _exit(0);
    }
    OK(close(fan));
    touch("f");
    OK(close(gate[1]));
    expect_exit(pid, 0);
    for (int i = 0; i < 20; i++) {
        fan = OK(fanotify_init(FAN_NONBLOCK, O_RDONLY));
        mark(fan, FAN_OPEN, "f");
        pid = opener("f", O_RDONLY);
        expect_exit(pid, 0);
        EQ(next(fan)->pid, pid);
        OK(close(fan));
    }
}

CASE(fdinfo) {
    int fan = group(0);
    write_file("f", "x");
    mark(fan, FAN_OPEN, "f");
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_CLOSE, AT_FDCWD, "f"));
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_ACCESS, AT_FDCWD, "."));
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_MODIFY, AT_FDCWD, "."));
    char path[64], text[4096], wanted[128];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fan);
    read_file(path, text, sizeof text);
    struct stat st;
    OK(stat("f", &st));
    CHECK(strstr(text, "fanotify flags:3 event-flags:8000\n") != NULL);
    snprintf(wanted, sizeof wanted, "fanotify ino:%lx sdev:", (long)st.st_ino);
    char *at = strstr(text, wanted);
    CHECK(at != NULL);
    CHECK(strstr(at, " mflags:40 mask:20 ignored_mask:18 ") != NULL || strstr(at, " mflags:40 mask:20 ignored_mask:18\n") != NULL);
    CHECK(strstr(at, " fhandle-bytes:c fhandle-type:") != NULL);
    CHECK(strstr(text, "fanotify mnt_id:") != NULL);
    CHECK(strstr(text, " mflags:0 mask:1 ignored_mask:0") != NULL);
    CHECK(strstr(text, "fanotify sdev:") != NULL);
    CHECK(strstr(text, " mflags:0 mask:2 ignored_mask:0") != NULL);
}

CASE(evictable_marks) {
    int fan = group(0);
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY));
    OK(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_EVICTABLE, FAN_OPEN, AT_FDCWD, "f"));
    touch("f");
    expect_closed(fan, FAN_OPEN);
    OK(fanotify_mark(fan, FAN_MARK_ADD, FAN_CLOSE, AT_FDCWD, "f"));
    ERR(fanotify_mark(fan, FAN_MARK_ADD | FAN_MARK_EVICTABLE, FAN_ACCESS, AT_FDCWD, "f"), EEXIST);
    OK(close(fd));
    expect_closed(fan, FAN_CLOSE_NOWRITE);
}

CASE(files_of_the_root) {
    if (geteuid() != 0) skip_case("needs root");
    int fan = OK(fanotify_init(FAN_NONBLOCK | FAN_CLASS_CONTENT, O_RDONLY));
    write_file("f", "contents");
    OK(mkdir("d", 0755));
    mark(fan, FAN_OPEN | FAN_MODIFY | FAN_CLOSE_WRITE, "f");
    mark(fan, FAN_OPEN | FAN_ACCESS_PERM | FAN_EVENT_ON_CHILD, "d");
    int fd = OK(open("f", O_WRONLY));
    OK(rename("f", "g"));
    EQ(write(fd, "C", 1), 1);
    OK(close(fd));
    int seen = expect(fan, FAN_OPEN | FAN_MODIFY | FAN_CLOSE_WRITE);
    expect_file(seen, "g");
    char text[16] = "";
    EQ(read(seen, text, sizeof text), 8);
    STR_EQ(text, "Contents");
    OK(close(seen));
    OK(rename("g", "d/h"));
    pid_t pid = opener("d/h", O_RDONLY);
    struct fanotify_event_metadata *event = next(fan);
    EQ(event->mask, FAN_OPEN);
    OK(close(event->fd));
    event = next(fan);
    EQ(event->mask, FAN_ACCESS_PERM);
    answer(fan, event->fd, FAN_DENY);
    expect_exit(pid, EPERM);
}

CASE(gone_before_it_is_read) {
    int fan = group(0), fid = OK(fanotify_init(FAN_REPORT_FID | FAN_NONBLOCK, 0));
    write_file("f", "contents");
    mark(fan, FAN_OPEN, "f");
    mark(fid, FAN_DELETE_SELF, "f");
    touch("f");
    OK(unlink("f"));
    expect_none(fid);
    int seen = expect(fan, FAN_OPEN);
    struct stat st;
    OK(fstat(seen, &st));
    EQ(st.st_nlink, 0);
    char byte;
    EQ(read(seen, &byte, 1), 1);
    expect_none(fid);
    OK(close(seen));
    EQ(expect(fid, FAN_DELETE_SELF), FAN_NOFD);
    write_file("f", "contents");
    touch("f");
    expect_none(fan);
}

CASE(permission_to_list) {
    int fan = group(FAN_CLASS_CONTENT);
    OK(mkdir("d", 0755));
    mark(fan, FAN_ACCESS_PERM | FAN_ONDIR, "d");
    for (int i = 0; i < 2; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            char bytes[1024];
            int fd = OK(open("d", O_RDONLY | O_DIRECTORY));
            _exit(syscall(SYS_getdents64, fd, bytes, sizeof bytes) == -1 ? errno : 0);
        }
        answer(fan, next(fan)->fd, i == 0 ? FAN_ALLOW : FAN_DENY);
        expect_exit(pid, i == 0 ? 0 : EPERM);
    }
    expect_none(fan);
}

CASE(permission_to_copy) {
    int fan = group(FAN_CLASS_CONTENT);
    write_file("f", "contents");
    mark(fan, FAN_ACCESS_PERM, "f");
    for (int i = 0; i < 2; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            int from = OK(open("f", O_RDONLY)), to = OK(open("g", O_CREAT | O_WRONLY, 0600));
            _exit(syscall(SYS_sendfile, to, from, NULL, 8L) == -1 ? errno : 0);
        }
        // Linux before 6.8 asks once more for each piece.
        struct pollfd item = {fan, POLLIN, 0};
        int status, asked = 0;
        while (OK(waitpid(pid, &status, WNOHANG)) == 0) {
            if (OK(poll(&item, 1, 10)) == 0) continue;
            answer(fan, next(fan)->fd, i == 0 ? FAN_ALLOW : FAN_DENY);
            asked++;
        }
        CHECK(WIFEXITED(status));
        EQ(WEXITSTATUS(status), i == 0 ? 0 : EPERM);
        CHECK(asked);
    }
}

CASE(interpreters_are_asked_about) {
    int fan = group(FAN_CLASS_CONTENT);
    char text[PATH_MAX + 8];
    write_file("script", "#!./copy\n");
    OK(chmod("script", 0755));
    int from = OK(open(self_path, O_RDONLY)), to = OK(open("copy", O_CREAT | O_WRONLY, 0755));
    ssize_t got;
    while ((got = OK(read(from, text, sizeof text))) > 0) EQ(write(to, text, got), got);
    OK(close(to));
    mark(fan, FAN_OPEN_EXEC_PERM, "script");
    mark(fan, FAN_OPEN_EXEC_PERM, "copy");
    for (int i = 0; i < 2; i++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            OK(dup2(OK(open("/dev/null", O_WRONLY)), 2));
            OK(close(fan));
            execl("script", "script", NULL);
            _exit(errno);
        }
        int fd = next(fan)->fd;
        expect_file(fd, "script");
        answer(fan, fd, FAN_ALLOW);
        fd = next(fan)->fd;
        expect_file(fd, "copy");
        answer(fan, fd, i == 0 ? FAN_DENY : FAN_ALLOW);
        // The harness has no case "script".
        expect_exit(pid, i == 0 ? EPERM : 2);
    }
}

// Sends `fd` and a group, if there is one, from a socket to its peer.
static void send_files(int socket, int fd, int fan) {
    char control[CMSG_SPACE(2 * sizeof(int))] = {0}, byte = 'x';
    int files[2] = {fd, fan}, count = fan == -1 ? 1 : 2;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), files, count * sizeof(int));
    EQ(sendmsg(socket, &message, 0), 1);
}

// A group that is on its way to somebody is there, and hears.
CASE(a_group_is_passed_on) {
    int fan = group(FAN_CLASS_NOTIF), ends[2];
    write_file("f", "");
    mark(fan, FAN_OPEN, "f");
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    send_files(ends[0], fan, -1);
    OK(close(fan));
    OK(close(OK(open("f", O_RDONLY))));
    char control[CMSG_SPACE(sizeof(int))], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EQ(recvmsg(ends[1], &message, 0), 1);
    memcpy(&fan, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fan);
    expect_closed(fan, FAN_OPEN);
    expect_none(fan);
}

// One that lies in a socket that lies in itself is gone: it keeps nobody waiting for an answer.
CASE(a_group_in_a_circle_is_gone) {
    int fan = group(FAN_CLASS_CONTENT), ends[2];
    write_file("f", "");
    mark(fan, FAN_OPEN_PERM, "f");
    for (int waits = 0; waits < 2; waits++) {
        if (waits) {
            fan = OK(fanotify_init(FAN_CLASS_CONTENT | FAN_NONBLOCK | FAN_CLOEXEC, O_RDONLY));
            mark(fan, FAN_OPEN_PERM, "f");
        }
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        send_files(ends[0], ends[1], fan);
        struct pollfd asks = {.fd = fan, .events = POLLIN};
        pid_t pid = -1;
        if (waits) {
            // Somebody waits already, and has none of the descriptors.
            pid = OK(fork());
            if (pid == 0) {
                OK(close(fan)), OK(close(ends[0])), OK(close(ends[1]));
                OK(open("f", O_RDONLY));
                _exit(0);
            }
            EQ(poll(&asks, 1, -1), 1);
        }
        OK(close(fan));
        OK(close(ends[1]));
        OK(close(ends[0]));
        if (waits) expect_exit(pid, 0);
        else OK(close(OK(open("f", O_RDONLY))));
    }
}
