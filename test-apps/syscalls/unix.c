// AF_UNIX sockets.
#include "harness.h"

#include <poll.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct sockaddr_un address(const char *path, socklen_t *length) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (path[0] == '@') {
        // Abstract names are shared by everything in the network namespace: make it ours.
        int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "quark-test-%s-%d", path + 1, getpid());
        *length = offsetof(struct sockaddr_un, sun_path) + 1 + n;
    } else {
        strcpy(a.sun_path, path);
        *length = sizeof a;
    }
    return a;
}

static int bound(int type, const char *path) {
    socklen_t length;
    struct sockaddr_un a = address(path, &length);
    int fd = OK(socket(AF_UNIX, type, 0));
    OK(bind(fd, (void *)&a, length));
    return fd;
}

static int connected(int type, const char *path) {
    socklen_t length;
    struct sockaddr_un a = address(path, &length);
    int fd = OK(socket(AF_UNIX, type, 0));
    OK(connect(fd, (void *)&a, length));
    return fd;
}

CASE(socketpair_stream) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
    EQ(write(s[0], "hello", 5), 5);
    EQ(send(s[0], " world", 6, 0), 6);
    char b[32] = {0};
    EQ(read(s[1], b, sizeof b), 11);
    STR_EQ(b, "hello world");
    EQ(write(s[1], "back", 4), 4);
    EQ(recv(s[0], b, 2, MSG_PEEK), 2);
    EQ(recv(s[0], b, sizeof b, 0), 4);
    OK(close(s[1]));
    EQ(read(s[0], b, 1), 0);
    signal(SIGPIPE, SIG_IGN);
    ERR(write(s[0], "x", 1), EPIPE);
    ERR(send(s[0], "x", 1, MSG_NOSIGNAL), EPIPE);
}

CASE(socketpair_datagram_keeps_bounds) {
    int types[2] = {SOCK_DGRAM, SOCK_SEQPACKET};
    for (int t = 0; t < 2; t++) {
        int s[2];
        OK(socketpair(AF_UNIX, types[t], 0, s));
        EQ(send(s[0], "one", 3, 0), 3);
        EQ(send(s[0], "second", 6, 0), 6);
        char b[32] = {0};
        EQ(recv(s[1], b, sizeof b, 0), 3);
        EQ(recv(s[1], b, 2, MSG_TRUNC), 6);  // the rest of a datagram is lost, its length is told
        ERR(recv(s[1], b, 1, MSG_DONTWAIT), EAGAIN);
    }
}

CASE(seqpacket_end_of_file) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s));
    EQ(send(s[0], "last", 4, 0), 4);
    OK(close(s[0]));
    char b[8];
    EQ(recv(s[1], b, sizeof b, 0), 4);
    EQ(recv(s[1], b, sizeof b, 0), 0);
}

CASE(listen_accept_connect) {
    const char *names[] = {"./socket", "@listen"};
    for (int i = 0; i < 2; i++) {
        int l = bound(SOCK_STREAM, names[i]);
        OK(listen(l, 5));
        int c = connected(SOCK_STREAM, names[i]), a = OK(accept4(l, NULL, NULL, SOCK_CLOEXEC));
        EQ(fcntl(a, F_GETFD), FD_CLOEXEC);
        EQ(write(c, "ping", 4), 4);
        char b[8] = {0};
        EQ(read(a, b, 8), 4);
        STR_EQ(b, "ping");
        EQ(write(a, "pong", 4), 4);
        EQ(read(c, b, 8), 4);
        STR_EQ(b, "pong");
    }
    struct stat st;
    OK(stat("socket", &st));
    CHECK(S_ISSOCK(st.st_mode));
}

CASE(names_of_sockets) {
    int l = bound(SOCK_STREAM, "socket");
    OK(listen(l, 1));
    int c = connected(SOCK_STREAM, "socket");
    struct sockaddr_un a;
    socklen_t n = sizeof a;
    OK(getsockname(l, (void *)&a, &n));
    STR_EQ(a.sun_path, "socket");
    n = sizeof a;
    OK(getpeername(c, (void *)&a, &n));
    STR_EQ(a.sun_path, "socket");
    n = sizeof a;
    OK(getsockname(c, (void *)&a, &n));
    EQ(n, sizeof(sa_family_t));
    n = sizeof a;
    ERR(getpeername(l, (void *)&a, &n), ENOTCONN);
}

