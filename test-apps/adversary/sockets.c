// Sockets, as an attacker without privileges would use them: uid 65534, no capability, no_new_privs. Each attack asks for something that
// Linux gives only to a thread with a capability. Sockets of the internet families are the host's, made by a process that may have
// those capabilities itself: it must not lend them. Prints a line for each attack; the exit code is how many succeeded.
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/if_addr.h>
#include <linux/net_tstamp.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/xfrm.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534

static int successes;

static void report(const char *name, bool got) {
    int error = errno;
    printf("%s %s%s%s\n", got ? "GOT" : "refused", name, got ? "" : ": ", got ? "" : strerror(error));
    successes += got;
}

static int make(int domain, int type, int protocol) { return socket(domain, type | SOCK_CLOEXEC, protocol); }

static void set(const char *name, int domain, int type, int level, int option, const void *value, socklen_t length) {
    int fd = make(domain, type, 0);
    report(name, fd >= 0 && setsockopt(fd, level, option, value, length) == 0);
    close(fd);
}

static void set_int(const char *name, int domain, int type, int level, int option, int value) {
    set(name, domain, type, level, option, &value, sizeof value);
}

static void options(void) {
    set_int("SO_MARK", AF_INET, SOCK_STREAM, SOL_SOCKET, SO_MARK, 1);
    set_int("SO_MARK on netlink", AF_NETLINK, SOCK_RAW, SOL_SOCKET, SO_MARK, 1);
    set_int("SO_RCVBUFFORCE", AF_INET, SOCK_STREAM, SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20);
    set_int("SO_SNDBUFFORCE", AF_INET6, SOCK_STREAM, SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20);
    set_int("SO_PRIORITY 7", AF_INET, SOCK_STREAM, SOL_SOCKET, SO_PRIORITY, 7);
    set_int("SO_PRIORITY -1", AF_INET, SOCK_STREAM, SOL_SOCKET, SO_PRIORITY, -1);
    set_int("SO_DEBUG", AF_INET, SOCK_STREAM, SOL_SOCKET, SO_DEBUG, 1);
    set_int("IP_TRANSPARENT", AF_INET, SOCK_STREAM, IPPROTO_IP, IP_TRANSPARENT, 1);
    set_int("IP_TRANSPARENT by IPv6", AF_INET6, SOCK_STREAM, IPPROTO_IP, IP_TRANSPARENT, 1);
    set_int("IPV6_TRANSPARENT", AF_INET6, SOCK_STREAM, IPPROTO_IPV6, IPV6_TRANSPARENT, 1);
    // struct sock_txtime: CLOCK_TAI needs CAP_NET_ADMIN.
    set("SO_TXTIME", AF_INET, SOCK_DGRAM, SOL_SOCKET, SO_TXTIME, (int[]){CLOCK_TAI, 0}, 8);
    struct xfrm_userpolicy_info policy = {.sel = {.family = AF_INET}, .action = XFRM_POLICY_BLOCK, .dir = XFRM_POLICY_OUT};
    set("IP_XFRM_POLICY", AF_INET, SOCK_DGRAM, IPPROTO_IP, IP_XFRM_POLICY, &policy, sizeof policy);
    policy.sel.family = AF_INET6;
    set("IPV6_XFRM_POLICY", AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, IPV6_XFRM_POLICY, &policy, sizeof policy);
    // An IP option of security labels, which needs CAP_NET_RAW.
    set("IP_OPTIONS security", AF_INET, SOCK_DGRAM, IPPROTO_IP, IP_OPTIONS, "\x82\x0b\0\0\0\0\0\0\0\0\0\0", 12);
    set("IPV6_HOPOPTS", AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, IPV6_HOPOPTS, "\0\0\x01\x04\0\0\0", 8);
    struct ipv6_mreq anycast = {.ipv6mr_multiaddr = IN6ADDR_LOOPBACK_INIT, .ipv6mr_interface = 1};
    set("IPV6_JOIN_ANYCAST", AF_INET6, SOCK_DGRAM, IPPROTO_IPV6, IPV6_JOIN_ANYCAST, &anycast, sizeof anycast);
    set_int("IPv4 table", AF_INET, SOCK_STREAM, IPPROTO_IP, 64, 0);
    set_int("MRT_INIT", AF_INET, SOCK_STREAM, IPPROTO_IP, 200, 1);
    set_int("TCP_REPAIR", AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_REPAIR, 1);
    set_int("NETLINK_LISTEN_ALL_NSID", AF_NETLINK, SOCK_RAW, SOL_NETLINK, NETLINK_LISTEN_ALL_NSID, 1);
    set_int("NETLINK_ADD_MEMBERSHIP MROUTE_R", AF_NETLINK, SOCK_RAW, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_IPV4_MROUTE_R);
}

