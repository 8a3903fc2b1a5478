/* Reaching all processes of a sandbox, or all that came from one, where there is no cgroup to do it. */
#include "launcher.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct process {
    pid_t pid;
    pid_t parent;
    char state;
    bool below;
};

static bool read_process(int proc, const char *name, struct process *process)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "%.20s/stat", name);
    int file = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0)
        return false;
    text[size] = 0;
    char *end = strrchr(text, ')'); /* the name may hold anything, a parenthesis too */
    process->pid = (pid_t)atoi(name);
    process->below = false;
    return end && sscanf(end + 1, " %c %d", &process->state, &process->parent) == 2;
}

/* All processes but the init; the caller frees. */
static struct process *list(int proc, size_t *count)
{
    struct process *found = NULL;
    size_t room = 0;
    int again = openat(proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fdopendir(again);
    *count = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (!isdigit((unsigned char)entry->d_name[0]) || strcmp(entry->d_name, "1") == 0)
            continue;
        if (*count == room) {
            room = room ? 2 * room : 64;
            struct process *larger = realloc(found, room * sizeof *found);
            if (!larger)
                break;
            found = larger;
        }
        *count += read_process(proc, entry->d_name, &found[*count]);
    }
    if (directory)
        closedir(directory);
    return found;
}

static bool still_runs(int proc)
{
    size_t count;
    bool running = false;
    struct process *found = list(proc, &count);
    for (size_t index = 0; index < count; index++)
        running |= strchr("TtZX", found[index].state) == NULL;
    free(found);
    return running;
}

/* The signal reaches all at once; then each takes it when it next leaves the kernel. */
void processes_stop_all(int proc)
{
    const struct timespec moment = {0, 1000000};
    if (kill(-1, SIGSTOP) < 0)
        return; /* there is none */
    for (int patience = 1000; patience > 0 && still_runs(proc); patience--)
        nanosleep(&moment, NULL);
}

void processes_continue_all(void)
{
    kill(-1, SIGCONT);
}

static bool spread(struct process *found, size_t count, pid_t keeper)
{
    bool more = false;
    for (size_t child = 0; child < count; child++) {
        if (found[child].below)
            continue;
        bool below = found[child].parent == keeper;
        for (size_t above = 0; above < count && !below; above++)
            below = found[above].below && found[above].pid == found[child].parent;
        found[child].below = below;
        more |= below;
    }
    return more;
}

/* Kill all that came from a keeper, which then ends by itself. Everything stands still meanwhile: nothing can fork
 * faster than it is found. */
void processes_kill_below(int proc, pid_t keeper)
{
    size_t count;
    processes_stop_all(proc);
    struct process *found = list(proc, &count);
    while (spread(found, count, keeper))
        ;
    for (size_t index = 0; index < count; index++)
        if (found[index].below)
            kill(found[index].pid, SIGKILL);
    free(found);
    processes_continue_all();
}
