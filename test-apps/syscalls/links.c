// Links, addresses and routes of network namespaces that programs make (rtnetlink(7), veth(4), icmp(7)).
#include "harness.h"

#include <arpa/inet.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

// ---- rtnetlink ----

struct request {
    struct nlmsghdr head;
    char body[2048];
};
static void *append(struct request *r, const void *data, size_t length) {
    void *place = (char *)r + NLMSG_ALIGN(r->head.nlmsg_len);
    if (data) memcpy(place, data, length);
    r->head.nlmsg_len = NLMSG_ALIGN(r->head.nlmsg_len) + length;
    return place;
}
static struct rtattr *attribute(struct request *r, int kind, const void *data, size_t length) {
    struct rtattr head = {RTA_LENGTH(length), kind};
    struct rtattr *place = append(r, &head, sizeof head);
    if (length) append(r, data, length);
    return place;
}
static void end(struct request *r, struct rtattr *nest) { nest->rta_len = (char *)r + r->head.nlmsg_len - (char *)nest; }
static void text(struct request *r, int kind, const char *value) { attribute(r, kind, value, strlen(value) + 1); }
static void word(struct request *r, int kind, uint32_t value) { attribute(r, kind, &value, sizeof value); }
static struct request request(int kind, int flags, const void *body, size_t length) {
    struct request r = {{NLMSG_LENGTH(0), kind, NLM_F_REQUEST | flags, 1, 0}, {0}};
    append(&r, body, length);
    return r;
}
static int netlink(uint32_t groups) {
    int fd = OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = groups};
    OK(bind(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}
// The error that a request is answered with; 0 for none.
static int ask(struct request r) {
    int fd = netlink(0);
    r.head.nlmsg_flags |= NLM_F_ACK;
    EQ(send(fd, &r, r.head.nlmsg_len, 0), r.head.nlmsg_len);
    static char answer[8192];
    struct nlmsghdr *head = (void *)answer;
    do OK(recv(fd, answer, sizeof answer, 0));
    while (head->nlmsg_type != NLMSG_ERROR);
    OK(close(fd));
    return -((struct nlmsgerr *)NLMSG_DATA(head))->error;
}
#define NEW (NLM_F_CREATE | NLM_F_EXCL)
#define DONE(request) EQ(ask(request), 0)

static struct request new_link(const char *kind, const char *name) {
    struct ifinfomsg info = {0};
    struct request r = request(RTM_NEWLINK, NEW, &info, sizeof info);
    if (name) text(&r, IFLA_IFNAME, name);
    struct rtattr *nest = attribute(&r, IFLA_LINKINFO, NULL, 0);
    attribute(&r, IFLA_INFO_KIND, kind, strlen(kind));
    end(&r, nest);
    return r;
}
// A pair, each in the namespace of its descriptor, or where who asks is, if that is -1.
static int pair_in(const char *one, int fd_of_one, const char *two, int fd_of_two) {
    struct ifinfomsg info = {0};
    struct request r = request(RTM_NEWLINK, NEW, &info, sizeof info);
    text(&r, IFLA_IFNAME, one);
    if (fd_of_one >= 0) word(&r, IFLA_NET_NS_FD, fd_of_one);
    struct rtattr *nest = attribute(&r, IFLA_LINKINFO, NULL, 0);
    attribute(&r, IFLA_INFO_KIND, "veth", 4);
    struct rtattr *data = attribute(&r, IFLA_INFO_DATA, NULL, 0);
    struct rtattr *peer = attribute(&r, VETH_INFO_PEER, NULL, 0);
    append(&r, &info, sizeof info);
    text(&r, IFLA_IFNAME, two);
    if (fd_of_two >= 0) word(&r, IFLA_NET_NS_FD, fd_of_two);
    end(&r, peer);
    end(&r, data);
    end(&r, nest);
    int error = ask(r);
    if (error == EOPNOTSUPP) skip_case("this kernel has no veth");
    return error;
}
static int pair(const char *one, const char *two, int fd) { return pair_in(one, -1, two, fd); }
static struct request set_link(const char *name, unsigned flags, unsigned mask) {
    struct ifinfomsg info = {.ifi_index = if_nametoindex(name), .ifi_flags = flags, .ifi_change = mask};
    CHECK(info.ifi_index);
    return request(RTM_SETLINK, 0, &info, sizeof info);
}
static void up(const char *name) { DONE(set_link(name, IFF_UP, IFF_UP)); }
static void down(const char *name) { DONE(set_link(name, 0, IFF_UP)); }
static int delete_link(const char *name) {
    struct ifinfomsg info = {0};
    struct request r = request(RTM_DELLINK, 0, &info, sizeof info);
    text(&r, IFLA_IFNAME, name);
    return ask(r);
}
static int bytes_of(const char *ip, char bytes[16]) {
    if (inet_pton(AF_INET, ip, bytes) == 1) return AF_INET;
    EQ(inet_pton(AF_INET6, ip, bytes), 1);
    return AF_INET6;
}
#define LENGTH(family) ((family) == AF_INET ? 4 : 16)
static int address(int kind, const char *name, const char *ip, int prefix) {
    char bytes[16];
    int family = bytes_of(ip, bytes);
    struct ifaddrmsg about = {family, prefix, family == AF_INET6 ? IFA_F_NODAD : 0, 0, if_nametoindex(name)};
    struct request r = request(kind, kind == RTM_NEWADDR ? NEW : 0, &about, sizeof about);
    attribute(&r, IFA_LOCAL, bytes, LENGTH(family));
    attribute(&r, IFA_ADDRESS, bytes, LENGTH(family));
    return ask(r);
}
static void has(const char *name, const char *ip, int prefix) { EQ(address(RTM_NEWADDR, name, ip, prefix), 0); }
static int route(int kind, int flags, const char *to, int prefix, const char *gateway, const char *name, int type) {
    char bytes[16];
    int family = bytes_of(to, bytes);
    struct rtmsg about = {.rtm_family = family,
                          .rtm_dst_len = prefix,
                          .rtm_table = RT_TABLE_MAIN,
                          .rtm_protocol = RTPROT_BOOT,
                          .rtm_scope = gateway || type != RTN_UNICAST ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK,
                          .rtm_type = type};
    struct request r = request(kind, flags, &about, sizeof about);
    if (prefix) attribute(&r, RTA_DST, bytes, LENGTH(family));
    if (gateway) {
        bytes_of(gateway, bytes);
        attribute(&r, RTA_GATEWAY, bytes, LENGTH(family));
    }
    if (name) word(&r, RTA_OIF, if_nametoindex(name));
    return ask(r);
}
static int add_route(const char *to, int prefix, const char *gateway, const char *name) {
    return route(RTM_NEWROUTE, NEW, to, prefix, gateway, name, RTN_UNICAST);
}

// ---- namespaces ----

static int here(void) { return OK(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)); }
static int namespace(void) {
    OK(unshare(CLONE_NEWNET));
    up("lo");
    return here();
}
static void enter(int fd) { OK(setns(fd, CLONE_NEWNET)); }
// Two namespaces with a pair between: v0 with 10.0.0.1 in the first, where this is afterwards, v1 with 10.0.0.2.
static void two(int fds[2]) {
    fds[1] = namespace();
    fds[0] = namespace();
    EQ(pair("v0", "v1", fds[1]), 0);
    has("v0", "10.0.0.1", 24);
    up("v0");
    enter(fds[1]);
    has("v1", "10.0.0.2", 24);
    up("v1");
    enter(fds[0]);
}
// Three namespaces: 10.0.1.1 and 10.0.2.2 with pairs to the second, where this is afterwards, with .254 of each network.
static void three(int fds[3]) {
    for (int i = 0; i < 3; i++) fds[i] = namespace();
    enter(fds[0]);
    EQ(pair("v", "v1", fds[1]), 0);
    has("v", "10.0.1.1", 24);
    up("v");
    enter(fds[2]);
    EQ(pair("v", "v2", fds[1]), 0);
    has("v", "10.0.2.2", 24);
    up("v");
    enter(fds[1]);
    has("v1", "10.0.1.254", 24);
    has("v2", "10.0.2.254", 24);
    up("v1");
    up("v2");
}
// One link, whose other end is there, too.
static void lone(const char *name) {
    char other[16];
    snprintf(other, sizeof other, "to-%s", name);
    EQ(pair(name, other, -1), 0);
    up(other);
}
static unsigned flags_of(const char *name) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq about = {0};
    strcpy(about.ifr_name, name);
    OK(ioctl(fd, SIOCGIFFLAGS, &about));
    OK(close(fd));
    return (unsigned short)about.ifr_flags;
}

