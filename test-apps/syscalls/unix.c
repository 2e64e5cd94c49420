// AF_UNIX sockets.
#include "harness.h"

#include <poll.h>
#include <linux/sockios.h>
#include <stddef.h>
#include <sys/epoll.h>
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

static int option(int fd, int name) {
    int value;
    socklen_t n = sizeof value;
    OK(getsockopt(fd, SOL_SOCKET, name, &value, &n));
    EQ(n, sizeof value);
    return value;
}

static void set_option(int fd, int name, int value) { OK(setsockopt(fd, SOL_SOCKET, name, &value, sizeof value)); }

CASE(buffer_sizes_are_told_as_linux_has_them) {
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    EQ(option(fd, SO_SNDBUF), 212992);
    EQ(option(fd, SO_RCVBUF), 212992);
    set_option(fd, SO_SNDBUF, 10000);
    set_option(fd, SO_RCVBUF, 20000);
    EQ(option(fd, SO_SNDBUF), 20000);
    EQ(option(fd, SO_RCVBUF), 40000);
    set_option(fd, SO_SNDBUF, 1);
    set_option(fd, SO_RCVBUF, 1);
    EQ(option(fd, SO_SNDBUF), 4608);
    EQ(option(fd, SO_RCVBUF), 2304);
    set_option(fd, SO_SNDBUF, 1 << 30);
    char most[32];
    read_file("/proc/sys/net/core/wmem_max", most, sizeof most);
    EQ(option(fd, SO_SNDBUF), 2 * atoi(most));
    ERR(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(char){1}, 1), EINVAL);
}

// How many messages or chunks of this size go in before the sender would have to wait.
static int fill(int fd, int size) {
    static char b[200000];
    int n = 0;
    ssize_t sent;
    while ((sent = send(fd, b, size, MSG_DONTWAIT)) == size) n++;
    if (sent == -1) EQ(errno, EAGAIN);  // a stream may have taken a part
    return n;
}

CASE(send_buffer_bounds_what_waits) {
    int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (int i = 0; i < 3; i++) {
        int s[2];
        OK(socketpair(AF_UNIX, types[i], 0, s));
        int before = fill(s[0], 1000);
        static char b[300000];
        while (recv(s[1], b, sizeof b, MSG_DONTWAIT) > 0) {}
        set_option(s[0], SO_SNDBUF, 10000);
        int small = fill(s[0], 1000);
        CHECK(small >= 5 && small <= 20 && before > 80);
        struct pollfd p = {s[0], POLLOUT, 0};
        EQ(poll(&p, 1, 0), 0);
        // The other direction has its own.
        CHECK(fill(s[1], 1000) > 80);
        while (recv(s[1], b, sizeof b, MSG_DONTWAIT) > 0) {}
        EQ(poll(&p, 1, 0), 1);
        if (types[i] != SOCK_STREAM) ERR(send(s[0], b, 20001, MSG_DONTWAIT), EMSGSIZE);
    }
}

CASE(empty_messages_take_room_too) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    int n = 0;
    while (n < 100000 && send(s[0], "", 0, MSG_DONTWAIT) == 0) n++;
    CHECK(n > 20 && n < 2000);
    struct pollfd p = {s[0], POLLOUT, 0};
    EQ(poll(&p, 1, 0), 0);
    char c;
    for (int i = 0; i < n; i++) EQ(recv(s[1], &c, 1, MSG_DONTWAIT), 0);
    EQ(poll(&p, 1, 0), 1);
}

