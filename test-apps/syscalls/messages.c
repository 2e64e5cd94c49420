// What goes along with messages of AF_UNIX sockets (unix(7), cmsg(3)): credentials and descriptors, whole and cut off;
// options; what stat(2) says of sockets and pipes.
#include "harness.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/ioctl.h>
#include <stddef.h>
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct got {
    ssize_t n;
    int flags;
    bool has_cred;
    struct ucred cred;
    int fds[8];
    int nfds;
    size_t controllen;
    size_t credlen, fdlen;
};

static struct got receive(int fd, size_t len, size_t space, int flags) {
    static char data[65536];
    static union {
        char bytes[4096];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec io = {data, len};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = space};
    struct got g = {0};
    g.n = recvmsg(fd, &m, flags | MSG_DONTWAIT);
    g.flags = m.msg_flags;
    g.controllen = m.msg_controllen;
    if (g.n < 0) return g;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET) continue;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            g.has_cred = true;
            g.credlen = c->cmsg_len;
            memcpy(&g.cred, CMSG_DATA(c),
                   c->cmsg_len - CMSG_LEN(0) < sizeof g.cred ? c->cmsg_len - CMSG_LEN(0) : sizeof g.cred);
        }
        if (c->cmsg_type == SCM_RIGHTS) {
            g.fdlen = c->cmsg_len;
            g.nfds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(g.fds, CMSG_DATA(c), g.nfds * sizeof(int));
        }
    }
    return g;
}

static int send_control(int fd, const char *data, size_t len, int nfds, const int *fds, const struct ucred *cred) {
    union {
        char bytes[1024];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec io = {(void *)data, len};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.bytes};
    size_t used = 0;
    struct cmsghdr *c = &control.align;
    if (nfds) {
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
        used += CMSG_SPACE(nfds * sizeof(int));
        c = (void *)(control.bytes + used);
    }
    if (cred) {
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_CREDENTIALS;
        c->cmsg_len = CMSG_LEN(sizeof *cred);
        memcpy(CMSG_DATA(c), cred, sizeof *cred);
        used += CMSG_SPACE(sizeof *cred);
    }
    m.msg_controllen = used;
    if (!used) m.msg_control = NULL;
    return sendmsg(fd, &m, MSG_DONTWAIT);
}

static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
#define EACH_TYPE(fds)                                                                                                 \
    for (unsigned t_ = 0; t_ < 3; t_++)                                                                                \
        for (int fds[2], once_ = (OK(socketpair(AF_UNIX, types[t_], 0, fds)), 1); once_;                               \
             once_ = 0, close(fds[0]), close(fds[1]))

static void set_on(int fd, int opt) {
    int on = 1;
    OK(setsockopt(fd, SOL_SOCKET, opt, &on, sizeof on));
}