// ---- sockets ----

static struct sockaddr_in at(const char *ip, int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(ip)};
}
#define ADDRESS(a) (struct sockaddr *)&(a), sizeof(a)
static int bound(int kind, const char *ip, int port) {
    int fd = OK(socket(AF_INET, kind | SOCK_CLOEXEC, 0));
    struct sockaddr_in address = at(ip, port);
    OK(bind(fd, ADDRESS(address)));
    if (kind == SOCK_STREAM) OK(listen(fd, 5));
    return fd;
}
static int connected(const char *ip, int port) {
    int fd = OK(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    struct sockaddr_in address = at(ip, port);
    OK(connect(fd, ADDRESS(address)));
    return fd;
}
static void peer_is(int fd, const char *ip) {
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    OK(getpeername(fd, (struct sockaddr *)&name, &length));
    STR_EQ(inet_ntoa(name.sin_addr), ip);
}
static void talk(int client, int listener, const char *from) {
    int served = OK(accept(listener, NULL, NULL));
    peer_is(served, from);
    char got[8];
    EQ(write(client, "question", 8), 8);
    EQ(recv(served, got, 8, MSG_WAITALL), 8);
    CHECK(!memcmp(got, "question", 8));
    EQ(write(served, "answered", 8), 8);
    EQ(recv(client, got, 8, MSG_WAITALL), 8);
    CHECK(!memcmp(got, "answered", 8));
    OK(close(served));
}

CASE(a_pair_comes_and_goes_as_one) {
    namespace();
    EQ(pair("va", "vb", -1), 0);
    CHECK(if_nametoindex("va") > 1 && if_nametoindex("vb") > 1 && if_nametoindex("va") != if_nametoindex("vb"));
    EQ(flags_of("va"), IFF_BROADCAST | IFF_MULTICAST);
    up("va");
    WAIT_UNTIL(flags_of("va") == (IFF_BROADCAST | IFF_MULTICAST | IFF_UP));
    up("vb");
    WAIT_UNTIL(flags_of("va") == (IFF_BROADCAST | IFF_MULTICAST | IFF_UP | IFF_RUNNING));
    down("vb");
    WAIT_UNTIL(!(flags_of("va") & IFF_RUNNING));
    EQ(delete_link("vb"), 0);
    EQ(if_nametoindex("va"), 0);
    EQ(delete_link("va"), ENODEV);
    EQ(delete_link("lo"), EOPNOTSUPP);
}
CASE(names_are_there_once) {
    namespace();
    EQ(pair("a", "b", -1), 0);
    EQ(pair("c", "a", -1), EEXIST);
    EQ(if_nametoindex("c"), 0);
    EQ(pair("a", "c", -1), EEXIST);
    EQ(pair("c", "c", -1), EEXIST);
    EQ(pair("lo", "c", -1), EEXIST);
    EQ(pair("a/b", "c", -1), EINVAL);
    EQ(pair("..", "c", -1), EINVAL);
    EQ(ask(new_link("nonsense", "c")), EOPNOTSUPP);
    DONE(new_link("veth", NULL));
    CHECK(if_nametoindex("veth0") && if_nametoindex("veth1"));
    struct request r = set_link("veth0", 0, 0);
    text(&r, IFLA_IFNAME, "other");
    DONE(r);
    CHECK(if_nametoindex("other") && !if_nametoindex("veth0"));
    r = set_link("other", 0, 0);
    text(&r, IFLA_IFNAME, "a");
    EQ(ask(r), EEXIST);
    EQ(delete_link("other"), 0);
    EQ(if_nametoindex("veth1"), 0);
}
CASE(dummies_lose_all) {
    namespace();
    if (ask(new_link("dummy", "d")) == EOPNOTSUPP) skip_case("this kernel has no dummies");
    EQ(flags_of("d"), IFF_BROADCAST | IFF_NOARP);
    has("d", "10.0.0.1", 24);
    up("d");
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("10.0.0.2", 9);
    EQ(sendto(fd, "x", 1, 0, ADDRESS(to)), 1);
    EQ(delete_link("d"), 0);
}
CASE(addresses_bring_routes) {
    namespace();
    lone("d");
    has("d", "10.1.2.3", 16);
    EQ(address(RTM_NEWADDR, "d", "10.1.2.3", 16), EEXIST);
    static char table[4096];
    read_file("/proc/thread-self/net/route", table, sizeof table);
    CHECK(!strstr(table, "0000010A"));
    up("d");
    read_file("/proc/thread-self/net/route", table, sizeof table);
    CHECK(strstr(table, "d\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF"));
    bound(SOCK_DGRAM, "10.1.2.3", 80);
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("10.1.7.7", 9);
    OK(connect(fd, ADDRESS(to)));
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    OK(getsockname(fd, (struct sockaddr *)&name, &length));
    STR_EQ(inet_ntoa(name.sin_addr), "10.1.2.3");
    to = at("10.2.0.1", 9);
    ERR(connect(fd, ADDRESS(to)), ENETUNREACH);
    EQ(address(RTM_DELADDR, "d", "10.1.2.4", 16), EADDRNOTAVAIL);
    EQ(address(RTM_DELADDR, "d", "10.1.2.3", 16), 0);
    to = at("10.1.2.3", 80);
    ERR(bind(OK(socket(AF_INET, SOCK_DGRAM, 0)), ADDRESS(to)), EADDRNOTAVAIL);
    ERR(connect(fd, ADDRESS(to)), ENETUNREACH);
    EQ(address(RTM_NEWADDR, "d", "10.1.2.3", 33), EINVAL);
    has("d", "10.1.2.3", 16);
    down("d");
    // The address is its own still; its network has no route.
    OK(connect(fd, ADDRESS(to)));
    to = at("10.1.7.7", 9);
    ERR(connect(fd, ADDRESS(to)), ENETUNREACH);
}
CASE(connections_between_two) {
    int fds[2];
    two(fds);
    enter(fds[1]);
    int listener = bound(SOCK_STREAM, "0.0.0.0", 80);
    enter(fds[0]);
    int client = connected("10.0.0.2", 80);
    peer_is(client, "10.0.0.2");
    talk(client, listener, "10.0.0.1");
    struct sockaddr_in to = at("10.0.0.2", 81);
    ERR(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), ADDRESS(to)), ECONNREFUSED);
    // To its own address it is a connection of its own.
    int own = bound(SOCK_STREAM, "10.0.0.1", 80);
    talk(connected("10.0.0.1", 80), own, "10.0.0.1");
    // Names of another namespace are not its own.
    ERR(bind(OK(socket(AF_INET, SOCK_STREAM, 0)), ADDRESS(to)), EADDRNOTAVAIL);
}
CASE(much_goes_between_two) {
    int fds[2];
    two(fds);
    enter(fds[1]);
    int listener = bound(SOCK_STREAM, "10.0.0.2", 80);
    enter(fds[0]);
    enum { ALL = 4 << 20 };
    pid_t child = OK(fork());
    if (child == 0) {
        int fd = connected("10.0.0.2", 80);
        static uint32_t piece[4096];
        for (uint32_t sent = 0; sent < ALL; sent += sizeof piece) {
            for (size_t i = 0; i < 4096; i++) piece[i] = sent + i;
            for (size_t done = 0; done < sizeof piece;) done += OK(write(fd, (char *)piece + done, sizeof piece - done));
        }
        _exit(0);
    }
    int served = OK(accept(listener, NULL, NULL));
    static uint32_t piece[4096];
    for (uint32_t got = 0; got < ALL; got += sizeof piece) {
        EQ(recv(served, piece, sizeof piece, MSG_WAITALL), sizeof piece);
        for (size_t i = 0; i < 4096; i++) EQ(piece[i], got + i);
    }
    EQ(read(served, piece, 1), 0);
    expect_exit(child, 0);
}
CASE(datagrams_between_two) {
    int fds[2];
    two(fds);
    enter(fds[1]);
    int server = bound(SOCK_DGRAM, "0.0.0.0", 53);
    enter(fds[0]);
    int client = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("10.0.0.2", 53), from;
    EQ(sendto(client, "ask", 3, 0, ADDRESS(to)), 3);
    char got[16];
    socklen_t length = sizeof from;
    EQ(recvfrom(server, got, sizeof got, 0, (struct sockaddr *)&from, &length), 3);
    STR_EQ(inet_ntoa(from.sin_addr), "10.0.0.1");
    EQ(sendto(server, "told", 4, 0, ADDRESS(from)), 4);
    EQ(recvfrom(client, got, sizeof got, 0, (struct sockaddr *)&from, &length), 4);
    STR_EQ(inet_ntoa(from.sin_addr), "10.0.0.2");
    // While the other one is down it is lost.
    enter(fds[1]);
    down("v1");
    enter(fds[0]);
    EQ(sendto(client, "lost", 4, 0, ADDRESS(to)), 4);
    ERR(recv(server, got, sizeof got, MSG_DONTWAIT), EAGAIN);
}
CASE(ipv6_between_two) {
    int fds[2];
    two(fds);
    has("v0", "fd00::1", 64);
    enter(fds[1]);
    has("v1", "fd00::2", 64);
    int listener = OK(socket(AF_INET6, SOCK_STREAM, 0));
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons(80)};
    OK(bind(listener, ADDRESS(to)));
    OK(listen(listener, 5));
    enter(fds[0]);
    EQ(inet_pton(AF_INET6, "fd00::2", &to.sin6_addr), 1);
    int client = OK(socket(AF_INET6, SOCK_STREAM, 0));
    OK(connect(client, ADDRESS(to)));
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    int served = OK(accept(listener, (struct sockaddr *)&name, &length));
    char ip[64];
    STR_EQ(inet_ntop(AF_INET6, &name.sin6_addr, ip, sizeof ip), "fd00::1");
    EQ(write(client, "x", 1), 1);
    EQ(read(served, ip, 2), 1);
    // It hears what comes by IPv4, too.
    client = connected("10.0.0.2", 80);
    served = OK(accept(listener, (struct sockaddr *)&name, &length));
    STR_EQ(inet_ntop(AF_INET6, &name.sin6_addr, ip, sizeof ip), "::ffff:10.0.0.1");
}
CASE(a_link_moves_to_another_namespace) {
    int other = namespace(), own = namespace();
    EQ(pair("va", "vb", -1), 0);
    has("vb", "10.0.0.9", 24);
    up("vb");
    struct request r = set_link("vb", 0, 0);
    word(&r, IFLA_NET_NS_FD, other);
    DONE(r);
    EQ(if_nametoindex("vb"), 0);
    enter(other);
    EQ(flags_of("vb"), IFF_BROADCAST | IFF_MULTICAST);
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq about = {.ifr_name = "vb"};
    ERR(ioctl(fd, SIOCGIFADDR, &about), EADDRNOTAVAIL);
    lone("va");
    enter(own);
    r = set_link("va", 0, 0);
    word(&r, IFLA_NET_NS_FD, other);
    EQ(ask(r), EEXIST);
    r = set_link("lo", 0, 0);
    word(&r, IFLA_NET_NS_FD, other);
    EQ(ask(r), EINVAL);
    r = set_link("va", 0, 0);
    word(&r, IFLA_NET_NS_PID, 0x7ffffff0);
    EQ(ask(r), ESRCH);
    EQ(delete_link("va"), 0);
    enter(other);
    EQ(if_nametoindex("vb"), 0);
}
CASE(it_ends_with_its_namespace) {
    int fds[2];
    OK(pipe(fds));
    int own = namespace();
    lone("own");
    pid_t child = OK(fork());
    if (child == 0) {
        OK(unshare(CLONE_NEWNET));
        EQ(pair("inner", "outer", own), 0);
        EQ(write(fds[1], "x", 1), 1);
        pause();
    }
    char got;
    EQ(read(fds[0], &got, 1), 1);
    CHECK(if_nametoindex("outer"));
    OK(kill(child, SIGKILL));
    OK(waitpid(child, NULL, 0));
    WAIT_UNTIL(!if_nametoindex("outer"));
}
CASE(a_gateway_between_two) {
    int fds[3];
    three(fds);
    int a = fds[0], b = fds[1], c = fds[2];
    enter(a);
    struct sockaddr_in to = at("10.0.2.2", 80);
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    ERR(connect(fd, ADDRESS(to)), ENETUNREACH);
    EQ(add_route("0.0.0.0", 0, "10.0.9.254", NULL), ENETUNREACH);
    EQ(add_route("0.0.0.0", 0, "10.0.1.254", NULL), 0);
    EQ(add_route("0.0.0.0", 0, "10.0.1.253", NULL), EEXIST);
    enter(c);
    EQ(add_route("10.0.1.0", 24, "10.0.2.254", "v"), 0);
    int listener = bound(SOCK_STREAM, "10.0.2.2", 80), datagrams = bound(SOCK_DGRAM, "10.0.2.2", 53);
    enter(a);
    int sender = OK(socket(AF_INET, SOCK_DGRAM, 0));
    to = at("10.0.2.2", 53);
    EQ(sendto(sender, "lost", 4, 0, ADDRESS(to)), 4);
    char got[8];
    ERR(recv(datagrams, got, sizeof got, MSG_DONTWAIT), EAGAIN);
    enter(b);
    static char is_on[8];
    read_file("/proc/sys/net/ipv4/ip_forward", is_on, sizeof is_on);
    STR_EQ(is_on, "0\n");
    write_file("/proc/sys/net/ipv4/ip_forward", "1");
    enter(a);
    read_file("/proc/sys/net/ipv4/ip_forward", is_on, sizeof is_on);
    STR_EQ(is_on, "0\n");
    EQ(sendto(sender, "come", 4, 0, ADDRESS(to)), 4);
    EQ(recv(datagrams, got, sizeof got, 0), 4);
    talk(connected("10.0.2.2", 80), listener, "10.0.1.1");
}
CASE(routes) {
    namespace();
    lone("d");
    EQ(add_route("10.9.0.0", 16, NULL, "d"), ENETDOWN);
    has("d", "10.0.0.1", 24);
    up("d");
    EQ(add_route("10.9.0.0", 16, NULL, "d"), 0);
    EQ(add_route("10.9.0.0", 16, NULL, "d"), EEXIST);
    EQ(add_route("10.9.0.1", 16, NULL, "d"), EINVAL);
    EQ(route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, "10.9.0.0", 16, "10.0.0.9", NULL, RTN_UNICAST), 0);
    EQ(route(RTM_NEWROUTE, NEW, "10.9.1.0", 24, NULL, NULL, RTN_UNREACHABLE), 0);
    EQ(route(RTM_NEWROUTE, NEW, "10.9.2.0", 24, NULL, NULL, RTN_PROHIBIT), 0);
    EQ(route(RTM_NEWROUTE, NEW, "10.9.3.0", 24, NULL, NULL, RTN_BLACKHOLE), 0);
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("10.9.0.1", 9);
    OK(connect(fd, ADDRESS(to)));
    to = at("10.9.1.1", 9);
    ERR(connect(fd, ADDRESS(to)), EHOSTUNREACH);
    to = at("10.9.2.1", 9);
    ERR(connect(fd, ADDRESS(to)), EACCES);
    to = at("10.9.3.1", 9);
    ERR(connect(fd, ADDRESS(to)), EINVAL);
    static char table[4096];
    read_file("/proc/thread-self/net/route", table, sizeof table);
    CHECK(strstr(table, "d\t0000090A\t0900000A\t0003\t0\t0\t0\t0000FFFF"));
    EQ(route(RTM_DELROUTE, 0, "10.9.0.0", 16, "10.0.0.8", NULL, RTN_UNICAST), ESRCH);
    EQ(route(RTM_DELROUTE, 0, "10.9.0.0", 16, NULL, NULL, RTN_UNICAST), ESRCH) /* of another scope */;
    EQ(route(RTM_DELROUTE, 0, "10.9.0.0", 16, "10.0.0.9", NULL, RTN_UNICAST), 0);
    EQ(route(RTM_DELROUTE, 0, "10.9.0.0", 16, "10.0.0.9", NULL, RTN_UNICAST), ESRCH);
    to = at("10.9.0.1", 9);
    ERR(connect(fd, ADDRESS(to)), ENETUNREACH);
}
CASE(a_bridge_joins_its_ports) {
    int middle = namespace();
    lone("own");
    DONE(new_link("bridge", "br0"));
    has("br0", "10.0.0.254", 24);
    up("br0");
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = namespace();
        char port[16], ip[16];
        sprintf(port, "port%d", i);
        sprintf(ip, "10.0.0.%d", i + 1);
        EQ(pair("eth0", port, middle), 0);
        has("eth0", ip, 24);
        up("eth0");
        enter(middle);
        struct request r = set_link(port, IFF_UP, IFF_UP);
        word(&r, IFLA_MASTER, if_nametoindex("br0"));
        DONE(r);
    }
    WAIT_UNTIL(flags_of("br0") & IFF_RUNNING);
    enter(fds[2]);
    int listener = bound(SOCK_STREAM, "10.0.0.3", 80);
    enter(fds[0]);
    talk(connected("10.0.0.3", 80), listener, "10.0.0.1");
    enter(middle);
    talk(connected("10.0.0.3", 80), listener, "10.0.0.254");
    struct request r = set_link("port0", 0, 0);
    word(&r, IFLA_MASTER, if_nametoindex("lo"));
    EQ(ask(r), EOPNOTSUPP);
    r = set_link("br0", 0, 0);
    word(&r, IFLA_MASTER, if_nametoindex("br0"));
    EQ(ask(r), ELOOP);
    EQ(delete_link("br0"), 0);
    CHECK(if_nametoindex("port0"));
}
CASE(who_may_not_changes_nothing) {
    int other = namespace();
    namespace();
    EQ(pair("va", "vb", -1), 0);
    AS_NOBODY({
        EQ(ask(new_link("veth", "d")), EPERM);
        EQ(delete_link("va"), EPERM);
        EQ(ask(set_link("va", IFF_UP, IFF_UP)), EPERM);
        EQ(address(RTM_NEWADDR, "va", "10.0.0.1", 24), EPERM);
        EQ(add_route("10.9.0.0", 16, NULL, "va"), EPERM);
        // Root of a namespace of its own is nobody in others.
        OK(unshare(CLONE_NEWUSER | CLONE_NEWNET));
        EQ(pair("va", "vb", -1), 0);
        struct request r = set_link("vb", 0, 0);
        word(&r, IFLA_NET_NS_FD, other);
        EQ(ask(r), EPERM);
    });
}
CASE(who_asks_is_told_of_changes) {
    namespace();
    static char got[8192];
    struct nlmsghdr *head = (void *)got;
    int fd = netlink(RTMGRP_LINK);
    lone("told");
    int told = 0;
    while (told != 3) {
        OK(recv(fd, got, sizeof got, 0));
        EQ(head->nlmsg_type, RTM_NEWLINK);
        unsigned index = ((struct ifinfomsg *)NLMSG_DATA(head))->ifi_index;
        told |= index == if_nametoindex("told") ? 1 : index == if_nametoindex("to-told") ? 2 : 0;
    }
    OK(close(fd));
    fd = netlink(RTMGRP_IPV4_IFADDR);
    has("told", "10.0.0.1", 24);
    OK(recv(fd, got, sizeof got, 0));
    EQ(head->nlmsg_type, RTM_NEWADDR);
    EQ(address(RTM_DELADDR, "told", "10.0.0.1", 24), 0);
    OK(recv(fd, got, sizeof got, 0));
    EQ(head->nlmsg_type, RTM_DELADDR);
    int group = RTNLGRP_IPV4_IFADDR;
    OK(setsockopt(fd, SOL_NETLINK, NETLINK_DROP_MEMBERSHIP, &group, sizeof group));
    group = RTNLGRP_LINK;
    OK(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group));
    has("told", "10.0.0.1", 24);
    EQ(delete_link("told"), 0);
    do OK(recv(fd, got, sizeof got, 0));
    while (head->nlmsg_type == RTM_NEWLINK);
    EQ(head->nlmsg_type, RTM_DELLINK);
    group = 0;
    ERR(setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group), EINVAL);
    // Of another namespace nothing is told.
    fd = netlink(RTMGRP_LINK);
    namespace();
    lone("untold");
    ERR(recv(fd, got, sizeof got, MSG_DONTWAIT), EAGAIN);
}

