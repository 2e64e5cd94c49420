// TCP and UDP over IPv4 and IPv6, on loopback. Ports are chosen by the system.
#include "harness.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdatomic.h>
#include <pthread.h>
#include <grp.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t size_of(int family) { return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6); }

static union address loopback(int family, uint16_t port) {
    union address a;
    memset(&a, 0, sizeof a);
    a.any.sa_family = family;
    if (family == AF_INET) {
        a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        a.v4.sin_port = port;
    } else {
        a.v6.sin6_addr = in6addr_loopback;
        a.v6.sin6_port = port;
    }
    return a;
}

static int bound(int family, int type) {
    int fd = socket(family, type, 0);
    if (fd == -1 && family == AF_INET6 && errno == EAFNOSUPPORT) skip_case("no IPv6");
    OK(fd);
    union address a = loopback(family, 0);
    if (bind(fd, &a.any, size_of(family)) == -1) {
        if (family == AF_INET6 && errno == EADDRNOTAVAIL) skip_case("no IPv6 loopback");
        FAIL("bind: %s", strerrorname_np(errno));
    }
    return fd;
}

static union address name_of(int fd) {
    union address a;
    socklen_t n = sizeof a;
    OK(getsockname(fd, &a.any, &n));
    return a;
}

static int listener(int family) {
    int fd = bound(family, SOCK_STREAM);
    OK(listen(fd, 16));
    return fd;
}

static int connected_to(int listening) {
    union address a = name_of(listening);
    int fd = OK(socket(a.any.sa_family, SOCK_STREAM, 0));
    OK(connect(fd, &a.any, size_of(a.any.sa_family)));
    return fd;
}

static void tcp_pair(int family, int *client, int *server) {
    int l = listener(family);
    *client = connected_to(l);
    *server = OK(accept(l, NULL, NULL));
    OK(close(l));
}

static void exchange(int family) {
    int c, s;
    tcp_pair(family, &c, &s);
    EQ(write(c, "ping", 4), 4);
    char b[16] = {0};
    EQ(read(s, b, sizeof b), 4);
    STR_EQ(b, "ping");
    EQ(send(s, "pong!", 5, 0), 5);
    EQ(recv(c, b, sizeof b, 0), 5);
    OK(close(c));
    EQ(read(s, b, sizeof b), 0);
}

CASE(tcp4_exchange) { exchange(AF_INET); }
CASE(tcp6_exchange) { exchange(AF_INET6); }

static void names(int family) {
    int l = listener(family), c = connected_to(l);
    union address peer, from;
    socklen_t n = sizeof from;
    int s = OK(accept4(l, &from.any, &n, SOCK_CLOEXEC | SOCK_NONBLOCK));
    EQ(n, size_of(family));
    union address mine = name_of(c), listening = name_of(l);
    CHECK(memcmp(&mine, &from, n) == 0);
    n = sizeof peer;
    OK(getpeername(c, &peer.any, &n));
    CHECK(memcmp(&peer, &listening, n) == 0);
    EQ(fcntl(s, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    EQ(fcntl(s, F_GETFD), FD_CLOEXEC);
    n = 4;  // too small: cut, and the whole length told
    OK(getsockname(c, &peer.any, &n));
    EQ(n, size_of(family));
}

CASE(tcp4_names) { names(AF_INET); }
CASE(tcp6_names) { names(AF_INET6); }

CASE(tcp_server_in_another_process) {
    int l = listener(AF_INET);
    pid_t pid = OK(fork());
    if (pid == 0) {
        for (int i = 0; i < 20; i++) {
            int s = OK(accept(l, NULL, NULL));
            char b[64];
            ssize_t n = OK(read(s, b, sizeof b));
            EQ(write(s, b, n), n);
            OK(close(s));
        }
        _exit(0);
    }
    for (int i = 0; i < 20; i++) {
        int c = connected_to(l);
        char b[64], back[64];
        int n = snprintf(b, sizeof b, "request %d", i);
        EQ(write(c, b, n), n);
        EQ(recv(c, back, sizeof back, MSG_WAITALL), n);
        CHECK(memcmp(b, back, n) == 0);
        OK(close(c));
    }
    expect_exit(pid, 0);
}

CASE(tcp_large_transfer) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    enum { TOTAL = 4 << 20 };
    pid_t pid = OK(fork());
    if (pid == 0) {
        static unsigned char b[30000];
        for (size_t at = 0; at < TOTAL;) {
            size_t n = TOTAL - at < sizeof b ? TOTAL - at : sizeof b;
            for (size_t i = 0; i < n; i++) b[i] = (unsigned char)((at + i) * 13 >> 5);
            at += OK(send(c, b, n, 0));
        }
        OK(shutdown(c, SHUT_WR));
        char done;
        EQ(read(c, &done, 1), 1);
        _exit(0);
    }
    OK(close(c));
    static unsigned char b[20000];
    size_t at = 0;
    for (ssize_t n; (n = OK(recv(s, b, sizeof b, 0))) > 0; at += n)
        for (ssize_t i = 0; i < n; i++)
            if (b[i] != (unsigned char)((at + i) * 13 >> 5)) FAIL("byte %zu differs", at + i);
    EQ(at, TOTAL);
    EQ(write(s, "d", 1), 1);
    expect_exit(pid, 0);
}

CASE(connection_refused) {
    int l = bound(AF_INET, SOCK_STREAM);  // bound, not listening
    union address a = name_of(l);
    int c = OK(socket(AF_INET, SOCK_STREAM, 0));
    ERR(connect(c, &a.any, sizeof a.v4), ECONNREFUSED);
}

CASE(nonblocking_connect_and_accept) {
    int l = listener(AF_INET);
    OK(fcntl(l, F_SETFL, O_NONBLOCK));
    ERR(accept(l, NULL, NULL), EAGAIN);
    union address a = name_of(l);
    int c = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (connect(c, &a.any, sizeof a.v4) == -1) EQ(errno, EINPROGRESS);
    struct pollfd p = {c, POLLOUT, 0};
    EQ(poll(&p, 1, -1), 1);
    EQ(p.revents, POLLOUT);
    int error = -1;
    socklen_t n = sizeof error;
    OK(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &n));
    EQ(error, 0);
    struct pollfd q = {l, POLLIN, 0};
    EQ(poll(&q, 1, -1), 1);
    OK(accept(l, NULL, NULL));
    if (connect(c, &a.any, sizeof a.v4) == -1) EQ(errno, EISCONN);  // the first one may report success
    ERR(connect(c, &a.any, sizeof a.v4), EISCONN);
    char b;
    ERR(read(c, &b, 1), EAGAIN);
}