CASE(passcred_after_the_write_gives_the_writer) {
    EACH_TYPE(fds) {
        EQ(send(fds[1], "x", 1, 0), 1);
        set_on(fds[0], SO_PASSCRED);
        struct got g = receive(fds[0], 1, 512, 0);
        EQ(g.n, 1);
        CHECK(g.has_cred);
        EQ(g.cred.pid, 0);
        EQ(g.cred.uid, 65534);
        EQ(g.cred.gid, 65534);
    }
}
CASE(passcred_before_gives_the_writer) {
    EACH_TYPE(fds) {
        set_on(fds[0], SO_PASSCRED);
        EQ(send(fds[1], "x", 1, 0), 1);
        struct got g = receive(fds[0], 1, 512, 0);
        CHECK(g.has_cred);
        EQ(g.cred.pid, getpid());
        EQ(g.cred.uid, getuid());
        EQ(g.cred.gid, getgid());
    }
}
CASE(passcred_of_the_writers_end_adds_too) {
    EACH_TYPE(fds) {
        set_on(fds[1], SO_PASSCRED);
        EQ(send(fds[1], "x", 1, 0), 1);
        set_on(fds[0], SO_PASSCRED);
        struct got g = receive(fds[0], 1, 512, 0);
        CHECK(g.has_cred);
        EQ(g.cred.pid, getpid());
    }
}
CASE(without_passcred_none_come) {
    EACH_TYPE(fds) {
        struct ucred me = {getpid(), getuid(), getgid()};
        EQ(send_control(fds[1], "x", 1, 0, NULL, &me), 1);
        struct got g = receive(fds[0], 1, 512, 0);
        EQ(g.n, 1);
        CHECK(!g.has_cred);
        EQ(g.controllen, 0);
        EQ(g.flags & MSG_CTRUNC, 0);
    }
}
CASE(rights_and_credentials_together) {
    EACH_TYPE(fds) {
        struct ucred me = {getpid(), getuid(), getgid()};
        set_on(fds[0], SO_PASSCRED);
        int pass[2] = {0, 1};
        EQ(send_control(fds[1], "x", 1, 2, pass, &me), 1);
        struct got g = receive(fds[0], 1, 512, 0);
        CHECK(g.has_cred);
        EQ(g.nfds, 2);
        EQ(g.cred.pid, getpid());
        EQ(g.controllen, CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(8));
        // Credentials come first.
        EQ(send_control(fds[1], "x", 1, 2, pass, NULL), 1);
        g = receive(fds[0], 1, CMSG_SPACE(sizeof(struct ucred)), 0);
        CHECK(g.has_cred);
        EQ(g.nfds, 0);
        CHECK(g.flags & MSG_CTRUNC);
        EQ(send_control(fds[1], "x", 1, 2, pass, NULL), 1);
        g = receive(fds[0], 1, CMSG_SPACE(sizeof(struct ucred)) + CMSG_LEN(4), 0);
        CHECK(g.has_cred);
        EQ(g.nfds, 1);
        CHECK(g.flags & MSG_CTRUNC);
    }
}
CASE(truncated_credentials) {
    EACH_TYPE(fds) {
        set_on(fds[0], SO_PASSCRED);
        for (int space = 0; space <= (int)CMSG_SPACE(sizeof(struct ucred)); space += 4) {
            EQ(send(fds[1], "x", 1, 0), 1);
            struct got g = receive(fds[0], 1, space, 0);
            EQ(g.n, 1);
            bool whole = space >= (int)CMSG_LEN(sizeof(struct ucred));
            EQ(!!(g.flags & MSG_CTRUNC), !whole);
            if (space < 16) {
                EQ(g.controllen, 0);
                continue;
            }
            EQ(g.credlen, whole ? CMSG_LEN(sizeof(struct ucred)) : (size_t)space);
            EQ(g.controllen,
               (size_t)space >= CMSG_SPACE(sizeof(struct ucred)) ? CMSG_SPACE(sizeof(struct ucred)) : (size_t)space);
        }
    }
}
CASE(truncated_rights) {
    EACH_TYPE(fds) {
        int pass[3] = {0, 1, 2};
        for (int space = 0; space <= 40; space++) {
            EQ(send_control(fds[1], "x", 1, 3, pass, NULL), 1);
            struct got g = receive(fds[0], 1, space, 0);
            EQ(g.n, 1);
            int want = space < 16 ? 0 : (space - 16) / 4;
            if (want > 3) want = 3;
            EQ(g.nfds, want);
            EQ(!!(g.flags & MSG_CTRUNC), want < 3);
            for (int i = 0; i < g.nfds; i++) close(g.fds[i]);
            if (want == 0)
                EQ(g.controllen, 0);
            else
                EQ(g.controllen, (size_t)space < CMSG_SPACE(want * 4) ? (size_t)space : CMSG_SPACE(want * 4));
        }
    }
}
CASE(credentials_of_nobody) {
    EACH_TYPE(fds) {
        struct ucred c = {4000000, getuid(), getgid()};
        ERR(send_control(fds[1], "x", 1, 0, NULL, &c), ESRCH);
        c.pid = 0;
        ERR(send_control(fds[1], "x", 1, 0, NULL, &c), getuid() == 0 ? ESRCH : EPERM);
        c.pid = -1;
        errno = 0;
        CHECK(send_control(fds[1], "x", 1, 0, NULL, &c) == -1);
        EQ(errno, ESRCH);
    }
}
CASE(credentials_of_others) {
    if (getuid()) skip_case("root");
    pid_t parent = getppid();
    EACH_TYPE(fds) {
        set_on(fds[0], SO_PASSCRED);
        struct ucred c = {parent, 12, 13};
        EQ(send_control(fds[1], "x", 1, 0, NULL, &c), 1);
        struct got g = receive(fds[0], 1, 512, 0);
        EQ(g.cred.pid, parent);
        EQ(g.cred.uid, 12);
        EQ(g.cred.gid, 13);
        c = (struct ucred){getpid(), -1, 0};
        ERR(send_control(fds[1], "x", 1, 0, NULL, &c), EINVAL);
    }
    OK(setresgid(1000, 1000, 1000));
    OK(setresuid(1000, 1000, 1000));
    EACH_TYPE(fds) {
        struct ucred c = {parent, 1000, 1000};
        ERR(send_control(fds[1], "x", 1, 0, NULL, &c), EPERM);
        c = (struct ucred){getpid(), 0, 1000};
        ERR(send_control(fds[1], "x", 1, 0, NULL, &c), EPERM);
        c = (struct ucred){getpid(), 1000, 0};
        ERR(send_control(fds[1], "x", 1, 0, NULL, &c), EPERM);
    }
}
CASE(zero_length_with_descriptors) {
    int fds[2], pass = 0;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    // A stream has nothing that carries it.
    EQ(send_control(fds[1], "", 0, 1, &pass, NULL), 0);
    struct got g = receive(fds[0], 1, 512, 0);
    EQ(g.n, -1);
    EQ(send_control(fds[1], "abc", 3, 1, &pass, NULL), 3);
    g = receive(fds[0], 0, 512, 0);
    EQ(g.n, 0);
    EQ(g.nfds, 1);
    g = receive(fds[0], 3, 512, 0);
    EQ(g.n, 3);
    EQ(g.nfds, 0);
    for (int t = 1; t < 3; t++) {
        OK(socketpair(AF_UNIX, types[t], 0, fds));
        EQ(send_control(fds[1], "", 0, 1, &pass, NULL), 0);
        g = receive(fds[0], 1, 512, 0);
        EQ(g.n, 0);
        EQ(g.nfds, 1);
        EQ(send_control(fds[1], "abc", 3, 1, &pass, NULL), 3);
        g = receive(fds[0], 0, 512, 0);
        EQ(g.n, 0);
        EQ(g.nfds, 1);
        CHECK(g.flags & MSG_TRUNC);
    }
}
CASE(peeked_rights_are_copies) {
    EACH_TYPE(fds) {
        int pass = 0;
        EQ(send_control(fds[1], "abc", 3, 1, &pass, NULL), 3);
        struct got g = receive(fds[0], 3, 512, MSG_PEEK);
        EQ(g.n, 3);
        EQ(g.nfds, 1);
        close(g.fds[0]);
        g = receive(fds[0], 3, 512, MSG_CMSG_CLOEXEC);
        EQ(g.n, 3);
        EQ(g.nfds, 1);
        EQ(fcntl(g.fds[0], F_GETFD), FD_CLOEXEC);
        CHECK(g.flags & MSG_CMSG_CLOEXEC);
    }
}
CASE(messages_with_control_do_not_mix) {
    int fds[2], pass = 0;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    EQ(send(fds[1], "ab", 2, 0), 2);
    EQ(send_control(fds[1], "cd", 2, 1, &pass, NULL), 2);
    EQ(send(fds[1], "ef", 2, 0), 2);
    EQ(send_control(fds[1], "gh", 2, 1, &pass, NULL), 2);
    struct got g = receive(fds[0], 100, 512, 0);
    EQ(g.n, 4);
    EQ(g.nfds, 1);
    g = receive(fds[0], 100, 512, 0);
    EQ(g.n, 4);
    EQ(g.nfds, 1);
}
CASE(rights_are_lost_without_room_and_fine_by_read) {
    EACH_TYPE(fds) {
        int pass = 0;
        char b[8];
        EQ(send_control(fds[1], "abc", 3, 1, &pass, NULL), 3);
        EQ(read(fds[0], b, 8), 3);
        EQ(send_control(fds[1], "abc", 3, 1, &pass, NULL), 3);
        struct got g = receive(fds[0], 8, 0, 0);
        EQ(g.n, 3);
        CHECK(g.flags & MSG_CTRUNC);
    }
}
CASE(bad_control) {
    int fds[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    union {
        char bytes[64];
        struct cmsghdr c;
    } u = {0};
    struct iovec io = {"x", 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = u.bytes, .msg_controllen = 20};
    u.c.cmsg_level = SOL_SOCKET;
    u.c.cmsg_type = SCM_RIGHTS;
    u.c.cmsg_len = 15;
    ERR(sendmsg(fds[1], &m, 0), EINVAL);
    u.c.cmsg_len = 21;
    ERR(sendmsg(fds[1], &m, 0), EINVAL);
    u.c.cmsg_len = 20;
    *(int *)CMSG_DATA(&u.c) = 999;
    ERR(sendmsg(fds[1], &m, 0), EBADF);
    *(int *)CMSG_DATA(&u.c) = -1;
    ERR(sendmsg(fds[1], &m, 0), EBADF);
    u.c.cmsg_len = 16;
    m.msg_controllen = 16;
    EQ(sendmsg(fds[1], &m, 0), 1);
    u.c.cmsg_type = 77;
    u.c.cmsg_len = 20;
    m.msg_controllen = 20;
    ERR(sendmsg(fds[1], &m, 0), EINVAL);
    u.c.cmsg_level = 6;
    EQ(sendmsg(fds[1], &m, 0), 1);
    u.c.cmsg_level = SOL_SOCKET;
    u.c.cmsg_type = SCM_CREDENTIALS;
    ERR(sendmsg(fds[1], &m, 0), EINVAL);
    m.msg_controllen = 8;
    EQ(sendmsg(fds[1], &m, 0), 1);
}
CASE(too_many_rights) {
    int fds[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds));
    char *buf = calloc(1, CMSG_SPACE(254 * 4));
    struct cmsghdr *c = (void *)buf;
    struct iovec io = {"x", 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = buf, .msg_controllen = CMSG_SPACE(254 * 4)};
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(254 * 4);
    ERR(sendmsg(fds[1], &m, 0), EINVAL);
    c->cmsg_len = CMSG_LEN(253 * 4);
    m.msg_controllen = CMSG_SPACE(253 * 4);
    EQ(sendmsg(fds[1], &m, 0), 1);
}
CASE(peer_credentials) {
    struct ucred c;
    socklen_t n = sizeof c;
    EACH_TYPE(fds) {
        n = sizeof c;
        OK(getsockopt(fds[0], SOL_SOCKET, SO_PEERCRED, &c, &n));
        EQ(n, sizeof c);
        EQ(c.pid, getpid());
        EQ(c.uid, getuid());
        n = 4;
        OK(getsockopt(fds[0], SOL_SOCKET, SO_PEERCRED, &c, &n));
        EQ(n, 4);
        ERR(setsockopt(fds[0], SOL_SOCKET, SO_PEERCRED, &c, sizeof c), ENOPROTOOPT);
    }
    int lone = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    n = sizeof c;
    OK(getsockopt(lone, SOL_SOCKET, SO_PEERCRED, &c, &n));
    EQ(c.pid, 0);
    EQ(c.uid, (uid_t)-1);
    EQ(c.gid, (gid_t)-1);
    struct sockaddr_un a = {AF_UNIX, "sock"};
    OK(bind(lone, (void *)&a, sizeof a));
    OK(listen(lone, 3));
    n = sizeof c;
    OK(getsockopt(lone, SOL_SOCKET, SO_PEERCRED, &c, &n));
    EQ(c.pid, getpid());
    EQ(c.uid, getuid());
    pid_t child = OK(fork());
    if (!child) {
        int s = OK(socket(AF_UNIX, SOCK_STREAM, 0));
        OK(connect(s, (void *)&a, sizeof a));
        n = sizeof c;
        OK(getsockopt(s, SOL_SOCKET, SO_PEERCRED, &c, &n));
        EQ(c.pid, getppid());
        pause();
    }
    int s = OK(accept(lone, NULL, NULL));
    n = sizeof c;
    OK(getsockopt(s, SOL_SOCKET, SO_PEERCRED, &c, &n));
    EQ(c.pid, child);
    int pfd;
    n = sizeof pfd;
    if (getsockopt(s, SOL_SOCKET, SO_PEERPIDFD, &pfd, &n) == 0) {
        char path[64], line[256];
        bool found = false;
        snprintf(path, 64, "/proc/self/fdinfo/%d", pfd);
        FILE *f = fopen(path, "r");
        CHECK(f);
        while (fgets(line, 256, f)) {
            int p;
            if (sscanf(line, "Pid: %d", &p) == 1) {
                EQ(p, child);
                found = true;
            }
        }
        CHECK(found);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    n = sizeof c;
    OK(getsockopt(s, SOL_SOCKET, SO_PEERCRED, &c, &n));
    EQ(c.pid, child);
}
CASE(boolean_options) {
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    int opts[] = {SO_PASSCRED,  SO_KEEPALIVE, SO_BROADCAST, SO_OOBINLINE, SO_REUSEADDR,
                  SO_DONTROUTE, SO_TIMESTAMP, SO_NO_CHECK,  SO_PASSSEC,   SO_ZEROCOPY};
    for (unsigned i = 0; i < sizeof opts / sizeof *opts; i++) {
        int v = 77;
        socklen_t n = sizeof v;
        int r = setsockopt(fd, SOL_SOCKET, opts[i], &v, sizeof v), e = errno;
        // Not every kernel has these.
        bool may_fail = opts[i] == SO_ZEROCOPY || opts[i] == SO_PASSSEC;
        if (r && !may_fail) FAIL("option %d: %d", opts[i], e);
        n = sizeof v;
        v = 9;
        if (getsockopt(fd, SOL_SOCKET, opts[i], &v, &n) == 0) {
            if (r == 0 && v != 1) FAIL("option %d is %d", opts[i], v);
            EQ(n, 4);
        }
        ERR(setsockopt(fd, SOL_SOCKET, opts[i], &v, 3), EINVAL);
        v = 0;
        if (r == 0) {
            OK(setsockopt(fd, SOL_SOCKET, opts[i], &v, sizeof v));
            OK(getsockopt(fd, SOL_SOCKET, opts[i], &v, &n));
            EQ(v, 0);
        }
    }
    int v;
    socklen_t n = sizeof v;
    OK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &v, &n));
    EQ(v, AF_UNIX);
    OK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &n));
    EQ(v, SOCK_STREAM);
    OK(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &v, &n));
    EQ(v, 0);
    OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &n));
    EQ(v, 0);
    OK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &v, &n));
    EQ(v, 0);
    v = -1;
    n = sizeof v;
    OK(getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &v, &n));
    EQ(v, -1);
    v = 5;
    OK(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &v, sizeof v));
    OK(getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &v, &n));
    EQ(v, 5);
    ERR(getsockopt(fd, SOL_SOCKET, 9999, &v, &n), ENOPROTOOPT);
    ERR(getsockopt(fd, 6, 1, &v, &n), EOPNOTSUPP);
    ERR(setsockopt(fd, 6, 1, &v, 4), EOPNOTSUPP);
}
CASE(peek_off) {
    EACH_TYPE(fds) {
        int v = 0;
        char b[9] = "";
        OK(setsockopt(fds[0], SOL_SOCKET, SO_PEEK_OFF, &v, sizeof v));
        EQ(send(fds[1], "abcdef", 6, 0), 6);
        EQ(recv(fds[0], b, 2, MSG_PEEK), 2);
        CHECK(!memcmp(b, "ab", 2));
        EQ(recv(fds[0], b, 2, MSG_PEEK), 2);
        CHECK(!memcmp(b, "cd", 2));
        if (types[t_] == SOCK_STREAM) {
            EQ(recv(fds[0], b, 1, 0), 1);
            EQ(recv(fds[0], b, 9, MSG_PEEK), 2);
            CHECK(!memcmp(b, "ef", 2));
            ERR(recv(fds[0], b, 9, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
        }
    }
}
CASE(stat_of_sockets) {
    struct stat st;
    struct statfs sf;
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(fstat(fd, &st));
    EQ(st.st_mode, S_IFSOCK | 0777);
    EQ(st.st_nlink, 1);
    EQ(st.st_size, 0);
    EQ(st.st_uid, getuid());
    OK(fstatfs(fd, &sf));
    EQ(sf.f_type, 0x534F434B);
    OK(fchmod(fd, 0600));
    OK(fstat(fd, &st));
    EQ(st.st_mode, S_IFSOCK | 0600);
    OK(fchown(fd, 12, 13));
    OK(fstat(fd, &st));
    EQ(st.st_uid, 12);
    EQ(st.st_gid, 13);
    char path[64];
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    struct stat by;
    OK(stat(path, &by));
    EQ(by.st_ino, st.st_ino);
    EQ(by.st_mode, st.st_mode);
    ERR(open(path, O_RDONLY), ENXIO);
    struct sockaddr_un a = {AF_UNIX, "sock"};
    OK(bind(fd, (void *)&a, sizeof a));
    OK(stat("sock", &by));
    CHECK(S_ISSOCK(by.st_mode));
    EQ(by.st_mode & 0777, 0600);
    ERR(open("sock", O_RDWR), ENXIO);
    int p = OK(open("sock", O_PATH));
    OK(fstat(p, &by));
    CHECK(S_ISSOCK(by.st_mode));
    fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(fstat(fd, &st));
    EQ(st.st_mode, S_IFSOCK | 0777);
    OK(fstatfs(fd, &sf));
    EQ(sf.f_type, 0x534F434B);
    ERR(lseek(fd, 0, SEEK_SET), ESPIPE);
    ERR(ftruncate(fd, 0), EINVAL);
    ERR(fsync(fd), EINVAL);
}
CASE(names_and_errors) {
    struct sockaddr_un a = {AF_UNIX, "sock"}, got;
    socklen_t n;
    int fd = OK(socket(AF_UNIX, SOCK_DGRAM, 0));
    // A name of the kernel's choice.
    OK(bind(fd, (void *)&a, sizeof(sa_family_t)));
    n = sizeof got;
    OK(getsockname(fd, (void *)&got, &n));
    EQ(n, 8);
    EQ(got.sun_path[0], 0);
    ERR(bind(fd, (void *)&a, sizeof a), EINVAL);
    fd = OK(socket(AF_UNIX, SOCK_DGRAM, 0));
    ERR(bind(fd, (void *)&a, 1), EINVAL);
    ERR(bind(fd, (void *)&a, sizeof a + 1), EINVAL);
    a.sun_family = AF_INET;
    ERR(bind(fd, (void *)&a, sizeof a), EINVAL);
    a.sun_family = AF_UNIX;
    OK(bind(fd, (void *)&a, sizeof a));
    n = sizeof got;
    OK(getsockname(fd, (void *)&got, &n));
    EQ(n, 2 + 5);
    int other = OK(socket(AF_UNIX, SOCK_DGRAM, 0));
    ERR(bind(other, (void *)&a, sizeof a), EADDRINUSE);
    OK(connect(other, (void *)&a, sizeof a));
    n = 3;
    OK(getpeername(other, (void *)&got, &n));
    EQ(n, 7);
    struct sockaddr un = {AF_UNSPEC};
    OK(connect(other, &un, sizeof un));
    ERR(getpeername(other, (void *)&got, &n), ENOTCONN);
    int st = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    ERR(connect(st, (void *)&a, sizeof a), EPROTOTYPE);
    ERR(listen(other, 3), EOPNOTSUPP);
    ERR(accept(other, NULL, NULL), EOPNOTSUPP);
    ERR(listen(st, 3), EINVAL);
    ERR(accept(st, NULL, NULL), EINVAL);
    ERR(send(st, "x", 1, 0), ENOTCONN);
    ERR(recv(st, &n, 1, MSG_DONTWAIT), EINVAL);
    ERR(shutdown(st, 9), EINVAL);
    OK(shutdown(st, SHUT_RD));
    a = (struct sockaddr_un){AF_UNIX, "none"};
    ERR(connect(st, (void *)&a, sizeof a), ENOENT);
    ERR(sendto(other, "x", 1, 0, (void *)&a, sizeof a), ENOENT);
    close(OK(open("file", O_CREAT, 0600)));
    a = (struct sockaddr_un){AF_UNIX, "file"};
    ERR(connect(st, (void *)&a, sizeof a), ECONNREFUSED);
    a = (struct sockaddr_un){AF_UNIX, "\0abstract"};
    ERR(connect(st, (void *)&a, 11), ECONNREFUSED);
    ERR(socket(AF_UNIX, SOCK_RAW + 7, 0), ESOCKTNOSUPPORT);
    int raw = OK(socket(AF_UNIX, SOCK_RAW, 0));
    n = 4;
    int ty;
    OK(getsockopt(raw, SOL_SOCKET, SO_TYPE, &ty, &n));
    EQ(ty, SOCK_DGRAM);
    ERR(socket(AF_UNIX, SOCK_STREAM, 7), EPROTONOSUPPORT);
    OK(socket(AF_UNIX, SOCK_STREAM, PF_UNIX));
    ERR(send(other, "x", 1, MSG_OOB), EOPNOTSUPP);
}
CASE(timestamps_of_messages) {
    for (int t = 1; t < 3; t++) {
        int fds[2], on = 1, v;
        socklen_t n = sizeof v;
        OK(socketpair(AF_UNIX, types[t], 0, fds));
        OK(setsockopt(fds[0], SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
        EQ(send(fds[1], "x", 1, 0), 1);
        char data[4];
        union {
            char bytes[256];
            struct cmsghdr c;
        } u;
        struct iovec io = {data, 4};
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = u.bytes, .msg_controllen = 256};
        EQ(recvmsg(fds[0], &m, 0), 1);
        EQ(m.msg_controllen, CMSG_SPACE(16));
        EQ(u.c.cmsg_type, SO_TIMESTAMP);
        struct timeval tv;
        memcpy(&tv, CMSG_DATA(&u.c), 16);
        CHECK(llabs(tv.tv_sec - time(NULL)) < 5 && tv.tv_usec < 1000000);
        OK(setsockopt(fds[0], SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on));
        OK(getsockopt(fds[0], SOL_SOCKET, SO_TIMESTAMP, &v, &n));
        EQ(v, 0);
        EQ(send(fds[1], "x", 1, 0), 1);
        m.msg_controllen = 256;
        EQ(recvmsg(fds[0], &m, 0), 1);
        EQ(m.msg_controllen, CMSG_SPACE(16));
        EQ(u.c.cmsg_type, SO_TIMESTAMPNS);
        EQ(send(fds[1], "x", 1, 0), 1);
        m.msg_controllen = 20;
        EQ(recvmsg(fds[0], &m, 0), 1);
        EQ(m.msg_controllen, 20);
        EQ(u.c.cmsg_len, 20);
        CHECK(m.msg_flags & MSG_CTRUNC);
        EQ(send(fds[1], "x", 1, 0), 1);
        m.msg_controllen = 12;
        EQ(recvmsg(fds[0], &m, 0), 1);
        EQ(m.msg_controllen, 0);
        CHECK(m.msg_flags & MSG_CTRUNC);
    }
}
CASE(stat_and_change_of_pipes) {
    int fds[2];
    struct stat st;
    struct statfs sf;
    OK(pipe(fds));
    OK(fstatfs(fds[0], &sf));
    EQ(sf.f_type, 0x50495045);
    OK(fchmod(fds[0], 0640));
    OK(fstat(fds[1], &st));
    EQ(st.st_mode, S_IFIFO | 0640);
    OK(fchown(fds[1], 12, -1));
    OK(fstat(fds[0], &st));
    EQ(st.st_uid, 12);
    EQ(st.st_gid, getgid());
}
CASE(fdinfo_of_a_pidfd) {
    pid_t child = OK(fork());
    if (!child) pause();
    int fd = syscall(SYS_pidfd_open, child, 0);
    OK(fd);
    char path[64], text[512] = "";
    snprintf(path, 64, "/proc/self/fdinfo/%d", fd);
    char want[32];
    snprintf(want, 32, "Pid:\t%d\n", child);
    int f = OK(open(path, O_RDONLY));
    OK(read(f, text, 500));
    CHECK(strstr(text, want));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    memset(text, 0, 512);
    OK(lseek(f, 0, SEEK_SET));
    OK(read(f, text, 500));
    CHECK(strstr(text, "Pid:\t-1\n"));
}

CASE(credentials_of_who_writes_before_it_is_accepted) {
    struct sockaddr_un a = {AF_UNIX, "sock"};
    int listener = OK(socket(AF_UNIX, SOCK_STREAM, 0)), client = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(listener, (void *)&a, sizeof a));
    OK(listen(listener, 3));
    OK(connect(client, (void *)&a, sizeof a));
    EQ(send(client, "x", 1, 0), 1);
    int server = OK(accept(listener, NULL, NULL));
    set_on(server, SO_PASSCRED);
    struct got g = receive(server, 1, 512, 0);
    CHECK(g.has_cred);
    EQ(g.cred.pid, getpid());
    EQ(g.cred.uid, getuid());
}

CASE(reads_of_nothing_take_nothing) {
    EACH_TYPE(fds) {
        int pass = 0;
        EQ(send_control(fds[1], "abc", 3, 1, &pass, NULL), 3);
        EQ(read(fds[0], NULL, 0), 0);
        struct got g = receive(fds[0], 3, 512, 0);
        EQ(g.n, 3);
        EQ(g.nfds, 1);
    }
}

CASE(looks_go_on_through_pieces) {
    int fds[2], offset = 1;
    static char out[40000], in[40000];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    for (int i = 0; i < 40000; i++) out[i] = i / 7;
    OK(setsockopt(fds[0], SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
    for (int i = 0; i < 4; i++) EQ(send(fds[1], out + 10000 * i, 10000, 0), 10000);
    EQ(recv(fds[0], in, 35000, MSG_PEEK), 35000);
    CHECK(memcmp(in, out + 1, 35000) == 0);
    EQ(recv(fds[0], in, 20000, 0), 20000);
    EQ(recv(fds[0], in, 40000, MSG_PEEK), 4999);
    CHECK(memcmp(in, out + 35001, 4999) == 0);
}

CASE(looks_at_messages_count_what_they_copied) {
    for (int t = 1; t < 3; t++) {
        int fds[2], offset = 2;
        socklen_t length = sizeof offset;
        char in[16];
        OK(socketpair(AF_UNIX, types[t], 0, fds));
        OK(setsockopt(fds[0], SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
        EQ(send(fds[1], "abcdefgh", 8, 0), 8);
        EQ(recv(fds[0], in, 3, MSG_PEEK | MSG_TRUNC), 6);
        CHECK(memcmp(in, "cde", 3) == 0);
        OK(getsockopt(fds[0], SOL_SOCKET, SO_PEEK_OFF, &offset, &length));
        EQ(offset, 5);
        EQ(recv(fds[0], in, 2, 0), 2);
        OK(getsockopt(fds[0], SOL_SOCKET, SO_PEEK_OFF, &offset, &length));
        EQ(offset, 0);
    }
}
