// Pseudo-terminals, controlling terminals, sessions, process groups and job control.
#include "harness.h"

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>

struct pair {
    int master, slave;
    char name[64];
};

static struct pair open_pair(void) {
    struct pair p;
    p.master = OK(open("/dev/ptmx", O_RDWR | O_NOCTTY));
    OK(grantpt(p.master));
    OK(unlockpt(p.master));
    ZERO(ptsname_r(p.master, p.name, sizeof p.name));
    p.slave = OK(open(p.name, O_RDWR | O_NOCTTY));
    return p;
}

static void raw(int fd) {
    struct termios t;
    OK(tcgetattr(fd, &t));
    cfmakeraw(&t);
    OK(tcsetattr(fd, TCSANOW, &t));
}

// Reads until the expected text has come.
static void expect(int fd, const char *text) {
    char b[256] = {0};
    size_t have = 0, want = strlen(text);
    while (have < want) have += OK(read(fd, b + have, want - have));
    STR_EQ(b, text);
}

CASE(open_and_names) {
    struct pair p = open_pair();
    CHECK(strncmp(p.name, "/dev/pts/", 9) == 0);
    EQ(isatty(p.master), 1);
    EQ(isatty(p.slave), 1);
    char b[64];
    ZERO(ttyname_r(p.slave, b, sizeof b));
    STR_EQ(b, p.name);
    int fd = OK(open("/dev/null", O_RDONLY));
    ERR(isatty(fd) ? 0 : -1, ENOTTY);
    unsigned number;
    OK(ioctl(p.master, TIOCGPTN, &number));
    EQ(number, atoi(p.name + 9));
}

// TIOCSLCKTRMIOS of ioctl_tty(2): what is not zero there, nobody changes.
CASE(locked_settings) {
    struct pair p = open_pair();
    struct termios lock, old, new;
    memset(&lock, 0xff, sizeof lock);
    OK(ioctl(p.slave, TIOCGLCKTRMIOS, &lock));
    CHECK(lock.c_iflag == 0 && lock.c_oflag == 0 && lock.c_cflag == 0 && lock.c_lflag == 0 && lock.c_cc[VINTR] == 0);
    lock.c_lflag = ECHO | ICANON;
    lock.c_cc[VINTR] = 1;
    pid_t pid = OK(fork());
    if (pid == 0) {
        if (geteuid() == 0) OK(setuid(1000));
        ERR(ioctl(p.slave, TIOCSLCKTRMIOS, &lock), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
    if (ioctl(p.slave, TIOCSLCKTRMIOS, &lock) == -1 && errno == EPERM) skip_case("no CAP_SYS_ADMIN");
    struct termios told = {0};
    OK(ioctl(p.master, TIOCGLCKTRMIOS, &told));
    EQ(told.c_lflag, ECHO | ICANON);
    EQ(told.c_cc[VINTR], 1);
    OK(ioctl(p.slave, TCGETS, &old));
    new = old;
    new.c_lflag &= ~(ECHO | ICANON | ISIG);
    new.c_cc[VINTR] = new.c_cc[VQUIT] = 1;
    OK(ioctl(p.slave, TCSETS, &new));
    OK(ioctl(p.slave, TCGETS, &new));
    EQ(new.c_lflag, old.c_lflag & ~ISIG);
    EQ(new.c_cc[VINTR], old.c_cc[VINTR]);
    EQ(new.c_cc[VQUIT], 1);
    memset(&lock, 0, sizeof lock);
    OK(ioctl(p.slave, TIOCSLCKTRMIOS, &lock));
    new.c_lflag &= ~ECHO;
    OK(ioctl(p.slave, TCSETS, &new));
    OK(ioctl(p.slave, TCGETS, &new));
    EQ(new.c_lflag & ECHO, 0);
}

// A login gives the terminal to the user, and takes it back; mesg(1) changes its mode.
CASE(owner_and_mode) {
    struct pair p = open_pair();
    struct stat st;
    OK(fstat(p.slave, &st));
    EQ(st.st_uid, geteuid());
    // What a mount's options say.
    mode_t mode = st.st_mode;
    OK(chmod(p.name, 0600));
    OK(fstat(p.slave, &st));
    EQ(st.st_mode, S_IFCHR | 0600);
    OK(fchmod(p.slave, 0622));
    OK(stat(p.name, &st));
    EQ(st.st_mode, S_IFCHR | 0622);
    struct timespec times[2] = {{1000, 0}, {2000, 0}};
    OK(utimensat(AT_FDCWD, p.name, times, 0));
    OK(stat(p.name, &st));
    EQ(st.st_atime, 1000);
    EQ(st.st_mtime, 2000);
    EQ(write(p.slave, "x", 1), 1);
    OK(stat(p.name, &st));
    EQ(st.st_atime, 1000);
    CHECK(st.st_mtime >= time(NULL) - 16);
    EQ(write(p.master, "y\n", 2), 2);
    char b[4];
    EQ(read(p.slave, b, sizeof b), 2);
    OK(stat(p.name, &st));
    CHECK(st.st_atime >= time(NULL) - 16);
    if (geteuid() != 0) skip_case("the rest needs root");
    OK(chown(p.name, 65534, 7));
    OK(fstat(p.slave, &st));
    EQ(st.st_uid, 65534);
    EQ(st.st_gid, 7);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresuid(65534, 65534, 65534));
        OK(close(OK(open(p.name, O_RDWR | O_NOCTTY))));
        ERR(chown(p.name, 0, -1), EPERM);
        OK(chmod(p.name, 0400));
        ERR(open(p.name, O_WRONLY | O_NOCTTY), EACCES);
            _exit(0);
    }
    expect_exit(pid, 0);
    // The next terminal of that number is a new one.
    OK(close(p.slave));
    OK(close(p.master));
    struct pair next = open_pair();
    OK(fstat(next.slave, &st));
    EQ(st.st_mode, mode);
}

