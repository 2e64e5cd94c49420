// What programs see of the network: /proc/net, /sys/class/net, netlink.
#include "harness.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

static char text[1 << 20];

static unsigned long inode(int fd) {
    struct stat st;
    OK(fstat(fd, &st));
    return st.st_ino;
}

static int bound(int domain, int type, unsigned short *port) {
    struct sockaddr_storage a = {.ss_family = domain};
    socklen_t n = domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = OK(socket(domain, type, 0));
    if (domain == AF_INET) ((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    OK(bind(fd, (void *)&a, n));
    OK(getsockname(fd, (void *)&a, &n));
    // The port lies at the same place in both.
    *port = ntohs(((struct sockaddr_in *)&a)->sin_port);
    if (type == SOCK_STREAM) OK(listen(fd, 7));
    return fd;
}

// The line of a table that names an inode in its tenth column: port, state and user.
static bool in_table(const char *path, unsigned long wanted, unsigned *port, unsigned *state, unsigned *uid) {
    read_file(path, text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long ino;
        if (sscanf(line, " %*[^:]: %*[0-9A-F]:%X %*s %X %*s %*s %*s %u %*s %lu", port, state, uid, &ino) == 4 && ino == wanted) return true;
    }
    return false;
}

static void tables(unsigned owner) {
    static const struct { const char *path; int domain, type; unsigned state; } all[] = {
        {"/proc/net/tcp", AF_INET, SOCK_STREAM, 10}, {"/proc/net/tcp6", AF_INET6, SOCK_STREAM, 10},
        {"/proc/net/udp", AF_INET, SOCK_DGRAM, 7},   {"/proc/net/udp6", AF_INET6, SOCK_DGRAM, 7},
    };
    for (int i = 0; i < 4; i++) {
        unsigned short port;
        unsigned shown, state, uid;
        int fd = bound(all[i].domain, all[i].type, &port);
        CHECK(in_table(all[i].path, inode(fd), &shown, &state, &uid));
        EQ(shown, port);
        EQ(state, all[i].state);
        EQ(uid, owner);
        char name[64], link[64] = {0}, expected[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        OK(readlink(name, link, sizeof link - 1));
        snprintf(expected, sizeof expected, "socket:[%lu]", inode(fd));
        STR_EQ(link, expected);
        unsigned long closed = inode(fd);
        OK(close(fd));
        CHECK(!in_table(all[i].path, closed, &shown, &state, &uid));
    }
}

static void tables_as_somebody(void) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresgid(4711, 4711, 4711));
        OK(setresuid(4711, 4711, 4711));
        tables(4711);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(internet_sockets_are_in_tables) {
    tables(getuid());
    tables_as_somebody();
}

CASE(connections_are_in_tables) {
    unsigned short port;
    int listener = bound(AF_INET, SOCK_STREAM, &port), c = OK(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    OK(connect(c, (void *)&a, sizeof a));
    int s = OK(accept(listener, NULL, NULL));
    unsigned shown, state, uid;
    CHECK(in_table("/proc/net/tcp", inode(s), &shown, &state, &uid));
    EQ(shown, port);
    EQ(state, 1);
    CHECK(in_table("/proc/net/tcp", inode(c), &shown, &state, &uid));
    CHECK(inode(s) != inode(c) && inode(s) != inode(listener));
}

// The line of /proc/net/unix with an inode: flags, type, state and path.
static bool in_unix(unsigned long wanted, unsigned *flags, unsigned *type, unsigned *state, char *path) {
    read_file("/proc/net/unix", text, sizeof text);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long ino;
        path[0] = 0;
        if (sscanf(line, "%*x: %*x %*x %x %x %x %lu %107s", flags, type, state, &ino, path) >= 4 && ino == wanted) return true;
    }
    return false;
}

static int unix_socket(int type, const char *name) {
    int fd = OK(socket(AF_UNIX, type, 0));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (name[0] == '@') snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "%s", name + 1);
    else strcpy(a.sun_path, name);
    OK(bind(fd, (void *)&a, offsetof(struct sockaddr_un, sun_path) + strlen(name)));
    return fd;
}

CASE(unix_sockets_are_in_their_table) {
    char name[64], path[108];
    snprintf(name, sizeof name, "@quark-table-%d", getpid());
    int listener = unix_socket(SOCK_STREAM, name);
    unsigned flags, type, state;
    CHECK(in_unix(inode(listener), &flags, &type, &state, path));
    EQ(flags, 0);
    EQ(type, SOCK_STREAM);
    EQ(state, 1);
    OK(listen(listener, 5));
    CHECK(in_unix(inode(listener), &flags, &type, &state, path));
    EQ(flags, 0x10000);
    STR_EQ(path, name);
    // What has yet to be accepted has no inode.
    int c = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path + 1, name + 1);
    OK(connect(c, (void *)&a, offsetof(struct sockaddr_un, sun_path) + strlen(name)));
    read_file("/proc/net/unix", text, sizeof text);
    char *first = strstr(text, name), *second = first ? strstr(first + 1, name) : NULL;
    CHECK(second);
    int s = OK(accept(listener, NULL, NULL));
    CHECK(in_unix(inode(s), &flags, &type, &state, path));
    EQ(state, 3);
    STR_EQ(path, name);
    int file = unix_socket(SOCK_DGRAM, "named");
    CHECK(in_unix(inode(file), &flags, &type, &state, path));
    EQ(type, SOCK_DGRAM);
    STR_EQ(path, "named");
    int pair[2];
    OK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    CHECK(in_unix(inode(pair[0]), &flags, &type, &state, path));
    EQ(type, SOCK_SEQPACKET);
    EQ(state, 3);
    STR_EQ(path, "");
    unsigned long gone = inode(pair[1]);
    OK(close(pair[1]));
    CHECK(!in_unix(gone, &flags, &type, &state, path));
}

