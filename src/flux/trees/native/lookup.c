/* Single entries by path, and what else the scanner's callers need from the kernel. */
#define _GNU_SOURCE
#include "native.h"
#include "scan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "collect.h"

#define STACK_BYTES (256 * 1024)
#define PIECE_BYTES 2048

struct apart {
	int (*work)(void *);
	void *argument;
	int result;
};

static void *apart(void *argument)
{
	struct apart *apart = argument;
	apart->result = unshare(CLONE_FS) < 0 ? errno : apart->work(apart->argument);
	return NULL;
}

int run_apart(int (*work)(void *), void **arguments, size_t count)
{
	struct apart calls[WALKERS];
	pthread_t threads[WALKERS];
	pthread_attr_t attributes;
	sigset_t all, before;
	size_t started = 0;
	int error = 0;
	if (pthread_attr_init(&attributes) != 0)
		return ENOMEM;
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	sigfillset(&all); /* signals are for the threads that know how to handle them */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (; error == 0 && started < count; started += error == 0) {
		calls[started] = (struct apart){.work = work, .argument = arguments[started]};
		error = pthread_create(&threads[started], &attributes, apart, &calls[started]);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	if (started > 0)
		error = 0; /* the others' work is done by those that started */
	for (size_t index = 0; index < started; index++) {
		pthread_join(threads[index], NULL);
		if (calls[index].result != 0)
			error = calls[index].result;
	}
	return error;
}

struct lookup {
	int root;
	const struct buffer *paths;
	struct buffer tokens; /* path, token; an empty token where nothing is */
	struct buffer token, parent;
	struct attributes attributes;
	int directory; /* open, at the path `parent`; -1 if it cannot be reached */
	uint64_t mount;
};

static int open_piece(int directory, const char *path, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)flags,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
	};
	long descriptor;
	int tries = 0;
	do { /* EAGAIN: a rename raced with the walk and the kernel could not prove it safe */
		descriptor = syscall(SYS_openat2, directory, path, &how, sizeof(how));
	} while (descriptor < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < 64)));
	return (int)descriptor;
}