CASE(nonblocking_connect_refused) {
    int l = bound(AF_INET, SOCK_STREAM);
    union address a = name_of(l);
    int c = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (connect(c, &a.any, sizeof a.v4) == -1 && errno == EINPROGRESS) {
        struct pollfd p = {c, POLLOUT, 0};
        EQ(poll(&p, 1, -1), 1);
        int error = 0;
        socklen_t n = sizeof error;
        OK(getsockopt(c, SOL_SOCKET, SO_ERROR, &error, &n));
        EQ(error, ECONNREFUSED);
    } else {
        EQ(errno, ECONNREFUSED);
    }
}

static void serve_for_ever(int listening) {
    for (;;) {
        int s = OK(accept(listening, NULL, NULL));
        char b[64];
        ssize_t n = OK(read(s, b, sizeof b));
        EQ(write(s, b, n), n);
        OK(close(s));
    }
}

static void ask(int listening, int what) {
    int c = connected_to(listening), back;
    EQ(write(c, &what, sizeof what), (int)sizeof what);
    EQ(recv(c, &back, sizeof back, MSG_WAITALL), (int)sizeof back);
    EQ(back, what);
    OK(close(c));
}

// Whoever waits for the outside on behalf of all may end at any moment.
CASE(servers_that_end_leave_others_served) {
    enum { SERVERS = 5, ROUNDS = 12 };
    int listening[SERVERS];
    pid_t pids[SERVERS];
    for (int i = 0; i < SERVERS; i++) {
        listening[i] = listener(AF_INET);
        pids[i] = OK(fork());
        if (pids[i] == 0) serve_for_ever(listening[i]);
    }
    for (int ended = 0; ended < SERVERS; ended++) {
        // In turns, and one for a while.
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = ended; i < SERVERS; i++) ask(listening[i], round * SERVERS + i);
            ask(listening[ended], round);
        }
        OK(kill(pids[ended], SIGKILL));
        if (ended % 2) expect_killed(pids[ended], SIGKILL);
        for (int i = SERVERS - 1; i > ended; i--) ask(listening[i], i);
        if (ended % 2 == 0) expect_killed(pids[ended], SIGKILL);
    }
}

static void *call_for_ever(void *unused) {
    for (;;) syscall(SYS_getppid);
    return unused;
}

// Who serves callers that never pause looks at what comes from outside all the same.
CASE(callers_that_never_pause_leave_others_served) {
    enum { CALLERS = 4, REQUESTS = 20 };
    int own = listener(AF_INET), other = listener(AF_INET);
    pid_t server = OK(fork());
    if (server == 0) serve_for_ever(other);
    pid_t busy = OK(fork());
    if (busy == 0) {
        pthread_t callers[CALLERS];
        ask(other, 0);
        for (int i = 0; i < CALLERS; i++) EQ(pthread_create(&callers[i], NULL, call_for_ever, NULL), 0);
        serve_for_ever(own);
    }
    for (int i = 0; i < REQUESTS; i++) {
        ask(own, i);
        ask(other, i);
    }
    OK(kill(busy, SIGKILL));
    OK(kill(server, SIGKILL));
    expect_killed(busy, SIGKILL);
    expect_killed(server, SIGKILL);
}