CASE(raw_both_ways) {
    struct pair p = open_pair();
    raw(p.slave);
    EQ(write(p.master, "in\r\n", 4), 4);
    expect(p.slave, "in\r\n");
    EQ(write(p.slave, "out\n", 4), 4);
    expect(p.master, "out\n");
}

CASE(canonical_lines_and_echo) {
    struct pair p = open_pair();
    EQ(write(p.master, "one\ntwo\n", 8), 8);
    char b[64] = {0};
    EQ(read(p.slave, b, sizeof b), 4);
    STR_EQ(b, "one\n");
    memset(b, 0, sizeof b);
    EQ(read(p.slave, b, sizeof b), 4);
    STR_EQ(b, "two\n");
    expect(p.master, "one\r\ntwo\r\n");
}

CASE(canonical_editing) {
    struct pair p = open_pair();
    EQ(write(p.master, "abX\177c\n", 6), 6);
    char b[64] = {0};
    EQ(read(p.slave, b, sizeof b), 4);
    STR_EQ(b, "abc\n");
    memset(b, 0, sizeof b);
    EQ(write(p.master, "wrong\025right\n", 12), 12);  // ^U
    EQ(read(p.slave, b, sizeof b), 6);
    STR_EQ(b, "right\n");
    EQ(write(p.master, "\004", 1), 1);  // ^D at the start of a line: end of file
    EQ(read(p.slave, b, sizeof b), 0);
}

CASE(output_processing) {
    struct pair p = open_pair();
    EQ(write(p.slave, "a\nb", 3), 3);
    expect(p.master, "a\r\nb");
}

CASE(attributes_round_trip) {
    struct pair p = open_pair();
    struct termios t, u;
    OK(tcgetattr(p.slave, &t));
    CHECK((t.c_lflag & (ICANON | ECHO | ISIG)) == (ICANON | ECHO | ISIG));
    CHECK(t.c_oflag & OPOST);
    EQ(t.c_cc[VINTR], 3);
    t.c_lflag &= ~ECHO;
    t.c_cc[VMIN] = 5;
    OK(tcsetattr(p.slave, TCSADRAIN, &t));
    OK(tcgetattr(p.master, &u));
    EQ(u.c_lflag & ECHO, 0);
    EQ(u.c_cc[VMIN], 5);
    OK(tcflush(p.slave, TCIOFLUSH));
}