// Congestion modules that are not for everybody. Where the host has none, the host itself refuses.
static void congestion(void) {
    static const char *const names[] = {"dctcp", "vegas", "hybla", "lp", "westwood", "cdg"};
    char allowed[512] = " ";
    FILE *f = fopen("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "r");
    if (f) {
        if (fgets(allowed + 1, sizeof allowed - 2, f)) strcat(allowed, " ");
        fclose(f);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64], word[64];
        snprintf(name, sizeof name, "TCP_CONGESTION %s", names[i]);
        snprintf(word, sizeof word, " %s", names[i]);
        if (strstr(allowed, word)) continue;
        set(name, AF_INET, SOCK_STREAM, IPPROTO_TCP, TCP_CONGESTION, names[i], strlen(names[i]));
    }
}

static void bound_to_device(void) {
    int fd = make(AF_INET, SOCK_DGRAM, 0);
    bool first = setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3) == 0;
    report("SO_BINDTODEVICE undone", first && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 0) == 0);
    report("SO_BINDTOIFINDEX undone", first && setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &(int){0}, 4) == 0);
    close(fd);
}

static void control(const char *name, int domain, int level, int type, const void *data, size_t length) {
    int fd = make(domain, SOCK_DGRAM, 0);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    char buffer[CMSG_SPACE(64)] __attribute__((aligned(8))) = {0};
    struct iovec iov = {.iov_base = "x", .iov_len = 1};
    struct msghdr message = {
        .msg_name = domain == AF_INET ? (void *)&v4 : (void *)&v6, .msg_namelen = domain == AF_INET ? sizeof v4 : sizeof v6,
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = buffer, .msg_controllen = CMSG_SPACE(length)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(c), data, length);
    report(name, fd >= 0 && sendmsg(fd, &message, MSG_DONTWAIT) == 1);
    close(fd);
}

static void control_messages(void) {
    control("a message with SO_MARK", AF_INET, SOL_SOCKET, SO_MARK, &(int){1}, 4);
    control("a message with hop-by-hop options", AF_INET6, IPPROTO_IPV6, IPV6_HOPOPTS, "\0\0\x01\x04\0\0\0", 8);
    control("a message with an IP security option", AF_INET, IPPROTO_IP, IP_RETOPTS, "\x82\x0b\0\0\0\0\0\0\0\0\0\0", 12);
}

struct request {
    struct nlmsghdr head;
    char body[256];
};

static struct request request(int type, int flags, size_t body) {
    struct request r = {.head = {.nlmsg_len = NLMSG_LENGTH(body), .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags}};
    return r;
}

// Sends a request; whether something other than an error came back.
static bool answered(int fd, struct request *r, const struct sockaddr_nl *to) {
    if (sendto(fd, r, r->head.nlmsg_len, 0, (const void *)to, to ? sizeof *to : 0) < 0) return false;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 500) <= 0) return false;
    union { struct nlmsghdr head; char bytes[8192]; } answer;
    ssize_t n = recv(fd, &answer, sizeof answer, MSG_DONTWAIT);
    if (n < (ssize_t)sizeof(struct nlmsghdr)) return false;
    if (answer.head.nlmsg_type == NLMSG_ERROR) {
        errno = -((struct nlmsgerr *)NLMSG_DATA(&answer.head))->error;
        return errno == 0;
    }
    // What is wrong with a question for a list is told at its end.
    if (answer.head.nlmsg_type == NLMSG_DONE) errno = -*(int *)NLMSG_DATA(&answer.head);
    return answer.head.nlmsg_type != NLMSG_DONE;
}

