// User namespaces (user_namespaces(7)): who is called what in them, over what their roots have rights, and over what not.
#include "harness.h"

#include <grp.h>
#include <linux/capability.h>
#include <linux/nsfs.h>
#include <pthread.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>

enum { OVERFLOW = 65534, USER = 1000 };

// Runs as an ordinary user in a child, who may make files where the case is.
#define AS_USER(...)                              \
    do {                                          \
        if (geteuid() == 0) OK(chmod(".", 0777)); \
        pid_t user_ = OK(fork());                 \
        if (user_ == 0) {                         \
            be_user();                            \
            __VA_ARGS__;                          \
            _exit(0);                             \
        }                                         \
        expect_exit(user_, 0);                    \
    } while (0)

static void be_user(void) {
    if (geteuid() == 0) {
        OK(setgroups(0, NULL));
        OK(setgid(USER));
        OK(setuid(USER));
        // Else its files in /proc are root's.
        OK(prctl(PR_SET_DUMPABLE, 1));
    }
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    if (fd < 0) return -1;
    ssize_t done = write(fd, text, strlen(text));
    int error = errno;
    close(fd);
    errno = error;
    return done == (ssize_t)strlen(text) ? 0 : -1;
}

static void put_map(const char *path, unsigned inside, unsigned outside) {
    char text[64];
    snprintf(text, sizeof text, "%u %u 1\n", inside, outside);
    if (put(path, text)) FAIL("%s: %s: %s", path, text, strerrorname_np(errno));
}

static void enter(int more) {
    unsigned uid = geteuid(), gid = getegid();
    if (unshare(CLONE_NEWUSER | more) == -1) {
        if (errno == EPERM || errno == ENOSPC) skip_case("may not make user namespaces");
        FAIL("unshare: %s", strerrorname_np(errno));
    }
    put_map("/proc/self/uid_map", 0, uid);
    OK(put("/proc/self/setgroups", "deny"));
    put_map("/proc/self/gid_map", 0, gid);
}

static uint64_t caps(const char *name) {
    static char text[8192];
    read_file("/proc/self/status", text, sizeof text);
    char *line = strstr(text, name);
    CHECK(line);
    return strtoull(line + strlen(name), NULL, 16);
}

static uint64_t every_cap(void) {
    char text[16];
    read_file("/proc/sys/kernel/cap_last_cap", text, sizeof text);
    return (2ull << strtoul(text, NULL, 10)) - 1;
}

// True if a process is not of the user outside whom its root is.
static bool is_roots(pid_t pid) {
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d", pid);
    OK(stat(path, &st));
    return st.st_uid == OVERFLOW;
}

static void text_is(const char *path, const char *expected) {
    char text[256];
    read_file(path, text, sizeof text);
    STR_EQ(text, expected);
}

// ---- making one ----

CASE(begins_with_all_capabilities_and_no_ids) {
    AS_USER({
        EQ(caps("CapEff:"), 0);
        OK(unshare(CLONE_NEWUSER));
        EQ(caps("CapEff:"), every_cap());
        EQ(caps("CapPrm:"), every_cap());
        EQ(caps("CapBnd:"), every_cap());
        EQ(caps("CapInh:"), 0);
        EQ(caps("CapAmb:"), 0);
        EQ(getuid(), OVERFLOW);
        EQ(geteuid(), OVERFLOW);
        EQ(getgid(), OVERFLOW);
        unsigned r, e, s;
        OK(getresuid(&r, &e, &s));
        EQ(s, OVERFLOW);
        text_is("/proc/self/uid_map", "");
        text_is("/proc/self/setgroups", "allow\n");
        // There is nobody to be.
        ERR(setuid(0), EINVAL);
        ERR(setuid(USER), EINVAL);
        ERR(setgid(USER), EINVAL);
        ERR(setresuid(-1, USER, -1), EINVAL);
        ERR(setgroups(0, NULL), EPERM);
        EQ(setfsuid(-1), OVERFLOW);
    });
}

CASE(root_of_it_is_the_user_outside) {
    AS_USER({
        write_file("mine", "x");
        enter(0);
        EQ(getuid(), 0);
        EQ(getgid(), 0);
        text_is("/proc/self/uid_map", "         0       1000          1\n");
        text_is("/proc/self/setgroups", "deny\n");
        struct stat st;
        OK(stat("mine", &st));
        EQ(st.st_uid, 0);
        EQ(st.st_gid, 0);
        OK(stat("/proc/sys", &st));
        EQ(st.st_uid, OVERFLOW);
        struct statx stx;
        OK(statx(AT_FDCWD, "/proc/sys", 0, STATX_BASIC_STATS, &stx));
        EQ(stx.stx_gid, OVERFLOW);
        write_file("new", "y");
        pid_t pid = OK(fork());
        if (pid == 0) {
            // An execve keeps what root has.
            char *const argv[] = {self_path, "root", NULL};
            execv(self_path, argv);
            _exit(9);
        }
        expect_exit(pid, 7);
    });
    struct stat st;
    OK(stat("new", &st));
    if (geteuid() == 0) EQ(st.st_uid, USER);
}