CASE(window_size) {
    struct pair p = open_pair();
    struct winsize w = {.ws_row = 33, .ws_col = 99}, got;
    OK(ioctl(p.master, TIOCSWINSZ, &w));
    OK(ioctl(p.slave, TIOCGWINSZ, &got));
    EQ(got.ws_row, 33);
    EQ(got.ws_col, 99);
}

CASE(nonblocking_and_poll) {
    struct pair p = open_pair();
    raw(p.slave);
    OK(fcntl(p.slave, F_SETFL, O_NONBLOCK));
    char c;
    ERR(read(p.slave, &c, 1), EAGAIN);
    struct pollfd f = {p.slave, POLLIN, 0};
    EQ(poll(&f, 1, 0), 0);
    EQ(write(p.master, "x", 1), 1);
    EQ(poll(&f, 1, -1), 1);
    int n;
    OK(ioctl(p.slave, FIONREAD, &n));
    EQ(n, 1);
    EQ(read(p.slave, &c, 1), 1);
}

CASE(closing_ends) {
    struct pair p = open_pair();
    OK(close(p.slave));
    char c;
    ERR(read(p.master, &c, 1), EIO);
    p.slave = OK(open(p.name, O_RDWR | O_NOCTTY));
    OK(close(p.master));
    EQ(read(p.slave, &c, 1), 0);
    ERR(write(p.slave, "x", 1), EIO);
    ERR(open(p.name, O_RDWR | O_NOCTTY), ENOENT);
}

CASE(sessions_and_groups) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        EQ(OK(setsid()), getpid());
        EQ(getsid(0), getpid());
        EQ(getpgrp(), getpid());
        ERR(setsid(), EPERM);
        ERR(setpgid(0, getpid()), EPERM);
        pid_t child = OK(fork());
        if (child == 0) {
            EQ(getpgrp(), getppid());
            OK(setpgid(0, 0));
            EQ(getpgrp(), getpid());
            _exit(0);
        }
        expect_exit(child, 0);
        ERR(setpgid(99999999, 0), ESRCH);
        ERR(open("/dev/tty", O_RDWR), ENXIO);
        _exit(0);
    }
    expect_exit(pid, 0);
    ERR(getsid(99999999), ESRCH);
    ERR(setpgid(0, -1), EINVAL);
}

// Runs the body in a fresh session whose controlling terminal is the slave.
static pid_t session_on(struct pair *p, void (*body)(struct pair *)) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setsid());
        OK(ioctl(p->slave, TIOCSCTTY, 0));
        body(p);
        _exit(0);
    }
    return pid;
}