CASE(accept_wakes) {
    int l = listener(AF_INET);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(accept(l, NULL, NULL));
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    connected_to(l);
    expect_exit(pid, 0);
}

CASE(shutdown_half) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    OK(shutdown(c, SHUT_WR));
    char b[8];
    EQ(read(s, b, 8), 0);
    EQ(write(s, "still", 5), 5);
    EQ(read(c, b, 8), 5);
    signal(SIGPIPE, SIG_IGN);
    ERR(write(c, "x", 1), EPIPE);
    struct pollfd p = {s, POLLIN | POLLRDHUP, 0};
    EQ(poll(&p, 1, -1), 1);
    EQ(p.revents & POLLRDHUP, POLLRDHUP);
}

CASE(reset_by_linger) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    struct linger now = {1, 0};
    OK(setsockopt(c, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    OK(close(c));
    char b;
    struct pollfd p = {s, POLLIN, 0};
    EQ(poll(&p, 1, -1), 1);
    ERR(read(s, &b, 1), ECONNRESET);
}

CASE(peek_and_dontwait) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    char b[8] = {0};
    ERR(recv(s, b, 8, MSG_DONTWAIT), EAGAIN);
    EQ(write(c, "peek", 4), 4);
    EQ(recv(s, b, 8, MSG_PEEK), 4);
    EQ(recv(s, b, 2, MSG_PEEK), 2);
    int n;
    OK(ioctl(s, FIONREAD, &n));
    EQ(n, 4);
    EQ(recv(s, b, 8, 0), 4);
    STR_EQ(b, "peek");
}

CASE(waitall_and_scatter) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    struct iovec v[2] = {{"abc", 3}, {"defg", 4}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    EQ(sendmsg(c, &m, 0), 7);
    char x[2], y[5];
    struct iovec w[2] = {{x, 2}, {y, 5}};
    m.msg_iov = w;
    EQ(recvmsg(s, &m, MSG_WAITALL), 7);
    CHECK(memcmp(x, "ab", 2) == 0 && memcmp(y, "cdefg", 5) == 0);
}

CASE(sendfile_to_socket) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    write_file("f", "file to socket");
    int fd = OK(open("f", O_RDONLY));
    EQ(sendfile(c, fd, NULL, 100), 14);
    char b[32] = {0};
    EQ(recv(s, b, 14, MSG_WAITALL), 14);
    STR_EQ(b, "file to socket");
}

CASE(socket_options) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0)), v = 1;
    socklen_t n = sizeof v;
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &v, sizeof v));
    OK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &v, sizeof v));
    OK(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof v));
    OK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, sizeof v));
    v = 0;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, &n));
    EQ(v, 1);
    v = 65536;
    OK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, sizeof v));
    OK(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &v, &n));
    CHECK(v >= 65536);
    OK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &n));
    EQ(v, SOCK_STREAM);
    OK(getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &v, &n));
    EQ(v, AF_INET);
    OK(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &v, &n));
    EQ(v, IPPROTO_TCP);
    v = 30;
    OK(setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &v, sizeof v));
    ERR(setsockopt(fd, 12345, 1, &v, sizeof v), ENOPROTOOPT);
    ERR(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &v, 1), EINVAL);
    OK(listen(fd, 1));
    OK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &v, &n));
    EQ(v, 1);
}

CASE(tcp_info) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    struct tcp_info info;
    socklen_t n = sizeof info;
    OK(getsockopt(c, IPPROTO_TCP, TCP_INFO, &info, &n));
    EQ(info.tcpi_state, TCP_ESTABLISHED);
}

CASE(address_in_use) {
    int l = listener(AF_INET);
    union address a = name_of(l);
    int other = OK(socket(AF_INET, SOCK_STREAM, 0));
    ERR(bind(other, &a.any, sizeof a.v4), EADDRINUSE);
    ERR(bind(l, &a.any, sizeof a.v4), EINVAL);
    a.v4.sin_addr.s_addr = htonl(0xcb007101);  // 203.0.113.1 is nobody's
    ERR(bind(other, &a.any, sizeof a.v4), EADDRNOTAVAIL);
    ERR(bind(other, &a.any, 4), EINVAL);
}

CASE(wrong_states) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    ERR(accept(fd, NULL, NULL), EINVAL);
    char b;
    ERR(recv(fd, &b, 1, 0), ENOTCONN);
    signal(SIGPIPE, SIG_IGN);
    ERR(send(fd, &b, 1, 0), EPIPE);
    ERR(shutdown(fd, SHUT_RDWR), ENOTCONN);
    union address a;
    socklen_t n = sizeof a;
    ERR(getpeername(fd, &a.any, &n), ENOTCONN);
    ERR(socket(999, SOCK_STREAM, 0), EAFNOSUPPORT);
    ERR(socket(AF_INET, SOCK_STREAM, 12345), EINVAL);
    int file = OK(open("/dev/null", O_RDWR));
    ERR(listen(file, 1), ENOTSOCK);
    ERR(listen(999, 1), EBADF);
}

