/* The operations of the plan that build the sandbox's file system. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define QUIET (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
#define NAME_MAX_BYTES 32
#define OPTIONS_MAX 4000
#define LAYERS_MAX 150

static int staging = -1; /* a tmpfs that disappears with the old root: the new root's mount point, masks, layers */
static int own_proc = -1;
static int layer_count;
static int under = -1; /* the root of the overlay that is the last layer of the next one */
static int cover_count;

static int tree(int directory, const char *path, unsigned flags)
{
    return (int)syscall(SYS_open_tree, directory, path, flags | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
}

static int set_attributes(int mount, uint64_t set, unsigned flags)
{
    struct mount_attr attributes = {.attr_set = set};
    return (int)syscall(SYS_mount_setattr, mount, "", flags | AT_EMPTY_PATH, &attributes, sizeof attributes);
}

static int attach(int mount, int target)
{
    return (int)syscall(SYS_move_mount, mount, "", target, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
}

static const char *name_of(int descriptor, char *name)
{
    snprintf(name, NAME_MAX_BYTES, "/proc/self/fd/%d", descriptor);
    return name;
}

/* A file system on its own, not attached anywhere yet. */
static int detached_tmpfs(void)
{
    int context = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
    if (context < 0 || syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "mode", "0755", 0) < 0 ||
        syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        fail("make the staging tmpfs");
    int mount = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, QUIET);
    if (mount < 0)
        fail("make the staging tmpfs");
    close(context);
    return mount;
}

/* Nothing mounted here reaches the host. The staging tmpfs lies over `/`, which is still reached below it by path. */
void mounts_begin(void)
{
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail("make mounts private");
    staging = detached_tmpfs();
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0 || attach(staging, root) < 0)
        fail("attach the staging tmpfs");
    close(root);
    if (mkdirat(staging, "root", 0755) < 0 || mkdirat(staging, "empty", 0) < 0 ||
        mknodat(staging, "nothing", S_IFREG, 0) < 0)
        fail("fill the staging tmpfs");
}