// The controlling terminal and its foreground group as /proc tells them.
static void in_stat(int *number, int *group) {
    char text[512];
    read_file("/proc/self/stat", text, sizeof text);
    EQ(sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %d %d", number, group), 2);
}

CASE(controlling_terminal) {
    struct pair p = open_pair();
    void body(struct pair *p) {
        EQ(OK(tcgetsid(p->slave)), getpid());
        EQ(OK(tcgetpgrp(p->slave)), getpgrp());
        struct stat slave;
        OK(fstat(p->slave, &slave));
        int number, group;
        in_stat(&number, &group);
        EQ(number, slave.st_rdev);
        EQ(group, getpgrp());
        int tty = OK(open("/dev/tty", O_RDWR));
        EQ(write(tty, "hi", 2), 2);
        expect(p->master, "hi");
        OK(ioctl(tty, TIOCNOTTY));
        in_stat(&number, &group);
        EQ(number, 0);
        EQ(group, -1);
        ERR(open("/dev/tty", O_RDWR), ENXIO);
    }
    signal(SIGHUP, SIG_IGN);
    expect_exit(session_on(&p, body), 0);
}

CASE(interrupt_key_signals_the_foreground) {
    struct pair p = open_pair();
    void body(struct pair *p) {
        EQ(write(p->master, "\003", 1), 1);
        for (;;) pause();
    }
    expect_killed(session_on(&p, body), SIGINT);
    struct pair q = open_pair();
    void quit(struct pair *p) {
        EQ(write(p->master, "\034", 1), 1);
        for (;;) pause();
    }
    expect_killed(session_on(&q, quit), SIGQUIT);
}

CASE(hangup_when_the_master_closes) {
    struct pair p = open_pair();
    int ready[2];
    OK(pipe(ready));
    static int *ready_end;
    ready_end = ready;
    void body(struct pair *p) {
        OK(close(p->master));
        EQ(write(ready_end[1], "r", 1), 1);
        for (;;) pause();
    }
    pid_t pid = session_on(&p, body);
    char c;
    EQ(read(ready[0], &c, 1), 1);
    OK(close(p.slave));
    OK(close(p.master));
    expect_killed(pid, SIGHUP);
}

CASE(background_reader_stops) {
    struct pair p = open_pair();
    void body(struct pair *p) {
        pid_t child = OK(fork());
        if (child == 0) {
            OK(setpgid(0, 0));
            char b[8];
            EQ(read(p->slave, b, sizeof b), 3);
            _exit(0);
        }
        setpgid(child, child);
        int status;
        EQ(waitpid(child, &status, WUNTRACED), child);
        CHECK(WIFSTOPPED(status));
        EQ(WSTOPSIG(status), SIGTTIN);
        OK(tcsetpgrp(p->slave, child));
        EQ(write(p->master, "go\n", 3), 3);
        OK(kill(child, SIGCONT));
        expect_exit(child, 0);
    }
    expect_exit(session_on(&p, body), 0);
}

CASE(background_tcsetpgrp_stops) {
    struct pair p = open_pair();
    void body(struct pair *p) {
        pid_t child = OK(fork());
        if (child == 0) {
            OK(setpgid(0, 0));
            signal(SIGTTOU, SIG_DFL);
            tcsetpgrp(p->slave, getpgrp());
            _exit(0);
        }
        setpgid(child, child);
        int status;
        EQ(waitpid(child, &status, WUNTRACED), child);
        CHECK(WIFSTOPPED(status));
        EQ(WSTOPSIG(status), SIGTTOU);
        OK(kill(child, SIGKILL));
        OK(waitpid(child, &status, 0));
        ERR(tcsetpgrp(p->slave, 99999999), ESRCH);
    }
    expect_exit(session_on(&p, body), 0);
}

CASE(stop_key_and_shell_like_job_control) {
    struct pair p = open_pair();
    void body(struct pair *p) {
        signal(SIGTTOU, SIG_IGN);
        pid_t child = OK(fork());
        if (child == 0) {
            signal(SIGTTOU, SIG_DFL);
            for (;;) pause();
        }
        OK(setpgid(child, child));
        OK(tcsetpgrp(p->slave, child));
        EQ(write(p->master, "\032", 1), 1);  // ^Z
        int status;
        EQ(waitpid(child, &status, WUNTRACED), child);
        CHECK(WIFSTOPPED(status));
        EQ(WSTOPSIG(status), SIGTSTP);
        OK(tcsetpgrp(p->slave, getpgrp()));
        OK(kill(-child, SIGCONT));
        EQ(waitpid(child, &status, WCONTINUED), child);
        OK(kill(-child, SIGTERM));
        OK(waitpid(child, &status, 0));
        EQ(WTERMSIG(status), SIGTERM);
    }
    expect_exit(session_on(&p, body), 0);
}

CASE(window_change_signals) {
    struct pair p = open_pair();
    static volatile int changed;
    void body(struct pair *p) {
        void on_change(int signo) { changed++; }
        struct sigaction a = {.sa_handler = on_change};
        OK(sigaction(SIGWINCH, &a, NULL));
        struct winsize w = {.ws_row = 5, .ws_col = 6};
        OK(ioctl(p->master, TIOCSWINSZ, &w));
        WAIT_UNTIL(changed > 0);
    }
    expect_exit(session_on(&p, body), 0);
}

CASE(orphaned_stopped_group_gets_hangup) {
    int pipes[2];
    OK(pipe(pipes));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setsid());  // whoever inherits the grandchild is in another session then
        pid_t child = OK(fork());
        if (child == 0) {
            OK(setpgid(0, 0));
            raise(SIGTSTP);
            for (;;) pause();
        }
        setpgid(child, child);
        int status;
        EQ(waitpid(child, &status, WUNTRACED), child);
        OK(kill(child, SIGSTOP));
        OK(close(pipes[0]));
        _exit(0);
    }
    expect_exit(pid, 0);
    OK(close(pipes[1]));
    char c;
    EQ(read(pipes[0], &c, 1), 0);  // the grandchild was hung up and died, closing its end
}