// ---- interfaces ----

static long of_lo(const char *file) {
    char path[128], value[64];
    snprintf(path, sizeof path, "/sys/class/net/lo/%s", file);
    read_file(path, value, sizeof value);
    return strtol(value, NULL, 0);
}

CASE(interfaces_are_in_sysfs) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq r = {.ifr_name = "lo"};
    OK(ioctl(fd, SIOCGIFMTU, &r));
    EQ(of_lo("mtu"), r.ifr_mtu);
    OK(ioctl(fd, SIOCGIFFLAGS, &r));
    // IFF_RUNNING tells what the link does, not what was set.
    EQ(of_lo("flags"), r.ifr_flags & 0xffff & ~IFF_RUNNING);
    EQ(of_lo("ifindex"), if_nametoindex("lo"));
    EQ(of_lo("iflink"), if_nametoindex("lo"));
    EQ(of_lo("type"), 772);
    EQ(of_lo("addr_len"), 6);
    char value[64], link[128] = {0};
    read_file("/sys/class/net/lo/address", value, sizeof value);
    STR_EQ(value, "00:00:00:00:00:00\n");
    read_file("/sys/class/net/lo/operstate", value, sizeof value);
    STR_EQ(value, "unknown\n");
    read_file("/sys/class/net/lo/carrier", value, sizeof value);
    STR_EQ(value, "1\n");
    OK(readlink("/sys/class/net/lo", link, sizeof link - 1));
    STR_EQ(link, "../../devices/virtual/net/lo");
    // It has no speed to tell.
    int speed = OK(open("/sys/class/net/lo/speed", O_RDONLY));
    ERR(read(speed, value, sizeof value), EINVAL);
    ERR(open("/sys/class/net/none0", O_RDONLY), ENOENT);
    ERR(open("/sys/class/net/lo/statistics/none", O_RDONLY), ENOENT);
}

// Bytes received on lo, of /proc/net/dev.
static unsigned long long received(void) {
    read_file("/proc/net/dev", text, sizeof text);
    char *lo = strstr(text, "lo:");
    CHECK(lo);
    return strtoull(lo + 3, NULL, 10);
}

