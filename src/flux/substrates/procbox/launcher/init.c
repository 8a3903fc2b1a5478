/* The sandbox's first process: starts commands, reaps everything, and takes the sandbox down when its owner is gone. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

struct task {
    struct task *next;
    uint32_t id;
    pid_t pid;     /* our child: the command, or its keeper */
    pid_t command; /* 0 until it runs */
    int report;    /* -1 when there is nothing more to learn from it */
    bool kept;
    bool refused;
    bool told; /* the owner knows that the command ended */
    bool killing;
};

static struct task *tasks;
static int own_proc;
static bool frozen;

static const char *const stages[] = {
    [STAGE_SETUP] = "set-up", [STAGE_USER] = "user", [STAGE_CWD] = "cwd",
    [STAGE_EXEC] = "exec",    [STAGE_TERMINAL] = "terminal", [STAGE_CGROUP] = "cgroup",
};

static struct task *task_by_id(uint32_t id)
{
    struct task *task = tasks;
    while (task && task->id != id)
        task = task->next;
    return task;
}

static void close_report(struct task *task)
{
    if (task->report >= 0)
        close(task->report);
    task->report = -1;
}

static void started(struct task *task, pid_t command)
{
    task->command = command;
    message_send(MESSAGE_SPAWNED, task->id, command, NULL, NULL, 0);
}

static void ended(struct task *task, int status)
{
    if (task->told || task->refused)
        return;
    task->told = true;
    task->command = 0;
    message_send(MESSAGE_EXITED, task->id, status, NULL, NULL, 0);
}

/* False when the report holds nothing (more) now. */
static bool read_report(struct task *task)
{
    struct record record;
    ssize_t size = read(task->report, &record, sizeof record);
    if (size < 0)
        return false;
    if (size != sizeof record) { /* the program replaced the process that held the other end, or it died */
        if (!task->kept && !task->refused)
            started(task, task->pid);
        close_report(task);
        return false;
    }
    if (record.kind == RECORD_STARTED)
        started(task, record.value);
    else if (record.kind == RECORD_ENDED)
        ended(task, record.value);
    else {
        task->refused = true;
        message_send(MESSAGE_REFUSED, task->id, record.value, stages[record.stage], NULL, 0);
    }
    return true;
}

static void forget(struct task *gone)
{
    for (struct task **place = &tasks; *place; place = &(*place)->next)
        if (*place == gone) {
            *place = gone->next;
            free(gone);
            return;
        }
}

static void reaped(pid_t pid, int status)
{
    struct task *task = tasks;
    while (task && task->pid != pid)
        task = task->next;
    if (!task)
        return;
    while (task->report >= 0 && read_report(task))
        ;
    close_report(task);
    ended(task, status);
    if (task->killing)
        message_send(MESSAGE_DONE, task->id, 0, NULL, NULL, 0);
    forget(task);
}

static void reap(void)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        reaped(pid, status);
}

static void refuse(const struct message *message, int reason)
{
    message_send(MESSAGE_REFUSED, message->id, reason, stages[STAGE_SETUP], NULL, 0);
}

static void spawn(const struct message *message)
{
    size_t wanted = message->value & (SPAWN_INTO | SPAWN_JOIN) ? 5 : 4;
    struct task *task = calloc(1, sizeof *task);
    int report[2];
    if (!task || message->count != wanted || pipe2(report, O_CLOEXEC | O_NONBLOCK) < 0) {
        refuse(message, task && message->count != wanted ? EPROTO : errno);
        free(task);
        return;
    }
    pid_t pid = fork_into(message->value & SPAWN_INTO ? message->descriptors[4] : -1);
    if (pid == 0)
        spawn_child(message, report[1], frozen);
    int reason = errno;
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        free(task);
        refuse(message, reason);
        return;
    }
    *task = (struct task){tasks, message->id, pid, 0, report[0], (message->value & SPAWN_KEEPER) != 0, false, false, false};
    tasks = task;
}

static void kill_tree(uint32_t id)
{
    struct task *task = task_by_id(id);
    if (!task) {
        message_send(MESSAGE_DONE, id, 0, NULL, NULL, 0);
        return;
    }
    task->killing = true;
    processes_kill_below(own_proc, task->pid);
}

static void handle(const struct message *message)
{
    struct task *task;
    switch (message->type) {
    case MESSAGE_SPAWN:
        spawn(message);
        break;
    case MESSAGE_SIGNAL:
        task = task_by_id(message->id);
        if (task && task->command) /* we have not reaped it, so the pid is still its own */
            kill(task->command, message->value);
        break;
    case MESSAGE_KILL:
        kill_tree(message->id);
        break;
    case MESSAGE_FREEZE:
    case MESSAGE_THAW:
        frozen = message->type == MESSAGE_FREEZE;
        if (frozen)
            processes_stop_all(own_proc);
        else
            processes_continue_all();
        message_send(MESSAGE_DONE, 0, 0, NULL, NULL, 0);
    }
    for (size_t index = 0; index < message->count; index++)
        close(message->descriptors[index]);
}

/* Wait for a message, a death or a report; false when the owner is gone. */
static bool turn(int deaths)
{
    static struct message message;
    struct signalfd_siginfo ignored;
    size_t count = 2;
    for (struct task *task = tasks; task; task = task->next)
        count += task->report >= 0;
    struct pollfd polled[count];
    struct task *reporting[count];
    polled[0] = (struct pollfd){CONTROL, POLLIN, 0};
    polled[1] = (struct pollfd){deaths, POLLIN, 0};
    count = 2;
    for (struct task *task = tasks; task; task = task->next)
        if (task->report >= 0) {
            reporting[count] = task;
            polled[count++] = (struct pollfd){task->report, POLLIN, 0};
        }
    if (poll(polled, count, -1) < 0)
        return errno == EINTR;
    for (size_t index = 2; index < count; index++)
        if (polled[index].revents)
            while (reporting[index]->report >= 0 && read_report(reporting[index]))
                ;
    if (polled[1].revents && read(deaths, &ignored, sizeof ignored) > 0)
        reap();
    if (!polled[0].revents)
        return true;
    if (!message_receive(&message))
        return false;
    handle(&message);
    return true;
}

void init_run(int proc)
{
    sigset_t all;
    own_proc = proc;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&all);
    sigaddset(&all, SIGCHLD);
    int deaths = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    if (deaths < 0)
        fail("watch for deaths");
    while (turn(deaths))
        ;
    _exit(0);
}