int helper_main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "root") == 0) return getuid() == 0 && caps("CapEff:") == every_cap() ? 7 : 8;
    if (argc == 2 && strcmp(argv[1], "euid") == 0) return geteuid() == 0 ? 7 : 8;
    return -1;
}

CASE(clone_makes_one_too) {
    AS_USER({
        struct clone_args_ {
            uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
        } args = {.flags = CLONE_NEWUSER | CLONE_NEWUTS, .exit_signal = SIGCHLD};
        pid_t pid = OK(syscall(SYS_clone3, &args, sizeof args));
        if (pid == 0) {
            EQ(getuid(), OVERFLOW);
            OK(sethostname("inner", 5));
            _exit(0);
        }
        expect_exit(pid, 0);
        EQ(getuid(), USER);
        ERR(syscall(SYS_clone, CLONE_NEWUSER | CLONE_FS | SIGCHLD, 0, 0, 0, 0), EINVAL);
        ERR(syscall(SYS_clone, CLONE_NEWUSER | CLONE_THREAD | CLONE_SIGHAND | CLONE_VM, 0, 0, 0, 0), EINVAL);
    });
}

static void *nothing(void *arg) {
    pause();
    return arg;
}

CASE(not_with_threads) {
    pthread_t other;
    ZERO(pthread_create(&other, NULL, nothing, NULL));
    ERR(unshare(CLONE_NEWUSER), EINVAL);
}

CASE(not_in_a_chroot) {
    if (geteuid() != 0) skip_case("needs root");
    OK(mkdir("inner", 0755));
    OK(chroot("inner"));
    ERR(unshare(CLONE_NEWUSER), EPERM);
}

CASE(not_without_a_number) {
    AS_USER({
        OK(unshare(CLONE_NEWUSER));
        ERR(unshare(CLONE_NEWUSER), EPERM);
    });
}

CASE(only_so_deep) {
    AS_USER({
        int depth = 0;
        while (unshare(CLONE_NEWUSER) == 0) {
            put_map("/proc/self/uid_map", 0, depth ? 0 : USER);
            OK(put("/proc/self/setgroups", "deny"));
            put_map("/proc/self/gid_map", 0, depth ? 0 : USER);
            depth++;
        }
        CHECK(errno == ENOSPC);
        CHECK(depth >= 30 && depth <= 33);
    });
}

// ---- maps ----

// A child in a new namespace, which waits.
static pid_t in_new(int *go) {
    int ends[2], ready[2];
    OK(pipe(ends));
    OK(pipe(ready));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(unshare(CLONE_NEWUSER));
        OK(write(ready[1], "x", 1));
        char byte;
        OK(read(ends[0], &byte, 1));
        _exit(getuid() % 251);
    }
    char byte;
    OK(read(ready[0], &byte, 1));
    *go = ends[1];
    return pid;
}

static int map_of(pid_t pid, const char *which, const char *text) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, which);
    return put(path, text);
}

CASE(a_user_maps_itself_only) {
    AS_USER({
        int go;
        pid_t pid = in_new(&go);
        ERR(map_of(pid, "uid_map", "0 0 1"), EPERM);
        ERR(map_of(pid, "uid_map", "0 999 1"), EPERM);
        ERR(map_of(pid, "uid_map", "0 1000 2"), EPERM);
        ERR(map_of(pid, "uid_map", "0 1000 1\n1 1001 1"), EPERM);
        ERR(map_of(pid, "uid_map", ""), EINVAL);
        ERR(map_of(pid, "uid_map", "0 1000"), EINVAL);
        ERR(map_of(pid, "uid_map", "0 1000 0"), EINVAL);
        ERR(map_of(pid, "uid_map", "0 x 1"), EINVAL);
        // Groups not before setgroups is refused.
        ERR(map_of(pid, "gid_map", "0 1000 1"), EPERM);
        OK(map_of(pid, "setgroups", "deny\n"));
        ERR(map_of(pid, "setgroups", "allow"), EPERM);
        ERR(map_of(pid, "setgroups", "perhaps"), EINVAL);
        OK(map_of(pid, "gid_map", "5 1000 1"));
        ERR(map_of(pid, "gid_map", "5 1000 1"), EPERM);
        OK(map_of(pid, "projid_map", "0 0 10"));
        OK(map_of(pid, "uid_map", "7 1000 1"));
        ERR(map_of(pid, "uid_map", "7 1000 1"), EPERM);
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/uid_map", pid);
        text_is(path, "         7       1000          1\n");
        OK(write(go, "x", 1));
        expect_exit(pid, 7);
    });
}