void mounts_pivot(void)
{
    if (fchdir(new_root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0)
        fail("change the root");
    /* Over us lie the old root and, on top of it, the staging tmpfs. */
    if (umount2(".", MNT_DETACH) < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        fail("leave the old root");
    close(staging);
    close(new_root);
}

/* The sandbox's /proc without the masks. */
int mounts_proc(void)
{
    return own_proc;
}

static int mount_point(const char *target)
{
    if (strcmp(target, "/") != 0)
        return target_directory(target);
    int point = openat(staging, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (point < 0)
        fail("open the new root");
    return point;
}

static void mounted(const char *target)
{
    if (strcmp(target, "/") != 0)
        return;
    new_root = openat(staging, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (new_root < 0)
        fail("open the new root");
}

static void mount_type(const char *type, const char *target, unsigned long flags, const char *options)
{
    char name[NAME_MAX_BYTES];
    int point = mount_point(target);
    if (mount(type, name_of(point, name), type, flags, options) < 0)
        fail("mount %s on %s", type, target);
    close(point);
    mounted(target);
}

void mount_tmpfs(char **arguments)
{
    mount_type("tmpfs", arguments[0], MS_NOSUID | MS_NODEV, arguments[1]);
}

void mount_proc(char **arguments)
{
    mount_type("proc", arguments[0], MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    int proc = target_open(arguments[0], O_PATH | O_DIRECTORY);
    own_proc = proc < 0 ? -1 : tree(proc, "", AT_EMPTY_PATH);
    if (own_proc < 0)
        fail("keep %s", arguments[0]);
    close(proc);
}

void mount_devpts(char **arguments)
{
    mount_type("devpts", arguments[0], MS_NOSUID | MS_NOEXEC, arguments[1]);
}

/* Overlayfs wants layers that are mounted here, so a layer that came as a mount is attached in the staging tmpfs. */
static int attached_layer(const char *index)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "layer%d", layer_count++);
    if (mkdirat(staging, name, 0755) < 0)
        fail("make a place for a layer");
    int point = openat(staging, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (point < 0 || attach(plan_descriptor(index), point) < 0)
        fail("attach a layer");
    close(point);
    int layer = openat(staging, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (layer < 0)
        fail("open a layer");
    return layer;
}

static int open_layer(const char *source)
{
    if (strcmp(source, "under") == 0 && under >= 0)
        return dup(under);
    if (strncmp(source, "fd:", 3) == 0)
        return attached_layer(source + 3);
    int layer = open(source, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (layer < 0)
        fail("open the layer %s", source);
    return layer;
}

/* Write the layers into the options by descriptor, so that no name needs escaping. */
static size_t name_layers(char *options, size_t used, const int *layers, size_t count)
{
    for (size_t index = 0; index < count && used < OPTIONS_MAX; index++)
        used += (size_t)snprintf(options + used, OPTIONS_MAX - used, "%s/proc/self/fd/%d", index ? ":" : "", layers[index]);
    return used;
}

/* OPTIONS UPPER WORK COUNT LOWER... */
static void mount_layers(int point, const char *target, char **arguments)
{
    char options[OPTIONS_MAX], name[NAME_MAX_BYTES];
    int layers[LAYERS_MAX];
    size_t count = strtoul(arguments[3], NULL, 10);
    char *source = arguments[3] + strlen(arguments[3]) + 1;
    int upper = open_layer(arguments[1]), work = open_layer(arguments[2]);
    for (size_t index = 0; index < count && index < LAYERS_MAX; index++) {
        layers[index] = open_layer(source);
        source += strlen(source) + 1;
    }
    size_t used = (size_t)snprintf(options, sizeof options, "%s,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,lowerdir=",
                                   arguments[0], upper, work);
    if (count > LAYERS_MAX || name_layers(options, used, layers, count) >= OPTIONS_MAX) {
        errno = E2BIG;
        fail("mount overlay on %s", target);
    }
    if (mount("overlay", name_of(point, name), "overlay", MS_NOSUID | MS_NODEV, options) < 0)
        fail("mount overlay on %s", target);
    for (size_t index = 0; index < count; index++)
        close(layers[index]);
    close(upper);
    close(work);
}

/* overlay TARGET OPTIONS UPPER WORK COUNT LOWER... */
void mount_overlay(char **arguments)
{
    int point = mount_point(arguments[0]);
    mount_layers(point, arguments[0], arguments + 1);
    close(point);
    mounted(arguments[0]);
}

/* under OPTIONS UPPER WORK COUNT LOWER...: an overlay in the staging tmpfs, for the next one to lie on. */
void mount_under(char **arguments)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "under%d", layer_count++);
    if (mkdirat(staging, name, 0755) < 0)
        fail("make a place for a layer");
    int point = openat(staging, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (point < 0)
        fail("open a place for a layer");
    mount_layers(point, "the layers above", arguments);
    close(point);
    if (under >= 0)
        close(under);
    under = openat(staging, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (under < 0)
        fail("open the layers below");
}

static int point_for(int mount, const char *target)
{
    struct stat status;
    if (fstat(mount, &status) < 0)
        fail("look at the source for %s", target);
    return S_ISDIR(status.st_mode) ? target_directory(target) : target_file(target);
}

static void bind_to(int mount, const char *source, const char *target, uint64_t attributes, unsigned flags)
{
    int point = point_for(mount, target);
    if (set_attributes(mount, attributes, flags) < 0 || attach(mount, point) < 0)
        fail("bind %s on %s", source, target);
    close(point);
    close(mount);
}

/* Mounts below the source stay out. Without privileges the kernel refuses to uncover what they cover: they come along. */
void bind_writable(char **arguments)
{
    unsigned recursive = 0;
    int mount = tree(AT_FDCWD, arguments[0], 0);
    if (mount < 0 && errno == EINVAL) {
        recursive = AT_RECURSIVE;
        mount = tree(AT_FDCWD, arguments[0], recursive);
    }
    if (mount < 0)
        fail("bind %s on %s", arguments[0], arguments[1]);
    bind_to(mount, arguments[0], arguments[1], QUIET, recursive);
}

void bind_read_only(char **arguments)
{
    int mount = tree(AT_FDCWD, arguments[0], AT_RECURSIVE);
    if (mount < 0)
        fail("bind %s on %s", arguments[0], arguments[1]);
    bind_to(mount, arguments[0], arguments[1], QUIET | MOUNT_ATTR_RDONLY, AT_RECURSIVE);
}

void bind_read_only_if_there(char **arguments)
{
    if (access(arguments[0], F_OK) == 0)
        bind_read_only(arguments);
}

void bind_device(char **arguments)
{
    int mount = tree(AT_FDCWD, arguments[0], 0);
    if (mount < 0)
        fail("bind %s on %s", arguments[0], arguments[1]);
    bind_to(mount, arguments[0], arguments[1], MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, 0);
}

void make_directory(char **arguments)
{
    int directory = target_directory(arguments[0]);
    char name[NAME_MAX_BYTES];
    if (chmod(name_of(directory, name), (mode_t)strtoul(arguments[1], NULL, 8)) < 0)
        fail("set the mode of %s", arguments[0]);
    close(directory);
}

/* Nothing happens where there is one already, whatever its mode. */
void make_new_directory(char **arguments)
{
    int there = target_open(arguments[0], O_PATH | O_NOFOLLOW);
    if (there < 0)
        make_directory(arguments);
    else
        close(there);
}

/* file TARGET MODE CONTENT */
void make_file(char **arguments)
{
    close(target_file(arguments[0]));
    int file = target_open(arguments[0], O_WRONLY | O_TRUNC);
    size_t size = strlen(arguments[2]);
    if (file < 0 || write(file, arguments[2], size) != (ssize_t)size ||
        fchmod(file, (mode_t)strtoul(arguments[1], NULL, 8)) < 0)
        fail("write %s", arguments[0]);
    close(file);
}

/* cover TARGET CONTENT: replace what a file of the tree says without touching the tree. */
void cover(char **arguments)
{
    char name[NAME_MAX_BYTES];
    int point = target_open(arguments[0], O_PATH | O_NOFOLLOW);
    struct stat status;
    if (point < 0 || fstat(point, &status) < 0 || !S_ISREG(status.st_mode))
        return;
    snprintf(name, sizeof name, "cover%d", cover_count++);
    int file = openat(staging, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    ssize_t size = (ssize_t)strlen(arguments[1]);
    if (file < 0 || write(file, arguments[1], (size_t)size) != size)
        fail("write what covers %s", arguments[0]);
    close(file);
    int mount = tree(staging, name, 0);
    if (mount < 0 || set_attributes(mount, QUIET | MOUNT_ATTR_RDONLY, 0) < 0 || attach(mount, point) < 0)
        fail("cover %s", arguments[0]);
    close(mount);
    close(point);
}

/* symlink CONTENT TARGET */
void make_symlink(char **arguments)
{
    const char *name;
    int directory = target_parent(arguments[1], &name);
    if (symlinkat(arguments[0], directory, name) < 0)
        fail("make the link %s", arguments[1]);
    close(directory);
}

/* Cover with nothing, whatever it is; nothing to do where it is not there. */
void hide(char **arguments)
{
    int point = target_open(arguments[0], O_PATH | O_NOFOLLOW);
    struct stat status;
    if (point < 0 && (errno == ENOENT || errno == ENOTDIR))
        return;
    if (point < 0 || fstat(point, &status) < 0)
        fail("hide %s", arguments[0]);
    if (!S_ISLNK(status.st_mode)) {
        int mount = tree(staging, S_ISDIR(status.st_mode) ? "empty" : "nothing", 0);
        if (mount < 0 || set_attributes(mount, QUIET | MOUNT_ATTR_RDONLY, 0) < 0 || attach(mount, point) < 0)
            fail("hide %s", arguments[0]);
        close(mount);
    }
    close(point);
}

/* Make a place read-only, with everything mounted below it unless it is the root. */
void seal(char **arguments)
{
    if (strcmp(arguments[0], "/") == 0) {
        if (set_attributes(new_root, MOUNT_ATTR_RDONLY, 0) < 0)
            fail("seal /");
        return;
    }
    int place = target_open(arguments[0], O_PATH);
    if (place < 0 && errno == ENOENT)
        return;
    int mount = place < 0 ? -1 : tree(place, "", AT_EMPTY_PATH | AT_RECURSIVE);
    if (mount < 0 || set_attributes(mount, MOUNT_ATTR_RDONLY, AT_RECURSIVE) < 0 || attach(mount, place) < 0)
        fail("seal %s", arguments[0]);
    close(mount);
    close(place);
}

/* A descriptor to read the directory by, as the sandbox sees it, also when the sandbox is gone. */
int open_tree_root(const char *target)
{
    int directory = strcmp(target, "/") == 0 ? openat(new_root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                             : target_open(target, O_RDONLY | O_DIRECTORY);
    if (directory < 0)
        fail("open %s", target);
    return directory;
}
