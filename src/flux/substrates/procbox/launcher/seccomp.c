/* The system calls that nothing in a sandbox may make. Everything else is allowed: this filter stands behind user
 * namespaces and dropped capabilities, it does not replace them. */
#include "launcher.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "no system call filter for this architecture"
#endif

/* Newer than the headers that some systems build with; the numbers are the same everywhere. */
#define NR_QUOTACTL_FD 443
#define NR_OPEN_TREE_ATTR 467
#define X32_BIT 0x40000000
#define FILTER_MAX 320
#define NAMESPACES                                                                                                    \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET |        \
     0x80 /* CLONE_NEWTIME */)

static const int refused[] = {
    /* mounts and roots */
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsconfig, SYS_fsmount,
    SYS_fspick, SYS_mount_setattr, NR_OPEN_TREE_ATTR, SYS_setns, SYS_swapon, SYS_swapoff, SYS_quotactl, NR_QUOTACTL_FD,
    /* the kernel itself */
    SYS_bpf, SYS_perf_event_open, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot,
    SYS_syslog, SYS_acct, SYS_userfaultfd, SYS_fanotify_init, SYS_io_uring_setup, SYS_io_uring_enter,
    SYS_io_uring_register,
    /* keys and handles know nothing of namespaces */
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_open_by_handle_at,
    /* clocks */
    SYS_settimeofday, SYS_clock_settime, SYS_clock_adjtime, SYS_adjtimex,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl, SYS_create_module,
    SYS_get_kernel_syms, SYS_query_module, SYS_vhangup,
#endif
};

static struct sock_filter filter[FILTER_MAX];
static unsigned short used;

static void add(uint16_t code, uint32_t value, uint8_t yes, uint8_t no)
{
    filter[used++] = (struct sock_filter){code, yes, no, value};
}

static void load(size_t offset)
{
    add(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void answer(uint32_t action)
{
    add(BPF_RET | BPF_K, action, 0, 0);
}

/* The low half: every argument looked at here is an int to the kernel. */
static void load_argument(int index)
{
    load(offsetof(struct seccomp_data, args) + (size_t)index * sizeof(uint64_t) +
         (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 4 : 0));
}

static void load_number(void)
{
    load(offsetof(struct seccomp_data, nr));
}

static void refuse(int number, uint32_t reason)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1);
    answer(SECCOMP_RET_ERRNO | reason);
}

/* Refuse the call if (argument & mask) is one of the values; mask 0 means that any common bit will do. */
static void refuse_argument(int number, int index, uint32_t mask, const uint32_t *values, uint8_t count)
{
    uint8_t body = (uint8_t)(1 + (mask ? 1 : 0) + 2 * count + 1);
    add(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, body);
    load_argument(index);
    if (mask)
        add(BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    for (uint8_t place = 0; place < count; place++) {
        add((uint16_t)(BPF_JMP | (mask ? BPF_JEQ : BPF_JSET) | BPF_K), values[place], 0, 1);
        answer(SECCOMP_RET_ERRNO | EPERM);
    }
    load_number();
}

static void check_architecture(void)
{
    load(offsetof(struct seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load_number();
#ifdef __x86_64__
    add(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    answer(SECCOMP_RET_KILL_PROCESS);
#endif
}

static void build(void)
{
    static const uint32_t namespaces[] = {NAMESPACES}, devices[] = {S_IFCHR, S_IFBLK};
    static const uint32_t injections[] = {TIOCSTI, 0x541C /* TIOCLINUX */};
    static const uint32_t families[] = {AF_VSOCK, AF_ALG, AF_KEY};
    check_architecture();
    for (size_t place = 0; place < sizeof refused / sizeof *refused; place++)
        refuse(refused[place], EPERM);
    /* Its flags are behind a pointer, which a filter cannot follow; libraries fall back to clone. */
    refuse(SYS_clone3, ENOSYS);
    refuse_argument(SYS_clone, 0, 0, namespaces, 1);
    refuse_argument(SYS_unshare, 0, 0, namespaces, 1);
    refuse_argument(SYS_mknodat, 2, S_IFMT, devices, 2);
#ifdef SYS_mknod
    refuse_argument(SYS_mknod, 1, S_IFMT, devices, 2);
#endif
    refuse_argument(SYS_ioctl, 1, 0xffffffff, injections, 2);
    refuse_argument(SYS_socket, 0, 0xffffffff, families, 3);
    answer(SECCOMP_RET_ALLOW);
}

/* For this process and all that come from it. Needs no_new_privs. */
int seccomp_install(void)
{
    used = 0;
    build();
    struct sock_fprog program = {used, filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