CASE(root_maps_whom_it_will) {
    if (geteuid() != 0) skip_case("needs root");
    int go;
    pid_t pid = in_new(&go);
    static char many[64 * 341];
    for (int i = 0; i < 341; i++) snprintf(many + strlen(many), 64, "%d %d 1\n", i, 1000 + i);
    errno = 0;
    if (strlen(many) < 4096) EQ(map_of(pid, "uid_map", many), -1);
    ERR(map_of(pid, "uid_map", "0 1000 10\n5 2000 1"), EINVAL);
    ERR(map_of(pid, "uid_map", "0 1000 10\n20 1009 1"), EINVAL);
    OK(map_of(pid, "uid_map", "0 100000 1000\n1000 0 1\n"));
    OK(map_of(pid, "gid_map", "0 100000 1000\n1000 0 1\n"));
    ERR(map_of(pid, "setgroups", "deny"), EPERM);
    OK(write(go, "x", 1));
    expect_exit(pid, 1000 % 251);
}

CASE(maps_go_through_all_namespaces) {
    if (geteuid() != 0) skip_case("needs root");
    int go;
    pid_t pid = in_new(&go);
    OK(map_of(pid, "uid_map", "0 5000 1000\n"));
    OK(map_of(pid, "gid_map", "0 5000 1000\n"));
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int ns = OK(open(path, O_RDONLY));
    OK(chmod(".", 0777));
    pid_t inner = OK(fork());
    if (inner == 0) {
        OK(setns(ns, CLONE_NEWUSER));
        // root of the container is nobody in it.
        EQ(getuid(), OVERFLOW);
        EQ(caps("CapEff:"), every_cap());
        unsigned groups[3] = {1, 2, 3};
        OK(setgroups(3, groups));
        OK(setresgid(4, 4, 4));
        OK(setresuid(3, 3, 3));
        EQ(caps("CapEff:"), every_cap());  // it was not root before
        unsigned got[3];
        EQ(getgroups(3, got), 3);
        EQ(got[2], 3);
        ERR(setuid(1000), EINVAL);
        OK(prctl(PR_SET_DUMPABLE, 1));
        OK(unshare(CLONE_NEWUSER));
        put_map("/proc/self/uid_map", 50, 3);
        EQ(getuid(), 50);
        text_is("/proc/self/uid_map", "        50          3          1\n");
        int fd = OK(open("it", O_CREAT | O_RDWR, 0644));
        struct stat st;
        OK(fstat(fd, &st));
        EQ(st.st_uid, 50);
        EQ(st.st_gid, OVERFLOW);
        _exit(0);
    }
    expect_exit(inner, 0);
    struct stat st;
    OK(stat("it", &st));
    EQ(st.st_uid, 5003);
    EQ(st.st_gid, 5004);
    OK(write(go, "x", 1));
    expect_exit(pid, OVERFLOW % 251);
}

CASE(the_opener_needs_the_right_to_map) {
    if (geteuid() != 0) skip_case("needs root");
    // Root writes what an ordinary user has opened.
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t pid = OK(fork());
    if (pid == 0) {
        be_user();
        OK(unshare(CLONE_NEWUSER));
        int fd = OK(open("/proc/self/uid_map", O_RDWR));
        OK(dup2(fd, 77));
        OK(write(pair[1], "x", 1));
        char byte;
        OK(read(pair[1], &byte, 1));
        _exit(0);
    }
    char byte;
    OK(read(pair[0], &byte, 1));
    int pidfd = OK(syscall(SYS_pidfd_open, pid, 0));
    int fd = OK(syscall(SYS_pidfd_getfd, pidfd, 77, 0));
    ERR(write(fd, "0 0 1", 5), EPERM);
    ERR(write(fd, "0 1 10", 6), EPERM);
    OK(write(fd, "0 1000 1", 8));
    OK(write(pair[0], "x", 1));
    expect_exit(pid, 0);
}

// ---- what its root may and what not ----

CASE(its_root_has_no_rights_outside) {
    int outside = OK(open("/proc/self/ns/user", O_RDONLY));
    AS_USER({
        enter(0);
        EQ(caps("CapEff:"), every_cap());
        ERR(open("/proc/sys/kernel/hostname", O_WRONLY), EACCES);
        ERR(sethostname("x", 1), EPERM);
        ERR(setns(outside, CLONE_NEWUSER), EPERM);
        ERR(mount("none", ".", "tmpfs", 0, NULL), EPERM);
        ERR(umount2("/proc", MNT_DETACH), EPERM);
        ERR(mknod("null", S_IFCHR | 0666, makedev(1, 3)), EPERM);
        struct rlimit limit;
        OK(getrlimit(RLIMIT_NOFILE, &limit));
        limit.rlim_max++;
        ERR(setrlimit(RLIMIT_NOFILE, &limit), EPERM);
        ERR(setpriority(PRIO_PROCESS, 0, -5), EACCES);
        // Also in a container whose first process this is.
        if (is_roots(1)) ERR(kill(1, 0), EPERM);
        struct timespec now;
        OK(clock_gettime(CLOCK_REALTIME, &now));
        ERR(clock_settime(CLOCK_REALTIME, &now), EPERM);
        ERR(ptrace(PTRACE_ATTACH, getppid(), 0, 0), EPERM);
        ERR(socket(AF_INET, SOCK_RAW, 1), EPERM);
        ERR(prctl(PR_SET_MM, PR_SET_MM_BRK, 0, 0, 0), EPERM);
    });
}

