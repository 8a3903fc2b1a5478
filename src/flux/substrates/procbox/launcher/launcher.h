/* The procbox launcher: a program that becomes the init of one sandbox.
 *
 * The owner starts it with a SEQPACKET socket as descriptor 3 and sends a plan. The launcher clones the init as the
 * owner's own child, helps it with its user namespace, and exits. The init carries out the plan, confines itself,
 * reports, and then starts and reaps processes until its socket closes.
 */
#ifndef FLUX_LAUNCHER_H
#define FLUX_LAUNCHER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CONTROL 3
#define DESCRIPTORS_MAX 64
#define TEXT_MAX 512

/* Keep in step with control.py. */
enum message_type {
    MESSAGE_START = 1,   /* owner: the plan, as descriptor 0, and the descriptors it names */
    MESSAGE_SPAWN = 3,   /* owner: start a command; value is flags */
    MESSAGE_SIGNAL = 4,  /* owner: send signal `value` to command `id` */
    MESSAGE_FREEZE = 5,  /* owner: stop every process by signals */
    MESSAGE_THAW = 6,    /* owner: continue every process */
    MESSAGE_KILL = 7,    /* owner: kill command `id` and all that came from it; only for commands with a keeper */
    MESSAGE_STARTED = 16,    /* launcher: `value` is the init's pid, descriptor 0 its pidfd */
    MESSAGE_READY = 18,      /* init: the plan is done; descriptors in the order in which the plan made them */
    MESSAGE_FAILED = 19,     /* launcher or init: errno `value` at step `text` */
    MESSAGE_SPAWNED = 20,    /* init: command `id` runs as pid `value` */
    MESSAGE_REFUSED = 21,    /* init: command `id` did not start: errno `value`, stage in `text` */
    MESSAGE_EXITED = 22,     /* init: command `id` ended with wait status `value` */
    MESSAGE_DONE = 23,       /* init: freeze, thaw or kill of `id` is complete */
};

enum spawn_flag {
    SPAWN_INTO = 1,   /* descriptor 4 is a cgroup directory to be born into */
    SPAWN_JOIN = 2,   /* descriptor 4 is a cgroup file to write oneself into */
    SPAWN_KEEPER = 4, /* no cgroup: a keeper adopts what the command leaves behind */
};

struct message {
    uint32_t type;
    uint32_t id;
    int32_t value;
    char text[TEXT_MAX];
    int descriptors[DESCRIPTORS_MAX];
    size_t count;
};

/* wire.c */
void message_send(uint32_t type, uint32_t id, int32_t value, const char *text, const int *descriptors, size_t count);
bool message_receive(struct message *message);
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
char *map_file(int descriptor, size_t *size);

/* plan.c */
struct plan {
    char *text;
    size_t size;
    bool privileged;
    int cgroup; /* a version 2 directory to be born into, or -1 */
    int network; /* a network namespace to be born into, or -1 for one of its own */
    int descriptors[DESCRIPTORS_MAX];
    size_t count;
};
void plan_read(struct plan *plan, const struct message *message);
void plan_prepare(struct plan *plan);
void plan_run(struct plan *plan);
void plan_report(void);
int plan_descriptor(const char *index);

/* mounts.c */
void mounts_begin(void);
void mounts_pivot(void);
int mounts_proc(void);
void mount_tmpfs(char **arguments);
void mount_proc(char **arguments);
void mount_devpts(char **arguments);
void mount_overlay(char **arguments);
void mount_under(char **arguments);
void bind_writable(char **arguments);
void bind_read_only(char **arguments);
void bind_read_only_if_there(char **arguments);
void bind_device(char **arguments);
void make_directory(char **arguments);
void make_new_directory(char **arguments);
void make_file(char **arguments);
void make_symlink(char **arguments);
void cover(char **arguments);
void hide(char **arguments);
void seal(char **arguments);
int open_tree_root(const char *target);

/* targets.c */
extern int new_root;
int target_open(const char *target, int flags);
int target_directory(const char *target);
int target_parent(const char *target, const char **name);
int target_file(const char *target);

/* network.c */
void network_loopback(char **arguments);
int network_sink(char **arguments);

/* confine.c */
void confine(bool privileged, int proc, int helper);
void write_maps_for(pid_t pid);
void write_own_maps(int proc);
void remember_ids(void);

/* seccomp.c */
int seccomp_install(void);

/* init.c */
void init_run(int proc) __attribute__((noreturn));

/* spawn.c */
enum spawn_stage { STAGE_SETUP = 1, STAGE_USER, STAGE_CWD, STAGE_EXEC, STAGE_TERMINAL, STAGE_CGROUP };
enum record_kind { RECORD_REFUSED = 1, RECORD_STARTED, RECORD_ENDED };
struct record {
    int32_t kind;
    int32_t value;
    int32_t stage;
};
pid_t fork_into(int cgroup);
void spawn_child(const struct message *message, int report, bool stopped) __attribute__((noreturn));

/* processes.c */
void processes_kill_below(int proc, pid_t keeper);
void processes_stop_all(int proc);
void processes_continue_all(void);

#endif
