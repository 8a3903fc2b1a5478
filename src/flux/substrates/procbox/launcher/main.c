/* The launcher: receives the plan, gives birth to the init, maps its ids, and is gone. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)

/* Nothing of how the owner handles signals or masks file modes is the sandbox's business. */
static void reset_signals(void)
{
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
}

static void __attribute__((noreturn)) become_init(struct plan *plan, int helper)
{
    if (!plan->privileged) {
        int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
        write_own_maps(proc);
        close(proc);
    }
    mounts_begin();
    plan_run(plan);
    if (unshare(CLONE_NEWCGROUP) < 0)
        fail("make a cgroup namespace");
    mounts_pivot();
    confine(plan->privileged, mounts_proc(), helper);
    close(helper);
    plan_report();
    init_run(mounts_proc());
}

/* The init becomes the owner's own child, so that the owner learns of its death from the kernel. */
static pid_t clone_init(const struct plan *plan, int *pidfd)
{
    struct clone_args arguments = {
        .flags = NAMESPACES | CLONE_PARENT | CLONE_PIDFD | (plan->privileged ? 0 : CLONE_NEWUSER) |
                 (plan->network < 0 ? CLONE_NEWNET : 0),
        .pidfd = (uintptr_t)pidfd,
    };
    /* One that is connected already is the owner's, made for this sandbox alone. */
    if (plan->network >= 0 && setns(plan->network, CLONE_NEWNET) < 0)
        fail("enter the network");
    if (plan->cgroup >= 0) {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = (uint64_t)plan->cgroup;
    }
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

static void help(pid_t init, int helper)
{
    char byte;
    if (read(helper, &byte, 1) != 1)
        return; /* the init has reported why it ended */
    write_maps_for(init);
    if (write(helper, &byte, 1) != 1)
        fail("answer the init");
}

int main(void)
{
    struct message message;
    struct plan plan = {0};
    int pair[2], pidfd = -1;
    reset_signals();
    remember_ids();
    /* What else the owner left open for its children is not for sandboxes. */
    if (close_range(CONTROL + 1, ~0U, 0) < 0 || fcntl(CONTROL, F_SETFD, FD_CLOEXEC) < 0 || !message_receive(&message))
        return 2;
    plan_read(&plan, &message);
    plan_prepare(&plan);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        fail("make a socket");
    pid_t init = clone_init(&plan, &pidfd);
    if (init < 0)
        fail("make namespaces");
    if (init == 0) {
        close(pair[0]);
        become_init(&plan, pair[1]);
    }
    close(pair[1]);
    message_send(MESSAGE_STARTED, 0, init, NULL, &pidfd, 1);
    if (plan.privileged)
        help(init, pair[0]);
    return 0;
}