CASE(files_of_others_stay_theirs) {
    if (geteuid() != 0) skip_case("needs root");
    OK(mkdir("closed", 0700));
    write_file("closed/file", "x");
    write_file("roots", "x");
    OK(chmod("roots", 0600));
    write_file("half", "x");
    OK(chown("half", USER, 0));
    OK(chmod("half", 0000));
    write_file("whole", "x");
    OK(chown("whole", USER, USER));
    OK(chmod("whole", 0000));
    AS_USER({
        enter(0);
        ERR(open("roots", O_RDONLY), EACCES);
        ERR(open("closed/file", O_RDONLY), EACCES);
        ERR(chmod("roots", 0666), EPERM);
        ERR(chown("roots", 0, 0), EPERM);
        ERR(unlink("/proc/self/nothing"), ENOENT);
        // CAP_DAC_OVERRIDE counts for files whose user and group both have numbers.
        ERR(open("half", O_RDONLY), EACCES);
        OK(open("whole", O_RDWR));
        // Who owns it may change its mode; who the group is does not matter.
        OK(chmod("half", 0600));
        ERR(chown("whole", 1, -1), EINVAL);
        ERR(chown("whole", USER, USER), EINVAL);
        OK(chown("whole", 0, 0));
        ERR(setxattr("whole", "trusted.x", "1", 1, 0), EPERM);
    });
}

CASE(set_user_id_programs_of_others_have_no_effect) {
    if (geteuid() != 0) skip_case("needs root");
    char buffer[1 << 16];
    int from = OK(open(self_path, O_RDONLY)), to = OK(open("root", O_CREAT | O_WRONLY, 0755));
    for (ssize_t n; (n = OK(read(from, buffer, sizeof buffer))) > 0;) EQ(write(to, buffer, n), n);
    OK(close(to));
    OK(chmod("root", 04755));
    struct statvfs fs;
    OK(statvfs(".", &fs));
    if (fs.f_flag & ST_NOSUID) skip_case("a nosuid mount");
    AS_USER({
        pid_t pid = OK(fork());
        char *const argv[] = {"root", "euid", NULL};
        if (pid == 0) {
            execv("root", argv);
            _exit(9);
        }
        expect_exit(pid, 7);
        // In a namespace in which root has no number: nobody's effective user.
        OK(unshare(CLONE_NEWUSER));
        put_map("/proc/self/uid_map", 5, USER);
        pid = OK(fork());
        if (pid == 0) {
            execv("root", argv);
            _exit(9);
        }
        expect_exit(pid, 8);
    });
}

CASE(who_made_it_is_capable_in_it) {
    AS_USER({
        int go;
        pid_t pid = in_new(&go);
        OK(kill(pid, 0));
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
        int ns = OK(open(path, O_RDONLY));
        OK(write(go, "x", 1));
        expect_exit(pid, OVERFLOW % 251);
        OK(setns(ns, 0));
        EQ(caps("CapEff:"), every_cap());
        // One is in it already.
        ERR(setns(ns, CLONE_NEWUSER), EINVAL);
        int own = OK(open("/proc/self/ns/user", O_RDONLY));
        ERR(setns(own, CLONE_NEWUSER), EINVAL);
    });
}

CASE(another_user_is_not) {
    if (geteuid() != 0) skip_case("needs root");
    int go;
    pid_t pid = in_new(&go);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int ns = OK(open(path, O_RDONLY));
    AS_USER({
        ERR(setns(ns, CLONE_NEWUSER), EPERM);
        ERR(kill(pid, 0), EPERM);
        enter(0);
        ERR(setns(ns, CLONE_NEWUSER), EPERM);
        ERR(kill(pid, 0), EPERM);
    });
    OK(write(go, "x", 1));
    expect_exit(pid, OVERFLOW % 251);
}