CASE(interfaces_count) {
    unsigned short port;
    int to = bound(AF_INET, SOCK_DGRAM, &port), fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned long long before = received(), packets = of_lo("statistics/rx_packets");
    for (int i = 0; i < 10; i++) EQ(sendto(fd, text, 1000, 0, (void *)&a, sizeof a), 1000);
    for (int i = 0; i < 10; i++) EQ(recv(to, text, sizeof text, 0), 1000);
    CHECK(received() >= before + 10 * 1000);
    CHECK(of_lo("statistics/rx_packets") >= (long)packets + 10);
    CHECK(of_lo("statistics/rx_bytes") >= 10 * 1000);
}

CASE(interfaces_are_the_same_everywhere) {
    struct if_nameindex *list = if_nameindex();
    CHECK(list);
    read_file("/proc/net/dev", text, sizeof text);
    int count = 0, links = 0;
    for (struct if_nameindex *i = list; i->if_index; i++, count++) {
        char path[128], line[IF_NAMESIZE + 2];
        snprintf(path, sizeof path, "/sys/class/net/%s/ifindex", i->if_name);
        char index[16];
        read_file(path, index, sizeof index);
        EQ(atoi(index), i->if_index);
        snprintf(line, sizeof line, "%s:", i->if_name);
        CHECK(strstr(text, line));
    }
    if_freenameindex(list);
    struct ifaddrs *addresses;
    OK(getifaddrs(&addresses));
    for (struct ifaddrs *i = addresses; i; i = i->ifa_next) links += i->ifa_addr && i->ifa_addr->sa_family == AF_PACKET;
    EQ(links, count);
    freeifaddrs(addresses);
}

CASE(tables_of_the_network_have_their_heads) {
    static const struct { const char *path, *head; } all[] = {
        {"/proc/net/route", "Iface\tDestination\tGateway"}, {"/proc/net/arp", "IP address       HW type"},
        {"/proc/net/snmp", "Ip: Forwarding"},              {"/proc/net/netstat", "TcpExt: "},
        {"/proc/net/sockstat", "sockets: used "},          {"/proc/net/raw", "  sl  local_address"},
        {"/proc/net/packet", "sk               RefCnt"},    {"/proc/net/protocols", "protocol  size sockets"},
    };
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        read_file(all[i].path, text, sizeof text);
        if (strncmp(text, all[i].head, strlen(all[i].head)) != 0) FAIL("%s begins with %.40s", all[i].path, text);
    }
    ERR(open("/proc/net/none", O_RDONLY), ENOENT);
}

// ---- netlink ----

CASE(what_happens_to_the_network_can_be_watched) {
    // As ip-monitor(8) does.
    int fd = OK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)), group = RTNLGRP_NEXTHOP;
    unsigned groups = 0;
    int all[] = {RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE, RTNLGRP_IPV4_MROUTE, RTNLGRP_IPV6_MROUTE,
                 RTNLGRP_IPV6_PREFIX, RTNLGRP_NEIGH, RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF, RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE, RTNLGRP_NSID, RTNLGRP_MPLS_ROUTE};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) groups |= 1u << (all[i] - 1);
    struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_groups = groups};
    OK(bind(fd, (void *)&a, sizeof a));
    OK(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group));
    ERR(recv(fd, text, sizeof text, MSG_DONTWAIT), EAGAIN);
}

static int diag(void) { return OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)); }

static struct nlmsghdr *ask(int fd, const void *request, size_t length, unsigned short flags) {
    struct nlmsghdr head = {.nlmsg_len = NLMSG_LENGTH(length), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | flags, .nlmsg_seq = 5};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)request, length}};
    struct sockaddr_nl to = {.nl_family = AF_NETLINK};
    struct msghdr m = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = parts, .msg_iovlen = 2};
    EQ(sendmsg(fd, &m, 0), head.nlmsg_len);
    return (void *)text;
}