static void netlink(void) {
    // Something else in the network namespace that listens: a socket of our own stands for it.
    int other = make(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    struct sockaddr_nl name = {.nl_family = AF_NETLINK};
    bind(other, (void *)&name, sizeof name);
    socklen_t n = sizeof name;
    getsockname(other, (void *)&name, &n);

    int fd = make(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    struct request r = request(RTM_GETLINK, 0, sizeof(struct ifinfomsg));
    report("a netlink message to another port", sendto(fd, &r, r.head.nlmsg_len, 0, (void *)&name, sizeof name) > 0);
    report("netlink connect to another port", connect(fd, (void *)&name, sizeof name) == 0);
    report("a netlink message by connect", connect(fd, (void *)&name, sizeof name) == 0 && write(fd, &r, r.head.nlmsg_len) > 0);
    struct sockaddr_nl groups = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    report("netlink connect to a group", connect(fd, (void *)&groups, sizeof groups) == 0);
    close(fd);

    fd = make(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    struct sockaddr_nl routing = {.nl_family = AF_NETLINK, .nl_groups = 1u << (RTNLGRP_IPV4_MROUTE_R - 1)};
    report("a netlink group of multicast routing", bind(fd, (void *)&routing, sizeof routing) == 0);
    close(fd);

    // Changes, alone and hidden behind a question.
    fd = make(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    r = request(RTM_NEWLINK, NLM_F_ACK, sizeof(struct ifinfomsg));
    ((struct ifinfomsg *)r.body)->ifi_index = 1;
    ((struct ifinfomsg *)r.body)->ifi_change = IFF_UP;
    ((struct ifinfomsg *)r.body)->ifi_flags = IFF_UP;
    report("RTM_NEWLINK", answered(fd, &r, NULL));
    // The links of another network namespace, by the number that this one knows it by; and addresses likewise.
    for (int id = 0; id < 4; id++) {
        r = request(RTM_GETLINK, NLM_F_DUMP, sizeof(struct ifinfomsg));
        struct rtattr *a = (void *)((char *)&r + r.head.nlmsg_len);
        *a = (struct rtattr){.rta_type = 46 /* IFLA_TARGET_NETNSID */, .rta_len = RTA_LENGTH(4)};
        memcpy(RTA_DATA(a), &id, 4);
        r.head.nlmsg_len += RTA_SPACE(4);
        report("links of another network namespace", answered(fd, &r, NULL));
    }
    close(fd);
    fd = make(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    r = request(78 /* RTM_GETDCB */, 0, 4);
    report("RTM_GETDCB", answered(fd, &r, NULL));
    close(fd);
    close(other);
}

static void ports(void) {
    for (int family = AF_INET; family <= AF_INET6; family += AF_INET6 - AF_INET) {
        struct sockaddr_in6 address = {.sin6_family = family, .sin6_port = htons(81)};
        int fd = make(family, SOCK_STREAM, 0);
        report("port 81", fd >= 0 && bind(fd, (void *)&address, sizeof address) == 0);
        close(fd);
    }
    // Linux takes an unspecified family for AF_INET here.
    struct sockaddr_in address = {.sin_family = AF_UNSPEC, .sin_port = htons(81)};
    int fd = make(AF_INET, SOCK_STREAM, 0);
    report("port 81 of no family", bind(fd, (void *)&address, sizeof address) == 0);
    close(fd);
}

static void raw(void) {
    static const struct { const char *name; int domain, protocol; } kinds[] = {
        {"raw ICMP", AF_INET, IPPROTO_ICMP}, {"raw ICMPv6", AF_INET6, IPPROTO_ICMPV6}, {"raw IP", AF_INET, IPPROTO_RAW},
        {"raw TCP", AF_INET, IPPROTO_TCP}, {"packets", AF_PACKET, 0x0300}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int fd = make(kinds[i].domain, SOCK_RAW, kinds[i].protocol);
        report(kinds[i].name, fd >= 0);
        if (fd >= 0) close(fd);
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (getuid() == 0 && (setgroups(0, NULL) < 0 || setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)) {
        perror("become nobody");
        return 255;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) {
        perror("no_new_privs");
        return 255;
    }
    options();
    congestion();
    bound_to_device();
    control_messages();
    netlink();
    ports();
    raw();
    printf("%d succeeded\n", successes);
    return successes > 200 ? 200 : successes;
}