CASE(files_of_namespaces_tell_of_their_owners) {
    AS_USER({
        int outer = OK(open("/proc/self/ns/user", O_RDONLY)), outer_uts = OK(open("/proc/self/ns/uts", O_RDONLY));
        struct stat st, parent_st;
        enter(CLONE_NEWUTS);
        int own = OK(open("/proc/self/ns/user", O_RDONLY)), uts = OK(open("/proc/self/ns/uts", O_RDONLY));
        EQ(ioctl(own, NS_GET_NSTYPE), CLONE_NEWUSER);
        unsigned uid = 99;
        OK(ioctl(own, NS_GET_OWNER_UID, &uid));
        EQ(uid, 0);
        ERR(ioctl(uts, NS_GET_OWNER_UID, &uid), EINVAL);
        // What is around one's own is not to be had.
        ERR(ioctl(own, NS_GET_PARENT), EPERM);
        ERR(ioctl(own, NS_GET_USERNS), EPERM);
        ERR(ioctl(outer_uts, NS_GET_USERNS), EPERM);
        int of_uts = OK(ioctl(uts, NS_GET_USERNS));
        OK(fstat(of_uts, &st));
        struct stat own_st;
        OK(fstat(own, &own_st));
        EQ(st.st_ino, own_st.st_ino);
        OK(fstat(outer, &parent_st));
        CHECK(parent_st.st_ino != own_st.st_ino);
        pid_t pid = OK(fork());
        if (pid == 0) {
            OK(unshare(CLONE_NEWUSER));
            int inner = OK(open("/proc/self/ns/user", O_RDONLY));
            ERR(ioctl(inner, NS_GET_PARENT), EPERM);
            OK(ioctl(inner, NS_GET_OWNER_UID, &uid));
            EQ(uid, OVERFLOW);
            _exit(0);
        }
        expect_exit(pid, 0);
    });
}

CASE(ptrace_stays_within) {
    AS_USER({
        pid_t plain = OK(fork());
        if (plain == 0) {
            for (;;) pause();
        }
        int go;
        pid_t pid = in_new(&go);
        // Downward, for who made it.
        OK(ptrace(PTRACE_ATTACH, pid, 0, 0));
        int status;
        EQ(OK(waitpid(pid, &status, 0)), pid);
        OK(ptrace(PTRACE_DETACH, pid, 0, 0));
        enter(0);
        // Not upward, though it is the same user.
        ERR(ptrace(PTRACE_ATTACH, plain, 0, 0), EPERM);
        // Nor into a sister.
        ERR(ptrace(PTRACE_ATTACH, pid, 0, 0), EPERM);
        OK(kill(plain, SIGKILL));
        expect_killed(plain, SIGKILL);
        OK(write(go, "x", 1));
        expect_exit(pid, OVERFLOW % 251);
    });
}

CASE(exec_gives_no_capabilities_to_others_than_root) {
    AS_USER({
        OK(unshare(CLONE_NEWUSER));
        put_map("/proc/self/uid_map", 5, USER);
        EQ(caps("CapEff:"), every_cap());
        pid_t pid = OK(fork());
        if (pid == 0) {
            char *const argv[] = {self_path, "root", NULL};
            execv(self_path, argv);
            _exit(9);
        }
        expect_exit(pid, 8);
    });
}

CASE(programs_with_capabilities_for_its_root) {
    AS_USER({
        enter(0);
        write_file("program", "x");
        uint32_t data[5] = {0x02000001, 1 << CAP_NET_RAW, 0, 0, 0};
        OK(setxattr("program", "security.capability", data, sizeof data, 0));
        uint32_t got[6];
        EQ(getxattr("program", "security.capability", got, sizeof got), 20);
        CHECK(memcmp(got, data, 20) == 0);
    });
    uint32_t got[6];
    if (geteuid() == 0) {
        EQ(getxattr("program", "security.capability", got, sizeof got), 24);
        EQ(got[0], 0x03000001);
        EQ(got[5], USER);
    }
}

// ---- ids on the way to programs ----

static uid_t credentials(int fd) {
    struct ucred ucred;
    socklen_t size = sizeof ucred;
    OK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &ucred, &size));
    return ucred.uid;
}

static void send_credentials(int fd, struct ucred ucred) {
    char byte = 'x';
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control = {0};
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_CREDENTIALS;
    header->cmsg_len = CMSG_LEN(sizeof ucred);
    memcpy(CMSG_DATA(header), &ucred, sizeof ucred);
    EQ(OK(sendmsg(fd, &message, 0)), 1);
}

static struct ucred receive_credentials(int fd) {
    char byte;
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {&byte, 1};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    EQ(recvmsg(fd, &message, 0), 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_CREDENTIALS);
    struct ucred ucred;
    memcpy(&ucred, CMSG_DATA(header), sizeof ucred);
    return ucred;
}

CASE(sockets_carry_them) {
    AS_USER({
        int pair[2];
        OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        int one = 1;
        for (int i = 0; i < 2; i++) OK(setsockopt(pair[i], SOL_SOCKET, SO_PASSCRED, &one, sizeof one));
        EQ(credentials(pair[0]), USER);
        pid_t pid = OK(fork());
        if (pid == 0) {
            enter(0);
            EQ(credentials(pair[0]), 0);
            send_credentials(pair[1], (struct ucred){getpid(), 0, 0});
            struct ucred got = receive_credentials(pair[1]);
            EQ(got.uid, 0);
            EQ(got.gid, 0);
            _exit(0);
        }
        struct ucred got = receive_credentials(pair[0]);
        EQ(got.uid, USER);
        EQ(got.pid, pid);
        send_credentials(pair[0], (struct ucred){getpid(), USER, USER});
        expect_exit(pid, 0);
    });
}

