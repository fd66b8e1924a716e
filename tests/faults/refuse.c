/* Loaded before the C library: a file system that refuses what REFUSE names, with the error that some return. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static int refuses(const char *name)
{
    const char *refused = getenv("REFUSE");
    return refused && strcmp(refused, name) == 0;
}

int flock(int handle, int how)
{
    (void)handle, (void)how;
    errno = refuses("flock-missing") ? ENOSYS : ENOLCK;
    return -1;
}

ssize_t copy_file_range(int from, off_t *start, int to, off_t *end, size_t length, unsigned flags)
{
    (void)from, (void)start, (void)to, (void)end, (void)length, (void)flags;
    errno = refuses("copy-filtered") ? EPERM : refuses("copy-across") ? EXDEV : EOPNOTSUPP;
    return -1;
}
