// A volume that somebody else changes at the same time: makes and changes names in a directory, over and over, while another process
// puts symbolic links that lead out of the volume in their place. Usage: files DIRECTORY ROUNDS. Prints how often the others were seen;
// whether something outside was changed is for who runs it to see.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 3 || chdir(argv[1]) < 0) {
        perror("usage: files DIRECTORY ROUNDS");
        return 2;
    }
    umask(0);
    long seen = 0;
    for (long i = 0, rounds = atol(argv[2]); i < rounds; i++) {
        // Made with bits that take a second step on the host.
        if (mkdir("made", 01777) < 0 || rmdir("made") < 0) {
            seen++;
            unlink("made");
            rmdir("made");
        }
        if (mknod("made", S_IFIFO | 04777, 0) < 0 || unlink("made") < 0) {
            seen++;
            rmdir("made");
        }
        // There already, and changed by name.
        seen += chmod("file", 0777) < 0;
        seen += lchown("file", 1, 1) < 0;
        seen += utimensat(AT_FDCWD, "file", NULL, AT_SYMLINK_NOFOLLOW) < 0;
        seen += setxattr("file", "user.attack", "x", 1, 0) < 0;
        seen += truncate("file", 0) < 0;
        int fd = open("file", O_WRONLY | O_TRUNC | O_CREAT, 0777);
        if (fd >= 0) {
            fchmod(fd, 0777);
            if (write(fd, "attack", 6) != 6) seen++;
            close(fd);
        } else {
            seen++;
        }
    }
    printf("%ld calls failed\n", seen);
    return 0;
}