CASE(signals_carry_them) {
    AS_USER({
        block_signal(SIGUSR1);
        block_signal(SIGCHLD);
        pid_t parent = getpid();
        pid_t pid = OK(fork());
        if (pid == 0) {
            enter(0);
            OK(kill(parent, SIGUSR1));
            siginfo_t info;
            CHECK(signal_within(SIGUSR1, &info, 5000));
            EQ(info.si_uid, 0);
            _exit(0);
        }
        siginfo_t info;
        CHECK(signal_within(SIGUSR1, &info, 5000));
        EQ(info.si_uid, USER);
        OK(kill(pid, SIGUSR1));
        OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
        EQ(info.si_uid, USER);
        expect_exit(pid, 0);
        // The child is another user's than the parent's who waits for it.
        enter(0);
        pid = OK(fork());
        if (pid == 0) _exit(0);
        OK(waitid(P_PID, pid, &info, WEXITED | WNOWAIT));
        EQ(info.si_uid, 0);
        expect_exit(pid, 0);
    });
}

CASE(ipc_objects_have_them) {
    AS_USER({
        int id = OK(shmget(IPC_PRIVATE, 4096, 0600));
        pid_t pid = OK(fork());
        if (pid == 0) {
            enter(0);
            struct shmid_ds ds;
            OK(shmctl(id, IPC_STAT, &ds));
            EQ(ds.shm_perm.uid, 0);
            EQ(ds.shm_perm.cgid, 0);
            ds.shm_perm.uid = 4;
            ERR(shmctl(id, IPC_SET, &ds), EINVAL);
            _exit(0);
        }
        expect_exit(pid, 0);
        OK(shmctl(id, IPC_RMID, NULL));
    });
}

CASE(ipc_objects_of_others_stay_theirs) {
    if (geteuid() != 0) skip_case("needs root");
    int id = OK(shmget(IPC_PRIVATE, 4096, 0600));
    AS_USER({
        enter(0);
        struct shmid_ds ds;
        ERR(shmctl(id, IPC_STAT, &ds), EACCES);
        ERR(shmctl(id, IPC_RMID, NULL), EPERM);
    });
    OK(shmctl(id, IPC_RMID, NULL));
    AS_USER({
        // In an IPC namespace of its own it is root.
        enter(CLONE_NEWIPC);
        ERR(shmctl(id, IPC_RMID, NULL), EINVAL);
        OK(shmctl(OK(shmget(IPC_PRIVATE, 4096, 0)), IPC_RMID, NULL));
    });
}

CASE(status_tells_them) {
    AS_USER({
        pid_t parent = getpid();
        pid_t pid = OK(fork());
        if (pid == 0) {
            enter(0);
            char path[64], text[4096];
            snprintf(path, sizeof path, "/proc/%d/status", parent);
            read_file(path, text, sizeof text);
            CHECK(strstr(text, "Uid:\t0\t0\t0\t0\n"));
            read_file("/proc/1/status", text, sizeof text);
            if (is_roots(1)) CHECK(strstr(text, "Uid:\t65534\t65534\t65534\t65534\n"));
            _exit(0);
        }
        expect_exit(pid, 0);
    });
}

// ---- other namespaces of it ----

CASE(names_of_its_own) {
    AS_USER({
        enter(CLONE_NEWUTS | CLONE_NEWIPC);
        OK(sethostname("inner", 5));
        char name[64];
        OK(gethostname(name, sizeof name));
        STR_EQ(name, "inner");
    });
}

CASE(processes_of_its_own) {
    AS_USER({
        enter(CLONE_NEWPID | CLONE_NEWNS);
        pid_t pid = OK(fork());
        if (pid == 0) {
            EQ(getpid(), 1);
            _exit(getuid());
        }
        expect_exit(pid, 0);
    });
}