static void datagrams(int family) {
    int a = bound(family, SOCK_DGRAM), b = bound(family, SOCK_DGRAM);
    union address to = name_of(b), from;
    EQ(sendto(a, "datagram", 8, 0, &to.any, size_of(family)), 8);
    char t[32] = {0};
    socklen_t n = sizeof from;
    EQ(recvfrom(b, t, sizeof t, 0, &from.any, &n), 8);
    STR_EQ(t, "datagram");
    union address mine = name_of(a);
    CHECK(memcmp(&mine, &from, size_of(family)) == 0);
    OK(connect(b, &from.any, n));
    EQ(send(b, "", 0, 0), 0);
    EQ(recv(a, t, sizeof t, 0), 0);
    EQ(send(b, "longer", 6, 0), 6);
    EQ(recv(a, t, 2, MSG_TRUNC), 6);
    ERR(recv(a, t, 2, MSG_DONTWAIT), EAGAIN);
}

CASE(udp4_datagrams) { datagrams(AF_INET); }
CASE(udp6_datagrams) { datagrams(AF_INET6); }

// Checksums that cover a part of the datagram only: udplite(7).
static void lite(int family) {
    int server = socket(family, SOCK_DGRAM, IPPROTO_UDPLITE);
    if (server == -1 && errno == EPROTONOSUPPORT) skip_case("no UDP-Lite");
    OK(server);
    int client = OK(socket(family, SOCK_DGRAM, IPPROTO_UDPLITE)), value = 0;
    socklen_t size = sizeof value;
    OK(getsockopt(client, SOL_SOCKET, SO_PROTOCOL, &value, &size));
    EQ(value, IPPROTO_UDPLITE);
    union address a = loopback(family, 0);
    OK(bind(server, &a.any, size_of(family)));
    OK(setsockopt(client, IPPROTO_UDPLITE, 10, &(int){20}, sizeof(int)));
    OK(getsockopt(client, IPPROTO_UDPLITE, 10, &value, &size));
    EQ(value, 20);
    OK(setsockopt(server, IPPROTO_UDPLITE, 11, &(int){20}, sizeof(int)));
    a = name_of(server);
    EQ(sendto(client, "covered in part", 15, 0, &a.any, size_of(family)), 15);
    char b[32] = "";
    EQ(recv(server, b, sizeof b, 0), 15);
    STR_EQ(b, "covered in part");
    // A receiver takes nothing that is covered less than it asks for.
    OK(setsockopt(client, IPPROTO_UDPLITE, 10, &(int){8}, sizeof(int)));
    EQ(sendto(client, "too little", 10, 0, &a.any, size_of(family)), 10);
    ERR(recv(server, b, sizeof b, MSG_DONTWAIT), EAGAIN);
    ERR(setsockopt(OK(socket(family, SOCK_DGRAM, 0)), IPPROTO_UDPLITE, 10, &(int){8}, sizeof(int)), ENOPROTOOPT);
}
CASE(udplite4) { lite(AF_INET); }
CASE(udplite6) { lite(AF_INET6); }

CASE(udp_wakes_a_sleeper) {
    int a = bound(AF_INET, SOCK_DGRAM);
    union address to = name_of(a);
    pid_t pid = OK(fork());
    if (pid == 0) {
        char b;
        EQ(recv(a, &b, 1, 0), 1);
        _exit(0);
    }
    WAIT_UNTIL(process_state(pid) == 'S');
    int c = OK(socket(AF_INET, SOCK_DGRAM, 0));
    EQ(sendto(c, "x", 1, 0, &to.any, sizeof to.v4), 1);
    expect_exit(pid, 0);
}

CASE(udp_refused_is_reported) {
    int gone = bound(AF_INET, SOCK_DGRAM), c = OK(socket(AF_INET, SOCK_DGRAM, 0));
    union address a = name_of(gone);
    OK(close(gone));
    OK(connect(c, &a.any, sizeof a.v4));
    OK(send(c, "x", 1, 0));
    char b;
    ERR(recv(c, &b, 1, 0), ECONNREFUSED);
}

CASE(udp_too_large) {
    int a = bound(AF_INET, SOCK_DGRAM);
    union address to = name_of(a);
    static char big[70000];
    ERR(sendto(a, big, sizeof big, 0, &to.any, sizeof to.v4), EMSGSIZE);
    ERR(send(a, "x", 1, 0), EDESTADDRREQ);
}

