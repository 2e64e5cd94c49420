// Keys and keyrings: add_key(2), request_key(2), keyctl(2), keyrings(7).
#include "harness.h"

#include <linux/keyctl.h>

#define SPEC_THREAD KEY_SPEC_THREAD_KEYRING
#define SPEC_PROCESS KEY_SPEC_PROCESS_KEYRING
#define SPEC_SESSION KEY_SPEC_SESSION_KEYRING

static int add(const char *type, const char *name, const void *payload, size_t len, int ring) {
    return (int)syscall(SYS_add_key, type, name, payload, len, ring);
}
static int request(const char *type, const char *name, const char *info, int ring) {
    return (int)syscall(SYS_request_key, type, name, info, ring);
}
#define ctl(op, ...) CTL_(op, ##__VA_ARGS__, 0L, 0L, 0L, 0L)
#define CTL_(op, a, b, c, d, ...) ((int)syscall(SYS_keyctl, (long)(op), (long)(a), (long)(b), (long)(c), (long)(d)))

// A session of its own: what cases leave is gone with it.
static int session(void) {
    int ring = ctl(KEYCTL_JOIN_SESSION_KEYRING, NULL);
    if (ring == -1 && (errno == ENOSYS || errno == EPERM)) skip_case("the kernel has no keys here");
    return OK(ring);
}
static void become(int id) {
    OK(setresgid(id, id, id));
    OK(setresuid(id, id, id));
}
static void need_root(void) {
    if (geteuid() != 0) skip_case("it takes root");
}
static int child_status(pid_t child) {
    int status;
    OK(waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CASE(add_and_read) {
    session();
    int key = OK(add("user", "a", "hello", 5, SPEC_SESSION));
    char got[8] = "";
    EQ(OK(ctl(KEYCTL_READ, key, got, sizeof got)), 5);
    STR_EQ(got, "hello");
}
CASE(read_that_does_not_fit_writes_nothing) {
    session();
    int key = OK(add("user", "a", "hello", 5, SPEC_SESSION));
    char got[8] = "xxxx";
    EQ(OK(ctl(KEYCTL_READ, key, got, 4)), 5);
    STR_EQ(got, "xxxx");
    EQ(OK(ctl(KEYCTL_READ, key, NULL, 0)), 5);
}
CASE(add_again_updates) {
    session();
    int key = OK(add("user", "a", "hello", 5, SPEC_SESSION));
    EQ(OK(add("user", "a", "bye", 3, SPEC_SESSION)), key);
    char got[8] = "";
    EQ(OK(ctl(KEYCTL_READ, key, got, sizeof got)), 3);
    STR_EQ(got, "bye");
}
CASE(add_errors) {
    session();
    ERR(add("user", "a", "x", 0, SPEC_SESSION), EINVAL);
    ERR(add("user", "", "x", 1, SPEC_SESSION), EINVAL);
    ERR(add("nosuch", "a", "x", 1, SPEC_SESSION), ENODEV);
    ERR(add(".user", "a", "x", 1, SPEC_SESSION), EPERM);
    ERR(add("keyring", ".a", NULL, 0, SPEC_SESSION), EPERM);
    ERR(add("keyring", "a", "x", 1, SPEC_SESSION), EINVAL);
    ERR(add("user", "a", "x", 1 << 20, SPEC_SESSION), EINVAL);
    ERR(add("user", "a", (void *)1, 8, SPEC_SESSION), EFAULT);
    ERR(add("user", "a", "x", 1, 0), EINVAL);
    ERR(add("user", "a", "x", 1, -6), EINVAL);
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    ERR(add("user", "b", "x", 1, key), ENOTDIR);
}
CASE(logon_is_not_read) {
    session();
    ERR(add("logon", "plain", "x", 1, SPEC_SESSION), EINVAL);
    ERR(add("logon", ":plain", "x", 1, SPEC_SESSION), EINVAL);
    int key = OK(add("logon", "a:b", "x", 1, SPEC_SESSION));
    char got[4];
    ERR(ctl(KEYCTL_READ, key, got, sizeof got), EOPNOTSUPP);
}
CASE(describe) {
    session();
    int key = OK(add("user", "a;b", "x", 1, SPEC_SESSION));
    char want[100], got[100] = "";
    int len = snprintf(want, sizeof want, "user;%d;%d;3f010000;a;b", geteuid(), getegid()) + 1;
    EQ(OK(ctl(KEYCTL_DESCRIBE, key, NULL, 0)), len);
    EQ(OK(ctl(KEYCTL_DESCRIBE, key, got, sizeof got)), len);
    STR_EQ(got, want);
}
CASE(session_is_described) {
    int ring = session();
    char got[100] = "";
    OK(ctl(KEYCTL_DESCRIBE, SPEC_SESSION, got, sizeof got));
    CHECK(strstr(got, ";3f030000;_ses"));
    EQ(OK(ctl(KEYCTL_GET_KEYRING_ID, SPEC_SESSION, 0)), ring);
}
CASE(named_session_is_joined_again) {
    session();
    char name[40], got[100] = "";
    snprintf(name, sizeof name, "quark-%d", getpid());
    int ring = OK(ctl(KEYCTL_JOIN_SESSION_KEYRING, name));
    OK(ctl(KEYCTL_DESCRIBE, ring, got, sizeof got));
    CHECK(strstr(got, ";3f130000;quark-"));
    OK(ctl(KEYCTL_SETPERM, ring, 0x3f1b0000));
    // It is the session's own already.
    EQ(OK(ctl(KEYCTL_JOIN_SESSION_KEYRING, name)), 0);
    int other = OK(add("keyring", "keeps", NULL, 0, SPEC_PROCESS));
    OK(ctl(KEYCTL_LINK, ring, other));
    session();
    EQ(OK(ctl(KEYCTL_JOIN_SESSION_KEYRING, name)), ring);
    ERR(ctl(KEYCTL_JOIN_SESSION_KEYRING, ".a"), EPERM);
    ERR(ctl(KEYCTL_JOIN_SESSION_KEYRING, ""), EINVAL);
}
CASE(names_of_sessions_are_a_user_namespaces_own) {
    session();
    char name[40];
    snprintf(name, sizeof name, "quark-own-%d", getpid());
    int ring = OK(ctl(KEYCTL_JOIN_SESSION_KEYRING, name));
    OK(ctl(KEYCTL_SETPERM, ring, 0x3f3f3f3f));
    pid_t child = OK(fork());
    if (child == 0) {
        char map[40];
        snprintf(map, sizeof map, "0 %d 1", geteuid());
        if (unshare(CLONE_NEWUSER)) _exit(77);
        int fd = open("/proc/self/uid_map", O_WRONLY);
        if (fd == -1 || write(fd, map, strlen(map)) == -1) _exit(77);
        OK(ctl(KEYCTL_JOIN_SESSION_KEYRING, NULL));
        CHECK(ctl(KEYCTL_JOIN_SESSION_KEYRING, name) != ring);
        _exit(0);
    }
    int status = child_status(child);
    if (status == 77) skip_case("no user namespaces here");
    EQ(status, 0);
}
CASE(thread_ring_is_made_on_demand) {
    session();
    ERR(ctl(KEYCTL_GET_KEYRING_ID, SPEC_THREAD, 0), ENOKEY);
    int ring = OK(ctl(KEYCTL_GET_KEYRING_ID, SPEC_THREAD, 1));
    EQ(OK(ctl(KEYCTL_GET_KEYRING_ID, SPEC_THREAD, 0)), ring);
}
CASE(fork_inherits_the_session_only) {
    int ring = session();
    OK(ctl(KEYCTL_GET_KEYRING_ID, SPEC_THREAD, 1));
    OK(ctl(KEYCTL_GET_KEYRING_ID, SPEC_PROCESS, 1));
    pid_t child = OK(fork());
    if (child == 0) {
        bool same = ctl(KEYCTL_GET_KEYRING_ID, SPEC_SESSION, 0) == ring;
        bool thread = ctl(KEYCTL_GET_KEYRING_ID, SPEC_THREAD, 0) != -1;
        bool process = ctl(KEYCTL_GET_KEYRING_ID, SPEC_PROCESS, 0) != -1;
        _exit((same ? 0 : 1) | thread << 1 | process << 2);
    }
    EQ(child_status(child), 0);
}
CASE(key_goes_with_its_last_ring) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_PROCESS));
    OK(ctl(KEYCTL_UNLINK, key, SPEC_PROCESS));
    ERR(request("user", "a", NULL, 0), ENOKEY);
    // Linux frees it a little later; nobody possesses it meanwhile.
    char got[4];
    EQ(ctl(KEYCTL_READ, key, got, sizeof got), -1);
    CHECK(errno == ENOKEY || errno == EACCES);
}
CASE(link_and_unlink) {
    int ring = session();
    int inner = OK(add("keyring", "inner", NULL, 0, SPEC_SESSION));
    int key = OK(add("user", "a", "x", 1, ring));
    OK(ctl(KEYCTL_LINK, key, inner));
    OK(ctl(KEYCTL_UNLINK, key, ring));
    int got[4] = {0};
    EQ(OK(ctl(KEYCTL_READ, inner, got, sizeof got)), 4);
    EQ(got[0], key);
    ERR(ctl(KEYCTL_UNLINK, key, ring), ENOENT);
    ERR(ctl(KEYCTL_LINK, inner, key), ENOTDIR);
}
CASE(cycle_is_refused) {
    int ring = session();
    int inner = OK(add("keyring", "inner", NULL, 0, ring));
    int deep = OK(add("keyring", "deep", NULL, 0, inner));
    ERR(ctl(KEYCTL_LINK, inner, deep), EDEADLK);
    ERR(ctl(KEYCTL_LINK, inner, inner), EDEADLK);
}
CASE(search_finds_below) {
    int ring = session();
    int inner = OK(add("keyring", "inner", NULL, 0, ring));
    int key = OK(add("user", "a", "x", 1, inner));
    EQ(OK(ctl(KEYCTL_SEARCH, ring, "user", "a", 0)), key);
    ERR(ctl(KEYCTL_SEARCH, ring, "user", "b", 0), ENOKEY);
    ERR(ctl(KEYCTL_SEARCH, key, "user", "a", 0), ENOTDIR);
    EQ(OK(ctl(KEYCTL_SEARCH, ring, "user", "a", SPEC_PROCESS)), key);
    int got = 0;
    EQ(OK(ctl(KEYCTL_READ, SPEC_PROCESS, &got, sizeof got)), 4);
    EQ(got, key);
}
CASE(request_finds_or_not) {
    int ring = session();
    int key = OK(add("user", "a", "x", 1, ring));
    EQ(OK(request("user", "a", NULL, 0)), key);
    ERR(request("user", "b", NULL, 0), ENOKEY);
    ERR(request(".user", "b", NULL, 0), EPERM);
}
CASE(revoked) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    OK(ctl(KEYCTL_REVOKE, key));
    char got[4];
    ERR(ctl(KEYCTL_READ, key, got, sizeof got), EKEYREVOKED);
    ERR(ctl(KEYCTL_DESCRIBE, key, got, sizeof got), EKEYREVOKED);
    ERR(ctl(KEYCTL_SETPERM, key, 0x3f3f3f3f), EKEYREVOKED);
    ERR(ctl(KEYCTL_CHOWN, key, 0, -1), EKEYREVOKED);
    ERR(request("user", "a", NULL, 0), EKEYREVOKED);
    int other = OK(add("user", "a", "y", 1, SPEC_SESSION));
    CHECK(other != key);
}
CASE(invalidated) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    OK(ctl(KEYCTL_INVALIDATE, key));
    char got[4];
    EQ(ctl(KEYCTL_READ, key, got, sizeof got), -1);
    // Linux takes it out of its keyrings a little later; from then on nobody possesses it.
    CHECK(errno == ENOKEY || errno == EACCES);
    EQ(request("user", "a", NULL, 0), -1);
    CHECK(errno == ENOKEY || errno == EKEYREVOKED);
}
CASE(timeout) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    OK(ctl(KEYCTL_SET_TIMEOUT, key, 1));
    sleep(2);
    char got[4];
    ERR(ctl(KEYCTL_READ, key, got, sizeof got), EKEYEXPIRED);
}
CASE(timeout_is_taken_back) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    OK(ctl(KEYCTL_SET_TIMEOUT, key, 1));
    OK(ctl(KEYCTL_SET_TIMEOUT, key, 0));
    sleep(2);
    char got[4];
    EQ(OK(ctl(KEYCTL_READ, key, got, sizeof got)), 1);
}
CASE(update) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    OK(ctl(KEYCTL_UPDATE, key, "longer", 6));
    char got[8] = "";
    EQ(OK(ctl(KEYCTL_READ, key, got, sizeof got)), 6);
    STR_EQ(got, "longer");
    ERR(ctl(KEYCTL_UPDATE, key, "x", 4097), EINVAL);
    ERR(ctl(KEYCTL_UPDATE, SPEC_SESSION, NULL, 0), EOPNOTSUPP);
}
CASE(permissions_count) {
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    ERR(ctl(KEYCTL_SETPERM, key, 0xffffffff), EINVAL);
    OK(ctl(KEYCTL_SETPERM, key, 0x29000000));
    ERR(ctl(KEYCTL_UPDATE, key, "y", 1), EACCES);
    // Who may not search for it does not possess it.
    OK(ctl(KEYCTL_SETPERM, key, 0x37000000));
    ERR(request("user", "a", NULL, 0), EACCES);
    ERR(ctl(KEYCTL_DESCRIBE, key, NULL, 0), EACCES);
    ERR(ctl(KEYCTL_SETPERM, key, 0x3f000000), EACCES);
}
CASE(others_do_not_read) {
    need_root();
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    pid_t child = OK(fork());
    if (child == 0) {
        OK(ctl(KEYCTL_JOIN_SESSION_KEYRING, NULL));
        become(4242);
        char got[4];
        ERR(ctl(KEYCTL_READ, key, got, sizeof got), EACCES);
        ERR(ctl(KEYCTL_DESCRIBE, key, got, 0), EACCES);
        ERR(ctl(KEYCTL_REVOKE, key), EACCES);
        _exit(0);
    }
    EQ(child_status(child), 0);
}
CASE(possession_counts_after_setuid) {
    need_root();
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    become(4243);
    char got[4];
    EQ(OK(ctl(KEYCTL_READ, key, got, sizeof got)), 1);
}
CASE(chown_takes_rights) {
    need_root();
    session();
    int key = OK(add("user", "a", "x", 1, SPEC_SESSION));
    OK(ctl(KEYCTL_CHOWN, key, 4244, 4244));
    char got[100] = "";
    OK(ctl(KEYCTL_DESCRIBE, key, got, sizeof got));
    CHECK(strstr(got, "user;4244;4244;"));
    become(4245);
    ERR(ctl(KEYCTL_CHOWN, key, 4245, -1), EACCES);
}
CASE(quota_of_keys) {
    need_root();
    become(4246);
    session();
    char name[20];
    int made = 0;
    for (; made < 2000; made++) {
        snprintf(name, sizeof name, "k%d", made);
        if (add("user", name, "x", 1, SPEC_SESSION) == -1) break;
    }
    EQ(errno, EDQUOT);
    CHECK(made > 100 && made < 2000);
    OK(ctl(KEYCTL_CLEAR, SPEC_SESSION));
}
CASE(quota_of_bytes) {
    need_root();
    become(4247);
    session();
    static char much[20000];
    ERR(add("user", "a", much, sizeof much, SPEC_SESSION), EDQUOT);
    OK(add("user", "a", much, 1000, SPEC_SESSION));
}
CASE(user_rings) {
    need_root();
    become(4248);
    session();
    char got[100] = "";
    OK(ctl(KEYCTL_DESCRIBE, KEY_SPEC_USER_KEYRING, got, sizeof got));
    CHECK(strstr(got, ";1f3f0000;_uid.4248") || strstr(got, ";3f3f0000;_uid.4248"));
    int user = OK(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 0)), links[2] = {0};
    EQ(OK(ctl(KEYCTL_READ, KEY_SPEC_USER_SESSION_KEYRING, links, sizeof links)), 4);
    EQ(links[0], user);
}
CASE(move) {
    int ring = session();
    int key = OK(add("user", "a", "x", 1, ring));
    int other = OK(add("keyring", "other", NULL, 0, ring));
    OK(ctl(KEYCTL_MOVE, key, ring, other, 0));
    ERR(ctl(KEYCTL_MOVE, key, ring, other, 0), ENOENT);
    OK(add("user", "a", "y", 1, ring));
    ERR(ctl(KEYCTL_MOVE, key, other, ring, KEYCTL_MOVE_EXCL), EEXIST);
    ERR(ctl(KEYCTL_MOVE, key, other, ring, 2), EINVAL);
}
CASE(clear) {
    int ring = session();
    OK(add("user", "a", "x", 1, ring));
    OK(ctl(KEYCTL_CLEAR, ring));
    EQ(OK(ctl(KEYCTL_READ, ring, NULL, 0)), 0);
    int key = OK(add("user", "a", "x", 1, ring));
    ERR(ctl(KEYCTL_CLEAR, key), ENOTDIR);
}
CASE(capabilities) {
    unsigned char got[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    session();
    EQ(OK(ctl(KEYCTL_CAPABILITIES, got, sizeof got)), 2);
    CHECK(got[0] & KEYCTL_CAPS0_CAPABILITIES && got[0] & KEYCTL_CAPS0_MOVE);
    EQ(got[7], 0);
    ERR(ctl(99, 0), EOPNOTSUPP);
}
CASE(wrong_numbers) {
    session();
    ERR(ctl(KEYCTL_READ, 0, NULL, 0), ENOKEY);
    ERR(ctl(KEYCTL_DESCRIBE, 0, NULL, 0), EINVAL);
    ERR(ctl(KEYCTL_READ, 0x7ffffff1, NULL, 0), ENOKEY);
    ERR(ctl(KEYCTL_GET_KEYRING_ID, -6, 0), EINVAL);
    ERR(ctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_REQKEY_AUTH_KEY, 0), ENOKEY);
}