CASE(mounts_of_its_own) {
    AS_USER({
        OK(mkdir("a", 0755));
        OK(mkdir("b", 0755));
        enter(CLONE_NEWNS);
        OK(mount("none", "a", "tmpfs", 0, "size=1m,mode=700"));
        struct stat st;
        OK(stat("a", &st));
        EQ(st.st_uid, 0);
        write_file("a/file", "x");
        OK(mount("a", "b", NULL, MS_BIND, NULL));
        OK(mount(NULL, "b", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
        ERR(open("b/file", O_RDWR), EROFS);
        ERR(mknod("a/null", S_IFCHR | 0666, makedev(1, 3)), EPERM);
        ERR(mount("none", "a", "devtmpfs", 0, NULL), EPERM);
        ERR(mount("none", "a", "tmpfs", 0, "uid=5"), EINVAL);
        // set-user-id and the like have an effect within, by the user who mounted it.
        OK(chmod("a/file", 04755));
        OK(umount("b"));
        OK(umount("a"));
    });
    struct stat st;
    ERR(stat("a/file", &st), ENOENT);
}

CASE(mounts_of_others_are_locked) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("over", 0755));
    write_file("over/secret", "x");
    OK(mkdir("over/below", 0755));
    if (mount("none", "over", "tmpfs", MS_NOSUID | MS_NODEV, "mode=777") == -1) skip_case("may not mount");
    OK(mkdir("over/sub", 0777));
    OK(mount("none", "over/sub", "tmpfs", MS_RDONLY, "mode=777"));
    OK(mkdir("place", 0777));
    OK(mkdir("place/a", 0777));
    AS_USER({
        enter(CLONE_NEWNS);
        struct stat st;
        ERR(umount("over"), EINVAL);
        ERR(umount2("over", MNT_DETACH), EINVAL);
        ERR(mount("over", "place/a", NULL, MS_MOVE, NULL), EINVAL);
        // Not less restricted.
        ERR(mount(NULL, "over/sub", NULL, MS_BIND | MS_REMOUNT, NULL), EPERM);
        ERR(mount(NULL, "over", NULL, MS_BIND | MS_REMOUNT | MS_NODEV, NULL), EPERM);
        ERR(mount(NULL, "over", NULL, MS_BIND | MS_REMOUNT | MS_NODEV | MS_NOSUID | MS_NOATIME, NULL), EPERM);
        OK(mount(NULL, "over", NULL, MS_BIND | MS_REMOUNT | MS_NODEV | MS_NOSUID | MS_RDONLY, NULL));
        // Nor in parts: what is below the one or the other was hidden.
        ERR(mount(".", "place/a", NULL, MS_BIND, NULL), EINVAL);
        OK(mount(".", "place/a", NULL, MS_BIND | MS_REC, NULL));
        ERR(stat("place/a/over/secret", &st), ENOENT);
        ERR(umount("place/a/over"), EINVAL);
        int dir = OK(open("place/a", O_RDONLY | O_DIRECTORY));
        // Also when it goes together with what it lies on.
        OK(umount2("place/a", MNT_DETACH));
        ERR(fstatat(dir, "over/secret", &st, 0), ENOENT);
        ERR(openat(dir, "over/below", O_RDONLY), ENOENT);
        // Nor by leaving it out of a copy.
        OK(mount(NULL, "over", NULL, MS_UNBINDABLE, NULL));
        ERR(mount(".", "place/a", NULL, MS_BIND | MS_REC, NULL), EPERM);
        // On top of it others may lie, and go again.
        OK(mount("none", "over", "tmpfs", 0, NULL));
        OK(umount("over"));
    });
    AS_USER({
        // A namespace that ends shows nothing either.
        int pair[2];
        OK(pipe(pair));
        int dir;
        pid_t pid = OK(syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0));
        if (pid == 0) {
            OK(unshare(CLONE_NEWUSER | CLONE_NEWNS));
            dir = OK(open(".", O_RDONLY | O_DIRECTORY));
            OK(write(pair[1], &dir, sizeof dir));
            _exit(0);
        }
        EQ(read(pair[0], &dir, sizeof dir), sizeof dir);
        expect_exit(pid, 0);
        struct stat st;
        // The last of it goes a little after its last process.
        for (int i = 0; i < 20; i++) {
            ERR(fstatat(dir, "over/secret", &st, 0), ENOENT);
            sleep_ms(5);
        }
    });
}

CASE(mounts_do_not_go_outward) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("shared", 0777));
    if (mount("none", "shared", "tmpfs", 0, "mode=777") == -1) skip_case("may not mount");
    OK(mount(NULL, "shared", NULL, MS_SHARED, NULL));
    OK(mkdir("shared/in", 0777));
    OK(mkdir("shared/out", 0777));
    int go[2], done[2];
    OK(pipe(go));
    OK(pipe(done));
    OK(chmod(".", 0777));
    pid_t pid = OK(fork());
    char byte;
    if (pid == 0) {
        be_user();
        enter(CLONE_NEWNS);
        OK(mount("none", "shared/out", "tmpfs", 0, NULL));
        write_file("shared/out/file", "x");
        OK(write(done[1], "x", 1));
        OK(read(go[0], &byte, 1));
        // What comes in is locked.
        struct stat st;
        OK(stat("shared/in/file", &st));
        ERR(mount(NULL, "shared/in", NULL, MS_BIND | MS_REMOUNT, NULL), EPERM);
        _exit(0);
    }
    OK(read(done[0], &byte, 1));
    struct stat st;
    ERR(stat("shared/out/file", &st), ENOENT);
    OK(mount("none", "shared/in", "tmpfs", MS_NOEXEC, NULL));
    write_file("shared/in/file", "x");
    OK(write(go[1], "x", 1));
    expect_exit(pid, 0);
}