CASE(udp_packet_info) {
    int a = bound(AF_INET, SOCK_DGRAM), on = 1;
    OK(setsockopt(a, IPPROTO_IP, IP_PKTINFO, &on, sizeof on));
    union address to = name_of(a);
    EQ(sendto(a, "i", 1, 0, &to.any, sizeof to.v4), 1);
    char control[256], data;
    struct iovec v = {&data, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    EQ(recvmsg(a, &m, 0), 1);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    CHECK(c && c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO);
    struct in_pktinfo info;
    memcpy(&info, CMSG_DATA(c), sizeof info);
    EQ(info.ipi_addr.s_addr, htonl(INADDR_LOOPBACK));
}

CASE(readiness_is_that_of_now) {
    int a, b, one = 1, e = OK(epoll_create1(0));
    tcp_pair(AF_INET, &a, &b);
    OK(fcntl(b, F_SETFL, O_NONBLOCK));
    OK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    struct epoll_event event = {EPOLLIN, {.fd = b}};
    ZERO(epoll_ctl(e, EPOLL_CTL_ADD, b, &event));
    struct pollfd p = {b, POLLIN, 0};
    char c;
    for (int i = 0; i < 300; i++) {
        ERR(read(b, &c, 1), EAGAIN);
        EQ(write(a, "x", 1), 1);
        // However late an event tells of it, whoever says that there is something to read means it.
        int by_poll = 0, by_epoll = 0, looks = 0;
        while (!(i % 2 ? (by_epoll = OK(epoll_wait(e, &event, 1, 0))) : (by_poll = OK(poll(&p, 1, 0)))))
            if (++looks > 1000000) FAIL("nothing comes");
        EQ(by_poll + by_epoll, 1);
        EQ(read(b, &c, 1), 1);
        EQ(poll(&p, 1, 0), 0);
        EQ(epoll_wait(e, &event, 1, 0), 0);
        EQ(epoll_wait(e, &event, 1, i % 50 == 0 ? 5 : 0), 0);
    }
}

static atomic_int sent_all;

static void *send_much(void *fd) {
    static char data[4 << 20];
    for (size_t done = 0; done < sizeof data;) done += (size_t)OK(write((int)(long)fd, data + done, sizeof data - done));
    sent_all = 1;
    return NULL;
}

CASE(whoever_asks_takes_no_news_from_who_waits) {
    static char data[1 << 16];
    for (int round = 0; round < 20; round++) {
        int a, b;
        tcp_pair(AF_INET, &a, &b);
        sent_all = 0;
        pthread_t sender;
        ZERO(pthread_create(&sender, NULL, send_much, (void *)(long)a));
        sleep_ms(5);
        // The sender waits for room, of which this thread may hear first.
        struct pollfd p = {a, POLLIN | POLLOUT, 0};
        for (size_t got = 0; got < 4 << 20;) {
            got += (size_t)OK(read(b, data, sizeof data));
            OK(poll(&p, 1, 0));
        }
        ZERO(pthread_join(sender, NULL));
        CHECK(sent_all);
        OK(close(a));
        OK(close(b));
    }
}

CASE(epoll_on_sockets) {
    int l = listener(AF_INET), e = OK(epoll_create1(0));
    struct epoll_event event = {EPOLLIN | EPOLLET, {.fd = l}};
    OK(epoll_ctl(e, EPOLL_CTL_ADD, l, &event));
    int c = connected_to(l);
    EQ(epoll_wait(e, &event, 1, -1), 1);
    EQ(event.data.fd, l);
    int s = OK(accept(l, NULL, NULL));
    event = (struct epoll_event){EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = s}};
    OK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event));
    EQ(epoll_wait(e, &event, 1, -1), 1);
    EQ(event.events, EPOLLOUT);
    EQ(write(c, "x", 1), 1);
    EQ(epoll_wait(e, &event, 1, -1), 1);
    EQ(event.events & EPOLLIN, EPOLLIN);
    OK(close(c));
    EQ(epoll_wait(e, &event, 1, -1), 1);
    EQ(event.events & (EPOLLIN | EPOLLRDHUP), EPOLLIN | EPOLLRDHUP);
}

CASE(receive_timeout) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    struct timeval t = {0, 4000};
    OK(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    char b;
    int64_t began = now_ns(CLOCK_MONOTONIC);
    ERR(read(s, &b, 1), EAGAIN);
    CHECK(now_ns(CLOCK_MONOTONIC) - began >= 3000000);
}

CASE(send_fills_and_drains) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    OK(fcntl(c, F_SETFL, O_NONBLOCK));
    static char b[65536];
    size_t sent = 0, got = 0;
    for (ssize_t n; (n = write(c, b, sizeof b)) > 0;) sent += n;
    EQ(errno, EAGAIN);
    struct pollfd p = {c, POLLOUT, 0};
    OK(fcntl(s, F_SETFL, O_NONBLOCK));
    while (got < sent) {
        ssize_t n = read(s, b, sizeof b);
        if (n > 0) got += n;
        else EQ(errno, EAGAIN);
    }
    EQ(poll(&p, 1, -1), 1);
    EQ(p.revents & POLLOUT, POLLOUT);
    EQ(got, sent);
}

CASE(close_in_one_process_keeps_it_in_the_other) {
    int c, s;
    tcp_pair(AF_INET, &c, &s);
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(close(s));
        _exit(0);
    }
    expect_exit(pid, 0);
    EQ(write(s, "x", 1), 1);
    char b;
    EQ(read(c, &b, 1), 1);
}