CASE(sender_of_datagrams_is_told_of_room) {
    int to = bound(SOCK_DGRAM, "@room"), from = connected(SOCK_DGRAM, "@room");
    int n = fill(from, 10);
    CHECK(n > 0);
    pid_t pid = OK(fork());
    if (pid == 0) {
        struct pollfd p = {from, POLLOUT, 0};
        EQ(poll(&p, 1, -1), 1);
        EQ(send(from, "x", 1, MSG_DONTWAIT), 1);
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    char b[16];
    for (int i = 0; i < n; i++) EQ(recv(to, b, sizeof b, 0), 10);
    expect_exit(pid, 0);
}

CASE(whose_peer_is_gone) {
    int s[2];
    char c = 'x';
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    EQ(write(s[1], &c, 1), 1);
    ZERO(close(s[1]));
    struct pollfd p = {s[0], POLLIN, 0};
    EQ(poll(&p, 1, 0), 1);
    // It is told once; what came from the peer is gone with it.
    ERR(write(s[0], &c, 1), ECONNREFUSED);
    ERR(write(s[0], &c, 1), ENOTCONN);
    EQ(poll(&p, 1, 0), 0);
    ZERO(close(s[0]));
    // Unread data makes an error for the next read, not for a write.
    signal(SIGPIPE, SIG_IGN);
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    EQ(write(s[0], &c, 1), 1);
    ZERO(close(s[1]));
    ERR(write(s[0], &c, 1), EPIPE);
    EQ(poll(&p, 1, 0), 1);
    CHECK(p.revents & POLLERR);
    ERR(read(s[0], &c, 1), ECONNRESET);
    EQ(read(s[0], &c, 1), 0);
}

CASE(options_are_kept) {
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    int flags[] = {SO_REUSEADDR, SO_KEEPALIVE, SO_BROADCAST, SO_DONTROUTE, SO_OOBINLINE, SO_PASSCRED};
    for (int i = 0; i < 6; i++) {
        EQ(option(fd, flags[i]), 0);
        set_option(fd, flags[i], 5);
        EQ(option(fd, flags[i]), 1);
        set_option(fd, flags[i], 0);
        EQ(option(fd, flags[i]), 0);
    }
    struct linger l = {1, 3};
    socklen_t n = sizeof l;
    OK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    memset(&l, 0, sizeof l);
    OK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &n));
    EQ(l.l_onoff, 1);
    EQ(l.l_linger, 3);
    ERR(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, 4), EINVAL);
    EQ(option(fd, SO_RCVLOWAT), 1);
    set_option(fd, SO_RCVLOWAT, 0);
    EQ(option(fd, SO_RCVLOWAT), 1);
    set_option(fd, SO_RCVLOWAT, -1);
    EQ(option(fd, SO_RCVLOWAT), INT_MAX);
    EQ(option(fd, SO_SNDLOWAT), 1);
    ERR(setsockopt(fd, SOL_SOCKET, SO_SNDLOWAT, &(int){1}, 4), ENOPROTOOPT);
    ERR(setsockopt(fd, SOL_SOCKET, SO_TYPE, &(int){1}, 4), ENOPROTOOPT);
    ERR(setsockopt(fd, SOL_SOCKET, SO_ERROR, &(int){1}, 4), ENOPROTOOPT);
}

CASE(receive_low_water_mark) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
    set_option(s[1], SO_RCVLOWAT, 6);
    char b[16];
    for (int with_read = 0; with_read < 2; with_read++) {
        pid_t pid = OK(fork());
        if (pid == 0) {
            ssize_t n = with_read ? read(s[1], b, sizeof b) : recv(s[1], b, sizeof b, 0);
            _exit(n == 7 ? 0 : 1);
        }
        WAIT_UNTIL(process_state(pid) == 'S');
        OK(write(s[0], "abc", 3));
        sleep_ms(20);
        CHECK(waitpid(pid, NULL, WNOHANG) == 0);
        OK(write(s[0], "defg", 4));
        expect_exit(pid, 0);
    }
    // No more than is asked for, nor without waiting.
    OK(write(s[0], "abc", 3));
    EQ(recv(s[1], b, 2, 0), 2);
    EQ(recv(s[1], b, 5, MSG_DONTWAIT), 1);
    struct timeval t = {0, 3000};
    OK(setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    OK(write(s[0], "xy", 2));
    EQ(read(s[1], b, sizeof b), 2);
    ERR(read(s[1], b, sizeof b), EAGAIN);
}