CASE(proc_shows_no_more_than_there_is) {
    if (geteuid() != 0) skip_case("needs root");
    own_mounts();
    OK(mkdir("here", 0777));
    AS_USER({
        enter(CLONE_NEWNS | CLONE_NEWPID);
        pid_t pid = OK(fork());
        if (pid == 0) {
            if (mount("proc", "here", "proc", 0, NULL) == -1) {
                // Something of it is hidden already.
                CHECK(errno == EPERM);
                _exit(0);
            }
            char target[16] = "";
            OK(readlink("here/self", target, sizeof target - 1));
            STR_EQ(target, "1");
            _exit(0);
        }
        expect_exit(pid, 0);
    });
    if (mount("none", "/proc/sys", "tmpfs", 0, NULL) == -1) skip_case("may not mount");
    AS_USER({
        enter(CLONE_NEWNS | CLONE_NEWPID);
        pid_t pid = OK(fork());
        if (pid == 0) {
            ERR(mount("proc", "here", "proc", 0, NULL), EPERM);
            _exit(0);
        }
        expect_exit(pid, 0);
    });
    OK(umount("/proc/sys"));
    AS_USER({
        // Processes of a PID namespace that is not its own.
        enter(CLONE_NEWNS);
        ERR(mount("proc", "here", "proc", 0, NULL), EPERM);
    });
}

CASE(a_new_root_for_a_user) {
    AS_USER({
        OK(mkdir("root", 0755));
        enter(CLONE_NEWNS);
        OK(mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL));
        OK(mount("none", "root", "tmpfs", 0, NULL));
        OK(mkdir("root/old", 0755));
        OK(chdir("root"));
        OK(syscall(SYS_pivot_root, ".", "old"));
        OK(chdir("/"));
        OK(access("/old/proc", F_OK));
        OK(umount2("/old", MNT_DETACH));
        ERR(access("/old/proc", F_OK), ENOENT);
        ERR(umount2("/", MNT_DETACH), EINVAL);
        OK(mkdir("/inner", 0755));
        OK(chroot("/inner"));
    });
}

CASE(setns_into_its_mounts) {
    AS_USER({
        int ready[2], go[2];
        OK(pipe(ready));
        OK(pipe(go));
        OK(mkdir("at", 0755));
        char byte;
        pid_t pid = OK(fork());
        if (pid == 0) {
            enter(CLONE_NEWNS);
            OK(mount("none", "at", "tmpfs", 0, NULL));
            write_file("at/inside", "x");
            OK(write(ready[1], "x", 1));
            OK(read(go[0], &byte, 1));
            _exit(0);
        }
        OK(read(ready[0], &byte, 1));
        char path[64], here[PATH_MAX];
        CHECK(getcwd(here, sizeof here));
        snprintf(path, sizeof path, "/proc/%d/ns/mnt", pid);
        int mnt = OK(open(path, O_RDONLY));
        ERR(setns(mnt, CLONE_NEWNS), EPERM);
        int pidfd = OK(syscall(SYS_pidfd_open, pid, 0));
        ERR(setns(pidfd, CLONE_NEWNS), EPERM);
        OK(setns(pidfd, CLONE_NEWUSER | CLONE_NEWNS));
        OK(chdir(here));
        OK(access("at/inside", F_OK));
        EQ(getuid(), 0);
        OK(write(go[1], "x", 1));
        expect_exit(pid, 0);
    });
}

CASE(there_are_only_so_many) {
    char text[32];
    read_file("/proc/sys/user/max_user_namespaces", text, sizeof text);
    CHECK(strtol(text, NULL, 10) > 0);
    if (geteuid() != 0) skip_case("needs root");
    // In a namespace of its own, so that it is about this case alone.
    AS_USER({ ERR(put("/proc/sys/user/max_user_namespaces", "5"), EACCES); });
}

// A file system of terminals has those that were made through it alone.
CASE(terminals_of_others_are_not_seen) {
    own_mounts();
    int outside = OK(open("/dev/ptmx", O_RDWR | O_NOCTTY));
    OK(mkdir("pts", 0755));
    pid_t pid = OK(fork());
    if (pid == 0) {
        enter(CLONE_NEWNS);
        if (mount("devpts", "pts", "devpts", 0, "newinstance,ptmxmode=0666") == -1) _exit(errno == EPERM ? 77 : 1);
        unsigned number;
        OK(ioctl(outside, TIOCGPTN, &number));
        char path[64];
        snprintf(path, sizeof path, "pts/%u", number);
        ERR(open(path, O_RDWR | O_NOCTTY), ENOENT);
        _exit(0);
    }
    int status;
    OK(waitpid(pid, &status, 0));
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip_case("may not mount devpts");
    EQ(WEXITSTATUS(status), 0);
}