// Looks through a dump for an inode, which lies at an offset of each message.
static bool dumped(int fd, unsigned long wanted, size_t offset, char *message, size_t length) {
    bool found = false;
    for (;;) {
        int n = OK(recv(fd, text, sizeof text, 0));
        for (struct nlmsghdr *m = (void *)text; NLMSG_OK(m, n); m = NLMSG_NEXT(m, n)) {
            EQ(m->nlmsg_seq, 5);
            if (m->nlmsg_type == NLMSG_DONE) return found;
            EQ(m->nlmsg_type, SOCK_DIAG_BY_FAMILY);
            CHECK(m->nlmsg_flags & NLM_F_MULTI);
            if (*(unsigned *)((char *)NLMSG_DATA(m) + offset) == wanted) {
                found = true;
                memcpy(message, NLMSG_DATA(m), length);
            }
        }
    }
}

CASE(internet_sockets_are_diagnosed) {
    unsigned short port;
    int listener = bound(AF_INET, SOCK_STREAM, &port), fd = diag();
    struct inet_diag_req_v2 r = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = 1 << 10};
    struct inet_diag_msg m;
    ask(fd, &r, sizeof r, NLM_F_DUMP);
    CHECK(dumped(fd, inode(listener), offsetof(struct inet_diag_msg, idiag_inode), (char *)&m, sizeof m));
    EQ(m.idiag_state, 10);
    EQ(ntohs(m.id.idiag_sport), port);
    EQ(m.id.idiag_src[0], htonl(INADDR_LOOPBACK));
    EQ(m.idiag_uid, getuid());
    EQ(m.idiag_wqueue, 7);
    // Not in this state.
    r.idiag_states = 1 << 1;
    ask(fd, &r, sizeof r, NLM_F_DUMP);
    CHECK(!dumped(fd, inode(listener), offsetof(struct inet_diag_msg, idiag_inode), (char *)&m, sizeof m));
    // One, by its address.
    r.id = m.id;
    r.id.idiag_sport = htons(port);
    r.id.idiag_src[0] = htonl(INADDR_LOOPBACK);
    r.id.idiag_cookie[0] = r.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    memset(r.id.idiag_dst, 0, sizeof r.id.idiag_dst);
    r.id.idiag_dport = 0;
    r.id.idiag_if = 0;
    struct nlmsghdr *one = ask(fd, &r, sizeof r, 0);
    CHECK(recv(fd, text, sizeof text, 0) > 0);
    EQ(one->nlmsg_type, SOCK_DIAG_BY_FAMILY);
    EQ(((struct inet_diag_msg *)NLMSG_DATA(one))->idiag_inode, inode(listener));
    // Nobody listens there.
    OK(close(listener));
    ask(fd, &r, sizeof r, 0);
    CHECK(recv(fd, text, sizeof text, 0) > 0);
    EQ(one->nlmsg_type, NLMSG_ERROR);
    EQ(((struct nlmsgerr *)NLMSG_DATA(one))->error, -ENOENT);
}