// ---- ping ----

// Not in the library's headers.
enum { ICMP_FILTER = 1 };

struct ping {
    struct icmphdr head;
    char data[8];
};
static unsigned short sum(const void *data, size_t length) {
    const unsigned short *words = data;
    unsigned all = 0;
    for (size_t i = 0; i < length / 2; i++) all += words[i];
    while (all >> 16) all = (all & 0xffff) + (all >> 16);
    return ~all;
}
CASE(echoes_of_those_that_may_ask) {
    int fds[2];
    two(fds);
    ERR(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP), EACCES);
    write_file("/proc/sys/net/ipv4/ping_group_range", "0 0");
    int fd = OK(socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP)), on = 1;
    OK(setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof on));
    const char *to[] = {"127.0.0.1", "10.0.0.1", "10.0.0.2"};
    for (int i = 0; i < 3; i++) {
        struct ping ping = {{.type = ICMP_ECHO, .un.echo = {.id = 7, .sequence = htons(i)}}, "echoing"}, got;
        struct sockaddr_in address = at(to[i], 0), from;
        EQ(sendto(fd, &ping, sizeof ping, 0, ADDRESS(address)), sizeof ping);
        char control[64];
        struct iovec part = {&got, sizeof got};
        struct msghdr message = {&from, sizeof from, &part, 1, control, sizeof control, 0};
        EQ(recvmsg(fd, &message, 0), sizeof got);
        EQ(got.head.type, ICMP_ECHOREPLY);
        EQ(got.head.un.echo.sequence, htons(i));
        CHECK(got.head.un.echo.id != 7);
        EQ(sum(&got, sizeof got), 0);
        STR_EQ(got.data, "echoing");
        STR_EQ(inet_ntoa(from.sin_addr), to[i]);
        struct cmsghdr *ttl = CMSG_FIRSTHDR(&message);
        CHECK(ttl && ttl->cmsg_level == IPPROTO_IP && ttl->cmsg_type == IP_TTL);
        EQ(*(int *)CMSG_DATA(ttl), 64);
    }
    struct ping reply = {{.type = ICMP_ECHOREPLY}, ""};
    struct sockaddr_in address = at("127.0.0.1", 0);
    ERR(sendto(fd, &reply, sizeof reply, 0, ADDRESS(address)), EINVAL);
    ERR(sendto(fd, &reply, 7, 0, ADDRESS(address)), EINVAL);
    address = at("10.9.9.9", 0);
    reply.head.type = ICMP_ECHO;
    ERR(sendto(fd, &reply, 8, 0, ADDRESS(address)), ENETUNREACH);
    char byte;
    ERR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    ERR(recv(fd, &byte, 1, MSG_ERRQUEUE), EAGAIN);
}
CASE(raw_sockets_hear_all_of_icmp) {
    namespace();
    int fd = OK(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    struct ping ping = {{.type = ICMP_ECHO, .un.echo = {.id = htons(77), .sequence = htons(1)}}, "echoing"};
    ping.head.checksum = sum(&ping, sizeof ping);
    struct sockaddr_in address = at("127.0.0.1", 0);
    for (int filtered = 0; filtered < 2; filtered++) {
        EQ(sendto(fd, &ping, sizeof ping, 0, ADDRESS(address)), sizeof ping);
        for (int kind = filtered ? ICMP_ECHOREPLY : ICMP_ECHO;; kind = ICMP_ECHOREPLY) {
            struct {
                unsigned char head[20];
                struct ping ping;
            } got;
            EQ(recv(fd, &got, sizeof got, 0), sizeof got);
            EQ(got.head[0], 0x45);
            EQ(got.head[8], 64);
            EQ(got.head[9], IPPROTO_ICMP);
            EQ(got.ping.head.type, kind);
            EQ(got.ping.head.un.echo.id, htons(77));
            EQ(sum(&got.ping, sizeof got.ping), 0);
            if (kind == ICMP_ECHOREPLY) break;
        }
        unsigned filter = 1 << ICMP_ECHO;
        OK(setsockopt(fd, SOL_RAW, ICMP_FILTER, &filter, sizeof filter));
    }
    char byte;
    ERR(recv(fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
    AS_NOBODY({ ERR(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), EPERM); });
}
CASE(what_ioctl_sets) {
    namespace();
    lone("d");
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq about = {.ifr_name = "d"};
    struct sockaddr_in address = at("192.168.7.1", 0);
    memcpy(&about.ifr_addr, &address, sizeof address);
    OK(ioctl(fd, SIOCSIFADDR, &about));
    EQ(flags_of("d") & IFF_UP, 0);
    up("d");
    OK(ioctl(fd, SIOCGIFNETMASK, &about));
    STR_EQ(inet_ntoa(((struct sockaddr_in *)&about.ifr_addr)->sin_addr), "255.255.255.0");
    OK(ioctl(fd, SIOCGIFBRDADDR, &about));
    STR_EQ(inet_ntoa(((struct sockaddr_in *)&about.ifr_addr)->sin_addr), "192.168.7.255");
    address = at("255.255.0.0", 0);
    memcpy(&about.ifr_addr, &address, sizeof address);
    OK(ioctl(fd, SIOCSIFNETMASK, &about));
    address = at("192.168.200.1", 9);
    OK(connect(fd, ADDRESS(address)));
    OK(ioctl(fd, SIOCGIFHWADDR, &about));
    EQ(about.ifr_hwaddr.sa_family, 1 /* ARPHRD_ETHER */);
    EQ(about.ifr_hwaddr.sa_data[0] & 3, 2);
    about.ifr_mtu = 20;
    ERR(ioctl(fd, SIOCSIFMTU, &about), EINVAL);
    about.ifr_ifindex = if_nametoindex("d");
    OK(ioctl(fd, SIOCGIFNAME, &about));
    STR_EQ(about.ifr_name, "d");
}
CASE(many_links) {
    int other = namespace(), own = namespace();
    for (int i = 0; i < 200; i++) {
        char one[16], two[16];
        sprintf(one, "a%d", i);
        sprintf(two, "b%d", i);
        EQ(pair(one, two, i % 2 ? other : -1), 0);
        up(one);
    }
    struct if_nameindex *all = if_nameindex();
    int count = 0;
    while (all[count].if_index) count++;
    EQ(count, 301);
    OK(close(other));
    OK(close(own));
    namespace();
}
CASE(a_pair_between_others_is_made_from_outside) {
    int outside = here(), a = namespace(), b = namespace();
    lone("own");
    enter(outside);
    EQ(pair_in("inner", a, "outer", b), 0);
    EQ(if_nametoindex("inner"), 0);
    EQ(if_nametoindex("outer"), 0);
    enter(a);
    CHECK(if_nametoindex("inner"));
    enter(b);
    CHECK(if_nametoindex("outer"));
}
CASE(a_message_goes_so_many_hops) {
    int fds[3];
    three(fds);
    int a = fds[0], c = fds[2];
    write_file("/proc/sys/net/ipv4/ip_forward", "1");
    enter(c);
    int server = bound(SOCK_DGRAM, "10.0.2.2", 53);
    enter(a);
    EQ(add_route("0.0.0.0", 0, "10.0.1.254", NULL), 0);
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("10.0.2.2", 53);
    char got[8];
    for (int hops = 1; hops <= 2; hops++) {
        OK(setsockopt(fd, IPPROTO_IP, IP_TTL, &hops, sizeof hops));
        OK(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops));
        EQ(sendto(fd, hops == 1 ? "lost" : "come", 4, 0, ADDRESS(to)), 4);
    }
    EQ(recv(server, got, sizeof got, 0), 4);
    CHECK(!memcmp(got, "come", 4));
    ERR(recv(server, got, sizeof got, MSG_DONTWAIT), EAGAIN);
}

static void bind_to(int fd, const char *device) { OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, strlen(device))); }
static int on_device(int kind, const char *device, int port) {
    int fd = OK(socket(AF_INET, kind | SOCK_CLOEXEC, 0));
    bind_to(fd, device);
    struct sockaddr_in any = at("0.0.0.0", port);
    OK(bind(fd, ADDRESS(any)));
    if (kind == SOCK_STREAM) OK(listen(fd, 5));
    return fd;
}
// A port of each interface is another's.
CASE(sockets_are_bound_to_their_interface) {
    int fds[2];
    two(fds);
    enter(fds[1]);
    int far = on_device(SOCK_DGRAM, "v1", 5353), near = on_device(SOCK_DGRAM, "lo", 5353), own = OK(socket(AF_INET, SOCK_DGRAM, 0));
    int listener = on_device(SOCK_STREAM, "v1", 8080);
    struct sockaddr_in lo = at("127.0.0.1", 5353), v1 = at("10.0.0.2", 5353);
    EQ(sendto(own, "n", 1, 0, ADDRESS(lo)), 1);
    lo.sin_port = htons(8080);
    ERR(connect(OK(socket(AF_INET, SOCK_STREAM, 0)), ADDRESS(lo)), ECONNREFUSED);
    enter(fds[0]);
    int client = OK(socket(AF_INET, SOCK_DGRAM, 0));
    bind_to(client, "v0");
    EQ(sendto(client, "f", 1, 0, ADDRESS(v1)), 1);
    char got[2];
    EQ(read(far, got, 2), 1);
    EQ(got[0], 'f');
    EQ(read(near, got, 2), 1);
    EQ(got[0], 'n');
    int stream = OK(socket(AF_INET, SOCK_STREAM, 0));
    bind_to(stream, "v0");
    v1.sin_port = htons(8080);
    OK(connect(stream, ADDRESS(v1)));
    talk(stream, listener, "10.0.0.1");
    // By the interface that a message says.
    char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
    struct iovec part = {"p", 1};
    v1.sin_port = htons(5353);
    struct msghdr message = {&v1, sizeof v1, &part, 1, control, sizeof control, 0};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(struct in_pktinfo)), IPPROTO_IP, IP_PKTINFO};
    ((struct in_pktinfo *)CMSG_DATA(head))->ipi_ifindex = if_nametoindex("v0");
    EQ(sendmsg(OK(socket(AF_INET, SOCK_DGRAM, 0)), &message, 0), 1);
    EQ(read(far, got, 2), 1);
    EQ(got[0], 'p');
}
