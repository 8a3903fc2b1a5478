/* Giving up: a user namespace that owns nothing, few capabilities, no way back. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAP_BYTES_MAX 4096

#define BIT(capability) (1ULL << (capability))
/* What root may do to its own files, processes and users; nothing to mounts, networks or other processes' memory. */
static const uint64_t kept = BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) | BIT(CAP_FSETID) |
                             BIT(CAP_KILL) | BIT(CAP_SETGID) | BIT(CAP_SETUID) | BIT(CAP_SETPCAP) |
                             BIT(CAP_NET_BIND_SERVICE) | BIT(CAP_SYS_CHROOT) | BIT(CAP_SETFCAP);

static int write_file(int directory, const char *name, const char *text)
{
    int file = openat(directory, name, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    ssize_t written = write(file, text, strlen(text));
    int reason = errno;
    close(file);
    errno = reason;
    return written < 0 ? -1 : 0;
}

/* Every id that we have, as itself: the owners of files stay true. */
static void write_identity(pid_t pid, const char *kind)
{
    char name[64], text[MAP_BYTES_MAX];
    unsigned long inside, outside, count;
    size_t used = 0;
    snprintf(name, sizeof name, "/proc/self/%s", kind);
    FILE *own = fopen(name, "re");
    if (!own)
        fail("read %s", name);
    while (fscanf(own, "%lu %lu %lu", &inside, &outside, &count) == 3 && used < sizeof text - 64)
        used += (size_t)snprintf(text + used, sizeof text - used, "%lu %lu %lu\n", inside, inside, count);
    fclose(own);
    snprintf(name, sizeof name, "/proc/%d/%s", pid, kind);
    if (write_file(AT_FDCWD, name, text) < 0)
        fail("write %s", kind);
}

/* In the launcher, which is privileged where the init no longer is. */
void write_maps_for(pid_t pid)
{
    write_identity(pid, "uid_map");
    write_identity(pid, "gid_map");
}

static void write_single(int proc, const char *name, unsigned id)
{
    char text[64];
    snprintf(text, sizeof text, "%u %u 1\n", id, id);
    if (write_file(proc, name, text) < 0)
        fail("write %s", name);
}

static unsigned own_user, own_group;

/* The one user that we are, as itself. The first time before anything else; ids are not known to the namespace until
 * they are mapped, so they are remembered. */
void write_own_maps(int proc)
{
    if (write_file(proc, "self/setgroups", "deny") < 0)
        fail("write setgroups");
    write_single(proc, "self/uid_map", own_user);
    write_single(proc, "self/gid_map", own_group);
}

void remember_ids(void)
{
    own_user = geteuid();
    own_group = getegid();
}

/* The mounts, the network and all other namespaces stay with the namespace that we leave, so that nothing in here
 * can change them, whatever capability it might regain. */
static void leave_user_namespace(bool privileged, int proc, int helper)
{
    char byte = 0;
    if (unshare(CLONE_NEWUSER) < 0)
        fail("make a user namespace");
    if (!privileged) {
        write_own_maps(proc);
        return;
    }
    if (write(helper, &byte, 1) != 1 || read(helper, &byte, 1) != 1)
        _exit(1); /* the launcher has reported */
}

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2] = {0};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        if (!(kept & BIT(capability)) && prctl(PR_CAPBSET_DROP, capability) < 0)
            fail("drop capability %d", capability);
    for (int half = 0; half < 2; half++)
        data[half].effective = data[half].permitted = (uint32_t)(kept >> (32 * half));
    if (syscall(SYS_capset, &header, data) < 0)
        fail("drop capabilities");
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0)
        fail("drop ambient capabilities");
}

void confine(bool privileged, int proc, int helper)
{
    leave_user_namespace(privileged, proc, helper);
    if (write_file(proc, "sys/user/max_user_namespaces", "0") < 0)
        fail("forbid user namespaces");
    drop_capabilities();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0) < 0)
        fail("give up privileges");
}
