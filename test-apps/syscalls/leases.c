// Leases (fcntl(2), F_SETLEASE) and directory notification (F_NOTIFY).
#include "harness.h"
#include <pthread.h>

#define LONG 20000
#define SHORT 100

static void expect(int signo, int fd) {
    siginfo_t info;
    CHECK(signal_within(signo, &info, LONG));
    EQ(info.si_code, POLL_MSG);
    EQ(info.si_fd, fd);
    EQ(info.si_band, 0x441);
}

// Has `fd` tell by a real-time signal, which is blocked.
static int tell(int fd) {
    int signo = SIGRTMIN + 1;
    block_signal(signo);
    OK(fcntl(fd, F_SETSIG, signo));
    return signo;
}

// A process that opens "f" so; with its errno as its exit status.
static pid_t opener(int flags) {
    pid_t pid = OK(fork());
    if (pid == 0) _exit(open("f", flags) == -1 ? errno : 0);
    return pid;
}

static off_t size_of(int fd) {
    struct stat st;
    OK(fstat(fd, &st));
    return st.st_size;
}

// The process that cuts the file, which has three bytes, to `size` does so once the lease is given up, and not before.
static void expect_cut(pid_t pid, int signo, int fd, off_t size) {
    expect(signo, fd);
    sleep_ms(SHORT);
    EQ(size_of(fd), 3);
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    expect_exit(pid, 0);
    EQ(size_of(fd), size);
}

static bool has_ended(pid_t pid) {
    siginfo_t info = {0};
    OK(waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT));
    return info.si_pid == pid;
}

CASE(set_and_get) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY));
    EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
    ERR(fcntl(fd, F_SETLEASE, F_UNLCK), EAGAIN);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    EQ(fcntl(fd, F_GETLEASE), F_RDLCK);
    EQ(fcntl(OK(dup(fd)), F_GETLEASE), F_RDLCK);
    int copy = fd + 1;
    OK(close(copy));
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    EQ(fcntl(fd, F_GETLEASE), F_WRLCK);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    EQ(fcntl(fd, F_GETLEASE), F_RDLCK);
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
    ERR(fcntl(fd, F_SETLEASE, 7), EINVAL);
    // It tells its holder, and when it is given up nobody.
    OK(fcntl(fd, F_SETSIG, SIGUSR1));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    EQ(fcntl(fd, F_GETOWN), getpid());
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    EQ(fcntl(fd, F_GETOWN), 0);
    EQ(fcntl(fd, F_GETSIG), 0);
}

CASE(what_may_have_one) {
    int p[2];
    OK(pipe(p));
    ERR(fcntl(p[0], F_SETLEASE, F_RDLCK), EINVAL);
    ERR(fcntl(OK(open(".", O_RDONLY)), F_SETLEASE, F_RDLCK), EINVAL);
    ERR(fcntl(99, F_SETLEASE, F_RDLCK), EBADF);
    write_file("f", "x");
    int path = OK(open("f", O_PATH));
    ERR(fcntl(path, F_SETLEASE, F_RDLCK), EBADF);
    int fd = OK(open("f", O_RDONLY));
    AS_NOBODY({
        ERR(fcntl(fd, F_SETLEASE, F_RDLCK), EACCES);
        ERR(fcntl(fd, F_SETLEASE, F_UNLCK), EACCES);
    });
}

CASE(others_stand_in_the_way) {
    write_file("f", "x");
    int reader = OK(open("f", O_RDONLY)), other = OK(open("f", O_RDONLY));
    ERR(fcntl(reader, F_SETLEASE, F_WRLCK), EAGAIN);
    OK(fcntl(reader, F_SETLEASE, F_RDLCK));
    OK(fcntl(other, F_SETLEASE, F_RDLCK));
    OK(close(other));
    OK(fcntl(reader, F_SETLEASE, F_WRLCK));
    OK(fcntl(reader, F_SETLEASE, F_UNLCK));
    int writer = OK(open("f", O_RDWR));
    ERR(fcntl(reader, F_SETLEASE, F_RDLCK), EAGAIN);
    ERR(fcntl(writer, F_SETLEASE, F_RDLCK), EAGAIN);
    ERR(fcntl(writer, F_SETLEASE, F_WRLCK), EAGAIN);
    OK(close(reader));
    OK(fcntl(writer, F_SETLEASE, F_WRLCK));
    EQ(fcntl(writer, F_GETLEASE), F_WRLCK);
    // A file that was just made has nobody else.
    int new = OK(open("new", O_CREAT | O_RDWR | O_EXCL, 0600));
    OK(fcntl(new, F_SETLEASE, F_WRLCK));
    // A mapping keeps it open.
    int mapped = OK(open("f2", O_CREAT | O_RDWR, 0600));
    OK(ftruncate(mapped, 4096));
    char *at = OK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, mapped, 0));
    OK(close(mapped));
    reader = OK(open("f2", O_RDONLY));
    ERR(fcntl(reader, F_SETLEASE, F_RDLCK), EAGAIN);
    OK(munmap(at, 4096));
    OK(fcntl(reader, F_SETLEASE, F_RDLCK));
}