CASE(send_and_connect_timeouts) {
    int s[2];
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
    struct timeval t = {0, 3000};
    OK(setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    fill(s[0], 1000);
    ERR(send(s[0], "x", 1, 0), EAGAIN);
    ERR(write(s[0], "x", 1), EAGAIN);
    int listener = bound(SOCK_STREAM, "@slow");
    OK(listen(listener, 0));
    connected(SOCK_STREAM, "@slow");
    socklen_t length;
    struct sockaddr_un a = address("@slow", &length);
    int fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    ERR(connect(fd, (void *)&a, length), EAGAIN);
    OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    OK(accept(listener, NULL, NULL));
    ERR(accept(listener, NULL, NULL), EAGAIN);
    ERR(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){0, 1000000}, sizeof t), EDOM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, 8), EINVAL);
}

// A sender that wants to know credentials gets a name to be answered at.
CASE(passing_credentials_binds) {
    int to = bound(SOCK_DGRAM, "@passcred");
    socklen_t length;
    struct sockaddr_un a = address("@passcred", &length), from;
    int fd = OK(socket(AF_UNIX, SOCK_DGRAM, 0));
    socklen_t n = sizeof from;
    OK(sendto(fd, "x", 1, 0, (void *)&a, length));
    OK(getsockname(fd, (void *)&from, &n));
    EQ(n, sizeof(sa_family_t));
    set_option(fd, SO_PASSCRED, 1);
    OK(sendto(fd, "x", 1, 0, (void *)&a, length));
    n = sizeof from;
    OK(getsockname(fd, (void *)&from, &n));
    EQ(n, sizeof(sa_family_t) + 6);
    char c;
    n = sizeof from;
    OK(recv(to, &c, 1, 0));
    OK(recvfrom(to, &c, 1, 0, (void *)&from, &n));
    EQ(n, sizeof(sa_family_t) + 6);
    EQ(from.sun_path[0], 0);
    int listener = bound(SOCK_STREAM, "@passcred-stream");
    OK(listen(listener, 1));
    a = address("@passcred-stream", &length);
    fd = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    set_option(fd, SO_PASSCRED, 1);
    OK(connect(fd, (void *)&a, length));
    n = sizeof from;
    OK(accept(listener, (void *)&from, &n));
    EQ(n, sizeof(sa_family_t) + 6);
}

CASE(messages_beyond_all_memory) {
    int fds[2];
    char byte = 'x';
    OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, fds));
    EQ(send(fds[0], &byte, 1, 0), 1);
    ERR(recv(fds[1], (void *)-4096, 10, 0), EFAULT);
    // The message is still there.
    struct iovec part = {(void *)-4096, 10};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    ERR(recvmsg(fds[1], &header, 0), EFAULT);
    ERR(sendmsg(fds[1], &header, 0), EFAULT);
    EQ(recv(fds[1], &byte, 1, MSG_DONTWAIT), 1);
    // And nobody waits.
    ERR(recv(fds[1], (void *)-4096, 10, 0), EFAULT);
}

// Urgent bytes (MSG_OOB), of streams.

static void has_urgent(int fd, bool expected) {
    struct pollfd poller = {fd, POLLPRI, 0};
    EQ(poll(&poller, 1, 0), expected);
}

static int at_mark(int fd) {
    int is = -1;
    OK(ioctl(fd, SIOCATMARK, &is));
    return is;
}

static void urgent_pair(int fds[2]) { OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds)); }

// What is read at once is this.
static void reads(int fd, const char *expected) {
    char text[64] = {};
    ssize_t got = recv(fd, text, sizeof text - 1, 0);
    if (got != (ssize_t)strlen(expected) || strcmp(text, expected) != 0) FAIL("read \"%s\" (%zd), expected \"%s\"", text, got, expected);
}