CASE(dual_stack_listener) {
    int l = socket(AF_INET6, SOCK_STREAM, 0);
    if (l == -1 && errno == EAFNOSUPPORT) skip_case("no IPv6");
    OK(l);
    int off = 0;
    OK(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    OK(bind(l, (void *)&any, sizeof any));
    OK(listen(l, 1));
    union address a = loopback(AF_INET, name_of(l).v6.sin6_port), from;
    int c = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(c, &a.any, sizeof a.v4));
    socklen_t n = sizeof from;
    OK(accept(l, &from.any, &n));
    CHECK(IN6_IS_ADDR_V4MAPPED(&from.v6.sin6_addr));
}

CASE(interface_ioctls) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, "lo");
    OK(ioctl(fd, SIOCGIFFLAGS, &r));
    CHECK(r.ifr_flags & IFF_LOOPBACK);
    OK(ioctl(fd, SIOCGIFINDEX, &r));
    CHECK(r.ifr_ifindex > 0);
    OK(ioctl(fd, SIOCGIFADDR, &r));
    EQ(((struct sockaddr_in *)&r.ifr_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    strcpy(r.ifr_name, "none0");
    ERR(ioctl(fd, SIOCGIFFLAGS, &r), ENODEV);
    CHECK(if_nametoindex("lo") > 0);
}

CASE(interface_addresses) {
    // glibc asks a netlink socket.
    struct ifaddrs *list;
    OK(getifaddrs(&list));
    bool found = false;
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && strcmp(i->ifa_name, "lo") == 0)
            found |= ((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    CHECK(found);
    freeifaddrs(list);
}

CASE(threads_share_one_socket) {
    static int c, s;
    tcp_pair(AF_INET, &c, &s);
    void *echo(void *argument) {
        char b;
        for (int i = 0; i < 200; i++) {
            EQ(read(s, &b, 1), 1);
            EQ(write(s, &b, 1), 1);
        }
        return NULL;
    }
    pthread_t t;
    ZERO(pthread_create(&t, NULL, echo, NULL));
    for (int i = 0; i < 200; i++) {
        char out = (char)i, in;
        EQ(write(c, &out, 1), 1);
        EQ(read(c, &in, 1), 1);
        EQ(in, out);
    }
    ZERO(pthread_join(t, NULL));
}

// ---- what takes a capability ----

// Runs in a child that is nobody, without capabilities.
static void as_nobody(void (*run)(void)) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setgroups(0, NULL));
        OK(setresgid(65534, 65534, 65534));
        OK(setresuid(65534, 65534, 65534));
        run();
        _exit(0);
    }
    expect_exit(pid, 0);
}

static void set_as_nobody(void) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    int one = 1, seven = 7, six = 6, zero = 0;
    ERR(setsockopt(fd, SOL_SOCKET, SO_MARK, &one, sizeof one), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_MARK, &zero, sizeof zero), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &one, sizeof one), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &one, sizeof one), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_DEBUG, &one, sizeof one), EACCES);
    OK(setsockopt(fd, SOL_SOCKET, SO_DEBUG, &zero, sizeof zero));
    ERR(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &seven, sizeof seven), EPERM);
    OK(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &six, sizeof six));
    ERR(setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &one, sizeof one), EPERM);
    OK(setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &zero, sizeof zero));
    OK(setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &one, sizeof one));
    ERR(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "no-such", 7), ENOENT);
    // To a device once, and not away from it again.
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &zero, sizeof zero), EPERM);
    ERR(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), EPERM);
}

CASE(options_that_take_a_capability) { as_nobody(set_as_nobody); }

CASE(options_with_the_capability) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0)), value = 7;
    socklen_t n = sizeof value;
    OK(setsockopt(fd, SOL_SOCKET, SO_MARK, &value, sizeof value));
    value = 0;
    OK(getsockopt(fd, SOL_SOCKET, SO_MARK, &value, &n));
    EQ(value, 7);
    OK(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &value, sizeof value));
    OK(setsockopt(fd, IPPROTO_IP, IP_TRANSPARENT, &value, sizeof value));
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0));
    OK(close(fd));
    OK(close(OK(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP))));
}

static void send_mark(int error) {
    int to = bound(AF_INET, SOCK_DGRAM), fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    union address a = name_of(to);
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {.iov_base = "x", .iov_len = 1};
    struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a.v4, .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SO_MARK};
    if (error) ERR(sendmsg(fd, &m, 0), EPERM);
    else EQ(sendmsg(fd, &m, 0), 1);
    // What anybody may send.
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TTL};
    *(int *)CMSG_DATA(c) = 9;
    EQ(sendmsg(fd, &m, 0), 1);
}

static void mark_as_nobody(void) { send_mark(1); }

CASE(marks_in_messages_take_a_capability) {
    send_mark(0);
    as_nobody(mark_as_nobody);
}