CASE(writer_waits_for_reader) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    // Readers do not matter.
    expect_exit(opener(O_RDONLY), 0);
    expect_no_signal(signo);
    pid_t pid = opener(O_WRONLY);
    expect(signo, fd);
    EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
    sleep_ms(SHORT);
    CHECK(!has_ended(pid));
    OK(fcntl(fd, F_SETLEASE, F_UNLCK));
    expect_exit(pid, 0);
    expect_no_signal(signo);
}

CASE(close_gives_up) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY)), copy = OK(dup(fd)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    pid_t pid = opener(O_RDWR);
    expect(signo, fd);
    OK(close(fd));
    sleep_ms(SHORT);
    // The child has a copy too.
    CHECK(!has_ended(pid));
    OK(fcntl(copy, F_SETLEASE, F_UNLCK));
    expect_exit(pid, 0);
}

CASE(reader_waits_for_downgrade) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    pid_t pid = opener(O_RDONLY);
    expect(signo, fd);
    EQ(fcntl(fd, F_GETLEASE), F_RDLCK);
    sleep_ms(SHORT);
    CHECK(!has_ended(pid));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    expect_exit(pid, 0);
    EQ(fcntl(fd, F_GETLEASE), F_RDLCK);
    expect_no_signal(signo);
}

CASE(nonblocking_open_does_not_wait) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    expect_exit(opener(O_RDONLY | O_NONBLOCK), EWOULDBLOCK);
    expect(signo, fd);
    expect_exit(opener(O_RDONLY | O_NONBLOCK), EWOULDBLOCK);
    // It has been told.
    expect_no_signal(signo);
    expect_exit(opener(O_WRONLY | O_NONBLOCK), EWOULDBLOCK);
    expect(signo, fd);
    EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
}

CASE(truncate_breaks) {
    write_file("f", "xyz");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    pid_t pid = OK(fork());
    if (pid == 0) _exit(truncate("f", 1) == -1 ? errno : 0);
    expect_cut(pid, signo, fd, 1);
}

CASE(cutting_open_cuts_only_then) {
    write_file("f", "xyz");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    pid_t pid = opener(O_WRONLY | O_TRUNC);
    expect_cut(pid, signo, fd, 0);
}

static void on_signal(int signo) { (void)signo; }

CASE(wait_is_interrupted) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct sigaction action = {.sa_handler = on_signal};
        OK(sigaction(SIGUSR1, &action, NULL));
        _exit(open("f", O_WRONLY) == -1 ? errno : 0);
    }
    expect(signo, fd);
    sleep_ms(SHORT);
    OK(kill(pid, SIGUSR1));
    expect_exit(pid, EINTR);
}

CASE(sigio_is_the_default) {
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY));
    block_signal(SIGIO);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    expect_exit(opener(O_WRONLY | O_NONBLOCK), EWOULDBLOCK);
    siginfo_t info;
    CHECK(signal_within(SIGIO, &info, LONG));
    EQ(info.si_code, SI_KERNEL);
}

static void set_break_time(const char *seconds) {
    int fd = open("/proc/sys/fs/lease-break-time", O_WRONLY);
    if (fd == -1) skip_case("the break time cannot be set here");
    EQ(write(fd, seconds, strlen(seconds)), (ssize_t)strlen(seconds));
    OK(close(fd));
}