CASE(connect_errors) {
    socklen_t n;
    struct sockaddr_un a = address("missing", &n);
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    ERR(connect(fd, (void *)&a, n), ENOENT);
    write_file("plain", "");
    a = address("plain", &n);
    ERR(connect(fd, (void *)&a, n), ECONNREFUSED);
    int b = bound(SOCK_STREAM, "socket");
    a = address("socket", &n);
    ERR(connect(fd, (void *)&a, n), ECONNREFUSED);  // bound, but it does not listen
    OK(close(b));
    ERR(connect(fd, (void *)&a, n), ECONNREFUSED);
    int d = bound(SOCK_DGRAM, "datagram");
    a = address("datagram", &n);
    ERR(connect(fd, (void *)&a, n), EPROTOTYPE);
    OK(close(d));
    ERR(socket(AF_UNIX, 99, 0), EINVAL);
    ERR(socket(AF_UNIX, SOCK_RDM, 0), ESOCKTNOSUPPORT);
    a = address("socket", &n);
    int again = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    ERR(bind(again, (void *)&a, n), EADDRINUSE);
    ERR(listen(again, 1), EINVAL);
}

CASE(accept_waits_and_nonblocking_does_not) {
    int l = bound(SOCK_STREAM, "socket");
    OK(listen(l, 1));
    OK(fcntl(l, F_SETFL, O_NONBLOCK));
    ERR(accept(l, NULL, NULL), EAGAIN);
    OK(fcntl(l, F_SETFL, 0));
    pid_t pid = OK(fork());
    if (pid == 0) {
        int c = connected(SOCK_STREAM, "socket");
        EQ(write(c, "x", 1), 1);
        _exit(0);
    }
    int a = OK(accept(l, NULL, NULL));
    char c;
    EQ(read(a, &c, 1), 1);
    expect_exit(pid, 0);
}

CASE(datagrams_with_names) {
    int a = bound(SOCK_DGRAM, "a"), b = bound(SOCK_DGRAM, "b");
    socklen_t n;
    struct sockaddr_un to = address("b", &n), from;
    EQ(sendto(a, "hi", 2, 0, (void *)&to, n), 2);
    char t[8] = {0};
    n = sizeof from;
    EQ(recvfrom(b, t, sizeof t, 0, (void *)&from, &n), 2);
    STR_EQ(t, "hi");
    STR_EQ(from.sun_path, "a");
    ERR(send(a, "x", 1, 0), ENOTCONN);
    to = address("b", &n);
    OK(connect(a, (void *)&to, n));
    EQ(send(a, "x", 1, 0), 1);
}

static void send_descriptor(int s, int fd) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, data = 'd';
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    EQ(sendmsg(s, &m, 0), 1);
}

static int receive_descriptor(int s, int flags) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, data;
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EQ(recvmsg(s, &m, flags), 1);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS);
    EQ(c->cmsg_len, CMSG_LEN(sizeof(int)));
    int fd;
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

CASE(rights_pass_descriptors) {
    int s[2], p[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    OK(pipe(p));
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(close(p[1]));
        int w = receive_descriptor(s[1], MSG_CMSG_CLOEXEC);
        EQ(fcntl(w, F_GETFD), FD_CLOEXEC);
        EQ(write(w, "passed", 6), 6);
        _exit(0);
    }
    send_descriptor(s[0], p[1]);
    OK(close(p[1]));
    char b[8] = {0};
    EQ(read(p[0], b, 8), 6);
    STR_EQ(b, "passed");
    expect_exit(pid, 0);
    EQ(read(p[0], b, 8), 0);
}

CASE(rights_in_flight_are_dropped_with_the_socket) {
    int s[2], p[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    OK(pipe(p));
    send_descriptor(s[0], p[1]);
    OK(close(p[1]));
    OK(close(s[0]));
    OK(close(s[1]));
    char c;
    EQ(read(p[0], &c, 1), 0);
}

CASE(rights_file_offset_is_shared) {
    int s[2], fd = OK(open("f", O_CREAT | O_RDWR, 0600));
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    send_descriptor(s[0], fd);
    int got = receive_descriptor(s[1], 0);
    EQ(write(got, "abc", 3), 3);
    EQ(lseek(fd, 0, SEEK_CUR), 3);
}

CASE(credentials) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    struct ucred peer;
    socklen_t n = sizeof peer;
    OK(getsockopt(s[0], SOL_SOCKET, SO_PEERCRED, &peer, &n));
    EQ(peer.pid, getpid());
    EQ(peer.uid, geteuid());
    int on = 1;
    OK(setsockopt(s[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    EQ(write(s[0], "c", 1), 1);
    char control[CMSG_SPACE(sizeof(struct ucred))] = {0}, data;
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EQ(recvmsg(s[1], &m, 0), 1);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_type == SCM_CREDENTIALS);
    struct ucred got;
    memcpy(&got, CMSG_DATA(c), sizeof got);
    EQ(got.pid, getpid());
    EQ(got.gid, getegid());
}

CASE(shutdown_forms) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    OK(shutdown(s[0], SHUT_WR));
    char c;
    EQ(read(s[1], &c, 1), 0);
    signal(SIGPIPE, SIG_IGN);
    ERR(write(s[0], "x", 1), EPIPE);
    EQ(write(s[1], "y", 1), 1);
    EQ(read(s[0], &c, 1), 1);
    struct pollfd p = {s[1], POLLIN | POLLRDHUP, 0};
    EQ(poll(&p, 1, 0), 1);
    EQ(p.revents, POLLIN | POLLRDHUP);
    OK(shutdown(s[1], SHUT_RDWR));
    EQ(poll(&p, 1, 0), 1);
    CHECK(p.revents & POLLHUP);
    ERR(shutdown(s[0], 9), EINVAL);
}

CASE(nonblocking_and_full) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s));
    char b[4096] = {0};
    ERR(read(s[0], b, 1), EAGAIN);
    size_t total = 0;
    for (ssize_t n; (n = write(s[0], b, sizeof b)) > 0;) total += n;
    EQ(errno, EAGAIN);
    CHECK(total >= 32768);
    struct pollfd p = {s[0], POLLOUT, 0};
    EQ(poll(&p, 1, 0), 0);
    size_t got = 0;
    for (ssize_t n; (n = read(s[1], b, sizeof b)) > 0;) got += n;
    EQ(got, total);
    EQ(poll(&p, 1, 0), 1);
}

