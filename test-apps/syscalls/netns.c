// Network namespaces that programs make (network_namespaces(7)): a loopback interface of their own, and nothing of others.
#include "harness.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct ifreq request(const char *name) {
    struct ifreq request = {0};
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    return request;
}
static void set_up(bool up) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq lo = request("lo");
    OK(ioctl(fd, SIOCGIFFLAGS, &lo));
    lo.ifr_flags = up ? lo.ifr_flags | IFF_UP : lo.ifr_flags & ~IFF_UP;
    OK(ioctl(fd, SIOCSIFFLAGS, &lo));
    OK(close(fd));
}
static void own_network(void) { OK(unshare(CLONE_NEWNET)); }
static void own_loopback(void) {
    own_network();
    set_up(true);
}
static struct sockaddr_in at(const char *ip, int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(ip)};
}
static struct sockaddr_in6 at6(const char *ip, int port) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    EQ(inet_pton(AF_INET6, ip, &address.sin6_addr), 1);
    return address;
}
#define ADDRESS(a) (struct sockaddr *)&(a), sizeof(a)
static int bound(int kind, const char *ip, int port) {
    int fd = OK(socket(AF_INET, kind, 0));
    struct sockaddr_in address = at(ip, port);
    OK(bind(fd, ADDRESS(address)));
    return fd;
}
static int listening(const char *ip, int port) {
    int fd = bound(SOCK_STREAM, ip, port);
    OK(listen(fd, 5));
    return fd;
}
static int connected(const char *ip, int port) {
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = at(ip, port);
    OK(connect(fd, ADDRESS(address)));
    return fd;
}
static void expect_name(int fd, bool of_peer, const char *ip, int port) {
    struct sockaddr_in name = {0};
    socklen_t length = sizeof name;
    OK((of_peer ? getpeername : getsockname)(fd, (struct sockaddr *)&name, &length));
    EQ(length, sizeof name);
    EQ(name.sin_family, AF_INET);
    STR_EQ(inet_ntoa(name.sin_addr), ip);
    if (port) EQ(ntohs(name.sin_port), port);
}
static int port_of(int fd) {
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    OK(getsockname(fd, (struct sockaddr *)&name, &length));
    return ntohs(name.sin_port);
}
static int events_of(int fd) {
    struct pollfd item = {fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    OK(poll(&item, 1, 0));
    return item.revents;
}
// What somebody else did may take Linux a moment.
#define COMES_TO(fd, events) WAIT_UNTIL(events_of(fd) == (events))
static int option_of(int fd, int level, int name) {
    int value = -1;
    socklen_t length = sizeof value;
    OK(getsockopt(fd, level, name, &value, &length));
    return value;
}
static void set_option(int fd, int level, int name, int value) { OK(setsockopt(fd, level, name, &value, sizeof value)); }

CASE(a_new_one_has_only_lo_and_it_is_down) {
    own_network();
    struct if_nameindex *all = if_nameindex();
    CHECK(all);
    STR_EQ(all[0].if_name, "lo");
    EQ(all[0].if_index, 1);
    EQ(all[1].if_index, 0);
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq lo = request("lo");
    OK(ioctl(fd, SIOCGIFFLAGS, &lo));
    EQ(lo.ifr_flags, IFF_LOOPBACK);
    ERR(ioctl(fd, SIOCGIFADDR, &lo), EADDRNOTAVAIL);
    struct sockaddr_in address = at("127.0.0.1", 80);
    ERR(connect(fd, ADDRESS(address)), ENETUNREACH);
    ERR(sendto(fd, "x", 1, 0, ADDRESS(address)), ENETUNREACH);
    int stream = OK(socket(AF_INET, SOCK_STREAM, 0));
    ERR(connect(stream, ADDRESS(address)), ENETUNREACH);
    struct ifreq other = request("eth0");
    ERR(ioctl(fd, SIOCGIFFLAGS, &other), ENODEV);
}
CASE(up_it_has_its_addresses) {
    own_loopback();
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct ifreq lo = request("lo");
    OK(ioctl(fd, SIOCGIFFLAGS, &lo));
    EQ(lo.ifr_flags, IFF_LOOPBACK | IFF_UP | IFF_RUNNING);
    OK(ioctl(fd, SIOCGIFADDR, &lo));
    STR_EQ(inet_ntoa(((struct sockaddr_in *)&lo.ifr_addr)->sin_addr), "127.0.0.1");
    OK(ioctl(fd, SIOCGIFNETMASK, &lo));
    STR_EQ(inet_ntoa(((struct sockaddr_in *)&lo.ifr_addr)->sin_addr), "255.0.0.0");
    OK(ioctl(fd, SIOCGIFMTU, &lo));
    EQ(lo.ifr_mtu, 65536);
    struct ifaddrs *all, *one;
    OK(getifaddrs(&all));
    int fours = 0, sixes = 0;
    for (one = all; one; one = one->ifa_next) {
        STR_EQ(one->ifa_name, "lo");
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET) fours++;
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET6) sixes++;
    }
    EQ(fours, 1);
    EQ(sixes, 1);
    struct sockaddr_in away = at("10.1.2.3", 80);
    ERR(bind(fd, ADDRESS(away)), EADDRNOTAVAIL);
    set_up(false);
    OK(ioctl(fd, SIOCGIFFLAGS, &lo));
    EQ(lo.ifr_flags, IFF_LOOPBACK);
    set_up(true);
    bound(SOCK_DGRAM, "127.0.0.1", 80);
}
CASE(unprivileged_processes_change_nothing) {
    own_network();
    AS_NOBODY({
        int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
        struct ifreq lo = request("lo");
        OK(ioctl(fd, SIOCGIFFLAGS, &lo));
        lo.ifr_flags |= IFF_UP;
        ERR(ioctl(fd, SIOCSIFFLAGS, &lo), EPERM);
        ERR(unshare(CLONE_NEWNET), EPERM);
        ERR(socket(AF_INET, SOCK_RAW, 1), EPERM);
    });
}
CASE(of_a_user_namespace_its_root_may) {
    AS_NOBODY({
        OK(unshare(CLONE_NEWUSER | CLONE_NEWNET));
        set_up(true);
        int fd = bound(SOCK_DGRAM, "127.0.0.1", 80);
        expect_name(fd, false, "127.0.0.1", 80);
    });
}
CASE(connections) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080);
    EQ(events_of(listener), 0);
    int client = connected("127.0.0.1", 8080);
    COMES_TO(listener, POLLIN);
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    int served = OK(accept(listener, (struct sockaddr *)&from, &length));
    EQ(ntohs(from.sin_port), port_of(client));
    expect_name(client, true, "127.0.0.1", 8080);
    expect_name(client, false, "127.0.0.1", 0);
    expect_name(served, false, "127.0.0.1", 8080);
    expect_name(served, true, "127.0.0.1", port_of(client));
    EQ(events_of(client), POLLOUT);
    char bytes[16] = {0};
    ERR(recv(client, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
    EQ(send(client, "hello", 5, 0), 5);
    COMES_TO(served, POLLIN | POLLOUT);
    int waiting;
    OK(ioctl(served, FIONREAD, &waiting));
    EQ(waiting, 5);
    EQ(recv(served, bytes, 2, MSG_PEEK), 2);
    EQ(recv(served, bytes, sizeof bytes, 0), 5);
    STR_EQ(bytes, "hello");
    OK(shutdown(client, SHUT_WR));
    COMES_TO(served, POLLIN | POLLOUT | POLLRDHUP);
    EQ(read(served, bytes, 1), 0);
    EQ(write(served, "bye", 3), 3);
    OK(close(served));
    EQ(read(client, bytes, sizeof bytes), 3);
    EQ(read(client, bytes, sizeof bytes), 0);
    COMES_TO(client, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
    ERR(send(client, "x", 1, MSG_NOSIGNAL), EPIPE);
}
CASE(nobody_listens) {
    own_loopback();
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    EQ(events_of(fd), POLLOUT | POLLHUP);
    struct sockaddr_in address = at("127.0.0.1", 81), away = at("10.1.2.3", 81);
    ERR(connect(fd, ADDRESS(address)), ECONNREFUSED);
    ERR(connect(fd, ADDRESS(away)), ENETUNREACH);
    char byte;
    ERR(recv(fd, &byte, 1, 0), ENOTCONN);
    ERR(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    ERR(getpeername(fd, (struct sockaddr *)&address, &(socklen_t){sizeof address}), ENOTCONN);
    ERR(shutdown(fd, SHUT_WR), ENOTCONN);
    ERR(accept(fd, NULL, NULL), EINVAL);
    // A listener that goes takes those along who nobody has accepted.
    int listener = listening("127.0.0.1", 81);
    int client = connected("127.0.0.1", 81);
    OK(close(listener));
    ERR(recv(client, &byte, 1, 0), ECONNRESET);
}
CASE(unread_bytes_reset_a_connection) {
    own_loopback();
    int listener = listening("127.0.0.1", 81), client = connected("127.0.0.1", 81);
    int served = OK(accept(listener, NULL, NULL));
    EQ(write(client, "xyz", 3), 3);
    OK(close(served));
    WAIT_UNTIL(events_of(client) & POLLERR);
    EQ(option_of(client, SOL_SOCKET, SO_ERROR), ECONNRESET);
    EQ(option_of(client, SOL_SOCKET, SO_ERROR), 0);
}
CASE(names_of_ports) {
    own_loopback();
    int one = bound(SOCK_STREAM, "127.0.0.1", 5000), two = OK(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in same = at("127.0.0.1", 5000), all = at("0.0.0.0", 5000), other = at("127.0.0.2", 5000);
    ERR(bind(two, ADDRESS(same)), EADDRINUSE);
    ERR(bind(two, ADDRESS(all)), EADDRINUSE);
    ERR(bind(one, ADDRESS(other)), EINVAL);
    OK(bind(two, ADDRESS(other)));
    bound(SOCK_DGRAM, "127.0.0.1", 5000);
    int any = bound(SOCK_STREAM, "0.0.0.0", 0);
    CHECK(port_of(any) >= 32768);
    ERR(bind(OK(socket(AF_INET, SOCK_STREAM, 0)), (struct sockaddr *)&same, 8), EINVAL);
    struct sockaddr_in6 six = at6("::1", 1);
    ERR(bind(OK(socket(AF_INET, SOCK_STREAM, 0)), ADDRESS(six)), EAFNOSUPPORT);
    // Closed, it is free.
    OK(close(one));
    listening("127.0.0.1", 5000);
    AS_NOBODY({
        struct sockaddr_in low = at("127.0.0.1", 80);
        ERR(bind(OK(socket(AF_INET, SOCK_DGRAM, 0)), ADDRESS(low)), EACCES);
    });
}
CASE(ports_are_shared_where_both_allow_it) {
    own_loopback();
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = OK(socket(AF_INET, SOCK_STREAM, 0));
        set_option(fds[i], SOL_SOCKET, i < 2 ? SO_REUSEADDR : SO_REUSEPORT, 1);
        struct sockaddr_in address = at("127.0.0.1", i < 2 ? 5000 : 5001);
        OK(bind(fds[i], ADDRESS(address)));
    }
    OK(listen(fds[0], 1));
    ERR(listen(fds[1], 1), EADDRINUSE);
    OK(listen(fds[2], 1));
    OK(listen(fds[3], 1));
    connected("127.0.0.1", 5001);
    WAIT_UNTIL(!!(events_of(fds[2]) & POLLIN) + !!(events_of(fds[3]) & POLLIN) == 1);
}
CASE(no_address_stands_for_this_machine) {
    own_loopback();
    int listener = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(listen(listener, 1));
    int client = connected("0.0.0.0", port_of(listener));
    expect_name(client, true, "127.0.0.1", port_of(listener));
    int other = connected("127.9.9.9", port_of(listener));
    expect_name(other, true, "127.9.9.9", 0);
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    OK(close(OK(accept(listener, NULL, NULL))));
    int served = OK(accept(listener, (struct sockaddr *)&from, &length));
    expect_name(served, false, "127.9.9.9", port_of(listener));
}
CASE(a_full_backlog_lets_connections_wait) {
    own_loopback();
    int listener = bound(SOCK_STREAM, "127.0.0.1", 82);
    OK(listen(listener, 0));
    connected("127.0.0.1", 82);
    COMES_TO(listener, POLLIN);
    int second = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    struct sockaddr_in address = at("127.0.0.1", 82);
    ERR(connect(second, ADDRESS(address)), EINPROGRESS);
    sleep_ms(50);
    EQ(events_of(second), 0);
    ERR(connect(second, ADDRESS(address)), EALREADY);
    OK(close(OK(accept(listener, NULL, NULL))));
    // On Linux it asks again a second later.
    WAIT_UNTIL(events_of(second) == POLLOUT);
    EQ(option_of(second, SOL_SOCKET, SO_ERROR), 0);
    OK(close(OK(accept(listener, NULL, NULL))));
}
static void *accept_later(void *argument) {
    sleep_ms(100);
    int listener = (int)(long)argument;
    for (int i = 0; i < 2; i++) OK(accept(listener, NULL, NULL));
    return NULL;
}
CASE(a_connection_is_waited_for) {
    own_loopback();
    int listener = bound(SOCK_STREAM, "127.0.0.1", 82);
    OK(listen(listener, 0));
    connected("127.0.0.1", 82);
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, accept_later, (void *)(long)listener));
    int second = connected("127.0.0.1", 82);
    ZERO(pthread_join(thread, NULL));
    EQ(write(second, "x", 1), 1);
}
enum { STREAM_BYTES = 4 << 20 };
static void *write_all(void *argument) {
    unsigned char piece[4096];
    for (int done = 0; done < STREAM_BYTES; done += sizeof piece) {
        for (size_t i = 0; i < sizeof piece; i++) piece[i] = (done / sizeof piece) * 31 + i;
        for (size_t n = 0; n < sizeof piece;) n += OK(write((int)(long)argument, piece + n, sizeof piece - n));
    }
    OK(shutdown((int)(long)argument, SHUT_WR));
    return NULL;
}
CASE(a_long_stream_arrives_as_it_was_sent) {
    own_loopback();
    int listener = listening("127.0.0.1", 83), client = connected("127.0.0.1", 83);
    int served = OK(accept(listener, NULL, NULL));
    pthread_t thread;
    ZERO(pthread_create(&thread, NULL, write_all, (void *)(long)client));
    unsigned char piece[10000];
    long total = 0, n;
    while ((n = OK(read(served, piece, sizeof piece))) > 0)
        for (long i = 0; i < n; i++, total++) EQ(piece[i], (unsigned char)((total / 4096) * 31 + total % 4096));
    EQ(total, STREAM_BYTES);
    ZERO(pthread_join(thread, NULL));
}
CASE(who_only_stops_reading_tells_nobody) {
    own_loopback();
    int listener = listening("127.0.0.1", 83), client = connected("127.0.0.1", 83);
    int served = OK(accept(listener, NULL, NULL));
    OK(shutdown(client, SHUT_RD));
    char byte;
    EQ(read(client, &byte, 1), 0);
    EQ(events_of(served), POLLOUT);
    EQ(write(client, "x", 1), 1);
    EQ(read(served, &byte, 1), 1);
}
CASE(datagrams) {
    own_loopback();
    int one = bound(SOCK_DGRAM, "127.0.0.1", 7000), two = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("127.0.0.1", 7000), from;
    ERR(send(two, "x", 1, 0), EDESTADDRREQ);
    EQ(sendto(two, "hello", 5, 0, ADDRESS(to)), 5);
    EQ(sendto(two, "", 0, 0, ADDRESS(to)), 0);
    EQ(sendto(two, "later", 5, 0, ADDRESS(to)), 5);
    char bytes[16] = {0};
    socklen_t length = sizeof from;
    int waiting;
    COMES_TO(one, POLLIN | POLLOUT);
    OK(ioctl(one, FIONREAD, &waiting));
    EQ(waiting, 5);
    EQ(recvfrom(one, bytes, 2, MSG_TRUNC, (struct sockaddr *)&from, &length), 5);
    EQ(ntohs(from.sin_port), port_of(two));
    STR_EQ(inet_ntoa(from.sin_addr), "127.0.0.1");
    EQ(recv(one, bytes, sizeof bytes, 0), 0);
    EQ(recv(one, bytes, sizeof bytes, MSG_PEEK), 5);
    EQ(recv(one, bytes, sizeof bytes, 0), 5);
    STR_EQ(bytes, "later");
    ERR(recv(one, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
    expect_name(two, false, "0.0.0.0", 0);
    static char big[70000];
    ERR(sendto(two, big, sizeof big, 0, ADDRESS(to)), EMSGSIZE);
    struct sockaddr_in none = at("127.0.0.1", 0);
    ERR(sendto(two, "x", 1, 0, ADDRESS(none)), EINVAL);
    ERR(listen(one, 1), EOPNOTSUPP);
}
CASE(connected_datagrams) {
    own_loopback();
    int one = bound(SOCK_DGRAM, "127.0.0.1", 7000), two = bound(SOCK_DGRAM, "127.0.0.1", 7001);
    int three = bound(SOCK_DGRAM, "127.0.0.1", 7002);
    struct sockaddr_in to_one = at("127.0.0.1", 7000), to_two = at("127.0.0.1", 7001), nobody = at("127.0.0.1", 9);
    OK(connect(one, ADDRESS(to_two)));
    EQ(sendto(three, "no", 2, 0, ADDRESS(to_one)), 2);
    EQ(sendto(two, "yes", 3, 0, ADDRESS(to_one)), 3);
    char bytes[8] = {0};
    EQ(recv(one, bytes, sizeof bytes, 0), 3);
    ERR(recv(one, bytes, sizeof bytes, MSG_DONTWAIT), EAGAIN);
    expect_name(one, true, "127.0.0.1", 7001);
    // Who is connected learns that nobody is there.
    OK(connect(three, ADDRESS(nobody)));
    EQ(send(three, "x", 1, 0), 1);
    WAIT_UNTIL(events_of(three) & POLLERR);
    ERR(send(three, "x", 1, 0), ECONNREFUSED);
    struct sockaddr_in unspecified = {.sin_family = AF_UNSPEC};
    OK(connect(one, ADDRESS(unspecified)));
    ERR(send(one, "x", 1, 0), EDESTADDRREQ);
    ERR(getpeername(one, (struct sockaddr *)&nobody, &(socklen_t){sizeof nobody}), ENOTCONN);
    ERR(shutdown(one, SHUT_RD), ENOTCONN);
}
CASE(a_full_queue_loses_datagrams) {
    own_loopback();
    int one = bound(SOCK_DGRAM, "127.0.0.1", 7000), two = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("127.0.0.1", 7000);
    static char bytes[1000];
    for (int i = 0; i < 2000; i++) EQ(sendto(two, bytes, sizeof bytes, MSG_DONTWAIT, ADDRESS(to)), sizeof bytes);
    int got = 0;
    while (recv(one, bytes, sizeof bytes, MSG_DONTWAIT) > 0) got++;
    CHECK(got > 20 && got < 1000);
}
CASE(ipv6) {
    own_loopback();
    int listener = OK(socket(AF_INET6, SOCK_STREAM, 0));
    struct sockaddr_in6 any = at6("::", 8080), one = at6("::1", 8080), away = at6("fd00::1", 8080), name;
    OK(bind(listener, ADDRESS(any)));
    OK(listen(listener, 5));
    int client = OK(socket(AF_INET6, SOCK_STREAM, 0));
    ERR(connect(client, ADDRESS(away)), ENETUNREACH);
    OK(connect(client, ADDRESS(one)));
    int four = connected("127.0.0.1", 8080);
    socklen_t length = sizeof name;
    int first = OK(accept(listener, (struct sockaddr *)&name, &length));
    EQ(length, sizeof name);
    CHECK(IN6_IS_ADDR_LOOPBACK(&name.sin6_addr));
    int second = OK(accept(listener, (struct sockaddr *)&name, &length));
    CHECK(IN6_IS_ADDR_V4MAPPED(&name.sin6_addr));
    EQ(ntohs(name.sin6_port), port_of(four));
    EQ(write(four, "x", 1), 1);
    char byte;
    EQ(read(second, &byte, 1), 1);
    EQ(write(first, "x", 1), 1);
    EQ(read(client, &byte, 1), 1);
    int only = OK(socket(AF_INET6, SOCK_STREAM, 0));
    set_option(only, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    any.sin6_port = htons(8081);
    OK(bind(only, ADDRESS(any)));
    ERR(setsockopt(only, IPPROTO_IPV6, IPV6_V6ONLY, &(int){0}, 4), EINVAL);
    bound(SOCK_STREAM, "0.0.0.0", 8081);
}
CASE(options) {
    own_loopback();
    int stream = OK(socket(AF_INET, SOCK_STREAM, 0)), datagram = OK(socket(AF_INET6, SOCK_DGRAM, 0));
    EQ(option_of(stream, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EQ(option_of(datagram, SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
    EQ(option_of(stream, SOL_SOCKET, SO_DOMAIN), AF_INET);
    EQ(option_of(datagram, SOL_SOCKET, SO_DOMAIN), AF_INET6);
    EQ(option_of(stream, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
    EQ(option_of(datagram, SOL_SOCKET, SO_PROTOCOL), IPPROTO_UDP);
    EQ(option_of(stream, SOL_SOCKET, SO_ACCEPTCONN), 0);
    EQ(option_of(stream, IPPROTO_TCP, TCP_NODELAY), 0);
    set_option(stream, IPPROTO_TCP, TCP_NODELAY, 1);
    EQ(option_of(stream, IPPROTO_TCP, TCP_NODELAY), 1);
    EQ(option_of(stream, SOL_SOCKET, SO_KEEPALIVE), 0);
    set_option(stream, SOL_SOCKET, SO_KEEPALIVE, 7);
    EQ(option_of(stream, SOL_SOCKET, SO_KEEPALIVE), 1);
    set_option(stream, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    EQ(option_of(stream, IPPROTO_TCP, TCP_KEEPIDLE), 60);
    set_option(datagram, SOL_SOCKET, SO_RCVBUF, 10000);
    EQ(option_of(datagram, SOL_SOCKET, SO_RCVBUF), 20000);
    ERR(setsockopt(datagram, IPPROTO_TCP, TCP_NODELAY, &(int){1}, 4), ENOPROTOOPT);
    OK(listen(stream, 1));
    EQ(option_of(stream, SOL_SOCKET, SO_ACCEPTCONN), 1);
}
CASE(what_is_not_there) {
    own_loopback();
    ERR(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    ERR(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), EPROTONOSUPPORT);
    ERR(socket(AF_INET, SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
    ERR(socket(AF_INET, SOCK_STREAM, 1000), EINVAL);
}
CASE(others_see_nothing_of_it) {
    int before = listening("127.0.0.1", 0), port = port_of(before);
    int ready[2];
    OK(pipe(ready));
    pid_t child = OK(fork());
    if (child == 0) {
        own_loopback();
        // The same port, and what lies outside is not there.
        int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
        struct sockaddr_in address = at("127.0.0.1", port);
        ERR(connect(fd, ADDRESS(address)), ECONNREFUSED);
        listening("127.0.0.1", port);
        // A socket stays where it was made.
        EQ(listen(before, 5), 0);
        EQ(write(ready[1], "x", 1), 1);
        char byte;
        OK(close(ready[1]));
        pause();
        EQ(read(ready[0], &byte, 1), 0);
        _exit(0);
    }
    char byte;
    EQ(read(ready[0], &byte, 1), 1);
    connected("127.0.0.1", port);
    COMES_TO(before, POLLIN);
    OK(kill(child, SIGKILL));
    expect_killed(child, SIGKILL);
}
CASE(it_is_entered_by_its_file) {
    int go[2], ready[2];
    OK(pipe(go));
    OK(pipe(ready));
    pid_t child = OK(fork());
    char byte;
    if (child == 0) {
        own_loopback();
        int listener = listening("127.0.0.1", 4711);
        EQ(write(ready[1], "x", 1), 1);
        int served = OK(accept(listener, NULL, NULL));
        EQ(read(served, &byte, 1), 1);
        _exit(byte);
    }
    EQ(read(ready[0], &byte, 1), 1);
    char path[64], label[64], own[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", child);
    ssize_t length = OK(readlink(path, label, sizeof label - 1));
    label[length] = 0;
    CHECK(strncmp(label, "net:[", 5) == 0);
    length = OK(readlink("/proc/self/ns/net", own, sizeof own - 1));
    own[length] = 0;
    CHECK(strcmp(label, own) != 0);
    int fd = OK(open(path, O_RDONLY));
    ERR(setns(fd, CLONE_NEWUTS), EINVAL);
    OK(setns(fd, CLONE_NEWNET));
    int client = connected("127.0.0.1", 4711);
    EQ(write(client, "\7", 1), 1);
    expect_exit(child, 7);
}
CASE(abstract_names_are_of_a_namespace) {
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0of-a-namespace"};
    int outside = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(outside, ADDRESS(name)));
    OK(listen(outside, 1));
    own_network();
    int inside = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    ERR(connect(inside, ADDRESS(name)), ECONNREFUSED);
    OK(bind(inside, ADDRESS(name)));
    // A path leads through.
    struct sockaddr_un path = {.sun_family = AF_UNIX, .sun_path = "sock"};
    int listener = OK(socket(AF_UNIX, SOCK_STREAM, 0));
    OK(bind(listener, ADDRESS(path)));
    OK(listen(listener, 1));
    pid_t child = OK(fork());
    if (child == 0) {
        own_network();
        OK(connect(OK(socket(AF_UNIX, SOCK_STREAM, 0)), ADDRESS(path)));
        _exit(0);
    }
    expect_exit(child, 0);
}

// ---- netlink ----

struct message {
    struct nlmsghdr head;
    union {
        struct ifinfomsg link;
        struct ifaddrmsg address;
        char bytes[256];
    };
};
// Sends a request; the error that it is answered by, or the length of another answer, which is in `answer`.
static int ask(struct message *message, char *answer, size_t size) {
    int fd = OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    message->head.nlmsg_flags |= NLM_F_REQUEST;
    EQ(send(fd, message, message->head.nlmsg_len, 0), message->head.nlmsg_len);
    ssize_t length = OK(recv(fd, answer, size, 0));
    OK(close(fd));
    struct nlmsghdr *head = (void *)answer;
    if (head->nlmsg_type == NLMSG_ERROR) return ((struct nlmsgerr *)NLMSG_DATA(head))->error;
    return (int)length;
}
static void append(struct message *message, int kind, const void *data, int length) {
    struct rtattr *attribute = (void *)((char *)message + NLMSG_ALIGN(message->head.nlmsg_len));
    attribute->rta_type = kind;
    attribute->rta_len = RTA_LENGTH(length);
    memcpy(RTA_DATA(attribute), data, length);
    message->head.nlmsg_len = NLMSG_ALIGN(message->head.nlmsg_len) + RTA_ALIGN(attribute->rta_len);
}
static struct message about_address(int kind, const char *ip, int prefix) {
    struct message message = {.head = {NLMSG_LENGTH(sizeof(struct ifaddrmsg)), kind, NLM_F_ACK, 1, 0}};
    if (kind == RTM_NEWADDR) message.head.nlmsg_flags |= NLM_F_CREATE | NLM_F_EXCL;
    message.address = (struct ifaddrmsg){AF_INET, prefix, IFA_F_PERMANENT, RT_SCOPE_HOST, 1};
    in_addr_t address = inet_addr(ip);
    append(&message, IFA_LOCAL, &address, 4);
    append(&message, IFA_ADDRESS, &address, 4);
    return message;
}
CASE(netlink_brings_it_up) {
    own_network();
    static char answer[8192];
    struct message address = about_address(RTM_NEWADDR, "127.0.0.1", 8);
    EQ(ask(&address, answer, sizeof answer), 0);
    address = about_address(RTM_NEWADDR, "127.0.0.1", 8);
    EQ(ask(&address, answer, sizeof answer), -EEXIST);
    struct message link = {.head = {NLMSG_LENGTH(sizeof(struct ifinfomsg)), RTM_NEWLINK, NLM_F_ACK, 1, 0}};
    link.link = (struct ifinfomsg){.ifi_index = 1, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    EQ(ask(&link, answer, sizeof answer), 0);
    listening("127.0.0.1", 80);
    connected("127.0.0.1", 80);
    address = about_address(RTM_NEWADDR, "10.0.0.1", 24);
    EQ(ask(&address, answer, sizeof answer), 0);
    listening("10.0.0.1", 80);
    int fd = connected("10.0.0.1", 80);
    expect_name(fd, false, "10.0.0.1", 0);
    address = about_address(RTM_DELADDR, "10.0.0.1", 24);
    EQ(ask(&address, answer, sizeof answer), 0);
    address = about_address(RTM_DELADDR, "10.0.0.1", 24);
    EQ(ask(&address, answer, sizeof answer), -EADDRNOTAVAIL);
    address = about_address(RTM_NEWADDR, "10.0.0.1", 24);
    address.address.ifa_index = 77;
    EQ(ask(&address, answer, sizeof answer), -ENODEV);
}
CASE(netlink_tells_of_it) {
    own_loopback();
    static char answer[8192];
    struct message link = {.head = {NLMSG_LENGTH(sizeof(struct ifinfomsg)), RTM_GETLINK, 0, 5, 0}};
    link.link = (struct ifinfomsg){.ifi_index = 1};
    CHECK(ask(&link, answer, sizeof answer) > 0);
    struct nlmsghdr *head = (void *)answer;
    EQ(head->nlmsg_type, RTM_NEWLINK);
    EQ(head->nlmsg_seq, 5);
    struct ifinfomsg *info = NLMSG_DATA(head);
    EQ(info->ifi_index, 1);
    EQ(info->ifi_flags, IFF_LOOPBACK | IFF_UP | IFF_RUNNING | 1 << 16);
    EQ(info->ifi_type, 772);
    link.link.ifi_index = 2;
    EQ(ask(&link, answer, sizeof answer), -ENODEV);
    AS_NOBODY({
        struct message address = about_address(RTM_NEWADDR, "10.0.0.1", 24);
        EQ(ask(&address, answer, sizeof answer), -EPERM);
    });
}
CASE(files_of_proc_tell_of_it) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080);
    bound(SOCK_DGRAM, "127.0.0.1", 9090);
    connected("127.0.0.1", 8080);
    static char text[8192];
    read_file("/proc/self/net/tcp", text, sizeof text);
    CHECK(strstr(text, "0100007F:1F90 00000000:0000 0A"));
    CHECK(strstr(text, "0100007F:1F90 01"));
    read_file("/proc/self/net/udp", text, sizeof text);
    CHECK(strstr(text, "0100007F:2382 00000000:0000 07"));
    read_file("/proc/self/net/dev", text, sizeof text);
    CHECK(strstr(text, "    lo: "));
    CHECK(!strstr(text, "eth"));
    read_file("/proc/self/net/if_inet6", text, sizeof text);
    STR_EQ(text, "00000000000000000000000000000001 01 80 10 80       lo\n");
    read_file("/proc/self/net/route", text, sizeof text);
    CHECK(strchr(text, '\n')[1] == 0);
    OK(close(listener));
}
CASE(epoll_tells_of_both_ends) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080), poller = OK(epoll_create1(0));
    struct epoll_event event = {EPOLLIN | EPOLLET, {.u32 = 1}}, got;
    OK(epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event));
    int client = connected("127.0.0.1", 8080);
    EQ(epoll_wait(poller, &got, 1, 10000), 1);
    int served = OK(accept(listener, NULL, NULL));
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    event.data.u32 = 2;
    OK(epoll_ctl(poller, EPOLL_CTL_ADD, served, &event));
    EQ(epoll_wait(poller, &got, 1, 20), 0);
    EQ(write(client, "x", 1), 1);
    EQ(epoll_wait(poller, &got, 1, 10000), 1);
    EQ(got.data.u32, 2);
    EQ(got.events, EPOLLIN);
    OK(close(client));
    EQ(epoll_wait(poller, &got, 1, 10000), 1);
    EQ(got.events, EPOLLIN | EPOLLRDHUP);
}
CASE(many_come_and_go) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080);
    for (int i = 0; i < 2000; i++) {
        int client = connected("127.0.0.1", 8080);
        int served = OK(accept(listener, NULL, NULL));
        EQ(write(client, &i, sizeof i), sizeof i);
        int got;
        EQ(read(served, &got, sizeof got), sizeof got);
        EQ(got, i);
        OK(close(i % 2 ? client : served));
        OK(close(i % 2 ? served : client));
    }
    for (int i = 0; i < 200; i++) {
        pid_t child = OK(fork());
        if (child == 0) {
            own_loopback();
            listening("127.0.0.1", 8080);
            connected("127.0.0.1", 8080);
            _exit(0);
        }
        expect_exit(child, 0);
    }
}
static int shared(int kind, const char *ip, int port) {
    int fd = OK(socket(AF_INET, kind, 0));
    set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    struct sockaddr_in address = at(ip, port);
    OK(bind(fd, ADDRESS(address)));
    if (kind == SOCK_STREAM) OK(listen(fd, 200));
    return fd;
}
CASE(a_port_is_shared_with_oneself_alone) {
    own_loopback();
    shared(SOCK_STREAM, "0.0.0.0", 8080);
    shared(SOCK_DGRAM, "0.0.0.0", 8080);
    AS_NOBODY({
        struct sockaddr_in address = at("127.0.0.1", 8080);
        for (int i = 0; i < 2; i++) {
            int fd = OK(socket(AF_INET, i ? SOCK_STREAM : SOCK_DGRAM, 0));
            set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
            ERR(bind(fd, ADDRESS(address)), EADDRINUSE);
        }
    });
}
CASE(who_shares_a_port_shares_its_work) {
    own_loopback();
    struct pollfd streams[4], datagrams[4];
    for (int i = 0; i < 4; i++) {
        streams[i] = (struct pollfd){shared(SOCK_STREAM, "127.0.0.1", 8080), POLLIN, 0};
        datagrams[i] = (struct pollfd){shared(SOCK_DGRAM, "127.0.0.1", 8080), POLLIN, 0};
    }
    struct sockaddr_in to = at("127.0.0.1", 8080);
    for (int i = 0; i < 100; i++) {
        connected("127.0.0.1", 8080);
        EQ(sendto(OK(socket(AF_INET, SOCK_DGRAM, 0)), "x", 1, 0, ADDRESS(to)), 1);
    }
    EQ(poll(streams, 4, 0), 4);
    EQ(poll(datagrams, 4, 0), 4);
}
static void both(int ends[2]) {
    int listener = listening("127.0.0.1", 8080);
    ends[0] = connected("127.0.0.1", 8080);
    ends[1] = OK(accept(listener, NULL, NULL));
    OK(close(listener));
}
CASE(who_reads_no_more_is_still_sent_to) {
    own_loopback();
    int ends[2];
    char got[8];
    both(ends);
    OK(shutdown(ends[1], SHUT_RD));
    EQ(read(ends[1], got, 8), 0);
    EQ(write(ends[0], "late", 4), 4);
    EQ(recv(ends[1], got, 8, 0), 4);
    EQ(read(ends[1], got, 8), 0);
}
CASE(truncated_bytes_of_a_stream_are_gone) {
    own_loopback();
    int ends[2];
    char got[8] = "------";
    both(ends);
    EQ(write(ends[0], "0123456789", 10), 10);
    EQ(recv(ends[1], NULL, 4, MSG_TRUNC), 4);
    EQ(recv(ends[1], got, 2, MSG_TRUNC), 2);
    EQ(got[0], '-');
    EQ(recv(ends[1], got, 8, 0), 4);
    CHECK(!memcmp(got, "6789", 4));
}
CASE(a_connection_is_reset_by_who_does_not_linger) {
    own_loopback();
    int ends[2];
    both(ends);
    struct linger now = {1, 0};
    OK(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &now, sizeof now));
    OK(close(ends[1]));
    COMES_TO(ends[0], POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
    char got;
    ERR(read(ends[0], &got, 1), ECONNRESET);
    EQ(read(ends[0], &got, 1), 0);
}
CASE(the_end_is_learned_by_sending) {
    own_loopback();
    int ends[2];
    both(ends);
    OK(close(ends[1]));
    COMES_TO(ends[0], POLLIN | POLLOUT | POLLRDHUP);
    signal(SIGPIPE, SIG_IGN);
    EQ(write(ends[0], "x", 1), 1);
    WAIT_UNTIL(write(ends[0], "x", 1) == -1 && errno == EPIPE);
}
CASE(all_of_a_connection_is_listed) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080);
    int client = connected("127.0.0.1", 8080), served = OK(accept(listener, NULL, NULL));
    static char text[8192];
    read_file("/proc/thread-self/net/tcp", text, sizeof text);
    int lines = 0;
    for (char *at = text; (at = strchr(at, '\n')); at++) lines++;
    EQ(lines, 4);
    // The connection keeps the port.
    OK(close(listener));
    struct sockaddr_in address = at("127.0.0.1", 8080);
    int other = OK(socket(AF_INET, SOCK_STREAM, 0));
    ERR(bind(other, ADDRESS(address)), EADDRINUSE);
    OK(close(client));
    OK(close(served));
}
CASE(what_came_to_nothing_binds_nothing) {
    own_loopback();
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = at("127.0.0.1", 81);
    ERR(connect(fd, ADDRESS(address)), ECONNREFUSED);
    OK(bind(fd, ADDRESS(address)));
    int datagrams = OK(socket(AF_INET, SOCK_DGRAM, 0));
    OK(connect(datagrams, ADDRESS(address)));
    CHECK(port_of(datagrams) != 0);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    OK(connect(datagrams, &none, sizeof none));
    EQ(port_of(datagrams), 0);
    int six = OK(socket(AF_INET6, SOCK_STREAM, 0));
    struct sockaddr_in6 own = at6("::1", 0), mapped = at6("::ffff:127.0.0.1", 81);
    OK(bind(six, ADDRESS(own)));
    ERR(connect(six, ADDRESS(mapped)), ENETUNREACH);
}
CASE(options_are_what_they_may_be) {
    own_loopback();
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    static const struct { int level, name, value, error, then; } rows[] = {
        {IPPROTO_TCP, TCP_KEEPIDLE, 0, EINVAL, 7200}, {IPPROTO_TCP, TCP_KEEPIDLE, 99999, EINVAL, 7200},
        {IPPROTO_TCP, TCP_KEEPCNT, 300, EINVAL, 9},   {IPPROTO_TCP, TCP_USER_TIMEOUT, -1, EINVAL, 0},
        {IPPROTO_TCP, TCP_CORK, 1, 0, 1},             {IPPROTO_IP, IP_TTL, 0, EINVAL, 64},
        {IPPROTO_IP, IP_TTL, 300, EINVAL, 64},        {IPPROTO_IP, IP_TTL, 7, 0, 7},
        {IPPROTO_IP, IP_TTL, -1, 0, 64},              {IPPROTO_IP, IP_TOS, 0x1ff, 0, 252},
        {IPPROTO_IP, IP_MTU_DISCOVER, 9, EINVAL, 1},  {SOL_SOCKET, SO_RCVLOWAT, 3, 0, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        errno = 0;
        setsockopt(fd, rows[i].level, rows[i].name, &rows[i].value, sizeof(int));
        if (errno != rows[i].error) FAIL("row %zu: errno %d", i, errno);
        if (option_of(fd, rows[i].level, rows[i].name) != rows[i].then) FAIL("row %zu", i);
    }
    char name[16] = "";
    socklen_t length = sizeof name;
    OK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    ERR(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "nonsense", 8), ENOENT);
    int ends[2];
    both(ends);
    struct tcp_info info;
    length = sizeof info;
    OK(getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &length));
    EQ(info.tcpi_state, TCP_ESTABLISHED);
    CHECK(length >= 104 && info.tcpi_snd_mss > 0);
}
CASE(datagrams_tell_where_they_went) {
    own_loopback();
    int server = bound(SOCK_DGRAM, "0.0.0.0", 5353), client = OK(socket(AF_INET, SOCK_DGRAM, 0));
    set_option(server, IPPROTO_IP, IP_PKTINFO, 1);
    struct sockaddr_in to = at("127.0.0.9", 5353);
    EQ(sendto(client, "x", 1, 0, ADDRESS(to)), 1);
    char got, control[64];
    struct iovec part = {&got, 1};
    struct msghdr message = {NULL, 0, &part, 1, control, sizeof control, 0};
    EQ(recvmsg(server, &message, 0), 1);
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(head && head->cmsg_level == IPPROTO_IP && head->cmsg_type == IP_PKTINFO);
    struct in_pktinfo *info = (void *)CMSG_DATA(head);
    EQ(info->ipi_ifindex, 1);
    STR_EQ(inet_ntoa(info->ipi_addr), "127.0.0.9");
}
CASE(a_longer_backlog_lets_in_who_waits) {
    own_loopback();
    int listener = bound(SOCK_STREAM, "127.0.0.1", 8080);
    OK(listen(listener, 0));
    connected("127.0.0.1", 8080);
    int fd = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    struct sockaddr_in to = at("127.0.0.1", 8080);
    ERR(connect(fd, ADDRESS(to)), EINPROGRESS);
    OK(listen(listener, 5));
    COMES_TO(fd, POLLOUT);
}
CASE(sockets_of_a_namespace_are_listed_in_it) {
    own_network();
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0only-in-the-first"};
    OK(bind(OK(socket(AF_UNIX, SOCK_STREAM, 0)), (struct sockaddr *)&name, sizeof(short) + 18));
    static char text[1 << 16];
    read_file("/proc/thread-self/net/unix", text, sizeof text);
    CHECK(strstr(text, "@only-in-the-first"));
    own_network();
    read_file("/proc/thread-self/net/unix", text, sizeof text);
    CHECK(!strstr(text, "@only-in-the-first"));
}
CASE(a_socket_of_ipv6_speaks_to_ipv4) {
    own_loopback();
    int server = bound(SOCK_DGRAM, "127.0.0.1", 53), fd = OK(socket(AF_INET6, SOCK_DGRAM, 0));
    // As getaddrinfo(3) asks for the address that it would send from.
    struct sockaddr_in to = at("127.0.0.1", 53);
    OK(connect(fd, ADDRESS(to)));
    struct sockaddr_in6 name;
    socklen_t length = sizeof name;
    OK(getsockname(fd, (struct sockaddr *)&name, &length));
    char text[64];
    STR_EQ(inet_ntop(AF_INET6, &name.sin6_addr, text, sizeof text), "::ffff:127.0.0.1");
    EQ(write(fd, "x", 1), 1);
    EQ(recv(server, text, sizeof text, 0), 1);
}

static const struct sockaddr nobody = {.sa_family = AF_UNSPEC};

// connect(2) with AF_UNSPEC ends a connection, and what it was bound to itself is free again.
CASE(a_connection_is_dissolved) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080), client = connected("127.0.0.1", 8080);
    int server = OK(accept(listener, NULL, NULL)), port = port_of(client);
    EQ(write(server, "lost", 4), 4);
    OK(connect(client, ADDRESS(nobody)));
    // Both learn of it.
    char got[8];
    COMES_TO(client, POLLOUT | POLLHUP | POLLERR);
    EQ(option_of(client, SOL_SOCKET, SO_ERROR), ECONNRESET);
    EQ(option_of(client, SOL_SOCKET, SO_ERROR), 0);
    ERR(read(client, got, sizeof got), ENOTCONN);
    ERR(read(server, got, sizeof got), ECONNRESET);
    EQ(read(server, got, sizeof got), 0);
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    ERR(getpeername(client, (struct sockaddr *)&name, &length), ENOTCONN);
    expect_name(client, false, "0.0.0.0", 0);
    OK(close(bound(SOCK_STREAM, "127.0.0.1", port)));
    // It has another one after that, as new as the first.
    struct sockaddr_in to = at("127.0.0.1", 8080);
    OK(connect(client, ADDRESS(to)));
    OK(close(server));
    server = OK(accept(listener, NULL, NULL));
    EQ(write(client, "new", 3), 3);
    EQ(read(server, got, sizeof got), 3);
    OK(shutdown(client, SHUT_RDWR));
    OK(connect(client, ADDRESS(nobody)));
    // Its error is not that of what comes next.
    OK(connect(client, ADDRESS(to)));
    int other = OK(accept(listener, NULL, NULL));
    EQ(write(other, "back", 4), 4);
    EQ(read(client, got, sizeof got), 4);
    // So does the side that was accepted.
    OK(connect(other, ADDRESS(nobody)));
    ERR(read(client, got, sizeof got), ECONNRESET);
    OK(connect(other, ADDRESS(to)));
    EQ(write(other, "third", 5), 5);
    EQ(read(OK(accept(listener, NULL, NULL)), got, sizeof got), 5);
}

CASE(what_is_no_connection_is_dissolved_too) {
    own_loopback();
    int fd = OK(socket(AF_INET, SOCK_STREAM, 0));
    OK(connect(fd, ADDRESS(nobody)));
    ERR(connect(fd, &nobody, 1), EINVAL);
    EQ(option_of(fd, SOL_SOCKET, SO_ERROR), 0);
    // Of a listener those are reset who wait there, and it keeps the port that it was bound to.
    int listener = listening("127.0.0.1", 8080), client = connected("127.0.0.1", 8080);
    OK(connect(listener, ADDRESS(nobody)));
    char got;
    ERR(read(client, &got, 1), ECONNRESET);
    ERR(accept(listener, NULL, NULL), EINVAL);
    EQ(option_of(listener, SOL_SOCKET, SO_ACCEPTCONN), 0);
    EQ(option_of(listener, SOL_SOCKET, SO_ERROR), 0);
    expect_name(listener, false, "127.0.0.1", 8080);
    struct sockaddr_in to = at("127.0.0.1", 8080);
    ERR(connect(fd, ADDRESS(to)), ECONNREFUSED);
    OK(listen(listener, 0));
    client = connected("127.0.0.1", 8080);
    // One that has yet to be let in goes elsewhere.
    int other = listening("127.0.0.1", 8081), waits = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ERR(connect(waits, ADDRESS(to)), EINPROGRESS);
    OK(connect(waits, ADDRESS(nobody)));
    EQ(option_of(waits, SOL_SOCKET, SO_ERROR), ECONNRESET);
    to = at("127.0.0.1", 8081);
    if (connect(waits, ADDRESS(to)) == -1) EQ(errno, EINPROGRESS);
    COMES_TO(waits, POLLOUT);
    EQ(write(waits, "x", 1), 1);
    close(OK(accept(listener, NULL, NULL)));
    EQ(read(OK(accept(other, NULL, NULL)), &got, 1), 1);
    expect_name(waits, true, "127.0.0.1", 8081);
}

// One that calls itself at its own port hears itself.
CASE(a_socket_is_connected_with_itself) {
    own_loopback();
    for (int explicit = 0; explicit < 2; explicit++) {
        int fd = bound(SOCK_STREAM, explicit ? "127.0.0.1" : "0.0.0.0", 9090);
        struct sockaddr_in to = at("127.0.0.1", 9090);
        OK(connect(fd, ADDRESS(to)));
        expect_name(fd, false, "127.0.0.1", 9090);
        expect_name(fd, true, "127.0.0.1", 9090);
        COMES_TO(fd, POLLOUT);
        EQ(write(fd, "echo", 4), 4);
        COMES_TO(fd, POLLIN | POLLOUT);
        char got[8];
        EQ(read(fd, got, sizeof got), 4);
        EQ(memcmp(got, "echo", 4), 0);
        ERR(recv(fd, got, sizeof got, MSG_DONTWAIT), EAGAIN);
        OK(shutdown(fd, SHUT_WR));
        EQ(read(fd, got, sizeof got), 0);
        signal(SIGPIPE, SIG_IGN);
        ERR(write(fd, "x", 1), EPIPE);
        OK(close(fd));
        if (explicit) break;
        // The port was in use a moment ago.
        own_loopback();
    }
}

static void set_device_as_nobody(void) {
    int fd = OK(socket(AF_INET, SOCK_DGRAM, 0));
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2));
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 2), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "", 1), EPERM);
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nowhere", 8), ENODEV);
}
CASE(a_socket_is_bound_to_an_interface) {
    own_loopback();
    AS_NOBODY(set_device_as_nobody());
    int fd = bound(SOCK_DGRAM, "127.0.0.1", 5353);
    char name[IFNAMSIZ];
    socklen_t length = 1;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    EQ(length, 0);
    ERR(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "eth0", 5), ENODEV);
    OK(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo\0what", 7));
    length = IFNAMSIZ - 1;
    ERR(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length), EINVAL);
    length = IFNAMSIZ;
    OK(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    EQ(length, 3);
    STR_EQ(name, "lo");
    EQ(option_of(fd, SOL_SOCKET, 62 /* SO_BINDTOIFINDEX */), 1);
    struct sockaddr_in to = at("127.0.0.1", 5353);
    EQ(sendto(fd, "x", 1, 0, ADDRESS(to)), 1);
    EQ(read(fd, name, 1), 1);
    set_option(fd, SOL_SOCKET, 62, 0);
    EQ(option_of(fd, SOL_SOCKET, 62), 0);
    // A connection of one that listens at it is on it too.
    int listener = listening("127.0.0.1", 8080);
    OK(setsockopt(listener, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
    int client = connected("127.0.0.1", 8080), server = OK(accept(listener, NULL, NULL));
    EQ(option_of(server, SOL_SOCKET, 62), 1);
    EQ(write(server, "x", 1), 1);
    EQ(read(client, name, 1), 1);
}

static long send_from(int fd, int level, int kind, const void *data, size_t size, struct sockaddr *to, socklen_t length) {
    char control[CMSG_SPACE(32)] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {to, length, &part, 1, control, CMSG_SPACE(size), 0};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(size), level, kind};
    memcpy(CMSG_DATA(head), data, size);
    return sendmsg(fd, &message, 0);
}
CASE(datagrams_say_where_they_come_from) {
    own_loopback();
    int server = bound(SOCK_DGRAM, "127.0.0.1", 5353), client = OK(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in to = at("127.0.0.1", 5353), from;
    struct in_pktinfo info = {.ipi_spec_dst.s_addr = inet_addr("127.0.0.7"), .ipi_ifindex = 1};
    EQ(send_from(client, IPPROTO_IP, IP_PKTINFO, &info, sizeof info, ADDRESS(to)), 1);
    socklen_t length = sizeof from;
    char got;
    EQ(recvfrom(server, &got, 1, 0, (struct sockaddr *)&from, &length), 1);
    STR_EQ(inet_ntoa(from.sin_addr), "127.0.0.7");
    EQ(ntohs(from.sin_port), port_of(client));
    // An address of somebody else, an interface that is not there, half of a message, one that is not for sending.
    info = (struct in_pktinfo){.ipi_spec_dst.s_addr = inet_addr("10.9.9.9")};
    CHECK(send_from(client, IPPROTO_IP, IP_PKTINFO, &info, sizeof info, ADDRESS(to)) == -1);
    info = (struct in_pktinfo){.ipi_ifindex = 77};
    ERR(send_from(client, IPPROTO_IP, IP_PKTINFO, &info, sizeof info, ADDRESS(to)), ENODEV);
    ERR(send_from(client, IPPROTO_IP, IP_PKTINFO, &info, sizeof info - 1, ADDRESS(to)), EINVAL);
    int hops = 0;
    ERR(send_from(client, IPPROTO_IP, IP_TTL, &hops, sizeof hops, ADDRESS(to)), EINVAL);
    ERR(send_from(client, IPPROTO_IP, IP_RECVERR, &hops, sizeof hops, ADDRESS(to)), EINVAL);
    hops = 9;
    EQ(send_from(client, IPPROTO_IP, IP_TTL, &hops, sizeof hops, ADDRESS(to)), 1);
    EQ(read(server, &got, 1), 1);
    // IPv6.
    int six = OK(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in6 own = at6("::1", 5353), from6;
    OK(bind(six, ADDRESS(own)));
    struct in6_pktinfo info6 = {.ipi6_addr = in6addr_loopback, .ipi6_ifindex = 1};
    int client6 = OK(socket(AF_INET6, SOCK_DGRAM, 0));
    EQ(send_from(client6, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof info6, ADDRESS(own)), 1);
    length = sizeof from6;
    EQ(recvfrom(six, &got, 1, 0, (struct sockaddr *)&from6, &length), 1);
    CHECK(IN6_IS_ADDR_LOOPBACK(&from6.sin6_addr));
    info6.ipi6_addr = at6("fd00::9", 0).sin6_addr;
    ERR(send_from(client6, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof info6, ADDRESS(own)), EINVAL);
    info6 = (struct in6_pktinfo){.ipi6_ifindex = 77};
    ERR(send_from(client6, IPPROTO_IPV6, IPV6_PKTINFO, &info6, sizeof info6, ADDRESS(own)), ENODEV);
}

static int asked(int fd, int request) {
    int value = -1;
    OK(ioctl(fd, request, &value));
    return value;
}
CASE(urgent_bytes_have_a_mark) {
    own_loopback();
    int listener = listening("127.0.0.1", 8080), client = connected("127.0.0.1", 8080), server = OK(accept(listener, NULL, NULL));
    ERR(ioctl(listener, FIONREAD, &(int){0}), EINVAL);
    EQ(send(client, "ab!", 3, MSG_OOB), 3);
    EQ(send(client, "cd", 2, 0), 2);
    struct pollfd item = {server, POLLPRI, 0};
    EQ(poll(&item, 1, -1), 1);
    WAIT_UNTIL(asked(server, FIONREAD) == 2);
    EQ(asked(server, SIOCATMARK), 0);
    char got[8];
    EQ(read(server, got, sizeof got), 2);
    EQ(asked(server, SIOCATMARK), 1);
    EQ(recv(server, got, 1, MSG_OOB), 1);
    EQ(got[0], '!');
    ERR(recv(server, got, 1, MSG_OOB), EINVAL);
    EQ(read(server, got, sizeof got), 2);
    EQ(asked(server, SIOCATMARK), 0);
    EQ(option_of(server, SOL_SOCKET, SO_OOBINLINE), 0);
    set_option(server, SOL_SOCKET, SO_OOBINLINE, 1);
    EQ(option_of(server, SOL_SOCKET, SO_OOBINLINE), 1);
    EQ(send(client, "e?", 2, MSG_OOB), 2);
    WAIT_UNTIL(asked(server, FIONREAD) == 2);
    EQ(read(server, got, sizeof got), 1);
    ERR(recv(server, got, 1, MSG_OOB), EINVAL);
    EQ(asked(server, SIOCATMARK), 1);
    EQ(read(server, got, sizeof got), 1);
    EQ(got[0], '?');
}
