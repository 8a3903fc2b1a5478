/* Places in the new root, never outside it: every path is resolved as if the new root were already the root. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int new_root = -1;

int target_open(const char *target, int flags)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    int descriptor;
    do /* a rename anywhere can make the kernel ask for another try */
        descriptor = (int)syscall(SYS_openat2, new_root, target, &how, sizeof how);
    while (descriptor < 0 && (errno == EAGAIN || errno == EINTR));
    return descriptor;
}

/* Open the parent of `target`, made if absent, and point *name at its last component. */
int target_parent(const char *target, const char **name)
{
    const char *slash = strrchr(target, '/');
    char parent[PATH_MAX];
    if (!slash || !slash[1] || (size_t)(slash - target) >= sizeof parent) {
        errno = EINVAL;
        fail("use the path %s", target);
    }
    memcpy(parent, target, (size_t)(slash - target));
    parent[slash - target] = 0;
    *name = slash + 1;
    return target_directory(*parent ? parent : "/");
}

/* Open a directory, making what is missing of it. */
int target_directory(const char *target)
{
    int found = target_open(target, O_PATH | O_DIRECTORY);
    if (found >= 0)
        return found;
    if (errno != ENOENT || strcmp(target, "/") == 0)
        fail("open the directory %s", target);
    const char *name;
    int parent = target_parent(target, &name);
    if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
        fail("make the directory %s", target);
    close(parent);
    found = target_open(target, O_PATH | O_DIRECTORY);
    if (found < 0)
        fail("open the directory %s", target);
    return found;
}

/* Open a file to mount on, making an empty one if absent. */
int target_file(const char *target)
{
    int found = target_open(target, O_PATH);
    if (found >= 0)
        return found;
    const char *name;
    int parent = target_parent(target, &name);
    if (mknodat(parent, name, S_IFREG | 0444, 0) < 0 && errno != EEXIST)
        fail("make the file %s", target);
    close(parent);
    found = target_open(target, O_PATH);
    if (found < 0)
        fail("open the file %s", target);
    return found;
}