CASE(diagnoses_are_filtered) {
    // As "ss sport = :PORT" asks: two comparisons of the port.
    unsigned short port, other;
    int listener = bound(AF_INET, SOCK_STREAM, &port), second = bound(AF_INET, SOCK_STREAM, &other), fd = diag();
    struct {
        struct inet_diag_req_v2 r;
        struct rtattr head;
        struct inet_diag_bc_op program[4];
    } q = {.r = {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = -1},
           .head = {.rta_len = RTA_LENGTH(sizeof q.program), .rta_type = INET_DIAG_REQ_BYTECODE},
           .program = {{INET_DIAG_BC_S_GE, 8, 20}, {0, 0, port}, {INET_DIAG_BC_S_LE, 8, 12}, {0, 0, port}}};
    struct inet_diag_msg m;
    size_t at = offsetof(struct inet_diag_msg, idiag_inode);
    ask(fd, &q, sizeof q, NLM_F_DUMP);
    CHECK(dumped(fd, inode(listener), at, (char *)&m, sizeof m));
    ask(fd, &q, sizeof q, NLM_F_DUMP);
    CHECK(!dumped(fd, inode(second), at, (char *)&m, sizeof m));
    q.program[0].yes = 3;
    struct nlmsghdr *one = ask(fd, &q, sizeof q, NLM_F_DUMP);
    CHECK(recv(fd, text, sizeof text, 0) > 0);
    CHECK(one->nlmsg_type == NLMSG_ERROR || one->nlmsg_type == NLMSG_DONE);
    EQ(*(int *)NLMSG_DATA(one), -EINVAL);
    // To the middle of an operation, where one would stand that leads to itself, for ever.
    struct inet_diag_bc_op trap[4] = {{INET_DIAG_BC_JMP, 4, 8}, {INET_DIAG_BC_S_GE, 8, 16}, {0, 0, 0}, {INET_DIAG_BC_NOP, 4, 0}};
    memcpy(q.program, trap, sizeof trap);
    ask(fd, &q, sizeof q, NLM_F_DUMP);
    CHECK(recv(fd, text, sizeof text, 0) > 0);
    CHECK(one->nlmsg_type == NLMSG_ERROR || one->nlmsg_type == NLMSG_DONE);
    EQ(*(int *)NLMSG_DATA(one), -EINVAL);
}

CASE(unix_sockets_are_diagnosed) {
    int fd = diag();
    char name[64];
    snprintf(name, sizeof name, "@quark-diag-%d", getpid());
    int listener = unix_socket(SOCK_STREAM, name);
    OK(listen(listener, 9));
    struct unix_diag_req r = {.sdiag_family = AF_UNIX, .udiag_states = -1, .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_RQLEN};
    struct { struct unix_diag_msg m; struct rtattr name; char path[64]; } m;
    struct nlmsghdr *first = ask(fd, &r, sizeof r, NLM_F_DUMP);
    CHECK(recv(fd, text, sizeof text, MSG_PEEK) > 0);
    if (first->nlmsg_type == NLMSG_ERROR && *(int *)NLMSG_DATA(first) == -ENOENT) skip_case("this kernel has no unix_diag");
    CHECK(dumped(fd, inode(listener), offsetof(struct unix_diag_msg, udiag_ino), (char *)&m, sizeof m));
    EQ(m.m.udiag_state, 10);
    EQ(m.m.udiag_type, SOCK_STREAM);
    EQ(m.name.rta_type, UNIX_DIAG_NAME);
    EQ(m.path[0], 0);
    EQ(m.name.rta_len, RTA_LENGTH(strlen(name)));
    CHECK(memcmp(m.path + 1, name + 1, strlen(name) - 1) == 0);
    r.udiag_ino = 0;
    ask(fd, &r, sizeof r, 0);
    CHECK(recv(fd, text, sizeof text, 0) > 0);
    EQ(((struct nlmsgerr *)NLMSG_DATA(first))->error, -EINVAL);
}

CASE(diagnoses_are_of_families_that_are_there) {
    int fd = diag();
    struct sockaddr_nl a;
    socklen_t n = sizeof a;
    unsigned char r[64] = {200};
    struct nlmsghdr *one = ask(fd, r, sizeof r, 0);
    CHECK(recv(fd, text, sizeof text, MSG_PEEK | MSG_TRUNC) > 0);
    // A buffer that is too small takes a part, and the rest is lost.
    EQ(recv(fd, text, 20, MSG_TRUNC), NLMSG_LENGTH(4) + NLMSG_LENGTH(sizeof r));
    EQ(one->nlmsg_type, NLMSG_ERROR);
    EQ(*(int *)NLMSG_DATA(one), -EINVAL);
    ERR(recv(fd, text, sizeof text, MSG_DONTWAIT), EAGAIN);
    OK(getsockname(fd, (void *)&a, &n));
    EQ(a.nl_family, AF_NETLINK);
    CHECK(a.nl_pid != 0);
    int protocol;
    n = sizeof protocol;
    OK(getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n));
    EQ(protocol, NETLINK_SOCK_DIAG);
}