static void bind_as_nobody(void) {
    // Linux takes AF_UNSPEC for AF_INET here.
    int families[] = {AF_INET, AF_UNSPEC};
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in a = {.sin_family = families[i], .sin_port = htons(1)};
        ERR(bind(OK(socket(AF_INET, SOCK_STREAM, 0)), (void *)&a, sizeof a), EACCES);
    }
}

CASE(low_ports_take_a_capability) {
    char first[16];
    read_file("/proc/sys/net/ipv4/ip_unprivileged_port_start", first, sizeof first);
    if (atoi(first) < 2) skip_case("every port is for everybody here");
    as_nobody(bind_as_nobody);
}

CASE(ping_sockets_are_for_a_range_of_groups) {
    char text[64];
    unsigned low, high;
    read_file("/proc/sys/net/ipv4/ping_group_range", text, sizeof text);
    EQ(sscanf(text, "%u %u", &low, &high), 2);
    OK(setgroups(0, NULL));
    if (low <= getegid() && getegid() <= high) OK(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    else ERR(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP), EACCES);
}

static void netlink_as_nobody(void) {
    int other = OK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)), fd = OK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
    struct sockaddr_nl a = {.nl_family = AF_NETLINK};
    socklen_t n = sizeof a;
    OK(bind(other, (void *)&a, sizeof a));
    OK(getsockname(other, (void *)&a, &n));
    ERR(connect(fd, (void *)&a, sizeof a), EPERM);
    a = (struct sockaddr_nl){.nl_family = AF_NETLINK};
    OK(connect(fd, (void *)&a, sizeof a));
    // A question about one device, in a buffer that is longer than the message.
    struct {
        struct nlmsghdr head;
        struct ifinfomsg body;
        struct rtattr name;
        char text[64];
    } r = {.head = {.nlmsg_len = NLMSG_LENGTH(sizeof r.body) + RTA_LENGTH(3), .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
           .name = {.rta_len = RTA_LENGTH(3), .rta_type = IFLA_IFNAME},
           .text = "lo"};
    EQ(send(fd, &r, sizeof r, 0), sizeof r);
    union { struct nlmsghdr head; char bytes[8192]; } answer;
    CHECK(recv(fd, &answer, sizeof answer, 0) > 0);
    EQ(answer.head.nlmsg_type, RTM_NEWLINK);
}

CASE(netlink_is_for_questions_to_the_kernel) { as_nobody(netlink_as_nobody); }

static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

// connect(2) with AF_UNSPEC ends a connection: the socket is as a new one, and its peer is told.
static void dissolve(int family) {
    int listening = listener(family), client, server;
    client = connected_to(listening);
    server = OK(accept(listening, NULL, NULL));
    char got[8];
    EQ(write(server, "lost", 4), 4);
    EQ(recv(client, got, 1, MSG_PEEK), 1);
    OK(connect(client, &nobody, sizeof nobody));
    int error = 0;
    socklen_t length = sizeof error;
    OK(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length));
    EQ(error, ECONNRESET);
    ERR(read(client, got, sizeof got), ENOTCONN);
    ERR(read(server, got, sizeof got), ECONNRESET);
    union address name = name_of(listening);
    OK(connect(client, &name.any, size_of(family)));
    server = OK(accept(listening, NULL, NULL));
    EQ(write(client, "new", 3), 3);
    EQ(read(server, got, sizeof got), 3);
    struct pollfd item = {client, POLLIN | POLLOUT, 0};
    EQ(poll(&item, 1, 0), 1);
    EQ(item.revents, POLLOUT);
    // Of a listener those who wait there are told.
    client = connected_to(listening);
    OK(connect(listening, &nobody, sizeof nobody));
    ERR(read(client, got, sizeof got), ECONNRESET);
    ERR(accept(listening, NULL, NULL), EINVAL);
    OK(connect(OK(socket(family, SOCK_STREAM, 0)), &nobody, sizeof nobody));
}

CASE(tcp4_dissolved) { dissolve(AF_INET); }
CASE(tcp6_dissolved) { dissolve(AF_INET6); }

// A socket that asks for its own port has a connection with itself.
static void connect_itself(int family) {
    int fd = bound(family, SOCK_STREAM);
    union address own = name_of(fd);
    OK(connect(fd, &own.any, size_of(family)));
    char got[8];
    EQ(write(fd, "echo", 4), 4);
    EQ(read(fd, got, sizeof got), 4);
    OK(shutdown(fd, SHUT_WR));
    EQ(read(fd, got, sizeof got), 0);
    // The same without waiting.
    fd = bound(family, SOCK_STREAM | SOCK_NONBLOCK);
    own = name_of(fd);
    if (connect(fd, &own.any, size_of(family)) == -1) EQ(errno, EINPROGRESS);
    struct pollfd item = {fd, POLLOUT, 0};
    EQ(poll(&item, 1, -1), 1);
    EQ(write(fd, "echo", 4), 4);
    item.events = POLLIN;
    EQ(poll(&item, 1, -1), 1);
    EQ(read(fd, got, sizeof got), 4);
}