CASE(forkpty_runs_a_shell) {
    int master;
    pid_t pid = OK(forkpty(&master, NULL, NULL, NULL));
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "test -t 0 && echo terminal; exit 5", NULL);
        _exit(100);
    }
    expect(master, "terminal\r\n");
    expect_exit(pid, 5);
}

CASE(stdin_script_through_terminal) {
    int master;
    struct termios t;
    pid_t pid = OK(forkpty(&master, NULL, NULL, NULL));
    if (pid == 0) {
        execl("/bin/cat", "cat", NULL);
        _exit(100);
    }
    OK(tcgetattr(master, &t));
    EQ(write(master, "line\n", 5), 5);
    expect(master, "line\r\nline\r\n");
    EQ(write(master, "\004", 1), 1);
    expect_exit(pid, 0);
}

// Writes to the master, which does not wait, until it takes no more; how many bytes it took.
static long fill(int master, const char *piece) {
    long all = 0, bytes;
    OK(fcntl(master, F_SETFL, O_NONBLOCK));
    while ((bytes = write(master, piece, strlen(piece))) > 0 && all < 10000000) all += bytes;
    EQ(bytes, -1);
    EQ(errno, EAGAIN);
    return all;
}

// Reads all that comes within a moment, and how many bytes that is.
static long drain(int slave) {
    char b[8192];
    long all = 0, bytes;
    OK(fcntl(slave, F_SETFL, O_NONBLOCK));
    for (int idle = 0; idle < 20; idle++) {
        while ((bytes = read(slave, b, sizeof b)) > 0) all += bytes, idle = 0;
        usleep(5000);
    }
    return all;
}

CASE(input_that_is_taken_is_not_lost) {
    int master, slave;
    struct termios t;
    OK(openpty(&master, &slave, NULL, NULL, NULL));
    OK(tcgetattr(slave, &t));
    t.c_lflag &= ~ECHO;
    OK(tcsetattr(slave, TCSANOW, &t));
    for (int round = 0; round < 3; round++) {
        long put = fill(master, "a line of some length\n"), got = drain(slave);
        // The last line may have been cut.
        EQ(write(master, "\n", 1), 1);
        EQ(got + drain(slave), put + 1);
    }
    cfmakeraw(&t);
    OK(tcsetattr(slave, TCSANOW, &t));
    for (int round = 0; round < 3; round++) EQ(fill(master, "bytes of no line"), drain(slave));
}

CASE(writer_of_a_terminal_waits_for_its_reader) {
    int master, slave, status;
    struct termios t;
    OK(openpty(&master, &slave, NULL, NULL, NULL));
    OK(tcgetattr(slave, &t));
    cfmakeraw(&t);
    OK(tcsetattr(slave, TCSANOW, &t));
    enum { BYTES = 200000 };
    pid_t child = OK(fork());
    if (child == 0) {
        char *all = malloc(BYTES);
        for (int i = 0; i < BYTES; i++) all[i] = (char)(i * 7);
        EQ(write(master, all, BYTES), BYTES);
        _exit(0);
    }
    static char b[BYTES];
    for (int got = 0; got < BYTES;) {
        int bytes = OK(read(slave, b + got, BYTES - got));
        CHECK(bytes > 0);
        got += bytes;
    }
    for (int i = 0; i < BYTES; i++) EQ(b[i], (char)(i * 7));
    EQ(waitpid(child, &status, 0), child);
    EQ(status, 0);
}