CASE(holder_loses_it_in_time) {
    char before[32];
    read_file("/proc/sys/fs/lease-break-time", before, sizeof before);
    CHECK(atoi(before) > 0);
    set_break_time("1");
    write_file("f", "x");
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    int64_t start = now_ns(CLOCK_MONOTONIC);
    pid_t pid = opener(O_WRONLY);
    expect(signo, fd);
    expect_exit(pid, 0);
    set_break_time(before);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 900000000);
    EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
    ERR(fcntl(fd, F_SETLEASE, F_UNLCK), EAGAIN);
}

CASE(execution_reads) {
    char copy[PATH_MAX + 64];
    snprintf(copy, sizeof copy, "cp %s f", self_path);
    EQ(system(copy), 0);
    int fd = OK(open("f", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_SETLEASE, F_WRLCK));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(close(fd));
        int null = OK(open("/dev/null", O_WRONLY));
        OK(dup2(null, 1));
        execl("./f", "f", "--list", NULL);
        _exit(100);
    }
    expect(signo, fd);
    sleep_ms(SHORT);
    CHECK(!has_ended(pid));
    OK(fcntl(fd, F_SETLEASE, F_RDLCK));
    expect_exit(pid, 0);
}

// Directories.

CASE(directory_tells_once) {
    OK(mkdir("d", 0700));
    int fd = OK(open("d", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_NOTIFY, DN_CREATE | DN_DELETE));
    EQ(fcntl(fd, F_GETOWN), getpid());
    write_file("d/f", "x");
    expect(signo, fd);
    write_file("d/g", "x");
    OK(unlink("d/f"));
    expect_no_signal(signo);
}

CASE(directory_tells_each_time) {
    OK(mkdir("d", 0700));
    OK(mkdir("e", 0700));
    int fd = OK(open("d", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT));
    int file = create("d/f");
    expect(signo, fd);
    EQ(write(file, "x", 1), 1);
    OK(fchmod(file, 0600));
    expect_no_signal(signo);
    // On top of what was asked for.
    OK(fcntl(fd, F_NOTIFY, DN_MODIFY | DN_ATTRIB | DN_ACCESS | DN_MULTISHOT));
    EQ(write(file, "x", 1), 1);
    expect(signo, fd);
    OK(fchmod(file, 0640));
    expect(signo, fd);
    char b[1];
    EQ(pread(file, b, 1, 0), 1);
    expect(signo, fd);
    OK(unlink("d/f"));
    siginfo_t info;
    // Its link count changed.
    while (signal_within(signo, &info, SHORT)) EQ(info.si_fd, fd);
    OK(fcntl(fd, F_NOTIFY, DN_DELETE | DN_MULTISHOT));
    OK(mkdir("d/s", 0700));
    expect(signo, fd);
    OK(rmdir("d/s"));
    expect(signo, fd);
    while (signal_within(signo, &info, SHORT)) EQ(info.si_fd, fd);
    OK(fcntl(fd, F_NOTIFY, 0));
    OK(mkdir("d/s", 0700));
    expect_no_signal(signo);
}

CASE(directory_tells_of_new_names) {
    OK(mkdir("d", 0700));
    OK(mkdir("e", 0700));
    OK(close(create("d/f")));
    int fd = OK(open("d", O_RDONLY)), signo = tell(fd);
    OK(fcntl(fd, F_NOTIFY, DN_RENAME | DN_MULTISHOT));
    OK(rename("d/f", "d/g"));
    expect(signo, fd);
    expect_no_signal(signo);
    OK(fcntl(fd, F_NOTIFY, 0));
    OK(fcntl(fd, F_NOTIFY, DN_DELETE));
    OK(rename("d/g", "e/g"));
    expect(signo, fd);
    OK(fcntl(fd, F_NOTIFY, DN_CREATE));
    OK(rename("e/g", "d/g"));
    expect(signo, fd);
}

CASE(closed_directory_tells_nothing) {
    OK(mkdir("d", 0700));
    int fd = OK(open("d", O_RDONLY)), copy = OK(dup(fd)), signo = tell(fd);
    OK(fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT));
    // Whichever descriptor of it: the process has asked.
    OK(close(copy));
    OK(close(create("d/f")));
    expect_no_signal(signo);
}

CASE(only_directories_notify) {
    int file = create("f"), p[2];
    OK(pipe(p));
    ERR(fcntl(file, F_NOTIFY, DN_CREATE), ENOTDIR);
    ERR(fcntl(p[0], F_NOTIFY, DN_CREATE), ENOTDIR);
    EQ(fcntl(file, F_NOTIFY, 0), 0);
}
