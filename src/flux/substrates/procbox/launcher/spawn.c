/* From a request to a running program. Everything here runs in the new process, never in the init. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

/* What comes before the strings of a request; keep in step with control.py. */
struct request {
    uint32_t uid;
    uint32_t gid;
    uint32_t terminal;
    uint32_t argument_count;
    uint32_t environment_count;
};

struct command {
    const struct request *request;
    char *cwd;
    char **arguments;
    char **environment;
};

static int report_descriptor = -1;

pid_t fork_into(int cgroup)
{
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    if (cgroup >= 0) {
        arguments.flags = CLONE_INTO_CGROUP;
        arguments.cgroup = (uint64_t)cgroup;
    }
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

static void report(int32_t kind, int32_t value, int32_t stage)
{
    struct record record = {kind, value, stage};
    ssize_t written = write(report_descriptor, &record, sizeof record);
    (void)written;
}

static void __attribute__((noreturn)) refuse(int32_t stage)
{
    report(RECORD_REFUSED, errno, stage);
    _exit(127);
}

static char **take_strings(char **place, uint32_t count)
{
    char **strings = calloc((size_t)count + 1, sizeof *strings);
    if (!strings)
        refuse(STAGE_SETUP);
    for (uint32_t index = 0; index < count; index++) {
        strings[index] = *place;
        *place += strlen(*place) + 1;
    }
    return strings;
}

static struct command read_command(int descriptor)
{
    size_t size;
    char *text = map_file(descriptor, &size);
    if (!text)
        refuse(STAGE_SETUP);
    struct command command = {.request = (const struct request *)text};
    char *place = text + sizeof *command.request;
    command.cwd = place;
    place += strlen(place) + 1;
    command.arguments = take_strings(&place, command.request->argument_count);
    command.environment = take_strings(&place, command.request->environment_count);
    return command;
}

static void reset_signals(void)
{
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* The received descriptors are all above 2, so none is overwritten before it is used. */
static void arrange_descriptors(const struct message *message)
{
    for (int index = 0; index < 3; index++)
        if (dup2(message->descriptors[1 + index], index) < 0)
            refuse(STAGE_SETUP);
}

static void become_user(const struct request *request)
{
    gid_t group = request->gid;
    if (setgroups(1, &group) < 0 && errno != EPERM)
        refuse(STAGE_USER);
    if (setresgid(group, group, group) < 0 || setresuid(request->uid, request->uid, request->uid) < 0)
        refuse(STAGE_USER);
}

static void run_file(const char *path, const struct command *command)
{
    execve(path, command->arguments, command->environment);
    if (errno != ENOEXEC)
        return;
    /* A script without a first line that says what runs it is the shell's, as everywhere. */
    uint32_t count = command->request->argument_count;
    char **arguments = calloc((size_t)count + 2, sizeof *arguments);
    if (!arguments)
        return;
    arguments[0] = "/bin/sh";
    arguments[1] = (char *)path;
    for (uint32_t index = 1; index < count; index++)
        arguments[index + 1] = command->arguments[index];
    execve(arguments[0], arguments, command->environment);
}

static const char *search_path(char **environment)
{
    for (; *environment; environment++)
        if (strncmp(*environment, "PATH=", 5) == 0)
            return *environment + 5;
    return DEFAULT_PATH;
}

/* Look the program up in PATH. A file that may not be run is only reported if no other one can be. */
static void run(const struct command *command)
{
    const char *name = command->arguments[0];
    int reason = ENOENT;
    if (strchr(name, '/')) {
        run_file(name, command);
        return;
    }
    for (const char *part = search_path(command->environment);;) {
        size_t size = strcspn(part, ":");
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%.*s%s%s", (int)size, part, size ? "/" : "", name) < (int)sizeof path) {
            run_file(path, command);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                return;
            if (errno == EACCES)
                reason = EACCES;
        }
        if (!part[size])
            break;
        part += size + 1;
    }
    errno = reason;
}

static void __attribute__((noreturn)) become_command(const struct message *message, bool stopped)
{
    struct command command = read_command(message->descriptors[0]);
    reset_signals();
    setsid();
    arrange_descriptors(message);
    if (command.request->terminal && ioctl(0, TIOCSCTTY, 0) < 0)
        refuse(STAGE_TERMINAL);
    become_user(command.request);
    if (chdir(command.cwd) < 0)
        refuse(STAGE_CWD);
    if (seccomp_install() < 0)
        refuse(STAGE_SETUP);
    if (stopped)
        kill(getpid(), SIGSTOP);
    run(&command);
    refuse(STAGE_EXEC);
}

/* The program started if the pipe ends without a record; otherwise the record says why not. */
static void forward(int started, pid_t command)
{
    struct record record;
    if (read(started, &record, sizeof record) == sizeof record)
        report(record.kind, record.value, record.stage);
    else
        report(RECORD_STARTED, command, 0);
    close(started);
}

/* Without cgroups, what the command leaves behind becomes the keeper's, so that it can be found and killed. */
static void __attribute__((noreturn)) keep(const struct message *message, bool stopped)
{
    int started[2], status;
    reset_signals();
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || pipe2(started, O_CLOEXEC) < 0)
        refuse(STAGE_SETUP);
    pid_t command = fork_into(-1);
    if (command < 0)
        refuse(STAGE_SETUP);
    if (command == 0) {
        report_descriptor = started[1];
        become_command(message, stopped);
    }
    close(started[1]);
    close(CONTROL);
    for (size_t index = 0; index < message->count; index++)
        close(message->descriptors[index]); /* or its readers would wait for us */
    forward(started[0], command);
    for (pid_t ended; (ended = waitpid(-1, &status, 0)) > 0 || errno == EINTR;)
        if (ended == command)
            report(RECORD_ENDED, status, 0);
    _exit(0);
}

/* Never returns. `report_to` is written to only if the command does not start, or by a keeper. */
void spawn_child(const struct message *message, int report_to, bool stopped)
{
    report_descriptor = report_to;
    if (message->value & SPAWN_JOIN && write(message->descriptors[4], "0", 1) < 0)
        refuse(STAGE_CGROUP);
    if (message->value & SPAWN_KEEPER)
        keep(message, stopped);
    become_command(message, stopped);
}
