/* The native half of flux.trees: system calls that Python lacks. The scanner is in scan.c. */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "native.h"

static PyObject *fail(const char *name)
{
	if (name != NULL)
		return PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
	return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *native_openat2(PyObject *self, PyObject *args)
{
	(void)self;
	int directory;
	PyObject *path = NULL;
	unsigned long long flags, mode, resolve;
	if (!PyArg_ParseTuple(args, "iO&KKK", &directory, PyUnicode_FSConverter, &path, &flags, &mode, &resolve))
		return NULL;
	struct open_how how = {.flags = flags | O_CLOEXEC, .mode = mode, .resolve = resolve};
	long fd;
	/* EAGAIN: a rename raced with the walk and the kernel could not prove it safe; it is right to ask again. */
	int tries = 0;
	do {
		Py_BEGIN_ALLOW_THREADS
		fd = syscall(SYS_openat2, directory, PyBytes_AS_STRING(path), &how, sizeof(how));
		Py_END_ALLOW_THREADS
	} while (fd < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < 64)));
	if (fd < 0)
		fail(PyBytes_AS_STRING(path));
	Py_DECREF(path);
	return fd < 0 ? NULL : PyLong_FromLong(fd);
}

static PyObject *native_renameat2(PyObject *self, PyObject *args)
{
	(void)self;
	int source_directory, directory;
	unsigned int flags;
	PyObject *source = NULL, *name = NULL;
	if (!PyArg_ParseTuple(args, "iO&iO&I", &source_directory, PyUnicode_FSConverter, &source, &directory,
			      PyUnicode_FSConverter, &name, &flags)) {
		Py_XDECREF(source);
		return NULL;
	}
	long result;
	Py_BEGIN_ALLOW_THREADS
	result = syscall(SYS_renameat2, source_directory, PyBytes_AS_STRING(source), directory,
			 PyBytes_AS_STRING(name), flags);
	Py_END_ALLOW_THREADS
	if (result < 0)
		fail(PyBytes_AS_STRING(name));
	Py_DECREF(source);
	Py_DECREF(name);
	if (result < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *native_syncfs(PyObject *self, PyObject *args)
{
	(void)self;
	int fd, result;
	if (!PyArg_ParseTuple(args, "i", &fd))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	result = syncfs(fd);
	Py_END_ALLOW_THREADS
	if (result < 0)
		return fail(NULL);
	Py_RETURN_NONE;
}

static PyObject *native_mount_id(PyObject *self, PyObject *args)
{
	(void)self;
	int fd;
	struct statx st;
	if (!PyArg_ParseTuple(args, "i", &fd))
		return NULL;
	if (statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_MNT_ID, &st) < 0)
		return fail(NULL);
	return PyLong_FromUnsignedLongLong(st.stx_mnt_id);
}

static PyMethodDef methods[] = {
	{"openat2", native_openat2, METH_VARARGS, "Open a path below a directory under the given RESOLVE_ flags."},
	{"renameat2", native_renameat2, METH_VARARGS, "Rename with RENAME_NOREPLACE or RENAME_EXCHANGE."},
	{"syncfs", native_syncfs, METH_VARARGS, "Make a whole file system durable."},
	{"mount_id", native_mount_id, METH_VARARGS, "Return the id of the mount that a descriptor lies on."},
	{"scan", native_scan, METH_VARARGS, "Scan a tree into a manifest."},
	{"lookup", native_lookup, METH_VARARGS, "Return the tokens of single entries."},
	{"filesystem", native_filesystem, METH_VARARGS, "Return the magic number of a file system."},
	{"set_mode", native_set_mode, METH_VARARGS, "Change permission bits without following a link."},
	{"has_handles", native_has_handles, METH_VARARGS, "Tell whether a file system gives handles to its files."},
	{"next_tick", native_next_tick, METH_NOARGS, "Wait until the clock of file times has moved on."},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *result = PyModule_Create(&module);
	if (result == NULL)
		return NULL;
	PyModule_AddIntConstant(result, "RENAME_NOREPLACE", RENAME_NOREPLACE);
	PyModule_AddIntConstant(result, "RENAME_EXCHANGE", RENAME_EXCHANGE);
	PyModule_AddIntConstant(result, "RESOLVE_BENEATH", RESOLVE_BENEATH);
	PyModule_AddIntConstant(result, "RESOLVE_NO_SYMLINKS", RESOLVE_NO_SYMLINKS);
	PyModule_AddIntConstant(result, "RESOLVE_NO_XDEV", RESOLVE_NO_XDEV);
	return result;
}