CASE(large_stream_between_processes) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    enum { TOTAL = 1 << 20 };
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(close(s[1]));
        static unsigned char b[10000];
        for (size_t at = 0; at < TOTAL;) {
            size_t n = TOTAL - at < sizeof b ? TOTAL - at : sizeof b;
            for (size_t i = 0; i < n; i++) b[i] = (unsigned char)((at + i) * 17 >> 4);
            ssize_t sent = OK(send(s[0], b, n, 0));
            at += sent;
        }
        _exit(0);
    }
    OK(close(s[0]));
    static unsigned char b[8192];
    size_t at = 0;
    for (ssize_t n; (n = OK(recv(s[1], b, sizeof b, 0))) > 0; at += n)
        for (ssize_t i = 0; i < n; i++) EQ(b[i], (unsigned char)((at + i) * 17 >> 4));
    EQ(at, TOTAL);
    expect_exit(pid, 0);
}

CASE(receive_timeout) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    struct timeval t = {0, 3000}, back;
    socklen_t n = sizeof back;
    OK(setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    OK(getsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &back, &n));
    CHECK(back.tv_usec >= 3000);
    char c;
    ERR(read(s[0], &c, 1), EAGAIN);
}

CASE(waitall) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 4; i++) {
            EQ(write(s[0], "ab", 2), 2);
            sleep_ms(1);
        }
        _exit(0);
    }
    char b[8];
    EQ(recv(s[1], b, 8, MSG_WAITALL), 8);
    expect_exit(pid, 0);
}

CASE(socket_options) {
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0)), v;
    socklen_t n = sizeof v;
    OK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &n));
    EQ(v, SOCK_STREAM);
    OK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &v, &n));
    EQ(v, AF_UNIX);
    OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &n));
    EQ(v, 0);
    OK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &v, &n));
    EQ(v, 0);
    OK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &v, &n));
    CHECK(v > 0);
    ERR(getsockopt(fd, SOL_SOCKET, 9999, &v, &n), ENOPROTOOPT);
    int file = OK(open("/dev/null", O_RDWR));
    ERR(getsockopt(file, SOL_SOCKET, SO_TYPE, &v, &n), ENOTSOCK);
    ERR(send(file, "x", 1, 0), ENOTSOCK);
}

CASE(sendmmsg_recvmmsg) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    struct iovec v[2] = {{"one", 3}, {"three", 5}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &v[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &v[1], .msg_iovlen = 1}}};
    EQ(sendmmsg(s[0], m, 2, 0), 2);
    EQ(m[1].msg_len, 5);
    char a[8], b[8];
    struct iovec w[2] = {{a, 8}, {b, 8}};
    m[0].msg_hdr.msg_iov = &w[0], m[1].msg_hdr.msg_iov = &w[1];
    EQ(recvmmsg(s[1], m, 2, 0, NULL), 2);
    EQ(m[0].msg_len, 3);
    EQ(m[1].msg_len, 5);
}

CASE(fionread) {
    int s[2], n;
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    EQ(write(s[0], "12345", 5), 5);
    OK(ioctl(s[1], FIONREAD, &n));
    EQ(n, 5);
}

CASE(unlinked_socket_keeps_connections) {
    int l = bound(SOCK_STREAM, "socket");
    OK(listen(l, 2));
    int c = connected(SOCK_STREAM, "socket");
    OK(unlink("socket"));
    int a = OK(accept(l, NULL, NULL));
    EQ(write(c, "x", 1), 1);
    char b;
    EQ(read(a, &b, 1), 1);
}