int open_directory(int root, char *path, int flags)
{
	int current = root;
	size_t left = strlen(path);
	while (left > PIECE_BYTES) {
		char *end = path + PIECE_BYTES;
		while (*end != '/')
			end--;
		*end = '\0';
		int next = open_piece(current, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		int error = errno;
		if (current != root)
			close(current);
		errno = error;
		if (next < 0)
			return -1;
		left -= (size_t)(end + 1 - path);
		path = end + 1;
		current = next;
	}
	int result = open_piece(current, left == 0 ? "." : path, flags);
	int error = errno;
	if (current != root)
		close(current);
	errno = error;
	return result;
}

/* Make the directory that holds `path` the working directory. Returns 0 or an errno. */
static int enter_parent(struct lookup *lookup, const char *path, size_t length)
{
	if (lookup->directory >= 0 && lookup->parent.length == length && memcmp(lookup->parent.data, path, length) == 0)
		return 0;
	if (lookup->directory >= 0)
		close(lookup->directory);
	lookup->parent.length = 0;
	append(&lookup->parent, path, length);
	append(&lookup->parent, "", 1);
	if (lookup->parent.failed) {
		lookup->directory = -1;
		return ENOMEM;
	}
	lookup->directory = open_directory(lookup->root, lookup->parent.data + (length > 0),
					   O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	memcpy(lookup->parent.data, path, length); /* opening cut it into pieces */
	lookup->parent.length = length;
	if (lookup->directory < 0)
		return errno;
	return fchdir(lookup->directory) < 0 ? errno : 0;
}

/* Write the token of one entry into `token`, empty if it is not there or on another mount. Returns 0 or an errno. */
static int look_at(struct lookup *lookup, const char *path)
{
	struct statx status;
	const char *slash = strrchr(path, '/');
	const char *name = slash == NULL || slash[1] == '\0' ? "." : slash + 1;
	lookup->token.length = 0;
	int error = enter_parent(lookup, path, slash == NULL ? 0 : (size_t)(slash - path));
	if (error == ENOMEM)
		return error;
	if (error != 0 || statx(lookup->directory, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
				STATX_BASIC_STATS | STATX_MNT_ID, &status) < 0)
		return 0;
	if ((status.stx_mask & STATX_MNT_ID) && status.stx_mnt_id != lookup->mount)
		return 0;
	if (read_attributes(&lookup->attributes, name) == ENOMEM)
		return ENOMEM;
	error = write_token(&lookup->token, &status, lookup->directory, name, &lookup->attributes);
	if (error != 0)
		lookup->token.length = 0;
	return error == ENOMEM ? error : 0;
}

static int look_up(void *argument)
{
	struct lookup *lookup = argument;
	struct statx status;
	struct pair pair;
	struct buffer path = {0};
	size_t position = 0;
	int error = 0;
	if (statx(lookup->root, "", AT_EMPTY_PATH, STATX_MNT_ID, &status) < 0)
		return errno;
	lookup->mount = status.stx_mnt_id;
	while (error == 0 && next_pair(lookup->paths, &position, &pair)) {
		path.length = 0;
		append(&path, pair.first, pair.first_length);
		append(&path, "", 1);
		error = path.failed ? ENOMEM : look_at(lookup, path.data);
		if (error == 0) {
			path.length--;
			append_pair(&lookup->tokens, &path, lookup->token.data, lookup->token.length);
			error = lookup->tokens.failed ? ENOMEM : 0;
		}
	}
	if (lookup->directory >= 0)
		close(lookup->directory);
	release(&path);
	release(&lookup->token);
	release(&lookup->parent);
	release_attributes(&lookup->attributes);
	return error;
}

PyObject *native_lookup(PyObject *self, PyObject *args)
{
	(void)self;
	PyObject *list;
	struct buffer paths = {0};
	struct lookup lookup = {.paths = &paths, .directory = -1};
	void *argument = &lookup;
	if (!PyArg_ParseTuple(args, "iO!", &lookup.root, &PyList_Type, &list))
		return NULL;
	PyObject *result = NULL;
	if (strings_from_list(&paths, list)) {
		int error;
		Py_BEGIN_ALLOW_THREADS
		error = run_apart(look_up, &argument, 1);
		Py_END_ALLOW_THREADS
		result = error == 0 ? tokens_list(&lookup.tokens) : fail_with(error);
	}
	release(&lookup.tokens);
	release(&paths);
	return result;
}

PyObject *native_next_tick(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct timespec first, now, pause = {.tv_nsec = 500000};
	Py_BEGIN_ALLOW_THREADS
	clock_gettime(CLOCK_REALTIME_COARSE, &first);
	do {
		nanosleep(&pause, NULL);
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
	} while (now.tv_sec == first.tv_sec && now.tv_nsec == first.tv_nsec);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

PyObject *native_filesystem(PyObject *self, PyObject *args)
{
	(void)self;
	int descriptor, result;
	struct statfs status;
	if (!PyArg_ParseTuple(args, "i", &descriptor))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	result = fstatfs(descriptor, &status);
	Py_END_ALLOW_THREADS
	if (result < 0)
		return fail_with(errno);
	return PyLong_FromUnsignedLong((unsigned long)status.f_type & 0xFFFFFFFFUL);
}

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

PyObject *native_set_mode(PyObject *self, PyObject *args)
{
	(void)self;
	int directory;
	unsigned int mode;
	long result;
	PyObject *name = NULL;
	if (!PyArg_ParseTuple(args, "iO&I", &directory, PyUnicode_FSConverter, &name, &mode))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	result = syscall(SYS_fchmodat2, directory, PyBytes_AS_STRING(name), mode, AT_SYMLINK_NOFOLLOW);
	if (result < 0 && errno == ENOSYS) /* before Linux 6.6; the C library goes a long way round */
		result = fchmodat(directory, PyBytes_AS_STRING(name), mode, AT_SYMLINK_NOFOLLOW);
	Py_END_ALLOW_THREADS
	if (result < 0)
		PyErr_SetFromErrnoWithFilename(PyExc_OSError, PyBytes_AS_STRING(name));
	Py_DECREF(name);
	if (result < 0)
		return NULL;
	Py_RETURN_NONE;
}

/* Answers whether files can be found again by handle, which an overlay above needs to keep linked names together. */
PyObject *native_has_handles(PyObject *self, PyObject *args)
{
	(void)self;
	int descriptor, mount;
	union {
		struct file_handle handle;
		char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} found = {.handle = {.handle_bytes = MAX_HANDLE_SZ}};
	if (!PyArg_ParseTuple(args, "i", &descriptor))
		return NULL;
	return PyBool_FromLong(name_to_handle_at(descriptor, "", &found.handle, &mount, AT_EMPTY_PATH) == 0);
}