// ---- changes ----

// Asks for a change: the error of the answer.
static int change(unsigned short type, unsigned short flags, const void *body, size_t length) {
    int fd = OK(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
    struct nlmsghdr head = {.nlmsg_len = NLMSG_LENGTH(length), .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags, .nlmsg_seq = 5};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)body, length}};
    EQ(writev(fd, parts, 2), head.nlmsg_len);
    union { struct nlmsghdr head; char bytes[4096]; } answer;
    CHECK(recv(fd, &answer, sizeof answer, 0) >= (int)NLMSG_LENGTH(sizeof(struct nlmsgerr)));
    EQ(answer.head.nlmsg_type, NLMSG_ERROR);
    EQ(answer.head.nlmsg_seq, 5);
    struct nlmsgerr *error = NLMSG_DATA(&answer.head);
    EQ(error->msg.nlmsg_type, type);
    OK(close(fd));
    return error->error;
}

static int change_address(unsigned short type) {
    struct { struct ifaddrmsg body; struct rtattr head; struct in_addr address; } r = {
        .body = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = if_nametoindex("lo")},
        .head = {.rta_len = RTA_LENGTH(4), .rta_type = IFA_LOCAL},
        .address.s_addr = htonl(0x7f4d4d4d)};
    return change(type, type == RTM_NEWADDR ? NLM_F_CREATE | NLM_F_EXCL : 0, &r, sizeof r);
}

static int change_mtu(int mtu) {
    struct { struct ifinfomsg body; struct rtattr head; int mtu; } r = {
        .body = {.ifi_index = if_nametoindex("lo")}, .head = {.rta_len = RTA_LENGTH(4), .rta_type = IFLA_MTU}, .mtu = mtu};
    return change(RTM_NEWLINK, 0, &r, sizeof r);
}

CASE(the_network_is_not_everybodys_to_change) {
    pid_t pid = OK(fork());
    if (pid == 0) {
        OK(setresgid(65534, 65534, 65534));
        OK(setresuid(65534, 65534, 65534));
        EQ(change_address(RTM_NEWADDR), -EPERM);
        EQ(change_mtu(9000), -EPERM);
        struct ifreq r = {.ifr_name = "lo", .ifr_mtu = 9000};
        int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
        ERR(ioctl(fd, SIOCSIFMTU, &r), EPERM);
        ERR(ioctl(fd, SIOCSIFFLAGS, &r), EPERM);
        _exit(0);
    }
    expect_exit(pid, 0);
}

CASE(the_network_is_changed_by_who_may) {
    // Of a network of its own: nothing of the host's is touched where the test runs on it.
    bool own = unshare(CLONE_NEWNET) == 0;
    if (!own) CHECK(errno == EPERM || errno == EINVAL);
    EQ(change_address(RTM_NEWADDR), 0);
    EQ(change_address(RTM_NEWADDR), -EEXIST);
    struct ifaddrs *list;
    OK(getifaddrs(&list));
    bool found = false;
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET) found |= ((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr == htonl(0x7f4d4d4d);
    CHECK(found);
    freeifaddrs(list);
    EQ(change_address(RTM_DELADDR), 0);
    EQ(change_address(RTM_DELADDR), -EADDRNOTAVAIL);
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq r = {.ifr_name = "lo"};
    OK(ioctl(fd, SIOCGIFMTU, &r));
    int before = r.ifr_mtu;
    EQ(change_mtu(9000), 0);
    OK(ioctl(fd, SIOCGIFMTU, &r));
    EQ(r.ifr_mtu, 9000);
    r.ifr_mtu = before;
    OK(ioctl(fd, SIOCSIFMTU, &r));
    OK(ioctl(fd, SIOCGIFMTU, &r));
    EQ(r.ifr_mtu, before);
    strcpy(r.ifr_name, "none0");
    ERR(ioctl(fd, SIOCSIFMTU, &r), ENODEV);
}