CASE(tcp4_with_itself) { connect_itself(AF_INET); }
CASE(tcp6_with_itself) { connect_itself(AF_INET6); }

// The last byte of what is sent as urgent is read by itself, and the stream has a mark before it.
CASE(urgent_bytes) {
    int client, server, on, left;
    tcp_pair(AF_INET, &client, &server);
    EQ(send(client, "ab!", 3, MSG_OOB), 3);
    EQ(send(client, "cd", 2, 0), 2);
    struct pollfd item = {server, POLLPRI, 0};
    EQ(poll(&item, 1, -1), 1);
    WAIT_UNTIL(({ OK(ioctl(server, FIONREAD, &left)); left; }) == 2);
    OK(ioctl(server, SIOCATMARK, &on));
    EQ(on, 0);
    char got[8];
    // A read ends at the mark.
    EQ(read(server, got, sizeof got), 2);
    OK(ioctl(server, SIOCATMARK, &on));
    EQ(on, 1);
    EQ(recv(server, got, 1, MSG_OOB), 1);
    EQ(got[0], '!');
    ERR(recv(server, got, 1, MSG_OOB), EINVAL);
    EQ(read(server, got, sizeof got), 2);
    EQ(got[0], 'c');
    OK(ioctl(server, SIOCATMARK, &on));
    EQ(on, 0);
    // Among the others.
    on = 1;
    OK(setsockopt(server, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    EQ(send(client, "e?", 2, MSG_OOB), 2);
    WAIT_UNTIL(({ OK(ioctl(server, FIONREAD, &left)); left; }) >= 1);
    EQ(read(server, got, sizeof got), 1);
    ERR(recv(server, got, 1, MSG_OOB), EINVAL);
    OK(ioctl(server, SIOCATMARK, &on));
    EQ(on, 1);
    EQ(read(server, got, sizeof got), 1);
    EQ(got[0], '?');
}

static void device_as_nobody(void) {
    char name[IFNAMSIZ] = "lo";
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    // The first one is free, what it is bound to it stays.
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nowhere", 8), ENODEV);
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, 3));
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, 3), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0), EPERM);
}

CASE(a_socket_is_bound_to_a_device) {
    as_nobody(device_as_nobody);
    int fd = bound(AF_INET, SOCK_DGRAM);
    char name[IFNAMSIZ] = "?";
    socklen_t length = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    EQ(length, 0);
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2));
    length = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    EQ(length, 3);
    STR_EQ(name, "lo");
    length = 2;
    ERR(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length), EINVAL);
    union address own = name_of(fd);
    EQ(sendto(fd, "x", 1, 0, &own.any, sizeof own.v4), 1);
    EQ(read(fd, name, 1), 1);
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 1));
    length = sizeof name;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    EQ(length, 0);
}

// A datagram goes from the address that its sender says.
CASE(udp_is_sent_from_an_address) {
    int server = bound(AF_INET, SOCK_DGRAM), client = OK(socket(AF_INET, SOCK_DGRAM, 0)), on = 1;
    union address to = name_of(server), from = {0};
    char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0}, data;
    struct iovec v = {"x", 1};
    struct msghdr m = {&to, sizeof to.v4, &v, 1, control, sizeof control, 0};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){CMSG_LEN(sizeof(struct in_pktinfo)), IPPROTO_IP, IP_PKTINFO};
    struct in_pktinfo *info = (void *)CMSG_DATA(c);
    info->ipi_spec_dst.s_addr = inet_addr("127.0.0.7");
    EQ(sendmsg(client, &m, 0), 1);
    socklen_t length = sizeof from;
    EQ(recvfrom(server, &data, 1, 0, &from.any, &length), 1);
    STR_EQ(inet_ntoa(from.v4.sin_addr), "127.0.0.7");
    int server6 = bound(AF_INET6, SOCK_DGRAM);
    OK(setsockopt(server6, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on));
    union address to6 = name_of(server6);
    char six[CMSG_SPACE(sizeof(struct in6_pktinfo))] = {0};
    m = (struct msghdr){&to6, sizeof to6.v6, &v, 1, six, sizeof six, 0};
    c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){CMSG_LEN(sizeof(struct in6_pktinfo)), IPPROTO_IPV6, IPV6_PKTINFO};
    struct in6_pktinfo *info6 = (void *)CMSG_DATA(c);
    info6->ipi6_addr = in6addr_loopback;
    EQ(sendmsg(OK(socket(AF_INET6, SOCK_DGRAM, 0)), &m, 0), 1);
    struct iovec into = {&data, 1};
    struct msghdr got = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = six, .msg_controllen = sizeof six};
    EQ(recvmsg(server6, &got, 0), 1);
    c = CMSG_FIRSTHDR(&got);
    CHECK(c && c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO);
    info6 = (void *)CMSG_DATA(c);
    CHECK(IN6_IS_ADDR_LOOPBACK(&info6->ipi6_addr));
    EQ(info6->ipi6_ifindex, if_nametoindex("lo"));
}