// Reads one packet of a master in packet mode: what comes first of it.
static int packet(int master, char *data, size_t room) {
    char b[64];
    ssize_t got = read(master, b, sizeof b);
    if (got < 0) return -errno;
    CHECK(got >= 1 && (size_t)got - 1 <= room);
    if (b[0] != TIOCPKT_DATA) EQ(got, 1);
    memcpy(data, b + 1, got - 1);
    data[got - 1] = 0;
    return b[0];
}

static short polled(int fd) {
    struct pollfd p = {fd, POLLIN | POLLPRI, 0};
    poll(&p, 1, 0);
    return p.revents;
}

CASE(packet_mode_tells_of_changes) {
    struct pair p = open_pair();
    char data[64];
    int on = 1, off = 0, is = 7;
    raw(p.slave);
    ERR(ioctl(p.slave, TIOCPKT, &on), ENOTTY);
    OK(ioctl(p.master, TIOCGPKT, &is));
    EQ(is, 0);
    OK(fcntl(p.master, F_SETFL, O_NONBLOCK));
    // What was before is not told.
    OK(tcflow(p.slave, TCOOFF));
    OK(tcflow(p.slave, TCOON));
    OK(ioctl(p.master, TIOCPKT, &on));
    OK(ioctl(p.master, TIOCGPKT, &is));
    EQ(is, 1);
    EQ(packet(p.master, data, sizeof data), -EAGAIN);
    EQ(polled(p.master), 0);
    EQ(OK(write(p.slave, "abc", 3)), 3);
    EQ(polled(p.master), POLLIN);
    EQ(packet(p.master, data, sizeof data), TIOCPKT_DATA);
    STR_EQ(data, "abc");
    OK(tcflow(p.slave, TCOOFF));
    EQ(polled(p.master), POLLIN | POLLPRI);
    EQ(packet(p.master, data, sizeof data), TIOCPKT_STOP);
    EQ(polled(p.master), 0);
    OK(tcflow(p.slave, TCOON));
    EQ(packet(p.master, data, sizeof data), TIOCPKT_START);
    OK(tcflush(p.slave, TCOFLUSH));
    EQ(packet(p.master, data, sizeof data), TIOCPKT_FLUSHWRITE);
    OK(tcflush(p.slave, TCIFLUSH));
    EQ(packet(p.master, data, sizeof data), TIOCPKT_FLUSHREAD);
    OK(tcflush(p.slave, TCIOFLUSH));
    EQ(packet(p.master, data, sizeof data), TIOCPKT_FLUSHREAD | TIOCPKT_FLUSHWRITE);
    EQ(packet(p.master, data, sizeof data), -EAGAIN);
    // ^S and ^Q mean something now, and then nothing any more.
    struct termios t;
    OK(tcgetattr(p.slave, &t));
    t.c_iflag |= IXON;
    OK(tcsetattr(p.slave, TCSANOW, &t));
    EQ(packet(p.master, data, sizeof data), TIOCPKT_DOSTOP);
    t.c_cc[VSTOP] = 1;
    OK(tcsetattr(p.slave, TCSANOW, &t));
    EQ(packet(p.master, data, sizeof data), TIOCPKT_NOSTOP);
    OK(tcsetattr(p.slave, TCSANOW, &t));
    EQ(packet(p.master, data, sizeof data), -EAGAIN);
    OK(ioctl(p.master, TIOCPKT, &off));
    EQ(OK(write(p.slave, "abc", 3)), 3);
    EQ(OK(read(p.master, data, sizeof data)), 3);
    ERR(ioctl(p.master, TIOCPKT, NULL), EFAULT);
}