CASE(urgent_bytes_come_beside_the_stream) {
    int fds[2];
    urgent_pair(fds);
    char byte = 0;
    ERR(recv(fds[1], &byte, 1, MSG_OOB), EINVAL);
    EQ(at_mark(fds[1]), 0);
    EQ(send(fds[0], "hello", 5, MSG_OOB), 5);
    has_urgent(fds[1], true);
    int waiting;
    OK(ioctl(fds[1], FIONREAD, &waiting));
    EQ(waiting, 5);
    EQ(recv(fds[1], &byte, 1, MSG_OOB | MSG_PEEK), 1);
    EQ(byte, 'o');
    byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    EQ(recvmsg(fds[1], &message, MSG_OOB), 1);
    EQ(byte, 'o');
    CHECK(message.msg_flags & MSG_OOB);
    ERR(recv(fds[1], &byte, 1, MSG_OOB), EINVAL);
    has_urgent(fds[1], false);
    EQ(at_mark(fds[1]), 0);
    reads(fds[1], "hell");
    EQ(send(fds[0], "world", 5, 0), 5);
    reads(fds[1], "world");
    EQ(at_mark(fds[1]), 0);
}

CASE(a_read_ends_where_an_urgent_byte_is) {
    int fds[2];
    urgent_pair(fds);
    EQ(send(fds[0], "hello", 5, MSG_OOB), 5);
    EQ(send(fds[0], "world", 5, 0), 5);
    EQ(at_mark(fds[1]), 0);
    reads(fds[1], "hell");
    EQ(at_mark(fds[1]), 1);
    has_urgent(fds[1], true);
    // Who reads on does not want it.
    reads(fds[1], "world");
    char byte;
    ERR(recv(fds[1], &byte, 1, 0), EAGAIN);
}

CASE(urgent_bytes_in_line) {
    int fds[2], on = 1;
    urgent_pair(fds);
    OK(setsockopt(fds[1], SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    EQ(send(fds[0], "hello", 5, MSG_OOB), 5);
    EQ(send(fds[0], "world", 5, 0), 5);
    char byte;
    ERR(recv(fds[1], &byte, 1, MSG_OOB), EINVAL);
    has_urgent(fds[1], true);
    reads(fds[1], "hell");
    EQ(at_mark(fds[1]), 1);
    reads(fds[1], "oworld");
    has_urgent(fds[1], false);
}

CASE(a_later_urgent_byte_counts) {
    int fds[2];
    urgent_pair(fds);
    EQ(send(fds[0], "ab", 2, MSG_OOB), 2);
    EQ(send(fds[0], "cd", 2, MSG_OOB), 2);
    char byte = 0;
    EQ(recv(fds[1], &byte, 1, MSG_OOB), 1);
    EQ(byte, 'd');
    // The one before is one of the stream.
    reads(fds[1], "abc");
}

CASE(urgent_bytes_are_told_by_a_signal) {
    int fds[2];
    urgent_pair(fds);
    block_signal(SIGURG);
    EQ(send(fds[0], "a", 1, MSG_OOB), 1);
    expect_no_signal(SIGURG);
    OK(fcntl(fds[1], F_SETOWN, getpid()));
    EQ(send(fds[0], "b", 1, MSG_OOB), 1);
    siginfo_t info;
    CHECK(signal_within(SIGURG, &info, 5000));
    EQ(info.si_code, SI_KERNEL);
    EQ(send(fds[0], "c", 1, 0), 1);
    expect_no_signal(SIGURG);
    int epoll = OK(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLPRI};
    OK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[1], &event));
    EQ(epoll_wait(epoll, &event, 1, 0), 1);
    EQ(event.events, EPOLLPRI);
}

CASE(no_urgent_bytes) {
    int fds[2];
    urgent_pair(fds);
    ERR(send(fds[0], "", 0, MSG_OOB), EOPNOTSUPP);
    OK(shutdown(fds[1], SHUT_RD));
    signal(SIGPIPE, SIG_IGN);
    ERR(send(fds[0], "x", 1, MSG_OOB), EPIPE);
    char byte;
    for (int i = 0; i < 2; i++) {
        OK(socketpair(AF_UNIX, i ? SOCK_DGRAM : SOCK_SEQPACKET, 0, fds));
        ERR(send(fds[0], "x", 1, MSG_OOB), EOPNOTSUPP);
        ERR(recv(fds[1], &byte, 1, MSG_OOB), EOPNOTSUPP);
    }
}
