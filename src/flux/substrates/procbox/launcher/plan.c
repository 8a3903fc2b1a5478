/* The plan: operations of NUL-terminated words, carried out in order. Written by plan.py. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGUMENTS_MAX 6

static struct plan *current;
static int outcomes[DESCRIPTORS_MAX];
static size_t outcome_count;

int plan_descriptor(const char *index)
{
    char *end;
    unsigned long place = strtoul(index, &end, 10);
    if (*end || place >= current->count) {
        errno = EINVAL;
        fail("find descriptor %s of the plan", index);
    }
    return current->descriptors[place];
}

static void send_outcome(int descriptor)
{
    outcomes[outcome_count++] = descriptor;
}

static void set_hostname(char **arguments)
{
    if (sethostname(arguments[0], strlen(arguments[0])) < 0)
        fail("set the hostname %s", arguments[0]);
}

/* A single-threaded process may move itself by `tasks` without the wait that moving another one by pid costs. */
static void join_cgroup(char **arguments)
{
    if (write(plan_descriptor(arguments[0]), "0", 1) < 0)
        fail("join cgroup %s", arguments[1]);
}

static void limit(char **arguments)
{
    struct rlimit bound;
    bound.rlim_cur = bound.rlim_max = strtoull(arguments[1], NULL, 10);
    if (setrlimit((int)strtol(arguments[0], NULL, 10), &bound) < 0)
        fail("set resource limit %s to %s", arguments[0], arguments[1]);
}

static void send_tree(char **arguments)
{
    send_outcome(open_tree_root(arguments[0]));
}

static void send_sink(char **arguments)
{
    int device = network_sink(arguments);
    if (device >= 0)
        send_outcome(device);
}

static void done_before(char **arguments)
{
    (void)arguments;
}

static const struct operation {
    const char *name;
    int arguments;
    void (*run)(char **);
    bool words_follow; /* the last fixed argument says how many more there are */
} operations[] = {
    {"mode", 1, done_before, false},
    {"born-into", 1, done_before, false},
    {"layer", 2, done_before, false},
    {"network", 1, done_before, false},
    {"join", 2, join_cgroup, false},
    {"hostname", 1, set_hostname, false},
    {"limit", 2, limit, false},
    {"loopback", 1, network_loopback, false},
    {"sink", 6, send_sink, false},
    {"tmpfs", 2, mount_tmpfs, false},
    {"proc", 1, mount_proc, false},
    {"devpts", 2, mount_devpts, false},
    {"overlay", 5, mount_overlay, true},
    {"under", 4, mount_under, true},
    {"bind", 2, bind_writable, false},
    {"ro-bind", 2, bind_read_only, false},
    {"ro-bind-try", 2, bind_read_only_if_there, false},
    {"dev-bind", 2, bind_device, false},
    {"dir", 2, make_directory, false},
    {"new-dir", 2, make_new_directory, false},
    {"file", 3, make_file, false},
    {"symlink", 2, make_symlink, false},
    {"cover", 2, cover, false},
    {"hide", 1, hide, false},
    {"seal", 1, seal, false},
    {"send-tree", 1, send_tree, false},
};

static const struct operation *find(const char *name)
{
    for (size_t place = 0; place < sizeof operations / sizeof *operations; place++)
        if (strcmp(operations[place].name, name) == 0)
            return &operations[place];
    errno = EINVAL;
    fail("understand operation %s of the plan", name);
}

/* Take one word at *place; fails when there is none. */
static char *word(char **place)
{
    char *end = current->text + current->size;
    char *found = *place;
    if (found >= end) {
        errno = EINVAL;
        fail("read the plan: it ends too early");
    }
    *place += strnlen(found, (size_t)(end - found)) + 1;
    return found;
}

/* Step over one operation, leaving its words in `arguments`; NULL at the end. Words that follow stay contiguous. */
static const struct operation *step(char **place, char **arguments)
{
    if (*place >= current->text + current->size)
        return NULL;
    const struct operation *operation = find(word(place));
    for (int index = 0; index < operation->arguments; index++)
        arguments[index] = word(place);
    if (operation->words_follow)
        for (long more = strtol(arguments[operation->arguments - 1], NULL, 10); more > 0; more--)
            word(place);
    return operation;
}

void plan_read(struct plan *plan, const struct message *message)
{
    current = plan;
    if (message->type != MESSAGE_START || message->count < 1) {
        errno = EPROTO;
        fail("receive the plan");
    }
    plan->text = map_file(message->descriptors[0], &plan->size);
    if (!plan->text || plan->text[plan->size - 1])
        fail("read the plan");
    close(message->descriptors[0]);
    plan->count = message->count - 1;
    memcpy(plan->descriptors, message->descriptors + 1, plan->count * sizeof(int));
    plan->cgroup = -1;
    plan->network = -1;
}

/* A directory of another sandbox can only be cloned within that sandbox's mount namespace: a child that shares our
 * descriptors goes there, so that our own root and working directory stay what they are. */
static int clone_elsewhere(int directory, int sandbox)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return -1;
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (child == 0) {
        int result = -1;
        if (setns(sandbox, CLONE_NEWNS) == 0)
            result = (int)syscall(SYS_open_tree, directory, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
        int answer = result < 0 ? -errno : result;
        _exit(write(report[1], &answer, sizeof answer) != sizeof answer);
    }
    int answer = -EIO;
    if (child > 0 && read(report[0], &answer, sizeof answer) != sizeof answer)
        answer = -EIO;
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    close(report[0]);
    close(report[1]);
    if (answer >= 0)
        return answer;
    errno = -answer;
    return -1;
}

/* Replace a directory's descriptor by a mount of its own, which the init can attach. */
static void prepare_layer(char **arguments)
{
    int directory = plan_descriptor(arguments[0]);
    int layer = (int)syscall(SYS_open_tree, directory, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (layer < 0 && *arguments[1])
        layer = clone_elsewhere(directory, plan_descriptor(arguments[1]));
    if (layer < 0)
        fail("clone the lower tree");
    current->descriptors[strtoul(arguments[0], NULL, 10)] = layer;
}

/* What must happen before the init is born. */
void plan_prepare(struct plan *plan)
{
    char *arguments[ARGUMENTS_MAX];
    char *place = plan->text;
    const struct operation *operation;
    while ((operation = step(&place, arguments))) {
        if (strcmp(operation->name, "mode") == 0)
            plan->privileged = strcmp(arguments[0], "privileged") == 0;
        else if (strcmp(operation->name, "born-into") == 0)
            plan->cgroup = plan_descriptor(arguments[0]);
        else if (strcmp(operation->name, "network") == 0)
            plan->network = plan_descriptor(arguments[0]);
        else if (strcmp(operation->name, "layer") == 0)
            prepare_layer(arguments);
    }
}

/* Carry out the plan in the init, then report what the owner is to have. Descriptors of the plan are closed. */
void plan_run(struct plan *plan)
{
    char *arguments[ARGUMENTS_MAX];
    char *place = plan->text;
    const struct operation *operation;
    while ((operation = step(&place, arguments)))
        operation->run(arguments);
    for (size_t index = 0; index < plan->count; index++)
        close(plan->descriptors[index]);
}

void plan_report(void)
{
    message_send(MESSAGE_READY, 0, (int32_t)outcome_count, NULL, outcomes, outcome_count);
    for (size_t index = 0; index < outcome_count; index++)
        close(outcomes[index]);
}
